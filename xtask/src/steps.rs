//! One step of a command: a program that is shown, run in the root of the project, and must
//! succeed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::{io, iter};

/// The root of the project.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// The cargo that runs us, in the root of the project.
pub fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo with `head` and `tail`.
pub fn cargo(head: &[&str], tail: &[impl AsRef<OsStr>]) -> Result<()> {
    let mut command = cargo_command();
    command.args(head).args(tail);
    run(&mut command)
}

/// Shows a command, runs it, hands what it prints to `take`, and fails if it does.
pub fn hear(command: &mut Command, take: impl FnOnce(ChildStdout) -> io::Result<()>) -> Result<()> {
    let (line, mut child) = start(command.stdout(Stdio::piped()))?;
    take(child.stdout.take().context("a pipe from it")?)?;
    ended(&line, child.wait()?)
}

/// Shows a command, runs it, and fails if it does.
pub fn run(command: &mut Command) -> Result<()> {
    finish(command).map(drop)
}

/// The same; what it prints is taken instead of shown.
pub fn read(command: &mut Command) -> Result<String> {
    let output = finish(command.stdout(Stdio::piped()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn finish(command: &mut Command) -> Result<Output> {
    let (line, child) = start(command)?;
    let output = child.wait_with_output()?;
    ended(&line, output.status)?;
    Ok(output)
}

fn start(command: &mut Command) -> Result<(String, Child)> {
    let words: Vec<_> = iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.join(OsStr::new(" ")).display().to_string();
    eprintln!("\n==> {line}");
    let started = command.spawn();
    Ok((line.clone(), started.with_context(|| format!("cannot start {line}"))?))
}

fn ended(line: &str, status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { bail!("`{line}` failed: {status}") }
}
