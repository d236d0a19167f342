//! One step of a command: a program that is shown, run in the root of the project, and must
//! succeed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::iter;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A program that ended and says nothing for so long has said all.
const LEFT_OPEN: Duration = Duration::from_secs(2);

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

/// Shows a command, runs it, hands each line that it prints to `take`, and fails if it does. What
/// it leaves behind may hold the pipe for ever: its end is not waited for.
pub fn hear(command: &mut Command, mut take: impl FnMut(&str)) -> Result<()> {
    let (shown, mut child) = start(command.stdout(Stdio::piped()))?;
    let said = BufReader::new(child.stdout.take().context("a pipe from it")?);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = said.split(b'\n').map_while(Result::ok);
        lines.map(|line| tell.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    let status = loop {
        match told.recv_timeout(LEFT_OPEN) {
            Ok(line) => take(&String::from_utf8_lossy(&line)),
            Err(RecvTimeoutError::Disconnected) => break child.wait()?,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
            }
        }
    };
    ended(&shown, status)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_pipe_holds_up_nobody() {
        let (mut said, mut command) = (String::new(), Command::new("sh"));
        command.args(["-c", "echo one; sleep 60 2>&1 & echo two; echo $!; exit 3"]);
        let outcome = hear(&mut command, |line| said += &format!("{line} "));
        let pid = said.strip_prefix("one two ").unwrap().trim().to_owned();
        Command::new("kill").arg(pid).status().unwrap();
        assert!(outcome.unwrap_err().to_string().contains("exit status: 3"));
    }
}
