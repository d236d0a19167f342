//! `cargo xtask wan`: a command at one end of an emulated long line, by the program's own
//! `dev wan run`.

use crate::steps;
use anyhow::Result;
use std::process::Command;

pub fn run(arguments: &[String]) -> Result<()> {
    // The build at hand is fast enough: the kernel gives the line many packets at once.
    steps::cargo(&["build", "--quiet", "--package", "tieline"], &[] as &[&str])?;
    let program = std::env::current_exe()?.with_file_name("tieline");
    let mut command = Command::new(&program);
    command.args(["dev", "wan", "run"]).args(arguments).env("TIELINE_BIN", &program);
    steps::run(&mut command)
}
