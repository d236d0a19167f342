//! The cache of one node: blocks of chunks on a local disk, for one mount.
//!
//! Each chunk has a file ([`entry`]) that holds those of its blocks that were read, with their
//! checks; a table in memory ([`index`]) says which were used last and how much room all take. The
//! table is made when the cache is opened, from names and times, in the background; no read looks
//! through the disk.
//!
//! Writing happens behind the reader: what finds no room in the queue is not kept. What is to be
//! pinned waits for its room, and until it is there ([`NodeCache::store`]).
//!
//! Invariants: every block is compared with its check when it is read, every chunk with its digest
//! when its last block comes; what differs is dropped; files may vanish at any time; a disk that is
//! full or fails costs a log line and a counter, and what is on it is served if it can be read.

pub(crate) mod entry;
mod files;
mod index;
mod unused;

pub use unused::forget_unused;

pub(crate) use files::{ChunkFile, chunk_path, files, verify};

use crate::trouble::Trouble;
use crate::{Error, Kind, Known, LocalStorage, is_whole_in_parts, lock, marker, pins};
use bytes::Bytes;
use entry::{Entry, Run};
use index::Index;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tieline_telemetry::metrics::METRICS;
use tieline_types::ChunkId;
use tieline_world::Clock;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const NAME: &str = "node";
/// The file that is locked by whose cache it is; its time says when it was opened last.
const LOCK: &str = "lock";
/// Longer chunks are not kept.
const LENGTH_MAX: u64 = 256 << 20;
/// Reads of the disk at once.
const JOBS_MAX: usize = 16;
/// One read of a local disk: one that takes longer is as good as none.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that wait to be written, in units of [`GRAIN`].
const QUEUE_MAX: usize = 64 << 20;
const GRAIN: usize = 4096;
/// Where a limit is passed, so much of it is freed at once; of a full disk so much of what is here.
const FREED_SHARE: u64 = 20;
/// A cache that is full of pins is looked at again after so long.
const STUCK: Duration = Duration::from_secs(10);
/// Times of use are written to the disk at most so often.
const TOUCH_APART_MS: u64 = 600_000;

/// What an operator says of a node's cache.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    pub path: PathBuf,
    pub bytes_max: u64,
    /// Which federation the chunk ids are of: a name for a directory.
    pub scope: String,
}

/// A node's cache, as one mount uses it.
#[derive(Clone)]
pub struct NodeCache {
    inner: Arc<Inner>,
}

struct Inner {
    settings: NodeSettings,
    /// The directory of the federation.
    root: PathBuf,
    /// The file system it was on: a directory that another is mounted over, or not mounted any
    /// more, is not filled.
    device: u64,
    clock: Arc<dyn Clock>,
    trouble: Trouble,
    /// It cannot be written to, so that nothing is kept.
    writing: Trouble,
    index: Mutex<Index>,
    /// All that is left is pinned: nothing more is kept until then.
    stuck: Mutex<Option<Instant>>,
    jobs: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// Held while a file is opened or made.
    making: Mutex<()>,
    /// Locked for as long as we live.
    _lock: File,
}

