//! Programs of this machine: which cache of tickets one means.
//!
//! The one that KRB5CCNAME names in the environment of the process, unless that process is
//! another's than it seems (set-uid programs); else that of the job it belongs to ([`jobs`]); else
//! the default of its user.
//!
//! Of a cache on a mount that asks us: looking at it makes requests of our own process, and reading
//! it those of a process that we started. Neither is looked for a ticket, else each would begin the
//! next: they have none, and what strangers may see is what they see.
//!
//! Invariant: no look is made for who looks for us.

use crate::tickets::names::named_whole;
use crate::tickets::{Hand, Lack, Purse, Tickets, place_of};
use std::io::Read;
use std::path::Path;

pub mod jobs;

/// Of an environment.
const TEXT_MAX: u64 = 2 << 20;
const VARIABLE: &[u8] = b"KRB5CCNAME=";

/// Which cache a process means, and how it looks.
pub async fn hand(tickets: &Tickets, process: u32, uid: u32) -> Result<Hand, Lack> {
    // Without a turn: whoever looks has one, and others of his user's may wait for theirs.
    if is_own_thread(process) {
        return Err(looks_itself());
    }
    // The kernel may make us wait for the memory of a process that waits for us.
    tickets.find(uid, move |default| find(process, uid, default)).await
}

/// May take as long as its user likes.
fn find(process: u32, uid: u32, default: Option<String>) -> Result<Hand, Lack> {
    let status = status_of(process).unwrap_or_default();
    if is_reader(&status) {
        return Err(looks_itself());
    }
    let cache = cache_named(process, uid, &status);
    let cache = cache.or_else(|| jobs::cache_of_job(process, uid));
    let purse = Purse { uid, cache, place: place_of(process) };
    Ok(Hand::of(purse, process, default))
}

/// What is told of a process that looks at caches for us.
fn looks_itself() -> Lack {
    let why =
        "who looks for a ticket here has none: a cache is of no use on the mount that needs it";
    Lack { is_silent: false, why: why.to_owned() }
}

/// Is it a thread of ours? The kernel names threads.
fn is_own_thread(thread: u32) -> bool {
    thread != 0 && Path::new(&format!("/proc/self/task/{thread}")).exists()
}

/// Is it of a process that we started? We start none but readers.
fn is_reader(status: &str) -> bool {
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.is_some_and(|parent| parent.trim().parse() == Ok(std::process::id()))
}

fn status_of(process: u32) -> Option<String> {
    if process == 0 {
        return None;
    }
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    Some(String::from_utf8_lossy(&status).into_owned())
}

/// What KRB5CCNAME is to a process that is nobody else's than its user's.
fn cache_named(process: u32, uid: u32, status: &str) -> Option<String> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if !ids.split_whitespace().all(|id| id.parse() == Ok(uid)) {
        return None;
    }
    let mut environ = vec![];
    let file = std::fs::File::open(format!("/proc/{process}/environ")).ok()?;
    file.take(TEXT_MAX).read_to_end(&mut environ).ok()?;
    let value = environ.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(VARIABLE))?;
    let value = String::from_utf8(value.to_vec()).ok()?;
    let cwd = || std::fs::read_link(format!("/proc/{process}/cwd")).ok();
    (!value.is_empty()).then(|| named_whole(value, cwd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// On this mount, looks for a cache would look for caches themselves, without an end.
    #[test]
    fn who_looks_for_us_is_not_looked_for() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(is_own_thread(thread) && is_own_thread(std::process::id()));
        assert!(!is_own_thread(0) && !is_own_thread(1));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let find = |process| find(process, rustix::process::geteuid().as_raw(), None);
        assert!(find(child.id()).is_err_and(|lack| !lack.is_silent));
        assert!(find(1).is_ok() && find(0).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_environment_of_others_is_not_read() {
        // One that is in the process' memory is not to be had, and no other is taken instead.
        for cache in ["FILE:/tmp/a", "MEMORY:a"] {
            let mut child = Command::new("sleep").arg("60").env("KRB5CCNAME", cache).spawn();
            let child = child.as_mut().unwrap();
            let own = rustix::process::geteuid().as_raw();
            let id = child.id();
            let status = || status_of(id).unwrap();
            // Until it is executed it is still us.
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let mut found = None;
            while found.is_none() && std::time::Instant::now() < deadline {
                found = cache_named(child.id(), own, &status());
            }
            assert_eq!(found.as_deref(), Some(cache));
            assert_eq!(cache_named(child.id(), own + 1, &status()), None);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
