//! `cargo xtask wan`: a command at one end of an emulated long line, by the program's own
//! `dev wan run`.

use crate::steps;
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub fn run(arguments: &[String]) -> Result<()> {
    // The build at hand is fast enough: the kernel gives the line many packets at once.
    steps::cargo(&["build", "--quiet", "--package", "tieline"], &[] as &[&str])?;
    let program = std::env::current_exe()?.with_file_name("tieline");
    let mut command = Command::new(&program);
    command.args(["dev", "wan", "run"]).args(arguments).env("TIELINE_BIN", &program);
    // In our place, so that what it ends with is what we end with.
    Err(command.exec()).context("cannot run tieline")
}
