//! How large rooms are, and how many of their files hang together.
//!
//! Counted are lines of programs: no tests, neither those in files of their own nor what stands
//! behind the first `#[cfg(test)] mod … {`, nor what tests are made of (`fixture.rs`), and no
//! comments. A *circle* is a set of files of one
//! crate that all lead to each other by what they `use` (or name by `crate::`): none of them can be
//! understood, tried or taken out alone. `lib.rs` and `main.rs` are no part of one: what is used of
//! them is what they hand on.

use super::{Findings, collect};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

struct Limit {
    lines: usize,
    circle: usize,
}

/// For rooms of a floor.
const CORE: Limit = Limit { lines: 14_000, circle: 20 };
const OTHERS: Limit = Limit { lines: 16_000, circle: 8 };

pub fn look(root: &Path, findings: &mut Findings) -> Result<()> {
    for floor in fs::read_dir(root.join("crates"))? {
        for room in fs::read_dir(floor?.path())? {
            let room = room?.path();
            let place = room.strip_prefix(root.join("crates"))?.to_string_lossy().into_owned();
            judge(&place, &Files::of(&room.join("src"))?, findings);
        }
    }
    Ok(())
}

fn judge(place: &str, files: &Files, findings: &mut Findings) {
    let limit = if place.starts_with("core/") { &CORE } else { &OTHERS };
    let lines: usize = files.texts.values().map(|text| text.lines().count()).sum();
    if lines > limit.lines {
        let text = format!("crates/{place}: {lines} lines, where {} are allowed", limit.lines);
        findings.failures.push(format!("{text}: which room is to leave it?"));
    }
    let circle = files.largest_circle();
    if circle.len() > limit.circle {
        let (count, most) = (circle.len(), limit.circle);
        let text = format!("crates/{place}: {count} files lead to each other, {most} may");
        findings.failures.push(format!("{text}: {}", circle.join(" ")));
    }
}

/// The files of a crate by their module's path (`a/b` for `a/b.rs`), without tests and comments.
struct Files {
    texts: BTreeMap<String, String>,
}

impl Files {
    fn of(source: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        collect(source, &mut paths)?;
        let mut texts = BTreeMap::new();
        for path in paths {
            let module = path.strip_prefix(source)?.with_extension("");
            let module = module.to_str().context("a name in UTF-8")?.to_owned();
            let is_rust = path.extension().is_some_and(|end| end == "rs");
            let is_test = module.split('/').any(|part| part == "tests" || part == "fixture");
            if is_rust && !is_test {
                texts.insert(module, without_tests(&fs::read_to_string(&path)?));
            }
        }
        Ok(Self { texts })
    }

    /// The modules that a file uses.
    fn used_by(&self, module: &str) -> BTreeSet<&str> {
        let own: Vec<&str> = module.split('/').collect();
        let text = self.texts.get(module).map_or("", String::as_str);
        let paths = uses(text).into_iter().chain(named(text));
        let found = paths.filter_map(|path| self.file_of(&own, &path));
        found.filter(|file| !matches!(*file, "lib" | "main") && *file != module).collect()
    }

    /// The file that a path of a module leads to.
    fn file_of(&self, own: &[&str], path: &str) -> Option<&str> {
        let mut parts: Vec<&str> = path.split("::").map(str::trim).collect();
        let mut from: Vec<&str> = match parts.first() {
            Some(&"crate") => Vec::new(),
            Some(&"self" | &"super") => own.to_vec(),
            _ => return None,
        };
        while let Some(&("crate" | "self" | "super")) = parts.first() {
            if parts.remove(0) == "super" {
                from.pop();
            }
        }
        from.extend(parts);
        let prefixes = (1..=from.len()).rev().map(|length| from[..length].join("/"));
        let known = prefixes.filter_map(|prefix| self.texts.get_key_value(&prefix));
        known.map(|(file, _)| file.as_str()).next()
    }

    /// The most files of which each leads to each other.
    fn largest_circle(&self) -> Vec<&str> {
        let modules = self.texts.keys().map(String::as_str).filter(|one| *one != "lib");
        let used: BTreeMap<&str, BTreeSet<&str>> =
            modules.map(|module| (module, self.used_by(module))).collect();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            used.keys().map(|&module| (module, reached_from(module, &used))).collect();
        let circles = reached.iter().map(|(&module, far)| {
            let is_back = |other: &&&str| reached[**other].contains(module);
            far.iter().filter(is_back).copied().collect::<Vec<_>>()
        });
        circles.max_by_key(Vec::len).unwrap_or_default()
    }
}

fn reached_from<'m>(
    module: &'m str,
    used: &BTreeMap<&'m str, BTreeSet<&'m str>>,
) -> BTreeSet<&'m str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        for &other in used.get(module).into_iter().flatten() {
            if reached.insert(other) {
                next.push(other);
            }
        }
    }
    reached
}

/// What a program is made of: no comments, and nothing behind the first module of tests that is
/// written out.
fn without_tests(text: &str) -> String {
    let starts = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
    let is_written_out = |at: &usize| {
        let line = text[*at..].lines().nth(1).unwrap_or_default();
        line.trim_end().ends_with('{')
    };
    let end = starts.into_iter().find(is_written_out).unwrap_or(text.len());
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    text[..end].lines().filter(is_code).fold(String::new(), |all, line| all + line + "\n")
}

/// The paths of all `use` items that stay in the crate, each written out.
fn uses(text: &str) -> Vec<String> {
    let starts = text.match_indices("use ").map(|(at, word)| &text[at + word.len()..]);
    let items = starts.filter_map(|rest| rest.split_once(';')).map(|(item, _)| item);
    let own = items.filter(|item| {
        ["crate::", "self::", "super::"].iter().any(|start| item.starts_with(start))
    });
    own.flat_map(|item| spread(&item.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn spread(item: &str) -> Vec<String> {
    let Some((head, rest)) = item.split_once('{') else { return vec![item.trim().to_owned()] };
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in body.chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match parts.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => parts.push(String::new()),
        }
    }
    let below = parts.iter().flat_map(|part| spread(part.trim()));
    below.map(|below| format!("{}{below}", head.trim_start())).collect()
}

/// Paths that are named where they are used.
fn named(text: &str) -> impl Iterator<Item = String> {
    let starts = text.match_indices("crate::").map(|(at, _)| &text[at..]);
    let is_path = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | ':');
    starts.map(move |rest| rest.chars().take_while(|&letter| is_path(letter)).collect())
}
