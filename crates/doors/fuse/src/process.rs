//! What /proc tells of a calling thread: its groups, and whether it is on its way out.
//!
//! The kernel's requests name uid, gid and thread, not the supplementary groups. Those are read
//! when they are needed and believed for a second, where being wrong is found out: a call that was
//! denied is tried again with groups that were read anew, and whoever gave a group up is stopped by
//! the kernel's own check. Where groups decide more than yes or no they are always read. A caller
//! in another PID namespace has number 0 and no groups here.
//!
//! A caller that was killed may be gone while its request is looked at, and its number another's:
//! of a thread that has not the request's uid and gid no groups are taken.

use crate::abi::incoming::Header;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{Caller, Gid, Uid};
use tokio::time::Instant;

/// How long groups are believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// Callers remembered; all are forgotten when there are more.
const CALLERS_MAX: usize = 256;

/// Thread, uid and gid.
type Key = (u32, u32, u32);

/// Callers seen within the last second.
#[derive(Default)]
pub struct Callers(Mutex<HashMap<Key, (Instant, Vec<Gid>)>>);

/// The groups of a caller.
pub struct Groups {
    groups: Vec<Gid>,
    /// They were read earlier.
    pub is_memory: bool,
}

impl Groups {
    /// The caller of a request. `extra` groups are those that the request itself names.
    pub fn caller(mut self, header: &Header, extra: &[u32]) -> Caller {
        for &group in extra {
            if !self.groups.contains(&Gid(group)) {
                self.groups.push(Gid(group));
            }
        }
        self.groups.truncate(Caller::GROUPS_MAX);
        Caller { uid: Uid(header.uid), gid: Gid(header.gid), groups: self.groups, proof: None }
    }
}

impl Callers {
    /// As read now. `are_mapped`: ids of requests are others than those of their threads.
    pub fn groups_now(&self, header: &Header, are_mapped: bool) -> Groups {
        let groups = match header.uid {
            // Root needs none.
            0 => Vec::new(),
            _ => self.read((header.pid, header.uid, header.gid), are_mapped),
        };
        Groups { groups, is_memory: false }
    }

    /// As read now or within the last second.
    pub fn groups(&self, header: &Header, are_mapped: bool) -> Groups {
        let key = (header.pid, header.uid, header.gid);
        let seen = self.lock().get(&key).cloned();
        match seen.filter(|(at, _)| at.elapsed() < BELIEVED) {
            Some((_, groups)) => Groups { groups, is_memory: true },
            None => self.groups_now(header, are_mapped),
        }
    }

