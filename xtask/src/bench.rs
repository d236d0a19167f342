//! `cargo xtask bench`: builds the program and the benchmarks for use, and measures.

use crate::steps;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

pub fn run(arguments: &[String]) -> Result<()> {
    let build = ["build", "--release", "--package", "tieline", "--package", "tieline-bench"];
    steps::cargo(&build, &[] as &[&str])?;
    // TARGET/PROFILE/xtask
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("xtask lies in TARGET/PROFILE")?;
    let program = |name: &str| -> PathBuf { target.join("release").join(name) };
    let mut bench = Command::new(program("tieline-bench"));
    steps::run(bench.args(arguments).env("TIELINE_BIN", program("tieline")))
}