impl NodeCache {
    /// Makes the directory a node's cache if it is empty, and takes what an earlier mount left.
    /// Blocks.
    pub fn open(settings: NodeSettings, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let path = settings.path.clone();
        let failed = |doing, source| Error::Failed { path: path.clone(), doing, source };
        if path.exists() && !path.is_dir() {
            let reason = "it is not a directory".to_owned();
            return Err(Error::Unfit { path, reason });
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|source| failed("make", source))?;
        marker::ensure(&LocalStorage::Private, &path, Kind::Node)?;
        let root = path.join(&settings.scope);
        make_folder(&root.join("chunks")).map_err(|source| failed("make", source))?;
        let lock = File::options().create(true).truncate(false).write(true).open(root.join(LOCK));
        let lock = lock.map_err(|source| failed("open the lock of", source))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // A local disk has locks; where there are none, nobody is kept out.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::InUse { path }),
            Err(errno) => return Err(failed("lock", errno.into())),
        }
        // Where it fails, the cache counts as older than it is.
        let _ = lock.set_modified(SystemTime::now());
        let device = path.metadata().map_err(|source| failed("look at", source))?.dev();
        let inner = Arc::new(Inner {
            root,
            device,
            clock,
            trouble: Trouble::all(),
            writing: Trouble::writing(),
            index: Mutex::default(),
            stuck: Mutex::default(),
            jobs: Arc::new(Semaphore::new(JOBS_MAX)),
            queue: Arc::new(Semaphore::new(QUEUE_MAX / GRAIN)),
            making: Mutex::default(),
            _lock: lock,
            settings,
        });
        let limit = i64::try_from(inner.settings.bytes_max).unwrap_or(i64::MAX);
        METRICS.cache_limit_bytes.with_label_values(&[NAME]).set(limit);
        let weak = Arc::downgrade(&inner);
        let scan = move || {
            if let Some(inner) = weak.upgrade() {
                inner.scan();
            }
        };
        std::thread::Builder::new()
            .name("cache-scan".to_owned())
            .spawn(scan)
            .map_err(|source| failed("look through", source))?;
        Ok(Self { inner })
    }

    pub fn path(&self) -> &Path {
        &self.inner.settings.path
    }

    /// Those bytes of `range` that are here, verified, in order: runs with their offsets.
    pub async fn find(&self, known: &Known, range: Range<u64>) -> Vec<Run> {
        let inner = &self.inner;
        if inner.trouble.is_now() || !lock(&inner.index).has(known.chunk) {
            self.missed(range.end - range.start);
            return Vec::new();
        }
        let (inner, known, wanted) = (inner.clone(), *known, range.clone());
        let job = async {
            // The semaphore is never closed; if it were, jobs would only lose their bound.
            let permit = inner.jobs.clone().acquire_owned().await.ok();
            let inner = inner.clone();
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                inner.find(&known, wanted)
            });
            task.await.unwrap_or_default()
        };
        let found = tokio::time::timeout(PATIENCE, job).await;
        let found = found.unwrap_or_else(|_| {
            self.inner.trouble.note(self.path(), NAME, &"a read takes too long");
            Vec::new()
        });
        let bytes: u64 = found.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        METRICS.cache_served_bytes.with_label_values(&[NAME]).inc_by(bytes);
        self.missed((range.end - range.start).saturating_sub(bytes));
        if bytes > 0 {
            self.inner.trouble.over(self.path(), NAME);
        }
        found
    }

    /// Is nearly all of a chunk here, by what its file takes? The disk is not asked.
    pub fn is_full(&self, known: &Known) -> bool {
        lock(&self.inner.index).space(known.chunk) >= known.length
    }

    fn missed(&self, bytes: u64) {
        METRICS.cache_missed_bytes.with_label_values(&[NAME]).inc_by(bytes);
    }

    /// Keeps verified bytes of a chunk from `offset`: whole blocks of them. Nobody waits for it.
    pub fn keep(&self, known: &Known, offset: u64, bytes: Bytes) {
        let inner = &self.inner;
        let grains = u32::try_from(bytes.len().div_ceil(GRAIN)).unwrap_or(u32::MAX);
        let is_let_alone = inner.trouble.is_now() || inner.writing.is_now();
        if known.length > LENGTH_MAX || is_let_alone {
            return;
        }
        let Ok(room) = inner.queue.clone().try_acquire_many_owned(grains) else { return };
        let (inner, known) = (inner.clone(), *known);
        tokio::task::spawn_blocking(move || {
            // Of many that wait for a full disk the first makes room, and the others are let go.
            if inner.writing.is_now() {
                return;
            }
            let length = bytes.len() as u64;
            match inner.keep(&known, offset, &bytes) {
                Ok(()) => {
                    inner.writing.over(&inner.settings.path, NAME);
                    METRICS.cache_kept_bytes.with_label_values(&[NAME]).inc_by(length);
                }
                Err(error) => {
                    inner.writing.note(&inner.settings.path, NAME, &error);
                    if error.kind() == io::ErrorKind::StorageFull {
                        inner.make_room(length);
                    }
                }
            }
            drop(room);
        });
    }
}

/// What is pinned, and what is kept so that it can be.
impl NodeCache {
    /// Keeps verified bytes of a chunk from `offset`, and says why not.
    pub async fn store(&self, known: &Known, offset: u64, bytes: Bytes) -> io::Result<()> {
        let inner = &self.inner;
        let grains = bytes.len().div_ceil(GRAIN).min(QUEUE_MAX / GRAIN);
        let room = inner.queue.clone().acquire_many_owned(u32::try_from(grains).unwrap_or(1));
        let room = room.await.map_err(io::Error::other)?;
        let (inner, known) = (inner.clone(), *known);
        let stored = tokio::task::spawn_blocking(move || {
            let _room = room;
            inner.store(&known, offset, &bytes)
        });
        stored.await.map_err(io::Error::other)?
    }

    /// Is all of a chunk here?
    pub async fn holds(&self, known: &Known) -> bool {
        if !lock(&self.inner.index).has(known.chunk) {
            return false;
        }
        let (inner, known) = (self.inner.clone(), *known);
        let look = move || matches!(inner.entry(&known), Ok(Some(entry)) if entry.is_whole());
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }

