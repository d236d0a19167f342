//! Leases that are taken away: by a recall, by a server that forgot them, by time, or for want of
//! room.

use crate::cache::ServerNumber;
use crate::volume::{Shared, lock};
use crate::{CacheListener, Invalidation, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::FileId;
use tieline_wire::notice::Recall;
use tieline_wire::{NoticeAnswer, Welcome};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long the answer to a recall waits for the door: shorter than an MDS waits for the answer.
const LISTENER_PATIENCE: Duration = Duration::from_secs(3);

impl Shared {
    /// Forgets what lies under the unit, makes the door forget it, and only then answers.
    pub(crate) async fn recalled(&self, recall: Recall) -> NoticeAnswer {
        if let Err(error) = self.hand_over(&recall).await {
            tracing::warn!(unit = %recall.unit, %error, "what was done here is not sent");
        }
        if recall.is_shared == Some(true) {
            return NoticeAnswer::default();
        }
        let told = self.cache.recalled(&recall);
        for &id in &recall.files {
            self.forget_bytes(id);
        }
        let is_contended = told.is_contended;
        let forgotten = self.tell(told);
        if !is_contended
            && let Some(forgotten) = forgotten
            && tokio::time::timeout(LISTENER_PATIENCE, forgotten).await.is_err()
        {
            tracing::warn!(unit = %recall.unit, "door is slow to forget; its beliefs run out");
        }
        let open = recall.files.into_iter().filter(|&id| self.is_open(id)).collect();
        NoticeAnswer { is_contended, open }
    }

    /// Nothing more is decided here about the unit; what was is sent.
    async fn hand_over(&self, recall: &Recall) -> Result<()> {
        let (unit, mdt) = (recall.unit, recall.unit.mdt());
        let Some(queue) = self.journal.of(mdt) else { return Ok(()) };
        let number = {
            let mut tables = self.cache.lock();
            if unit.serial() == 0 {
                tables.units.share_all(mdt, recall.at);
            } else {
                tables.units.share(unit, recall.at);
            }
            queue.last()
        };
        queue.drain(number, self.settings.wait).await
    }

    /// Believes nothing under a unit any more.
    pub(crate) fn let_go(&self, unit: FileId) {
        let told = self.cache.let_go(unit);
        self.tell(told);
    }

    pub(crate) fn welcomed(&self, server: ServerNumber, welcome: &Welcome) {
        if !welcome.is_resumed {
            self.journal.session_changed();
        }
        let told = self.cache.welcomed(server, welcome);
        self.tell(told);
    }

    pub(crate) fn renewed(&self, server: ServerNumber, sent: Instant) {
        let told = self.cache.renewed(server, sent);
        self.tell(told);
    }

    /// An own mutation in these directories may or may not have happened.
    pub(crate) fn doubt(&self, directories: &[FileId]) {
        for &directory in directories {
            let told = self.cache.lock().doubt(directory);
            self.tell(told);
        }
    }

    /// Makes room if too many files are remembered.
    pub(crate) fn shrink(&self) {
        if let Some(told) = self.cache.shrink() {
            self.tell(told);
        }
    }

    /// The file's bytes change elsewhere: the door's own cache of them is not right any more.
    fn forget_bytes(&self, id: FileId) {
        if let Some(file) = self.file_known(id) {
            file.with(|state| state.door_version = None);
        }
    }

    /// Tells the door what to forget. The receiver ends when it has.
    pub(crate) fn tell(&self, what: Invalidation) -> Option<oneshot::Receiver<()>> {
        let is_empty = what.entries.is_empty()
            && what.doubted.is_empty()
            && what.attributes.is_empty()
            && what.data.is_empty();
        let listener: Option<Arc<dyn CacheListener>> = lock(&self.listener).clone();
        let listener = listener.filter(|_| !is_empty)?;
        let (done, forgotten) = oneshot::channel();
        let done = Mutex::new(Some(done));
        listener.invalidate(
            what,
            Box::new(move || {
                if let Some(done) = lock(&done).take() {
                    // The recall may have stopped waiting.
                    let _ = done.send(());
                }
            }),
        );
        Some(forgotten)
    }
}
