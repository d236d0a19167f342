//! Making objects survive the machine: files first, then the names that lead to them.
//!
//! A file's bytes are synced through the descriptor that wrote them, where it is still open, so
//! that an error of the kernel's write-back is not missed. Directories that got a new subdirectory
//! are noted when it is made, and synced once.
//!
//! Invariant: a directory leaves the notes only after a sync that began when nothing new had been
//! noted for it.

use super::{Directory, tree};
use crate::Error;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::GrantedId;

/// What a sync found.
#[derive(Default)]
pub(super) struct SyncReport {
    absent: BTreeSet<GrantedId>,
    lost: BTreeSet<GrantedId>,
    /// Why, for the first that was lost.
    source: Option<io::Error>,
}

impl SyncReport {
    pub fn merge(&mut self, other: Self) {
        self.absent.extend(other.absent);
        self.lost.extend(other.lost);
        self.source = self.source.take().or(other.source);
    }

    fn lose(&mut self, chunks: impl IntoIterator<Item = GrantedId>, source: io::Error) {
        self.lost.extend(chunks);
        self.source.get_or_insert(source);
    }
}

/// Directories with new subdirectories that may not be durable yet, and when they were noted last.
#[derive(Default)]
pub(super) struct ChangedDirectories(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    directories: BTreeMap<String, u64>,
    count: u64,
}

impl ChangedDirectories {
    /// Runs `change`, which notes the directories that it changed. Whoever sees its effect and then
    /// syncs finds the notes, since the snapshot waits for it.
    pub fn noting<T>(&self, change: impl FnOnce(&mut dyn FnMut(&str)) -> T) -> T {
        let mut notes = self.lock();
        change(&mut |directory| {
            notes.count += 1;
            let count = notes.count;
            notes.directories.insert(directory.to_owned(), count);
        })
    }

    fn snapshot(&self) -> BTreeMap<String, u64> {
        self.lock().directories.clone()
    }

    fn forget(&self, directory: &str, noted: u64) {
        let mut notes = self.lock();
        if notes.directories.get(directory) == Some(&noted) {
            notes.directories.remove(directory);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory {
    /// Syncs the bytes of objects.
    pub(super) fn sync_files(&self, chunks: Vec<GrantedId>) -> SyncReport {
        let mut report = SyncReport::default();
        for chunk in chunks {
            match self.sync_file(chunk) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    report.absent.insert(chunk);
                }
                Err(error) => report.lose([chunk], error),
            }
        }
        report
    }

    fn sync_file(&self, chunk: GrantedId) -> io::Result<()> {
        match self.cache.get(chunk) {
            Some(object) => object.file.sync_all(),
            None => self.open_file(chunk)?.sync_all(),
        }
    }

    /// Syncs the names of objects whose bytes were synced, and says what the whole sync came to.
    pub(super) fn sync_names(
        &self,
        chunks: &[GrantedId],
        mut report: SyncReport,
    ) -> Result<(), Error> {
        let mut parents: BTreeMap<String, Vec<GrantedId>> = BTreeMap::new();
        for &chunk in chunks.iter().filter(|chunk| !report.absent.contains(chunk)) {
            parents.entry(tree::parent(chunk)).or_default().push(chunk);
        }
        for (directory, noted) in self.changed.snapshot() {
            match self.sync_directory(&directory) {
                Ok(()) => self.changed.forget(&directory, noted),
                Err(error) => report.lose(chunks.iter().copied(), error),
            }
        }
        for (parent, children) in parents {
            if let Err(error) = self.sync_directory(&parent) {
                report.lose(children, error);
            }
        }
        self.sync_verdict(report)
    }

    fn sync_verdict(&self, report: SyncReport) -> Result<(), Error> {
        let store = self.describe();
        if let Some(source) = report.source {
            return Err(Error::NotDurable {
                chunks: report.lost.into_iter().collect(),
                store,
                source,
            });
        }
        match report.absent.first() {
            Some(&chunk) => Err(Error::Absent { chunk, store }),
            None => Ok(()),
        }
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        match tree::open_directory(&self.root, path) {
            Ok(directory) => directory.sync_all(),
            // Emptied and removed meanwhile: there is no name left to keep.
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