    /// Has chunks stay, in place of those that were pinned under the same words; `None` lets them
    /// go.
    pub async fn pin(&self, words: &str, chunks: Option<&[ChunkId]>) -> Result<(), Error> {
        let names = chunks.map(|chunks| chunks.iter().map(ChunkId::to_string).collect());
        let (root, what) = (self.inner.root.clone(), words.to_owned());
        self.change(move || match names {
            Some(names) => pins::pin(&LocalStorage::Private, &root, &what, &names),
            None => pins::unpin(&LocalStorage::Private, &root, &what).map(drop),
        })
        .await
    }

    /// Puts something down beside a pin, in place of what was there; it goes with the pin.
    pub async fn save(&self, words: &str, bytes: Vec<u8>) -> Result<(), Error> {
        let (root, what) = (self.inner.root.clone(), words.to_owned());
        self.change(move || pins::save(&LocalStorage::Private, &root, &what, &bytes)).await
    }

    /// What was put down beside a pin, if it is as it was.
    pub async fn saved(&self, words: &str) -> Option<Vec<u8>> {
        let (root, what) = (self.inner.root.clone(), words.to_owned());
        let read = move || pins::saved(&LocalStorage::Private, &root, &what);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    async fn change(
        &self,
        change: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let path = self.path().to_owned();
        let ended = |error| {
            let source = io::Error::other(error);
            Error::Failed { path, doing: "write a pin into", source }
        };
        tokio::task::spawn_blocking(change).await.map_err(ended)?
    }

    /// The words of all pins.
    pub async fn pinned(&self) -> Vec<String> {
        let root = self.inner.root.clone();
        let list = move || pins::list(&LocalStorage::Private, &root);
        let pins = tokio::task::spawn_blocking(list).await.unwrap_or_default();
        pins.into_iter().map(|pin| pin.what).collect()
    }
}

impl Inner {
    fn store(&self, known: &Known, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if known.length > LENGTH_MAX {
            return Err(io::Error::other("a chunk is too long for the cache"));
        }
        let (length, limit) = (bytes.len() as u64, self.settings.bytes_max);
        let has_room = || lock(&self.index).bytes() + length <= limit;
        if !has_room() {
            self.evict(length);
        }
        if !has_room() {
            let what = "the cache is full of what is pinned: give it a larger cache-size=";
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        *lock(&self.stuck) = None;
        self.keep(known, offset, bytes)?;
        METRICS.cache_kept_bytes.with_label_values(&[NAME]).inc_by(length);
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall().as_millis() as u64
    }

    fn path(&self, chunk: ChunkId) -> PathBuf {
        chunk_path(&self.root, chunk)
    }

    /// Learns what an earlier mount left.
    fn scan(&self) {
        let found = files(&self.root);
        let mut index = lock(&self.index);
        for file in found {
            index.learn(file.chunk, file.space, file.used_ms);
        }
        index.scanned();
        self.show(&index);
        drop(index);
        self.evict(0);
    }

    fn find(&self, known: &Known, range: Range<u64>) -> Vec<Run> {
        let entry = match self.entry(known) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Vec::new(),
            Err(error) => {
                self.fault(known.chunk, &error);
                return Vec::new();
            }
        };
        let found = match entry.read(range) {
            Ok(found) => found,
            Err(error) => {
                self.fault(known.chunk, &error);
                return Vec::new();
            }
        };
        let now = self.now_ms();
        let is_due = lock(&self.index).touch(known.chunk, now, TOUCH_APART_MS);
        if is_due {
            // It goes a little earlier if this fails.
            let _ = entry.touch();
        }
        found
    }

    /// Damage costs the entry, other faults the cache for a while.
    fn fault(&self, chunk: ChunkId, error: &io::Error) {
        if error.kind() == io::ErrorKind::InvalidData {
            METRICS.cache_damaged.with_label_values(&[NAME]).inc();
            tracing::warn!(%chunk, %error, "a chunk in the node cache is damaged: it is dropped");
            self.drop_entry(chunk);
        } else {
            self.trouble.note(&self.settings.path, NAME, error);
        }
    }

    fn drop_entry(&self, chunk: ChunkId) -> u64 {
        let freed = lock(&self.index).forget(chunk);
        match std::fs::remove_file(self.path(chunk)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.writing.note(&self.settings.path, NAME, &error);
            }
            _ => {}
        }
        freed
    }

    /// The file of a chunk, if there is one.
    fn entry(&self, known: &Known) -> io::Result<Option<Arc<Entry>>> {
        if let Some(entry) = lock(&self.index).open(known.chunk) {
            return Ok(Some(entry));
        }
        let _making = lock(&self.making);
        self.open(known)
    }

