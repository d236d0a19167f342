//! How often somebody's word sends a server to read a chunk.
//!
//! Whoever found a copy bad says so in a hundred bytes, and its OSS reads up to 64 MiB to see. So
//! each caller has some reports in hand and gets new ones as time goes by; what he reports beyond
//! that is found when chunks are read through. Root is heard always.
//!
//! Invariant: at most [`CALLERS_MAX`] callers are remembered.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tieline_types::{Caller, Uid};
use tokio::time::Instant;

/// Reports that a caller has in hand: a file that he reads may have as many bad copies.
const IN_HAND: u32 = 64;
/// How long it takes until he has one more.
const ONE_MORE: Duration = Duration::from_secs(10);
const CALLERS_MAX: usize = 4096;

#[derive(Default)]
pub struct Reports(Mutex<BTreeMap<Uid, Given>>);

/// What a caller used of what he has.
struct Given {
    count: u32,
    since: Instant,
}

impl Reports {
    /// Is one more of this caller heard?
    pub fn hears(&self, caller: &Caller) -> bool {
        if caller.is_root() {
            return true;
        }
        let now = Instant::now();
        // Nothing panics while it is held.
        let mut callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS_MAX && !callers.contains_key(&caller.uid) {
            callers.retain(|_, given| given.goes_on(now));
            if callers.len() >= CALLERS_MAX {
                return false;
            }
        }
        let given = callers.entry(caller.uid).or_insert(Given { count: 0, since: now });
        if !given.goes_on(now) {
            *given = Given { count: 0, since: now };
        }
        let is_heard = given.count < IN_HAND;
        given.count += u32::from(is_heard);
        is_heard
    }
}

impl Given {
    /// Has he not all of it back? Gives back what is due.
    fn goes_on(&mut self, now: Instant) -> bool {
        while self.count > 0 && now.duration_since(self.since) >= ONE_MORE {
            self.count -= 1;
            self.since += ONE_MORE;
        }
        self.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_reports_without_end_is_heard_now_and_then() {
        let reports = Reports::default();
        let of = |uid| Caller { uid: Uid(uid), ..Caller::default() };
        let heard = |uid: u32| (0..1000).filter(|_| reports.hears(&of(uid))).count();
        assert_eq!(heard(7), IN_HAND as usize);
        assert_eq!((heard(8), heard(0)), (IN_HAND as usize, 1000), "others, and root");
        for _ in 0..4 {
            tokio::time::advance(ONE_MORE / 2).await;
            reports.hears(&of(7));
        }
        assert_eq!(heard(7), 0, "two more, which were used");
        tokio::time::advance(ONE_MORE * 1000).await;
        assert_eq!(heard(7), IN_HAND as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_callers_are_remembered_and_no_more() {
        let reports = Reports::default();
        let hears = |uid| reports.hears(&Caller { uid: Uid(uid), ..Caller::default() });
        assert!((1..=CALLERS_MAX as u32).all(hears));
        assert!(!hears(1 << 20));
        tokio::time::advance(ONE_MORE).await;
        assert!(hears(1 << 20));
    }
}
