//! A process of its own, for a test that changes what belongs to the whole process.

use crate::program;
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;

const ALONE: &str = "TIELINE_LAB_ALONE";
/// The longest of these attack two federations, one after the other.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs `test`, a closure in the function of a `#[test]`, in this very program started anew, which
/// runs nothing else.
pub fn alone<F: FnOnce() -> Result<()>>(test: F) -> Result<()> {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    // PROGRAM::MODULE::TEST::{{closure}}
    let path = std::any::type_name::<F>();
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    let name = name.trim_end_matches("::{{closure}}");
    let mut command = Command::new(std::env::current_exe()?);
    command.args([name, "--exact", "--nocapture", "--include-ignored"]).env(ALONE, "1");
    let run = program::finish(&mut command, PATIENCE)?;
    eprintln!("{}{}", run.stdout, run.stderr);
    ensure!(run.status.success(), "{name} failed in a process of its own");
    ensure!(run.stdout.contains("1 passed"), "no test has the name {name}");
    Ok(())
}
