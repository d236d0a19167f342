//! Chunks that have arrived at their OSTs and were not made durable there since.
//!
//! Each file knows where it has some; the volume knows the files, also those that nobody uses any
//! more: fsync of a directory and `tieline sync` promise for them too, and a commit in the
//! background makes nothing durable at OSTs.
//!
//! Invariants: what arrives while a sync is under way is of the next; the files that are remembered
//! are bounded: of many the oldest are synced.

use crate::file::File;
use crate::shared::{Shared, lock};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tieline_types::{ErrorKind, FileId, OstIndex, Retry};
use tokio::task::JoinSet;

/// Of more files than this the oldest are synced in the background, an eighth at a time.
const FILES_MANY: usize = 16 << 10;
/// Files that are remembered while that fails.
const FILES_MAX: usize = 4 * FILES_MANY;
/// Files that one call syncs at once.
const AT_ONCE: usize = 256;

/// Of one file: the OSTs of each chunk's copies, with the number of the last arrival there.
#[derive(Default)]
pub(crate) struct Unsynced {
    copies: BTreeMap<Vec<OstIndex>, u64>,
    arrivals: u64,
}

impl Unsynced {
    pub fn arrived(&mut self, copies: Vec<OstIndex>) {
        self.arrivals += 1;
        self.copies.insert(copies, self.arrivals);
    }

    /// Where something is to be synced, and what [`Unsynced::synced`] is to be told then.
    pub fn begin(&self) -> (BTreeSet<Vec<OstIndex>>, u64) {
        (self.copies.keys().cloned().collect(), self.arrivals)
    }

    /// What had arrived by then is durable.
    pub fn synced(&mut self, begun: u64) {
        self.copies.retain(|_, last| *last > begun);
    }

    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }
}

/// The files of which something is unsynced.
#[derive(Default)]
pub(crate) struct UnsyncedFiles {
    files: Mutex<BTreeMap<FileId, Arc<File>>>,
    /// The oldest are being synced.
    is_syncing: AtomicBool,
}

impl UnsyncedFiles {
    /// To be called under the file's lock. Says whether there are many.
    fn add(&self, file: &Arc<File>) -> bool {
        let mut files = lock(&self.files);
        files.insert(file.id, file.clone());
        let forgotten = if files.len() > FILES_MAX { files.pop_first() } else { None };
        let is_many = files.len() > FILES_MANY;
        drop(files);
        if let Some((id, _)) = &forgotten {
            tracing::warn!(file = %id, "its chunks were never synced, and will not be");
        }
        is_many
    }

    /// To be called under the file's lock.
    fn remove(&self, file: FileId) {
        lock(&self.files).remove(&file);
    }

    /// The oldest, up to so many.
    fn first(&self, count: usize) -> Vec<Arc<File>> {
        lock(&self.files).values().take(count).cloned().collect()
    }
}

impl Shared {
    /// Makes durable what has arrived of files: of those in a directory, or of all.
    pub(crate) async fn sync_arrived(self: &Arc<Self>, directory: Option<FileId>) -> Result<()> {
        let mut files = self.unsynced.first(usize::MAX);
        if let Some(directory) = directory {
            let tables = self.cache.lock();
            let unit = |id| tables.unit_of(id).or_else(|| tables.parent_of(id));
            files.retain(|file| unit(file.id) == Some(directory));
        }
        self.sync_files(files).await
    }

    async fn sync_files(self: &Arc<Self>, files: Vec<Arc<File>>) -> Result<()> {
        let (mut tasks, mut outcome) = (JoinSet::new(), Ok(()));
        for file in files {
            let shared = self.clone();
            tasks.spawn(async move { shared.sync_own(&file).await });
            if tasks.len() >= AT_ONCE {
                outcome = outcome.and(joined(tasks.join_next().await));
            }
        }
        while let Some(next) = tasks.join_next().await {
            outcome = outcome.and(joined(Some(next)));
        }
        outcome
    }

    /// The same of one file, whoever else wrote to it.
    pub(crate) async fn sync_own(self: &Arc<Self>, file: &File) -> Result<()> {
        let (chunks, begun, enough) = file.with(|state| {
            let (chunks, begun) = state.unsynced.begin();
            let sync = state.layout.as_ref().map_or(1, |layout| layout.sync.max(1));
            (chunks, begun, usize::from(sync))
        });
        let outcome = match self.sync_copies(file, &chunks, enough).await {
            // Nobody can ask for what is gone.
            Err(error) if is_gone(error.kind()) => Ok(()),
            outcome => outcome,
        };
        // What is refused for good is told once.
        if outcome.as_ref().map_or_else(|error| error.kind().retry() == Retry::Never, |()| true) {
            self.synced(file, begun);
        }
        outcome
    }

    /// What had arrived of a file by then is durable.
    pub(crate) fn synced(&self, file: &File, begun: u64) {
        file.with(|state| {
            state.unsynced.synced(begun);
            if state.unsynced.is_empty() {
                self.unsynced.remove(file.id);
            }
        });
    }

    /// Something of a file is unsynced from now on. To be called under its lock.
    pub(crate) fn note_unsynced(self: &Arc<Self>, file: &Arc<File>) {
        if !self.unsynced.add(file) || self.unsynced.is_syncing.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            let oldest = shared.unsynced.first(FILES_MANY / 8);
            if let Err(error) = shared.sync_files(oldest).await {
                tracing::info!(%error, "chunks of many files are not synced yet");
            }
            shared.unsynced.is_syncing.store(false, Ordering::Relaxed);
        });
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Stale | ErrorKind::NotFound | ErrorKind::Gone)
}

fn joined(next: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
    next.map_or(Ok(()), |next| next.map_err(stopped)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_during_a_sync_is_of_the_next() {
        let both = vec![OstIndex(0), OstIndex(1)];
        let mut unsynced = Unsynced::default();
        unsynced.arrived(both.clone());
        unsynced.arrived(vec![OstIndex(2)]);
        let (chunks, begun) = unsynced.begin();
        assert_eq!(chunks.len(), 2);
        // To the same place: the set looks as it did.
        unsynced.arrived(both.clone());
        unsynced.synced(begun);
        let (chunks, begun) = unsynced.begin();
        assert_eq!(chunks, BTreeSet::from([both]));
        unsynced.synced(begun);
        assert!(unsynced.is_empty());
    }
}
