//! Plays seeds: `tieline-sim --seed N` one of them, twice, and compares; without a seed, `--seeds
//! COUNT` from 1.
//!
//! Each world has a process of its own (`--play N`): tokio ends the tasks of a crashed host in an
//! order that rests on their ids, and those count on through a process.

use anyhow::{Context, bail, ensure};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use tieline_sim::scenario::{Outcome, Plan, play};

fn main() -> anyhow::Result<()> {
    tieline_telemetry::log::start(false);
    let mut arguments = std::env::args().skip(1);
    let (mut first, mut count) = (1, 20);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} wants a number"))?;
        match argument.as_str() {
            "--seed" => (first, count) = (value.parse()?, 1),
            "--seeds" => count = value.parse()?,
            "--play" => return play_once(value.parse()?),
            other => bail!("`{other}` is not known: --seed N or --seeds COUNT"),
        }
    }
    for seed in first..first + count {
        check(seed).with_context(|| format!("play it again: cargo xtask sim --seed {seed}"))?;
    }
    Ok(())
}

/// Plays a seed in two processes, and compares what they left behind.
fn check(seed: u64) -> anyhow::Result<()> {
    let run = || -> anyhow::Result<String> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--play", &seed.to_string()]).stderr(Stdio::inherit());
        let output = command.output()?;
        ensure!(output.status.success(), "seed {seed} failed");
        Ok(String::from_utf8(output.stdout)?)
    };
    let (left, again) = (run()?, run()?);
    let differs = left.lines().zip(again.lines()).find(|(one, other)| one != other);
    ensure!(
        left == again,
        "seed {seed} did not replay: something outside the seed decides; first {differs:?}"
    );
    println!("{}, replayed alike", left.lines().next().unwrap_or_default());
    Ok(())
}

/// Plays a seed here, checks its history, and prints all that it left behind.
fn play_once(seed: u64) -> anyhow::Result<()> {
    let outcome = play(seed, Plan::default()).map_err(|e| anyhow::anyhow!("seed {seed}: {e}"))?;
    judge(seed, &outcome)?;
    println!(
        "seed {seed}: {} events in {:.1} simulated seconds, no violation",
        outcome.history.events.len(),
        outcome.elapsed.as_secs_f64()
    );
    println!("{outcome:#?}");
    Ok(())
}

fn judge(seed: u64, outcome: &Outcome) -> anyhow::Result<()> {
    let violations = outcome.history.check();
    for violation in &violations {
        eprintln!("seed {seed}: {violation}");
    }
    ensure!(violations.is_empty(), "seed {seed}: {} violations", violations.len());
    let names: BTreeSet<&String> = outcome.created.iter().map(|(name, _)| name).collect();
    ensure!(names.len() == outcome.created.len(), "seed {seed}: a name was created twice");
    Ok(())
}
