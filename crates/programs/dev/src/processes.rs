//! Starting processes of a federation, waiting until they are ready, and ending them.
//!
//! Invariants: a process is started with its own process group and its output in its log; ending
//! goes from gentle to hard, each step with a deadline.

use crate::health;
use crate::state::Process;
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_machine::beneath::Directory;
use tieline_machine::process::ProcessId;
use tieline_machine::table;

/// Longest wait for a process to be ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for an end in good order, and for one that cannot be refused.
const END_PATIENCE: Duration = Duration::from_secs(15);
const KILL_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Lines of a log that are shown when its process fails.
const TAIL: usize = 20;

/// Starts a process, and waits until it is ready.
pub fn start(process: &mut Process) -> anyhow::Result<()> {
    spawn(process)?;
    wait_ready(process)
}

/// Starts a process; nothing is waited for.
pub fn spawn(process: &mut Process) -> anyhow::Result<()> {
    if let Some(mountpoint) = &process.mountpoint {
        // A daemon that was killed leaves a mount behind on which every call fails.
        if table::is_mounted(mountpoint) {
            table::detach(mountpoint)?;
        }
    }
    let name = process.name.clone();
    let argv = process.argv.clone();
    let log = Directory::of(&process.log).and_then(|(at, name)| Ok(at.log(&name)?));
    let log = log.with_context(|| format!("cannot open {}", process.log.display()))?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let netns = process.netns.clone();
    // A thread of its own: it, and the process it starts, stay in the namespace.
    let spawned = std::thread::spawn(move || -> anyhow::Result<u32> {
        if let Some(netns) = netns {
            tieline_machine::namespace::enter(&netns)?;
        }
        let mut command = Command::new(program);
        command.args(argv).process_group(0).current_dir("/");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command.spawn()?.id())
    });
    let pid = spawned.join().map_err(|_| anyhow::anyhow!("thread panicked"))?;
    let pid = pid.with_context(|| format!("cannot start {name}"))?;
    let started = ProcessId::of(pid);
    process.process = started;
    match started {
        Some(_) => Ok(()),
        None => bail!("{name} ended at once\n{}", tail(&process.log)),
    }
}

/// Waits until a process says that it is ready.
pub fn wait_ready(process: &Process) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    loop {
        if !process.is_alive() {
            bail!("{} ended before it was ready\n{}", process.name, tail(&process.log));
        }
        if process.takes_orders() == Some(true) {
            return Ok(());
        }
        let health = health::ask(&process.admin, process.netns.as_deref());
        let is_mounted = process.mountpoint.as_ref().is_none_or(|path| table::is_mounted(path));
        if is_mounted && health.is_some_and(|health| health.is_ready) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let seconds = READY_PATIENCE.as_secs();
            bail!("{} is not ready after {seconds} s\n{}", process.name, tail(&process.log));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Ends a process: a mount by unmounting it, a server by SIGTERM, either by SIGKILL if that does
/// not help.
pub fn end(process: &mut Process) -> anyhow::Result<()> {
    if let Some(mountpoint) = &process.mountpoint
        && table::is_mounted(mountpoint)
    {
        // Busy or dead: then it is taken out of the tree all the same.
        if !process.is_alive() || table::unmount(mountpoint).is_err() {
            table::detach(mountpoint)?;
        }
    }
    let Some(id) = process.running() else { return Ok(()) };
    if process.mountpoint.is_none() || !id.wait_end(END_PATIENCE) {
        id.signal(Signal::TERM);
    }
    if !id.wait_end(END_PATIENCE) {
        id.kill_whole();
        if !id.wait_end(KILL_PATIENCE) {
            bail!("{} (pid {}) does not end", process.name, id.pid);
        }
    }
    Ok(())
}

/// Sends a signal, to the daemon if it is a mount; waits for the end if the signal brings it.
pub fn signal(process: &Process, signal: Signal) -> anyhow::Result<()> {
    let Some(id) = process.working().filter(|id| id.signal(signal)) else {
        bail!("{} does not run", process.name);
    };
    let ends = [Signal::KILL, Signal::TERM, Signal::INT, Signal::ABORT].contains(&signal);
    if ends && !id.wait_end(END_PATIENCE) {
        bail!("{} (pid {}) still runs", process.name, id.pid);
    }
    Ok(())
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    let tail: Vec<String> = lines.iter().skip(from).map(|line| format!("  {line}")).collect();
    format!("the end of {}:\n{}", log.display(), tail.join("\n"))
}
