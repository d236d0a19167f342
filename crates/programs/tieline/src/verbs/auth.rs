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

use crate::mount::tickets::reading::{self, Reading};
use crate::report::Usage;
use anyhow::Context;
use home::Home;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use signals::Signals;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tickets::Tickets;
use tieline_auth::BINDING;

mod home;
mod signals;
mod tickets;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Who has a job in which control group; anybody may enter his own.
const JOBS: &str = "/run/tieline/jobs";
/// Of a note: it names a cache, which is a path at most.
const NOTE_MAX: u64 = 8192;
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
            crate::verbs::log_start();
            let code = match run_job(keytab.as_deref(), principal.as_deref(), &command) {
                Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                Err(error) => {
                    let Some(code) = error.downcast_ref().map(NotBegun::code) else {
                        return Err(error);
                    };
                    crate::report::failed(&error);
                    code
                }
            };
            crate::cli::leave(code);
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

/// What hexadecimal digits mean.
pub fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
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

/// Users' jobs are noted where root's mounts made a place for that. As in /tmp, everybody makes
/// notes there, and nobody removes another's.
pub fn make_place_for_jobs() {
    if rustix::process::geteuid().is_root() {
        let _ = DirBuilder::new().recursive(true).mode(0o755).create(JOBS);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        let _ = std::fs::set_permissions(JOBS, mode);
    }
}

/// The control group (version 2) of a process.
fn group_of(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn note_of(group: &str) -> PathBuf {
    Path::new(JOBS).join(group.trim_matches('/').replace('/', "+"))
}

/// The cache of the job that a process belongs to, if its user has made it.
pub fn cache_of_job(process: u32, uid: u32) -> Option<String> {
    // Mostly there are no jobs, and nothing is read.
    std::fs::read_dir(JOBS).ok()?.next()?.ok()?;
    let group = group_of(process)?;
    let mut group = group.as_str();
    loop {
        let note = note_of(group);
        if let Some(cache) = read_note(&note, uid) {
            return Some(cache);
        }
        group = group.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty())?;
    }
}

/// A note, if its user made it. Whatever else lies there is of whoever liked: it is not waited for,
/// nor followed to elsewhere.
fn read_note(note: &Path, uid: u32) -> Option<String> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(note).ok()?;
    let is_his = |found: Metadata| found.is_file() && found.uid() == uid;
    if !file.metadata().is_ok_and(is_his) {
        return None;
    }
    let mut cache = String::new();
    // One byte more tells what is too long.
    file.take(NOTE_MAX + 1).read_to_string(&mut cache).ok()?;
    (cache.len() as u64 <= NOTE_MAX).then_some(cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody makes notes, and root's mounts read them.
    #[test]
    fn a_note_is_a_small_file_of_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let (note, uid) = (dir.path().join("note"), rustix::process::geteuid().as_raw());
        std::fs::write(&note, "FILE:/tmp/a").unwrap();
        assert_eq!(read_note(&note, uid).as_deref(), Some("FILE:/tmp/a"));
        assert_eq!(read_note(&note, uid + 1), None);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&note, &link).unwrap();
        assert_eq!(read_note(&link, uid), None, "a link");
        std::fs::write(&note, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(read_note(&note, uid), None, "a long one");
        assert_eq!(read_note(dir.path(), uid), None, "a directory");
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(read_note(&pipe, uid)));
        let answer = heard.recv_timeout(Duration::from_secs(5));
        assert_eq!(answer.expect("a pipe that nobody writes to is not waited for"), None);
    }

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

    #[test]
    fn digits_are_bytes() {
        assert_eq!(bytes_of("00ff7a"), Some(vec![0, 255, 0x7a]));
        assert!(bytes_of("0").is_none() && bytes_of("zz").is_none());
        assert_eq!(note_of("/a/b"), Path::new(JOBS).join("a+b"));
    }
}
