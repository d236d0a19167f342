//! `tieline auth`: tickets for jobs.
//!
//! `tieline auth run -- COMMAND` gives a command a credential cache of its own, renews it while the
//! command runs, and destroys it at the end. What the command starts finds it by KRB5CCNAME; what
//! loses its environment, by its control group, where we may make one.
//!
//! A signal that would end us goes to the command, and we end with it ([`signals`]). What is left
//! of jobs that were killed goes with the next ([`home`]).
//!
//! `tieline auth token` is what a mount has run with a user's ids to read that user's cache.

use anyhow::Context;
use home::Home;
use rustix::process::{Pid, Signal};
use signals::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tickets::Tickets;
use tieline_auth::BINDING;
use tieline_base::report::Usage;
use tieline_people::programs::jobs::{JOBS, group_of, make_place_for_jobs, note_of, read_note};
use tieline_people::tickets::reading::{self, Reading, bytes_of};

mod home;
mod signals;
mod tickets;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Where control groups of version 2 are, alone or beside the first version's.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const PROCESSES: &str = "cgroup.procs";

#[derive(clap::Subcommand, Debug)]
pub enum Auth {
    /// Run a command with tickets of its own, and renew them while it runs
    Run {
        /// Get tickets with these keys, rather than from the caller's cache
        #[arg(long)]
        keytab: Option<PathBuf>,
        /// Whose, where the keytab has several
        #[arg(long, requires = "keytab")]
        principal: Option<String>,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    #[command(hide = true)]
    Token {
        #[arg(long)]
        target: String,
        #[arg(long)]
        binding: String,
        /// Caches that are files are below the directory at the standard input
        #[arg(long)]
        below_stdin: bool,
    },
}

pub fn run(verb: Auth) -> anyhow::Result<()> {
    match verb {
        Auth::Run { keytab, principal, command } => {
            crate::log_start();
            let code = match run_job(keytab.as_deref(), principal.as_deref(), &command) {
                Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                Err(error) => {
                    let Some(code) = error.downcast_ref().map(NotBegun::code) else {
                        return Err(error);
                    };
                    tieline_base::report::failed(&error);
                    code
                }
            };
            crate::parting::leave(code);
        }
        Auth::Token { target, binding, below_stdin } => token(&target, &binding, below_stdin),
    }
}

/// A command that could not be run: its own failures have other codes.
#[derive(Debug, thiserror::Error)]
#[error("cannot run `{program}`")]
struct NotBegun {
    program: String,
    source: std::io::Error,
}

impl NotBegun {
    /// As shells, `env` and `nice` say it.
    fn code(&self) -> i32 {
        if self.source.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Prints a token that proves us to a server, or why there is none.
fn token(target: &str, binding: &str, below_stdin: bool) -> anyhow::Result<()> {
    let binding: [u8; BINDING] = bytes_of(binding)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Usage("a binding has 64 hexadecimal digits".to_owned()))?;
    // A line of its own, which leaves with its end.
    let seen = |ended: Option<&Reading>| {
        let said = ended.and_then(|reading| serde_json::to_string(reading).ok());
        println!("{}", said.unwrap_or_default());
    };
    let reading = reading::look(target, &binding, below_stdin, seen);
    println!("{}", serde_json::to_string(&reading)?);
    Ok(())
}

fn run_job(
    keytab: Option<&Path>,
    principal: Option<&str>,
    command: &[OsString],
) -> anyhow::Result<ExitStatus> {
    // Whoever wants to end the job tells us: it must not go on without us, nor our folder stay.
    let signals = Signals::hold();
    let home = Home::new()?;
    let tickets = match keytab {
        Some(keytab) => Tickets::from_keytab(keytab, principal, home.path())?,
        None => Tickets::from_caller(home.path())?,
    };
    let (program, words) = command.split_first().context("name a command")?;
    // Before the job is there: its first call already has the tickets.
    let group = Group::enter(&tickets.name);
    let mut job = Command::new(program);
    job.args(words).env("KRB5CCNAME", &tickets.name);
    // SAFETY: between fork and exec one system call is made, on values made before.
    unsafe { job.pre_exec(move || signals.release()) };
    let program = program.to_string_lossy().into_owned();
    let mut child = job.spawn().map_err(|source| NotBegun { program, source })?;
    let mut next = Instant::now() + tickets.pause();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(came) = signals.next(LOOK_EVERY).filter(|came| !came.is_by_kernel) {
            tell(&child, came.number);
        }
        if Instant::now() < next {
            continue;
        }
        if !tickets.renew().is_ok_and(|are_renewed| are_renewed) {
            tracing::warn!("the job's tickets could not be renewed; trying again");
        }
        next = Instant::now() + tickets.pause();
    };
    drop(group);
    Ok(status)
}

/// Hands a signal on to the job, which is not waited for yet: its number is its own.
fn tell(job: &Child, number: i32) {
    let pid = i32::try_from(job.id()).ok().and_then(Pid::from_raw);
    if let Some((pid, signal)) = pid.zip(Signal::from_named_raw(number)) {
        // It may have ended by itself; then that is seen next.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A control group for the job and for us, and the note that says whose tickets it has.
struct Group {
    /// Where we came from.
    above: PathBuf,
    directory: PathBuf,
    note: PathBuf,
}

impl Group {
    /// `None` where we may not: then the environment must do.
    fn enter(cache: &str) -> Option<Self> {
        let own = group_of(std::process::id())?;
        let name = note_of_job(std::process::id());
        let group = format!("{}/{name}", own.trim_end_matches('/'));
        let mut bases = CGROUPS.iter().map(Path::new);
        let base = bases.find(|base| base.join(PROCESSES).exists())?;
        let above = base.join(own.trim_start_matches('/'));
        let directory = base.join(group.trim_start_matches('/'));
        std::fs::create_dir(&directory).ok()?;
        let made = Self { above, note: note_of(&group), directory };
        make_place_for_jobs();
        let mut options = File::options();
        let note = options.write(true).create_new(true).mode(0o600).open(&made.note);
        note.ok()?.write_all(cache.as_bytes()).ok()?;
        // What is started from here on is born in it.
        move_to(&made.directory).ok()?;
        Some(made)
    }
}

/// Moves this process to a control group.
fn move_to(group: &Path) -> std::io::Result<()> {
    std::fs::write(group.join(PROCESSES), std::process::id().to_string())
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.note);
        let _ = move_to(&self.above);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// The last part of the name of a job's control group.
fn note_of_job(pid: u32) -> String {
    format!("tieline-job-{pid}")
}

/// Takes away the note, and the control group, of a job that was killed and had its tickets there.
fn forget_job(pid: u32, home: &Path, uid: u32) {
    let job = note_of_job(pid);
    for entry in std::fs::read_dir(JOBS).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_named = name == job || name.ends_with(&format!("+{job}"));
        let cache = is_named.then(|| read_note(&entry.path(), uid)).flatten();
        let home = home.to_string_lossy();
        if cache.is_some_and(|cache| cache.contains(&*home)) {
            let _ = std::fs::remove_file(entry.path());
            let below = name.replace('+', "/");
            for base in CGROUPS {
                // One with processes in it stays.
                let _ = std::fs::remove_dir(Path::new(base).join(&below));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_run_has_the_codes_of_shells() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plain");
        std::fs::write(&file, "text").unwrap();
        for (program, code) in [(dir.path().join("none"), 127), (file, 126)] {
            let source = Command::new(&program).spawn().unwrap_err();
            let program = program.display().to_string();
            assert_eq!(NotBegun { program, source }.code(), code);
        }
    }
}
