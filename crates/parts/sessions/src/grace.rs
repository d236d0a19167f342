//! After a start: the sessions of before it, which may still believe in what they were given.
//!
//! Until each of them is back or has ended, or the lease time is over, nobody gets what could
//! contradict them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::SessionId;
use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Default)]
pub struct Grace {
    waited_for: Mutex<WaitedFor>,
    found: Notify,
}

#[derive(Default)]
struct WaitedFor {
    missing: BTreeSet<SessionId>,
    /// None when it is over.
    until: Option<Instant>,
}

impl Grace {
    pub fn new(lease: Duration, missing: BTreeSet<SessionId>) -> Self {
        let until = (!missing.is_empty()).then(|| Instant::now() + lease);
        Self { waited_for: Mutex::new(WaitedFor { missing, until }), found: Notify::new() }
    }

    /// A session of before the start is back, or was ended.
    pub fn found(&self, session: SessionId) {
        self.waited_for().missing.remove(&session);
        self.found.notify_waiters();
    }

    /// Is it of before the start, and not found since?
    pub fn is_missing(&self, session: SessionId) -> bool {
        self.waited_for().missing.contains(&session)
    }

    pub async fn over(&self) {
        loop {
            let found = self.found.notified();
            tokio::pin!(found);
            found.as_mut().enable();
            let Some(until) = self.still() else { return };
            tokio::select! {
                biased;
                () = found => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn still(&self) -> Option<Instant> {
        let mut waited_for = self.waited_for();
        let is_over = |until: &Instant| waited_for.missing.is_empty() || Instant::now() >= *until;
        let until = waited_for.until.filter(|until| !is_over(until));
        waited_for.until = until;
        until
    }

    fn waited_for(&self) -> MutexGuard<'_, WaitedFor> {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
