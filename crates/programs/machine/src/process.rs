//! Processes of this machine, told apart by pid *and* start time: a pid alone may be somebody else
//! by now.

use rustix::process::{Pid, Signal, getpgrp};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A process that was started by us, or that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// In clock ticks since the machine's start, as the kernel counts.
    pub started: u64,
}

impl ProcessId {
    /// `None`: there is no such process.
    pub fn of(pid: u32) -> Option<Self> {
        let (started, has_ended) = stat(pid)?;
        (!has_ended).then_some(Self { pid, started })
    }

    pub fn own() -> Self {
        let pid = std::process::id();
        Self { pid, started: stat(pid).map_or(0, |(started, _)| started) }
    }

    /// The process that started this one.
    pub fn parent() -> Self {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        u32::try_from(parent).ok().and_then(Self::of).unwrap_or_else(Self::own)
    }

    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal, if the process is still the one that is meant. Says whether it was.
    pub fn signal(self, signal: Signal) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| self.is_alive()) else { return false };
        rustix::process::kill_process(pid, signal).is_ok()
    }

    /// Kills it with its group, if that is not ours: a holder and its daemon go together, or one
    /// would start the other.
    pub fn kill_whole(self) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let group = pid.and_then(|pid| rustix::process::getpgid(Some(pid)).ok());
        if let Some(group) = group.filter(|&group| self.is_alive() && group != getpgrp()) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        self.signal(Signal::KILL);
    }

    /// Waits for the end of the process; says whether it came.
    pub fn wait_end(self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Start time of a process, and whether it has ended and only waits to be buried.
fn stat(pid: u32) -> Option<(u64, bool)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command in parentheses, may hold anything: count from its end.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let [state, threads, started] = [0, 17, 19].map(|place| fields.get(place).copied());
    // While other threads of a dead leader still end, its files are open and its locks are held.
    let has_ended = matches!(state?, "Z" | "X") && threads?.parse::<u32>().ok()? <= 1;
    Some((started?.parse().ok()?, has_ended))
}

/// The permission bits that new files of this process do not get.
pub fn umask() -> u32 {
    // The kernel tells it only by setting it; this process has one thread yet, or makes no files.
    let mask = rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o022));
    rustix::process::umask(mask);
    mask.bits()
}

/// A signal by its name (`KILL`, `sigterm`) or number.
pub fn signal_by_name(name: &str) -> Option<Signal> {
    let upper = name.to_ascii_uppercase();
    Some(match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "KILL" | "9" => Signal::KILL,
        "TERM" | "15" => Signal::TERM,
        "INT" | "2" => Signal::INT,
        "HUP" | "1" => Signal::HUP,
        "STOP" | "19" => Signal::STOP,
        "CONT" | "18" => Signal::CONT,
        "ABRT" | "6" => Signal::ABORT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_pid_and_its_start() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        let other = ProcessId { started: own.started + 1, ..own };
        assert!(!other.is_alive());
        assert!(!other.signal(Signal::TERM), "somebody else's process was signalled");
    }

    #[test]
    fn ended_children_are_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId::of(child.id());
        assert!(id.is_none_or(|id| id.wait_end(Duration::from_secs(5))));
        child.wait().unwrap();
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_by_name("sigkill"), Some(Signal::KILL));
        assert_eq!(signal_by_name("15"), Some(Signal::TERM));
        assert_eq!(signal_by_name("please"), None);
    }
}
