//! The run: all that is checked before a change lands, in the order in which a bad change ends
//! soonest.
//!
//! Each stage is shown with its time at the end, also when one fails, and beside them what took
//! longest by itself ([`crate::slow`]) and why tests failed ([`crate::failures`]).

use crate::failures::Failures;
use crate::slow::Slow;
use crate::tests::Tests;
use crate::{check, docs, steps, tidy};
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// From the one that the commit gives, beside those that are kept.
const NEW_SEEDS: &str = "8";
/// For each decoder.
const DECODER_TIME: Duration = Duration::from_secs(3);

/// What is told of all tests together.
pub struct Heard {
    pub slow: Slow,
    pub failures: Failures,
}

/// Stages that were begun, with the time that each took.
#[derive(Default)]
struct Stages {
    done: RefCell<Vec<(&'static str, Duration)>>,
}

impl Stages {
    fn stage<T>(&self, name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("\n======== {name}");
        let begun = Instant::now();
        let outcome = run();
        self.done.borrow_mut().push((name, begun.elapsed()));
        outcome.with_context(|| format!("stage `{name}`"))
    }

    fn print(&self) {
        let done = self.done.borrow();
        eprintln!();
        for (name, took) in done.iter() {
            eprintln!("{:>7.1} s  {name}", took.as_secs_f64());
        }
        let all: Duration = done.iter().map(|(_, took)| *took).sum();
        eprintln!("{:>7.1} s  in all", all.as_secs_f64());
    }
}

pub fn all() -> Result<()> {
    let (stages, slow) = (Stages::default(), Slow::new()?);
    let heard = Heard { slow, failures: Failures::default() };
    let outcome = run(&stages, &heard);
    heard.slow.print();
    heard.failures.print();
    stages.print();
    outcome
}

fn run(stages: &Stages, heard: &Heard) -> Result<()> {
    stages.stage("formatting", check::formatting)?;
    stages.stage("tidy", tidy::run)?;
    stages.stage("clippy", check::clippy)?;
    let tests = stages.stage("build", Tests::build)?;
    let (seed, seconds) = (seed().to_string(), DECODER_TIME.as_secs().to_string());
    let tieline = tests.program("tieline")?;
    stages.stage("generated pages", || docs::run(true, || Command::new(tieline)))?;
    stages.stage("unit tests", || tests.run_units(heard))?;
    let mut sim = Command::new(tests.program("tieline-sim")?);
    stages.stage("simulation, new seeds", || {
        steps::run(sim.args(["--seed", &seed, "--seeds", NEW_SEEDS]))
    })?;
    let mut decoders = Command::new(tests.program("tieline-decoders")?);
    stages.stage("decoders", || steps::run(decoders.args(["feed", &seconds, &seed])))?;
    stages.stage("lab", || tests.run_lab(heard))?;
    stages.stage("virtual client", || tests.run_lab_alone(heard))
}

/// Another for every commit, and the same whenever that is run again.
fn seed() -> u64 {
    let mut git = Command::new("git");
    git.args(["rev-parse", "HEAD"]).current_dir(steps::root()).stderr(Stdio::null());
    let said = git.output().map(|output| output.stdout).unwrap_or_default();
    let digits = String::from_utf8_lossy(&said).chars().take(12).collect::<String>();
    // Sources without a history have one seed.
    u64::from_str_radix(&digits, 16).unwrap_or(0x7131)
}