    /// The same, while nobody makes one.
    fn open(&self, known: &Known) -> io::Result<Option<Arc<Entry>>> {
        if let Some(entry) = lock(&self.index).open(known.chunk) {
            return Ok(Some(entry));
        }
        let path = self.path(known.chunk);
        let entry = match Entry::open(&path, known) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                lock(&self.index).forget(known.chunk);
                return Ok(None);
            }
            entry => Arc::new(entry?),
        };
        Ok(Some(lock(&self.index).opened(known.chunk, entry)))
    }

    fn keep(&self, known: &Known, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_stuck() {
            return Ok(());
        }
        let entry = self.entry_or_new(known)?;
        let written = entry.write(offset, bytes)?;
        let now = self.now_ms();
        {
            let mut index = lock(&self.index);
            index.grow(known.chunk, written, now);
            self.show(&index);
        }
        if let (true, Some(digest), true) = (written > 0, known.digest, entry.is_whole()) {
            let whole = entry.read(0..known.length)?;
            if !is_whole_in_parts(&whole, &digest) {
                let what = "its blocks together do not have its digest";
                self.fault(known.chunk, &io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        self.evict(0);
        Ok(())
    }

    /// The file of a chunk, which is made if there is none: by one thread, and whole before another
    /// looks at it.
    fn entry_or_new(&self, known: &Known) -> io::Result<Arc<Entry>> {
        let _making = lock(&self.making);
        match self.open(known) {
            Ok(Some(entry)) if entry.is_linked() => return Ok(entry),
            Ok(_) => drop(lock(&self.index).forget(known.chunk)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.fault(known.chunk, &error);
            }
            Err(error) => return Err(error),
        }
        self.make(known)
    }

    fn make(&self, known: &Known) -> io::Result<Arc<Entry>> {
        let path = self.path(known.chunk);
        let made = match Entry::create(&path, known) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restore(&path)?;
                Entry::create(&path, known)
            }
            made => made,
        };
        let entry = match made {
            // Made by an earlier mount, and not found by the scan yet.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Entry::open(&path, known)?
            }
            made => made?,
        };
        let mut index = lock(&self.index);
        index.grow(known.chunk, entry.space_at_least(), self.now_ms());
        Ok(index.opened(known.chunk, Arc::new(entry)))
    }

    /// Makes the folders of an entry; also when all was deleted, but on no other file system.
    fn restore(&self, entry: &Path) -> io::Result<()> {
        let top = &self.settings.path;
        if !top.is_dir() {
            std::fs::DirBuilder::new().mode(0o700).create(top)?;
        }
        if top.metadata()?.dev() != self.device {
            return Err(io::Error::other("it is on another file system than before"));
        }
        marker::ensure(&LocalStorage::Private, top, Kind::Node).map_err(io::Error::other)?;
        entry.parent().map_or(Ok(()), make_folder)
    }

    /// Evicts what was not used for longest, if the limit is passed or `wanted` bytes are.
    fn evict(&self, wanted: u64) {
        let limit = self.settings.bytes_max;
        let (bytes, is_many) = {
            let index = lock(&self.index);
            (index.bytes(), index.is_too_many())
        };
        if bytes <= limit && wanted == 0 && !is_many {
            return;
        }
        let room = (limit / FREED_SHARE).max(wanted);
        self.evict_to(bytes.min(limit).saturating_sub(room));
        if lock(&self.index).bytes() > limit {
            *lock(&self.stuck) = Some(Instant::now());
        }
    }

    /// The disk is full, of whatever it may be: a share of what is here goes, however little that
    /// is of the limit.
    fn make_room(&self, wanted: u64) {
        let bytes = lock(&self.index).bytes();
        self.evict_to(bytes.saturating_sub(wanted.max(bytes / FREED_SHARE)));
    }

    fn evict_to(&self, goal: u64) {
        let pinned = pins::names(&LocalStorage::Private, &self.root);
        let victims = lock(&self.index).oldest(goal, |chunk| pinned.contains(&chunk.to_string()));
        let mut freed = 0;
        for chunk in victims {
            freed += self.drop_entry(chunk);
        }
        METRICS.cache_evicted_bytes.with_label_values(&[NAME]).inc_by(freed);
        self.show(&lock(&self.index));
    }

    /// Is it full of what is pinned?
    fn is_stuck(&self) -> bool {
        let since = *lock(&self.stuck);
        let is_full = lock(&self.index).bytes() > self.settings.bytes_max;
        is_full && since.is_some_and(|since| since.elapsed() < STUCK)
    }

    fn show(&self, index: &Index) {
        let bytes = i64::try_from(index.bytes()).unwrap_or(i64::MAX);
        METRICS.cache_bytes.with_label_values(&[NAME]).set(bytes);
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests;
