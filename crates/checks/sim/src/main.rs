//! Plays seeds: `tieline-sim --seed N` one of them, twice, and compares; without a seed, `--seeds COUNT` from 1.

use anyhow::{Context, bail, ensure};
use std::collections::BTreeSet;
use tieline_sim::scenario::{Plan, play};

fn main() -> anyhow::Result<()> {
    tieline_telemetry::log::start(false);
    let mut arguments = std::env::args().skip(1);
    let (mut first, mut count) = (1, 20);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} wants a number"))?;
        match argument.as_str() {
            "--seed" => (first, count) = (value.parse()?, 1),
            "--seeds" => count = value.parse()?,
            other => bail!("`{other}` is not known: --seed N or --seeds COUNT"),
        }
    }
    for seed in first..first + count {
        check(seed).with_context(|| format!("play it again: cargo xtask sim --seed {seed}"))?;
    }
    Ok(())
}

fn check(seed: u64) -> anyhow::Result<()> {
    let run = || play(seed, Plan::default()).map_err(|e| anyhow::anyhow!("seed {seed}: {e}"));
    let (outcome, again) = (run()?, run()?);
    ensure!(outcome == again, "seed {seed} did not replay: something outside the seed decides");
    let violations = outcome.history.check();
    for violation in &violations {
        eprintln!("seed {seed}: {violation}");
    }
    ensure!(violations.is_empty(), "seed {seed}: {} violations", violations.len());
    let names: BTreeSet<&String> = outcome.created.iter().map(|(name, _)| name).collect();
    ensure!(names.len() == outcome.created.len(), "seed {seed}: a name was created twice");
    println!(
        "seed {seed}: {} events in {:.1} simulated seconds, no violation, replayed alike",
        outcome.history.events.len(),
        outcome.elapsed.as_secs_f64()
    );
    Ok(())
}
