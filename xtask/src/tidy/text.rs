//! What each source file looks like: a story at its head, lines and files of a readable length,
//! words that say something, and methods of what is large only where they belong.

use super::Findings;
use anyhow::Result;
use std::path::Path;

const LINE_MAX: usize = 100;
const FILE_WARN: usize = 400;
const FILE_MAX: usize = 800;
/// Inline tests beyond this belong into `foo/tests.rs`.
const TESTS_WARN: usize = 150;
/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "misc", "helpers", "manager", "mod"];
/// Assembled here, so that this file may pass its own law.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Types that see all of their room: only these modules have methods of them. What needs less is
/// a table or a function of its own, which can be read and tried without them.
const WHOLES: &[(&str, &str, &str)] = &[("crates/core/meta/src/", "Mdt", "mdt")];

pub fn look(root: &Path, findings: &mut Findings) -> Result<()> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        if root.join(folder).is_dir() {
            super::collect(&root.join(folder), &mut files)?;
        }
    }
    files.sort();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "rs") {
            judge(&name, &std::fs::read_to_string(&path)?, findings);
        }
    }
    Ok(())
}

fn judge(name: &str, text: &str, findings: &mut Findings) {
    if !text.starts_with("//!") {
        findings.failures.push(format!("{name}: no `//!` header that says what the file is for"));
    }
    for part in name.trim_end_matches(".rs").split('/') {
        if EMPTY_NAMES.contains(&part) {
            findings.failures.push(format!("{name}: `{part}` says nothing: name what is inside"));
        }
    }
    judge_wholes(name, text, findings);
    judge_lines(name, text, findings);
    judge_length(name, text, findings);
    for line in selects_without_bias(text) {
        findings.failures.push(format!("{name}:{line}: `select!` without `biased` breaks replay"));
    }
}

fn judge_wholes(name: &str, text: &str, findings: &mut Findings) {
    for (room, whole, module) in WHOLES {
        let Some(file) = name.strip_prefix(room) else { continue };
        let is_there = file.strip_prefix(module).is_some_and(|rest| rest.starts_with(['.', '/']));
        let (own, of_trait) = (format!("impl {whole} "), format!(" for {whole} "));
        let is_method = |line: &str| {
            line.starts_with(&own) || line.starts_with("impl") && line.contains(&of_trait)
        };
        for (_, number) in text.lines().zip(1..).filter(|(line, _)| !is_there && is_method(line)) {
            let text = format!("{name}:{number}: methods of {whole} stand in {module}/");
            findings.failures.push(format!("{text}: what needs less of it is no method"));
        }
    }
}

fn judge_lines(name: &str, text: &str, findings: &mut Findings) {
    for (line, number) in text.lines().zip(1..) {
        // A long string or address cannot be folded; rustfmt leaves it, and so do we.
        if line.chars().count() > LINE_MAX && !line.contains("http") {
            findings.failures.push(format!("{name}:{number}: line longer than {LINE_MAX}"));
        }
        if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            findings.failures.push(format!("{name}:{number}: {word}"));
        }
    }
}

fn judge_length(name: &str, text: &str, findings: &mut Findings) {
    let all = text.lines().count();
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    let production = text
        .lines()
        .position(|line| line == "#[cfg(test)]")
        // `#[cfg(test)] mod tests;` at the top of a file does not end the production part.
        .filter(|&at| text.lines().nth(at + 1).is_some_and(|line| line.ends_with('{')))
        .unwrap_or(all);
    if production > FILE_MAX {
        findings.failures.push(format!("{name}: {production} lines: a noun is missing"));
    } else if production > FILE_WARN && !is_test {
        findings.warnings.push(format!("{name}: {production} lines: is a noun missing?"));
    }
    if all - production > TESTS_WARN {
        let tests = all - production;
        findings.warnings.push(format!("{name}: {tests} lines of tests: give them a file"));
    }
}

/// Numbers of the lines whose `select!` does not begin with `biased`.
fn selects_without_bias(text: &str) -> Vec<usize> {
    let opening = concat!("select", "! {");
    text.match_indices(opening)
        .filter(|(at, _)| !text[at + opening.len()..].trim_start().starts_with("biased"))
        .map(|(at, _)| text[..at].lines().count())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_the_whole_stand_in_its_module() {
        let failures = |name: &str, text: &str| {
            let mut findings = Findings::default();
            judge_wholes(name, text, &mut findings);
            findings.failures.len()
        };
        let text = "impl Mdt {\n}\nimpl Display for Mdt {\n}\nimpl MdtTable {\n}\n";
        assert_eq!(failures("crates/core/meta/src/leases.rs", text), 2);
        assert_eq!(failures("crates/core/meta/src/mdts.rs", text), 2);
        for there in ["mdt.rs", "mdt/quotas/home.rs"] {
            assert_eq!(failures(&format!("crates/core/meta/src/{there}"), text), 0);
        }
        assert_eq!(failures("crates/core/tend/src/lib.rs", text), 0);
    }

    fn failures(name: &str, text: &str) -> usize {
        let mut findings = Findings::default();
        judge(name, text, &mut findings);
        findings.failures.len()
    }

    #[test]
    fn each_law_can_fail() {
        assert_eq!(failures("a/b.rs", "//! Fine.\n"), 0);
        assert_eq!(failures("a/b.rs", "fn a() {}\n"), 1);
        assert_eq!(failures("a/utils.rs", "//! Fine.\n"), 1);
        assert_eq!(failures("a/b.rs", &format!("//! Fine.\n{}\n", "x".repeat(101))), 1);
        assert_eq!(failures("a/b.rs", concat!("//! Fine.\n// TO", "DO\n")), 1);
        assert_eq!(failures("a/b.rs", &format!("//! Fine.\n{}", "\n".repeat(FILE_MAX))), 1);
    }

    #[test]
    fn a_select_without_bias_is_found() {
        let fine = concat!("//! Fine.\nselect", "! {\n  biased;\n");
        assert_eq!(failures("a/b.rs", fine), 0);
        assert_eq!(failures("a/b.rs", &fine.replace("biased", "x = y")), 1);
    }

    #[test]
    fn tests_do_not_count_as_production() {
        let tests = format!("//! Fine.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(900));
        let mut findings = Findings::default();
        judge("a/b.rs", &tests, &mut findings);
        assert_eq!((findings.failures.len(), findings.warnings.len()), (0, 1));
    }
}
