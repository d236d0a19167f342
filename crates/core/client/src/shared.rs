//! What all calls, tasks and sinks of a mounted file system share.
//!
//! Calls that change something run in tasks of their own ([`Shared::detached`]): a caller who goes
//! away does not stop them halfway, so that the cache always learns what became of them.
//!
//! Lock order: a file's state, the cache, the journal. No lock is held across an await but
//! [`crate::file::File::gate`].

use crate::bulk::Bulk;
use crate::deferred::Deferred;
use crate::file::{Budget, File};
use crate::files::Files;
use crate::handles::Handles;
use crate::journal::Journal;
use crate::locks::Locks;
use crate::pins::Pins;
use crate::promises::Promises;
use crate::spooling::Spooled;
use crate::unsynced::UnsyncedFiles;
use crate::{CacheListener, Error, FsSpace, Result, Settings};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use tieline_believed::Cache;
use tieline_believed::places::Places;
use tieline_bytes::{Chunks, Near, PoorOsts};
use tieline_foresight::past::Past;
use tieline_granted::Rooms;
use tieline_keep::{Keep, Kept};
use tieline_owed::cause::{self, Before};
use tieline_owed::records::Left;
use tieline_owed::untold::Untold;
use tieline_servers::Servers;
use tieline_types::{Attributes, ErrorKind, FileId, Time};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

/// What calls, tasks and sinks share.
pub(crate) struct Shared {
    pub root: FileId,
    /// What it was last, also beyond the lease.
    pub root_seen: Mutex<Option<Attributes>>,
    pub settings: Settings,
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    /// What is brought before it is asked for.
    pub bulk: Bulk,
    /// What was done here and the MDSs do not know yet.
    pub journal: Journal,
    pub chunks: Arc<Chunks>,
    pub near: Near,
    pub budget: Arc<Budget>,
    pub files: Files,
    pub handles: Handles,
    /// Files that are open here, and their MDSs were not asked.
    pub untold: Untold,
    /// Positions in directories.
    pub places: Mutex<Places>,
    /// Files with bytes that are not committed, for the background.
    pub dirty: Mutex<BTreeMap<FileId, Arc<File>>>,
    pub dirtied: Arc<Notify>,
    pub deferred: Deferred,
    pub unsynced: UnsyncedFiles,
    /// What an earlier process had written is here again.
    pub recovered: watch::Sender<bool>,
    /// Files with many small extents, to be compacted.
    pub worn: Mutex<BTreeMap<FileId, Arc<File>>>,
    pub compacting: Arc<tokio::sync::Semaphore>,
    pub locks: Locks,
    pub listener: Mutex<Option<Arc<dyn CacheListener>>>,
    pub poor: PoorOsts,
    pub above: Mutex<tieline_believed::Above>,
    /// How files were read.
    pub past: Mutex<Past>,
    /// Room for copies that are on their way after their commit.
    pub late: Arc<Semaphore>,
    /// What `df` told last.
    pub space: Mutex<Option<(FsSpace, Instant)>>,
    /// What is in the spool.
    pub spooled: Spooled,
    pub promises: Promises,
    /// What OSTs keep for bytes that closes were answered for.
    pub rooms: Arc<Rooms>,
    /// Trees that are kept for times without servers.
    pub pins: Pins,
    /// For tasks that calls without it start.
    pub weak: Weak<Shared>,
    /// What outlives this process, and what an earlier one left of it.
    pub keep: Keep,
    pub left: Mutex<Left>,
    pub _client_kept: Option<Kept>,
    /// By the door's numbers: what was done for requests that were not answered.
    pub before: Mutex<BTreeMap<u64, Before>>,
    /// Nothing is changed for programs here.
    pub is_read_only: AtomicBool,
    /// Times of access that are on their way to the MDS.
    pub accesses: Mutex<BTreeMap<FileId, Time>>,
}

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Carries a change out, whether or not its caller waits to the end. What waits for nothing is
    /// done where it is called; a task costs the wake-up of a thread or two.
    pub async fn detached<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut work = Box::pin(cause::within(cause::current(), work));
        let at_once = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(outcome) = at_once {
            return outcome;
        }
        let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
        tokio::spawn(work).await.map_err(stopped)?
    }

    /// The state of a regular file, made when it is first needed.
    pub fn file(&self, id: FileId) -> Arc<File> {
        self.files.get(id)
    }

    /// The state of a file that is in use here.
    pub fn file_known(&self, id: FileId) -> Option<Arc<File>> {
        self.files.whole(id)
    }

    /// Do programs hold it open?
    pub fn is_open(&self, id: FileId) -> bool {
        self.file_known(id).is_some_and(|file| file.with(|state| state.handles > 0))
    }

    pub fn has_open_files(&self) -> bool {
        self.files.are_open()
    }

    /// Now, for times of a file: by the clock of its MDS.
    pub fn now_of(&self, file: FileId) -> Time {
        self.servers.time_at(file.mdt())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Background tasks wait without holding us.
        self.dirtied.notify_one();
        self.untold.end();
        self.rooms.end();
    }
}
