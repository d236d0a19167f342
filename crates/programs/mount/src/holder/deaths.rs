//! How daemons of a mount died lately, and how long to wait before the next is started.
//!
//! One that was killed from outside is followed at once, and so is one that crashed now and then.
//! Many deaths in a row are followed ever more slowly: a machine that is short of memory, or a
//! program with a fault, must not be kept busy by starts.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// A daemon that lived so long begins a new row.
const LIFE_LONG: Duration = Duration::from_secs(5);
/// So many in a row are followed at once.
const CRASHES_FREE: u32 = 2;
const KILLS_FREE: u32 = 100;
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_CRASHED: Duration = Duration::from_secs(60);
const PAUSE_KILLED: Duration = Duration::from_secs(1);

/// The row of deaths.
#[derive(Default, Debug)]
pub struct Deaths {
    pub killed: u32,
    pub crashed: u32,
}

impl Deaths {
    /// One more; says how long to wait. `how` is not known of somebody else's child.
    pub fn add(&mut self, how: Option<ExitStatus>, lived: Duration) -> Duration {
        if lived >= LIFE_LONG {
            *self = Self::default();
        }
        if is_crash(how) {
            self.crashed += 1;
            return grown(self.crashed.saturating_sub(CRASHES_FREE), PAUSE_CRASHED);
        }
        self.killed += 1;
        grown(self.killed.saturating_sub(KILLS_FREE), PAUSE_KILLED)
    }

    /// Does the fault lie with the program, or with what it finds?
    pub fn is_loop(&self) -> bool {
        self.crashed > CRASHES_FREE
    }
}

/// Whoever kills from outside does it so; everything else is of our own making.
pub fn is_crash(how: Option<ExitStatus>) -> bool {
    let from_outside = [libc::SIGKILL, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    how.is_some_and(|how| how.signal().is_none_or(|signal| !from_outside.contains(&signal)))
}

fn grown(times: u32, longest: Duration) -> Duration {
    match times {
        0 => Duration::ZERO,
        times => (PAUSE_FIRST * 2u32.saturating_pow(times - 1).min(1 << 16)).min(longest),
    }
}

/// For the log.
pub fn told(how: Option<ExitStatus>) -> String {
    how.map_or_else(|| "unknown".to_owned(), |how| how.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn crashes_in_a_row_are_followed_ever_more_slowly() {
        let mut deaths = Deaths::default();
        let aborted = Some(ExitStatus::from_raw(libc::SIGABRT));
        let pauses: Vec<_> = (0..5).map(|_| deaths.add(aborted, SHORT).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 200, 400, 800]);
        assert!(deaths.is_loop());
        let panicked = Some(ExitStatus::from_raw(101 << 8));
        assert_eq!((0..40).map(|_| deaths.add(panicked, SHORT)).last(), Some(PAUSE_CRASHED));
        assert_eq!(deaths.add(panicked, LIFE_LONG), Duration::ZERO, "a new row");
        assert!(!deaths.is_loop());
    }

    #[test]
    fn whoever_is_killed_is_followed_at_once() {
        let mut deaths = Deaths::default();
        let killed = Some(ExitStatus::from_raw(libc::SIGKILL));
        assert!((0..KILLS_FREE).all(|_| deaths.add(killed, SHORT).is_zero()));
        assert_eq!(deaths.add(None, SHORT), PAUSE_FIRST);
        assert_eq!((0..10).map(|_| deaths.add(killed, SHORT)).last(), Some(PAUSE_KILLED));
        assert!(!deaths.is_loop());
    }
}
