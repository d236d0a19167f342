//! Turns to wait for what users chose: a path may lead to storage that hangs, or into the very
//! mount that asks, and whoever looks there may never come back.
//!
//! Such work is done by threads that nobody else waits for. Who asked waits for a while; the work
//! keeps its turn until it ends, however long that is. So what one user hangs holds up himself.
//!
//! Invariant: at most so many works of one user, and of all, are under way at once.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Users whose turns are remembered, if nobody holds them.
const USERS_MAX: usize = 4096;

/// See the module.
pub struct Turns {
    each: usize,
    users: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// One of a user's turns, and one of all.
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _any: OwnedSemaphorePermit,
}

impl Turns {
    pub fn new(each: usize, all: usize) -> Self {
        Self { each, users: Mutex::default(), all: Arc::new(Semaphore::new(all)) }
    }

    /// A turn for a user, who waits for his own ones first.
    pub async fn take(&self, uid: u32) -> Option<Turn> {
        let _own = self.of(uid).acquire_owned().await.ok()?;
        let _any = self.all.clone().acquire_owned().await.ok()?;
        Some(Turn { _own, _any })
    }

    /// What comes of `work` for a user; `None`: nothing until then.
    pub async fn run<T: Send + 'static>(
        &self,
        uid: u32,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = timeout_at(until, self.take(uid)).await.ok()??;
        timeout_at(until, turn.hold(work)).await.ok()?
    }

    fn of(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = lock(&self.users);
        if users.len() >= USERS_MAX {
            // Whoever holds or awaits a turn refers to it.
            users.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        users.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
    }
}

impl Turn {
    /// Work that may hang. It goes on, and holds the turn, also when nobody waits any more.
    pub async fn hold<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let working = tokio::task::spawn_blocking(move || {
            let _turn = self;
            work()
        });
        working.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[tokio::test]
    async fn what_one_user_hangs_holds_up_no_other() {
        let (turns, begun) = (Turns::new(2, 4), Arc::new(AtomicUsize::new(0)));
        let (ends, end) = channel::<()>();
        let end = Arc::new(Mutex::new(end));
        let hang = |uid| {
            let (begun, end) = (begun.clone(), end.clone());
            turns.run(uid, Instant::now() + Duration::from_millis(50), move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let _ = lock(&end).recv();
            })
        };
        for _ in 0..5 {
            assert!(hang(7).await.is_none());
        }
        assert_eq!(begun.load(Ordering::Relaxed), 2, "others wait for a turn, and do not begin");
        let soon = || Instant::now() + Duration::from_secs(30);
        assert_eq!(turns.run(8, soon(), || 1).await, Some(1));
        // All together are not more than the threads that are there.
        for uid in 8..20 {
            assert!(hang(uid).await.is_none());
        }
        assert_eq!(begun.load(Ordering::Relaxed), 4);
        drop(ends);
        for uid in [7, 8] {
            assert_eq!(
                turns.run(uid, soon(), move || uid).await,
                Some(uid),
                "it has an end after all"
            );
        }
    }
}
