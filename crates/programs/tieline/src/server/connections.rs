//! Which session is reached over which connection.
//!
//! The network room seats a session on one connection at a time, and says when it leaves one
//! before it sits on the next.
//!
//! Invariants: a notice is never waited for longer than it was told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_meta::Recaller;
use tieline_net::Notifier;
use tieline_types::SessionId;
use tieline_wire::notice::Recall;
use tieline_wire::{Notice, NoticeAnswer};

/// How long somebody may take to answer a notice that nothing depends on.
const TELL_PATIENCE: Duration = Duration::from_secs(10);

/// The connections of this server.
#[derive(Default)]
pub struct Connections(Mutex<BTreeMap<SessionId, Notifier>>);

impl Connections {
    pub fn add(&self, session: SessionId, notifier: Notifier) {
        self.lock().insert(session, notifier);
    }

    pub fn remove(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    /// Sends a notice to everybody, and waits for nobody. How many there are.
    pub fn tell_all(&self, notice: Notice) -> usize {
        let all: Vec<Notifier> = self.lock().values().cloned().collect();
        let count = all.len();
        for notifier in all {
            let notice = notice.clone();
            tokio::spawn(async move { notifier.notify(notice, TELL_PATIENCE).await });
        }
        count
    }

    fn newest(&self, session: SessionId) -> Option<Notifier> {
        self.lock().get(&session).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Notifier>> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl Recaller for Connections {
    async fn recall(
        &self,
        session: SessionId,
        recall: Recall,
        patience: Duration,
    ) -> Option<NoticeAnswer> {
        self.newest(session)?.notify(Notice::Recall(recall), patience).await
    }
}
