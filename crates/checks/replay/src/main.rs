//! Tells what each program takes after each history, as a table: `tieline-replay [NAME...]`.

use anyhow::Result;
use std::sync::Arc;
use tieline_replay::history::{HISTORIES, runs};
use tieline_replay::machine::Run;
use tieline_replay::trace::{Trace, all};

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let all = all()?;
    println!("Seconds, calls that waited, bytes of files that came for each that was read.\n");
    println!("| program | {} |", HISTORIES.map(|one| format!("{one:?}")).join(" | "));
    println!("|---|{}", "---|".repeat(HISTORIES.len()));
    for trace in all.iter().filter(|one| names.is_empty() || names.contains(&one.name)) {
        let is_beside = |other: &&Trace| Arc::ptr_eq(&other.tree, &trace.tree);
        let others: Vec<Trace> = all.iter().filter(is_beside).cloned().collect();
        let runs = runs(trace, &others, &HISTORIES)?;
        let told: Vec<String> = runs.values().map(tell).collect();
        println!("| {} | {} |", trace.name, told.join(" | "));
    }
    Ok(())
}

fn tell(run: &Run) -> String {
    let times = run.crossed.contents as f64 / run.wanted.max(1) as f64;
    format!("{:.2} s, {}, {times:.1}", run.took.as_secs_f64(), run.waits.all())
}
