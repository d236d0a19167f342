//! Closes that do not wait: bytes of files in directories that are held alone, on their way to OSTs
//! when their program has closed them.
//!
//! Small files go into the journal with their commits ([`crate::own`]). Larger ones need a place, a
//! chunk and a commit, which are three round trips: where nobody else can look before he has asked
//! us, close leaves them to the background, many at once. Whoever is recalled for such a directory
//! sends them first; so does fsync of the directory.
//!
//! What a program sets of a file whose bytes wait, closed or not, comes to the MDS before them
//! where nobody else can look: their commit then leaves its times alone. (`tar` sets the times and
//! owner of each file before it closes it.)
//!
//! Only what has room granted at OSTs is left so ([`crate::room`]): a pool that is full says so at
//! the close.
//!
//! Invariants: what is deferred is dirty, counted in the budget, and kept for the next process like
//! all that is written; it is decided under the cache's lock, so that a recall sees it or it sees
//! the recall.

use crate::file::{File, State};
use crate::room::Covered;
use crate::shared::{Shared, lock};
use crate::writer::How;
use crate::{At, AttributeChange, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::{Caller, FileId, Mode, Time};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// What is closed waits so long for its times and mode to be set.
pub(crate) const DELAY: Duration = Duration::from_millis(150);
/// How long whoever looks waits for what an earlier process wrote: less than a lease.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(15);
/// How long a close waits for room that OSTs were asked for.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
/// Files that may wait at once.
const DEFERRED_MAX: usize = 4096;

/// Files that were closed and wait, with their directories.
#[derive(Default)]
pub(crate) struct Deferred(Mutex<BTreeMap<FileId, (FileId, Arc<File>)>>);

impl Deferred {
    pub fn forget(&self, file: FileId) {
        lock(&self.0).remove(&file);
    }

    /// A file lies in another directory now. To be called under the cache's lock.
    pub fn moved(&self, file: FileId, unit: FileId) {
        if let Some((at, _)) = lock(&self.0).get_mut(&file) {
            *at = unit;
        }
    }

    /// What an earlier process wrote and had closed, perhaps: whoever looks anywhere has it sent.
    pub fn restore(&self, file: &Arc<File>) {
        let anywhere = FileId::new(file.id.mdt(), 0);
        lock(&self.0).insert(file.id, (anywhere, file.clone()));
    }

    fn get(&self, file: FileId) -> Option<Arc<File>> {
        lock(&self.0).get(&file).map(|(_, file)| file.clone())
    }

    /// Those of a directory; of an MDT if its serial is 0.
    pub fn of(&self, unit: FileId) -> Vec<Arc<File>> {
        let deferred = lock(&self.0);
        let is_of = |at: FileId| match unit.serial() {
            0 => at.mdt() == unit.mdt(),
            _ => at == unit || at == FileId::new(unit.mdt(), 0),
        };
        deferred.values().filter(|(at, _)| is_of(*at)).map(|(_, file)| file.clone()).collect()
    }
}

impl Shared {
    /// Leaves what was written to a file to the background, if nobody else can look first and OSTs
    /// have granted room for it. Who has just asked them waits for that, which is less than to
    /// wait for the bytes.
    pub(crate) async fn defer_once_covered(self: &Arc<Self>, file: &Arc<File>) -> bool {
        let until = Instant::now() + ROOM_PATIENCE;
        loop {
            let answered = self.rooms.heard.notified();
            tokio::pin!(answered);
            // The answer may come between.
            answered.as_mut().enable();
            match self.defer(file) {
                Covered::Yes => return true,
                Covered::MayBe if timeout_at(until, answered).await.is_ok() => {}
                Covered::MayBe | Covered::No => return false,
            }
        }
    }

    fn defer(self: &Arc<Self>, file: &Arc<File>) -> Covered {
        if self.journal.of(file.id.mdt()).is_none() || self.budget.is_short() {
            return Covered::No;
        }
        // It is among the dirty ones since it was written, and its turn comes by itself.
        file.with(|state| {
            if !state.is_plain() {
                return Covered::No;
            }
            let mut tables = self.cache.lock();
            let Some((known, unit)) = tables.own_file(file.id) else { return Covered::No };
            let mut deferred = lock(&self.deferred.0);
            if known.version != state.version || deferred.len() >= DEFERRED_MAX {
                return Covered::No;
            }
            let covered = self.cover(file.id, state);
            if covered == Covered::Yes {
                deferred.insert(file.id, (unit, file.clone()));
                state.deferred.get_or_insert_with(Instant::now);
            }
            covered
        })
    }

    /// Sends what waits of the files of these names: the MDS is about to change where they are.
    pub(crate) async fn launder_names(self: &Arc<Self>, names: &[At<'_>]) {
        for at in names {
            let known = self.cache.lock().name(at.parent, at.name);
            if let Some(id) = known.and_then(|(id, _)| id) {
                self.launder_one(id).await;
            }
        }
    }

    /// Sends what was written to a file that is about to take the place of another: a crash leaves
    /// the one or the other, and a server that takes no bytes the old one.
    pub(crate) async fn launder_replacing(
        self: &Arc<Self>,
        from: At<'_>,
        to: At<'_>,
    ) -> Result<()> {
        let id = {
            let mut tables = self.cache.lock();
            let target = tables.name(to.parent, to.name).and_then(|(id, _)| id);
            target.and_then(|_| tables.name(from.parent, from.name)?.0)
        };
        match id {
            Some(id) => self.launder_written(id).await,
            None => Ok(()),
        }
    }

    /// Sends what was written to a file so far.
    pub(crate) async fn launder_written(self: &Arc<Self>, id: FileId) -> Result<()> {
        match self.file_known(id).filter(|file| file.is_dirty()) {
            Some(file) => self.launder_detached(&file, How::Flush).await,
            None => Ok(()),
        }
    }

    /// Sends what was written to a file that is about to be given a capability: the commit of these
    /// bytes would take it away.
    pub(crate) async fn launder_empowered(self: &Arc<Self>, id: FileId) -> Result<()> {
        self.wait_for_recovery(id).await;
        self.launder_written(id).await
    }

    /// The same of one file. If it fails the file stays dirty, and says so later.
    pub(crate) async fn launder_one(self: &Arc<Self>, id: FileId) {
        let Some(file) = self.deferred.get(id) else { return };
        if let Err(error) = self.launder(&file, How::Flush).await {
            tracing::warn!(file = %id, %error, "closed file is not committed yet");
        }
    }

    /// Sends what waits of a directory's files, what an earlier process left of them among it.
    pub(crate) async fn launder_deferred(self: &Arc<Self>, unit: FileId, how: How) -> Result<()> {
        self.wait_for_recovery(unit).await;
        let mut tasks = JoinSet::new();
        for file in self.deferred.of(unit) {
            let shared = self.clone();
            tasks.spawn(async move { shared.launder(&file, how).await });
        }
        let mut outcome = Ok(());
        while let Some(joined) = tasks.join_next().await {
            outcome = outcome.and(joined.unwrap_or(Ok(())));
        }
        outcome
    }

    async fn wait_for_recovery(&self, id: FileId) {
        let mut recovered = self.recovered.subscribe();
        let patience = self.settings.wait.min(RECOVERY_PATIENCE);
        if tokio::time::timeout(patience, recovered.wait_for(|is_over| *is_over)).await.is_err() {
            tracing::warn!(%id, "what was written before a restart is not here yet");
        }
    }
}

impl State {
    /// Is the file's turn come?
    pub(crate) fn is_deferral_over(&self) -> bool {
        self.deferred.is_some_and(|since| since.elapsed() >= DELAY)
    }

    /// Is what was written ours to send when we like, and sure of its place?
    fn is_plain(&self) -> bool {
        self.appended_from().is_none()
            && !self.is_shared()
            && !self.promise.is_some()
            && self.stuck.is_none()
            && !self.is_orphan
    }

    /// May this be set before the bytes come that wait? Then they will leave it alone. Rights that
    /// change must not be what their writer had them by.
    pub(crate) fn sets_before_bytes(&self, caller: &Caller, change: &AttributeChange) -> bool {
        let AttributeChange { mode, uid, gid, size, .. } = *change;
        let changes_rights = mode.is_some() || uid.is_some() || gid.is_some();
        let is_writers = self.writer.is_root() || self.writer.uid == caller.uid;
        // The bytes would end them.
        let gives = |mode: Mode| mode.bits() & (Mode::SETUID | Mode::SETGID) != 0;
        if mode.is_some_and(gives) && !self.writer.is_root() {
            return false;
        }
        size.is_none() && (is_writers || !changes_rights) && self.is_plain()
    }

    /// It was set, with the time that the file has then.
    pub(crate) fn was_set_before_bytes(&mut self, change: &AttributeChange, mtime: Time) {
        (self.mtime, self.keeps_mtime) = (Some(mtime), true);
        if change.mode.is_some() {
            // Whoever sets it now means what he says.
            self.clears_setid = false;
        }
    }
}
