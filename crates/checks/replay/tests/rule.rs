//! Nothing that was learned makes anything slower than knowing nothing, and little comes for
//! nothing.
//!
//! Programs of the corpus on which nothing was tuned are told apart ([`KEPT_OUT`]). The quick ones
//! run with every test; all of them with `cargo test -p tieline-replay -- --ignored`, or in the
//! table that `cargo run -p tieline-replay` prints.

use std::sync::Arc;
use tieline_replay::history::{HISTORIES, History, runs};
use tieline_replay::trace::{Trace, all};

/// A third of the corpus.
const KEPT_OUT: &[&str] = &[
    "latex",
    "macros",
    "git_checkout",
    "git_log",
    "make_build",
    "import_tools",
    "toolbox",
    "zipf",
];

/// What may be slower than if nothing had been learned, and by how much.
const SLOWER_MAX: f64 = 1.1;
/// Bytes that come for nothing: for each that is read, before anything is read, and for each wait.
/// More than half of what is free is for small files that come with their directories, and for
/// what is read ahead of a reader.
const WASTE_MAX: u64 = 5;
const WASTE_FREE: u64 = 40 << 20;
const WAIT: u64 = 64 << 10;

/// Says what is wrong with a program's runs.
fn faults(trace: &Trace, all: &[Trace], histories: &[History]) -> Vec<String> {
    let others: Vec<Trace> =
        all.iter().filter(|other| Arc::ptr_eq(&other.tree, &trace.tree)).cloned().collect();
    let runs = runs(trace, &others, histories).unwrap();
    let never = runs[&History::Never];
    let kind = if KEPT_OUT.contains(&trace.name.as_str()) { "kept out" } else { "tuned on" };
    let mut faults = vec![];
    for (history, run) in &runs {
        let slower = run.took.as_secs_f64() / never.took.as_secs_f64();
        let told = format!("{} ({kind}), {history:?}: {run:?}", trace.name);
        if slower > SLOWER_MAX {
            faults.push(format!("{slower:.2} times as slow as after nothing: {told}"));
        }
        let wasted = run.crossed.contents.saturating_sub(run.wanted);
        if wasted > WASTE_MAX * run.wanted + WASTE_FREE + WAIT * run.waits.all() {
            faults.push(format!("{wasted} bytes for nothing: {told}"));
        }
    }
    faults
}

fn check(names: Option<&[&str]>, histories: &[History]) {
    let all = all().unwrap();
    let is_wanted = |one: &&Trace| names.is_none_or(|names| names.contains(&one.name.as_str()));
    let wanted: Vec<&Trace> = all.iter().filter(is_wanted).collect();
    assert!(names.is_none_or(|names| names.len() == wanted.len()), "a program is not there");
    let faults: Vec<String> =
        wanted.into_iter().flat_map(|trace| faults(trace, &all, histories)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Promise 185: What another client did before makes the same program no slower over distance.
#[test]
fn what_others_did_makes_nothing_slower() {
    check(
        Some(&["import_other", "pip_install", "bursts"]),
        &[History::Never, History::Once, History::Again],
    );
}

#[test]
fn nor_where_nothing_was_tuned() {
    check(Some(&["latex", "macros", "import_tools"]), &[History::Never, History::Once]);
}

/// What ten others opened is not what this program opens; what it opened itself before them is.
#[test]
fn nor_does_what_other_programs_did() {
    check(
        Some(&["import_tools", "pip_install"]),
        &[History::Never, History::Ten, History::OnceAndTen],
    );
}

#[test]
#[ignore = "takes minutes: all programs, all histories"]
fn nothing_at_all_is_slower_for_what_was_learned() {
    check(None, &HISTORIES);
}
