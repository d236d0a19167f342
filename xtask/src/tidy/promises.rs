//! Promises: each numbered sentence of docs/semantics.md stands word for word above a test, with
//! its number.

use super::Findings;
use anyhow::Result;
use std::path::Path;

const DOCUMENT: &str = "docs/semantics.md";

pub fn look(root: &Path, findings: &mut Findings) -> Result<()> {
    let Ok(document) = std::fs::read_to_string(root.join(DOCUMENT)) else {
        findings.failures.push(format!("{DOCUMENT} is missing"));
        return Ok(());
    };
    let mut files = Vec::new();
    super::collect(&root.join("crates"), &mut files)?;
    let mut comments = String::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "rs")) {
        comments += &comments_of(&std::fs::read_to_string(file)?);
    }
    for (number, promise) in promises(&document) {
        if !comments.contains(&cited(number, &promise)) {
            findings
                .failures
                .push(format!("{DOCUMENT}: no test says \"{}\"", cited(number, &promise)));
        }
    }
    Ok(())
}

fn cited(number: u32, promise: &str) -> String {
    format!("Promise {number}: {promise}")
}

/// The doc comments of a file as running text.
fn comments_of(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("///"));
    words(&lines.collect::<Vec<_>>().join(" ")) + "\n"
}

/// The numbered sentences with their numbers.
fn promises(document: &str) -> Vec<(u32, String)> {
    document
        .split("\n")
        .filter_map(|line| line.split_once(". "))
        .filter_map(|(number, text)| Some((number.parse().ok()?, words(text))))
        .collect()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_found_across_lines() {
        let document = "# Title\n\n1. What was closed is seen.\n\nNot 2. this\n";
        let promised = promises(document);
        assert_eq!(promised, [(1, "What was closed is seen.".to_owned())]);
        let test = "    /// Promise 1: What was closed\n    /// is seen.\n    fn test() {}\n";
        assert!(comments_of(test).contains(&cited(1, &promised[0].1)));
        assert!(!comments_of(test).contains(&cited(2, &promised[0].1)), "another number");
        assert!(!comments_of("// What was closed is seen.\n").contains(&promised[0].1));
    }
}
