//! One step of a command: a program that is shown, run in the root of the project, and must
//! succeed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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
    let words: Vec<_> = iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.join(OsStr::new(" "));
    eprintln!("\n==> {}", line.display());
    let started = command.spawn();
    let child = started.with_context(|| format!("cannot start {}", line.display()))?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("`{}` failed: {}", line.display(), output.status);
    }
    Ok(output)
}
