//! Which session is reached over which connection.
//!
//! The network room seats a session on one connection at a time, and says when it leaves one
//! before it sits on the next.
//!
//! Whoever comes while this server has announced its absence is told of it, too.
//!
//! Invariants: a notice is never waited for longer than it was told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_meta::Recaller;
use tieline_net::Notifier;
use tieline_types::{FileId, SessionId};
use tieline_wire::notice::Recall;
use tieline_wire::{Notice, NoticeAnswer};
use tokio::time::Instant;

/// How long somebody may take to answer a notice that nothing depends on.
const TELL_PATIENCE: Duration = Duration::from_secs(10);
/// The longest absence that can be announced.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The connections of this server.
#[derive(Default)]
pub struct Connections(Mutex<Seated>);

#[derive(Default)]
struct Seated {
    notifiers: BTreeMap<SessionId, Notifier>,
    /// When the absence that was announced is over.
    held_until: Option<Instant>,
}

impl Connections {
    pub fn add(&self, session: SessionId, notifier: Notifier) {
        let mut seated = self.lock();
        seated.notifiers.insert(session, notifier.clone());
        let now = Instant::now();
        let left = seated.held_until.map(|until| until.saturating_duration_since(now));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            tell(notifier, hold(left));
        }
    }

    pub fn remove(&self, session: SessionId) {
        self.lock().notifiers.remove(&session);
    }

    /// Tells everybody who is here, and who comes meanwhile, that this server will be away for so
    /// long; for no time: that it stays. Waits for nobody. How many are here.
    pub fn hold_all(&self, span: Duration) -> usize {
        let mut seated = self.lock();
        seated.held_until = (!span.is_zero()).then(|| Instant::now() + span.min(HOLD_MAX));
        for notifier in seated.notifiers.values() {
            tell(notifier.clone(), hold(span));
        }
        seated.notifiers.len()
    }

    /// Sends a notice to everybody, and waits for nobody.
    pub fn tell_all(&self, notice: &Notice) {
        for notifier in self.lock().notifiers.values() {
            tell(notifier.clone(), notice.clone());
        }
    }

    fn newest(&self, session: SessionId) -> Option<Notifier> {
        self.lock().notifiers.get(&session).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Seated> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hold(span: Duration) -> Notice {
    Notice::Hold(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// Sends a notice whose answer nobody waits for.
fn tell(notifier: Notifier, notice: Notice) {
    tokio::spawn(async move { notifier.notify(notice, TELL_PATIENCE).await });
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

    async fn free_locks(&self, session: SessionId, file: FileId, patience: Duration) -> bool {
        let Some(notifier) = self.newest(session) else { return false };
        notifier.notify(Notice::FreeLocks(file), patience).await.is_some()
    }

    fn hang_up(&self, session: SessionId) {
        if let Some(notifier) = self.newest(session) {
            notifier.hang_up();
        }
    }
}