    fn read(&self, key: Key, are_mapped: bool) -> Vec<Gid> {
        let known = status(key.0).filter(|text| are_mapped || status_is_of(text, key.1, key.2));
        let groups = known.map(|text| status_groups(&text)).unwrap_or_default();
        let mut callers = self.lock();
        if callers.len() >= CALLERS_MAX {
            callers.clear();
        }
        callers.insert(key, (Instant::now(), groups.clone()));
        groups
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, (Instant, Vec<Gid>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Should a call that was interrupted end? Yes if its thread is dying, or was asked to stop.
///
/// Other signals (a timer, a child, a profiler) must not fail a read that would succeed: no local
/// file system does that. A thread that cannot be seen is not kept waiting.
pub fn is_leaving(thread: u32) -> bool {
    status(thread).is_none_or(|text| status_is_leaving(&text))
}

/// Was it killed for certain, also if it is in the midst of its exit? No if it cannot be seen.
///
/// `stat` of a thread in execve(2) is not there before that ends (Linux 6.18), and it may be the
/// close of a file at execve that asks: so `stat` is read only of threads that are exiting.
pub fn is_killed(thread: u32) -> bool {
    let Some(text) = status(thread) else { return false };
    status_is_killed(&text)
        || (status_is_exiting(&text)
            && file(thread, "stat").is_some_and(|text| stat_is_killed(&text)))
}

/// The processor it runs on, or ran on last. Not to be asked about a thread that waits for the
/// caller of this: it may be in execve(2).
pub fn processor(thread: u32) -> Option<usize> {
    stat_field(&file(thread, "stat")?, 39)
}

fn status(thread: u32) -> Option<String> {
    file(thread, "status")
}

fn file(thread: u32, name: &str) -> Option<String> {
    if thread == 0 {
        return None;
    }
    // A program's name may be any bytes.
    let bytes = std::fs::read(format!("/proc/{thread}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn status_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn status_groups(text: &str) -> Vec<Gid> {
    let field = status_field(text, "Groups").unwrap_or_default();
    field.split_whitespace().filter_map(|word| word.parse().ok().map(Gid)).collect()
}

/// Is it a thread of these ids, real or in effect? access(2) asks for the real ones.
fn status_is_of(text: &str, uid: u32, gid: u32) -> bool {
    let has = |name, id: u32| {
        let field = status_field(text, name).unwrap_or_default();
        field.split_whitespace().any(|word| word.parse() == Ok(id))
    };
    has("Uid", uid) && has("Gid", gid)
}

fn status_mask(text: &str, name: &str) -> u64 {
    let field = status_field(text, name).unwrap_or_default();
    u64::from_str_radix(field, 16).unwrap_or_default()
}

fn of(signals: &[i32]) -> u64 {
    signals.iter().fold(0, |mask, signal| mask | 1 << (signal - 1))
}

fn status_is_killed(text: &str) -> bool {
    let pending = status_mask(text, "SigPnd") | status_mask(text, "ShdPnd");
    pending & of(&[libc::SIGKILL]) != 0
}

/// A thread gives up its table of files before it closes them.
fn status_is_exiting(text: &str) -> bool {
    status_field(text, "FDSize") == Some("0")
}

fn stat_is_killed(text: &str) -> bool {
    /// `PF_SIGNALED`: a signal ended it.
    const SIGNALED: u64 = 0x400;
    let flags: Option<u64> = stat_field(text, 9);
    flags.unwrap_or_default() & SIGNALED != 0
}

/// A field of `stat`, counted from one (`proc_pid_stat(5)`). The second, in parentheses, may hold
/// anything.
fn stat_field<T: std::str::FromStr>(text: &str, number: usize) -> Option<T> {
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn status_is_leaving(text: &str) -> bool {
    let mask = |name| status_mask(text, name);
    let pending = (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk");
    // Asked by a person or a supervisor, whether the program has a handler or not.
    let stops = of(&[libc::SIGKILL, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGHUP]);
    // By default these do nothing to a process, or stop it for a while.
    let harmless = of(&[
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ]);
    let fatal = !(mask("SigCgt") | mask("SigIgn") | harmless);
    pending & !mask("SigIgn") & (stops | fatal) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pending: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tcp\nGroups:\t4 27 1000 \nSigPnd:\t{pending:016x}\nShdPnd:\t{:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n",
            0
        )
    }

    fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn groups_are_read() {
        assert_eq!(status_groups(&text(0, 0, 0, 0)), [Gid(4), Gid(27), Gid(1000)]);
        assert_eq!(status_groups(""), []);
        let ids = "Uid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t50\n";
        assert!(status_is_of(ids, 1000, 1000) && status_is_of(ids, 0, 50));
        assert!(!status_is_of(ids, 1001, 1000) && !status_is_of(ids, 1000, 1001));
        assert!(!status_is_of("", 1000, 1000));
    }

    #[test]
    fn a_number_that_is_anothers_by_now_gives_no_groups() {
        let thread = std::process::id();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let own = status_groups(&status(thread).unwrap());
        assert_eq!(Callers::default().read((thread, uid, gid), false), own);
        assert_eq!(Callers::default().read((thread, uid + 1, gid), false), []);
        assert_eq!(Callers::default().read((thread, uid + 1, gid), true), own);
    }

    #[test]
    fn only_signals_that_end_a_program_end_its_calls() {
        let (int, alarm, child) = (bit(libc::SIGINT), bit(libc::SIGALRM), bit(libc::SIGCHLD));
        assert!(status_is_leaving(&text(bit(libc::SIGKILL), 0, 0, 0)));
        assert!(status_is_leaving(&text(int, 0, 0, 0)));
        assert!(status_is_leaving(&text(int, 0, 0, int)), "asked to stop, with a handler");
        assert!(!status_is_leaving(&text(int, 0, int, 0)), "ignored");
        assert!(!status_is_leaving(&text(int, int, 0, 0)), "blocked");
        assert!(!status_is_leaving(&text(alarm, 0, 0, alarm)), "a timer with a handler");
        assert!(status_is_leaving(&text(alarm, 0, 0, 0)), "a timer without one kills");
        assert!(!status_is_leaving(&text(child, 0, 0, 0)));
        assert!(!status_is_leaving(&text(0, 0, 0, 0)));
    }

    #[test]
    fn a_killed_program_is_known_by_its_flags_or_signals() {
        assert!(status_is_killed(&text(bit(libc::SIGKILL), 0, 0, 0)));
        assert!(!status_is_killed(&text(bit(libc::SIGTERM), 0, 0, 0)));
        assert!(stat_is_killed("7 (a) 5 b) D 1 2 3 4 5 4195588 0 0"), "0x400504");
        assert!(!stat_is_killed("7 (a) D 1 2 3 4 5 4194564 0 0"), "0x400104: a normal exit");
        assert!(!stat_is_killed("7"));
        assert!(!is_killed(std::process::id()) && !is_killed(0));
        assert!(status_is_exiting("Name:\tcp\nFDSize:\t0\nGroups:\t4\n"));
        assert!(!status_is_exiting("FDSize:\t64\n"));
    }

    #[test]
    fn this_thread_is_seen_and_stays() {
        assert!(!is_leaving(std::process::id()));
        assert!(is_leaving(0), "a thread that cannot be seen is not kept");
    }
}
