//! Notices from a server to one session, and their answers.

use crate::frames::OutFrame;
use crate::outbox::Outbox;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::RequestNumber;
use tieline_wire::{FrameKind, Notice, NoticeAnswer};
use tieline_world::Bulk;
use tokio::sync::{Semaphore, oneshot};

/// Notices of one connection that wait for their answers at the same time; further ones wait to be
/// sent.
const NOTICES_MAX: usize = 1024;

/// Sends notices to one session's connection.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    outbox: Outbox,
    places: Semaphore,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    number_last: u64,
    waiting: BTreeMap<RequestNumber, oneshot::Sender<NoticeAnswer>>,
    is_closed: bool,
}

impl Notifier {
    pub(super) fn new(outbox: Outbox) -> Self {
        let places = Semaphore::new(NOTICES_MAX);
        Self { shared: Arc::new(Shared { outbox, places, open: Mutex::default() }) }
    }

    /// Sends a notice and waits for its answer, at most `patience`. `None`: no answer, or the
    /// connection is gone.
    pub async fn notify(&self, notice: Notice, patience: Duration) -> Option<NoticeAnswer> {
        tokio::time::timeout(patience, self.exchange(notice)).await.ok().flatten()
    }

    async fn exchange(&self, notice: Notice) -> Option<NoticeAnswer> {
        let _place = self.shared.places.acquire().await.ok()?;
        let (answer, waiting) = oneshot::channel();
        let number = self.lock().begin(answer)?;
        let _expected = Expected { notifier: self, number };
        let body = tieline_wire::encode(&notice);
        self.shared.outbox.push(OutFrame::new(FrameKind::Notice, number, body, Bulk::Empty));
        waiting.await.ok()
    }

    /// Ends the connection: its client comes back, and is welcomed.
    pub fn hang_up(&self) {
        self.shared.outbox.abandon();
    }

    /// An answer to a notice that nobody waits for any more is of no use.
    pub(super) fn answered(&self, number: RequestNumber, answer: NoticeAnswer) {
        if let Some(waiting) = self.lock().waiting.remove(&number) {
            let _ = waiting.send(answer);
        }
    }

    /// The connection is gone: whoever waits, waits in vain.
    pub(super) fn close(&self) {
        self.shared.places.close();
        let mut open = self.lock();
        open.is_closed = true;
        open.waiting.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn begin(&mut self, answer: oneshot::Sender<NoticeAnswer>) -> Option<RequestNumber> {
        if self.is_closed {
            return None;
        }
        self.number_last += 1;
        let number = RequestNumber(self.number_last);
        self.waiting.insert(number, answer);
        Some(number)
    }
}

/// Forgets the notice when the one who waits for its answer stops.
struct Expected<'a> {
    notifier: &'a Notifier,
    number: RequestNumber,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.notifier.lock().waiting.remove(&self.number);
    }
}
