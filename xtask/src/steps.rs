//! One step of a command: a program that is shown, run in the root of the project, and must
//! succeed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

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
    let line: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).collect::<Vec<_>>();
    let line = line.join(OsStr::new(" "));
    eprintln!("\n==> {}", line.display());
    let status = command.status().with_context(|| format!("cannot start {}", line.display()))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line.display());
    }
    Ok(())
}
