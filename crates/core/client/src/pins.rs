//! Trees that are kept here for times without servers: `tieline pin`.
//!
//! A pinned tree is walked when it is pinned and whenever an MDS welcomed us anew, since all that
//! was known under leases of before is gone then: names, attributes, targets of links, extents and
//! bytes are fetched, so that they are known when the servers are away ([`crate::away`]). How many
//! bytes stay is the caches' to say.
//!
//! Pinned is by the virtual attribute `user.tieline.pin` of a directory; a pin lasts as long as the
//! process.
//!
//! Invariants: at most [`PINS_MAX`] trees, of at most as many files as the cache remembers; a walk
//! has at most [`AT_ONCE`] requests under way.

use crate::fetch::Width;
use crate::volume::{Shared, lock};
use crate::{Access, Error, Listed, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_types::{Caller, ErrorKind, FileId, FileKind};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

pub(crate) const NAME: &[u8] = b"user.tieline.pin";
const PINS_MAX: usize = 64;
const AT_ONCE: usize = 16;
const ENTRIES: usize = 1024;
/// Bytes of a file that are read at once.
const STEP: u32 = 4 << 20;
/// Welcomes come in swarms, and other work goes first.
const SWARM: Duration = Duration::from_millis(500);
/// A walk that did not reach everything is repeated.
const AGAIN: Duration = Duration::from_secs(15);

/// All pins of a mount.
#[derive(Default)]
pub(crate) struct Pins {
    trees: Mutex<BTreeMap<FileId, Arc<Pin>>>,
    due: Arc<Notify>,
}

struct Pin {
    caller: Caller,
    progress: Mutex<Progress>,
}

/// What the last walk found.
#[derive(Clone, Copy, Default)]
struct Progress {
    files: u64,
    bytes: u64,
    failed: u64,
    is_done: bool,
}

impl Pins {
    /// What was known is gone: the trees are fetched again.
    pub fn renew(&self) {
        if !lock(&self.trees).is_empty() {
            self.due.notify_one();
        }
    }
}

/// Walks pinned trees when there is reason to.
pub(crate) async fn run(shared: Weak<Shared>) {
    let Some(due) = shared.upgrade().map(|shared| shared.pins.due.clone()) else { return };
    let mut is_whole = true;
    loop {
        match is_whole {
            true => due.notified().await,
            false => drop(tokio::time::timeout(AGAIN, due.notified()).await),
        }
        tokio::time::sleep(SWARM).await;
        let Some(shared) = shared.upgrade() else { return };
        let trees: Vec<_> =
            lock(&shared.pins.trees).iter().map(|(id, pin)| (*id, pin.clone())).collect();
        is_whole = true;
        for (id, pin) in trees {
            let progress = shared.walk(id, &pin.caller).await;
            is_whole &= progress.failed == 0;
            *lock(&pin.progress) = progress;
        }
    }
}

impl Shared {
    pub(crate) async fn pin(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<()> {
        if !self.attributes(caller, id).await?.attributes.is_directory() {
            return Err(Error::local(ErrorKind::NotDirectory, "only directories are pinned"));
        }
        let mut trees = lock(&self.pins.trees);
        if trees.len() >= PINS_MAX && !trees.contains_key(&id) {
            let text = format!("{PINS_MAX} trees are pinned already");
            return Err(Error::local(ErrorKind::NoSpace, text));
        }
        let pin = Pin { caller: caller.clone(), progress: Mutex::default() };
        trees.insert(id, Arc::new(pin));
        self.pins.due.notify_one();
        Ok(())
    }

    /// Says whether it was pinned.
    pub(crate) fn unpin(&self, id: FileId) -> bool {
        lock(&self.pins.trees).remove(&id).is_some()
    }

    /// How far a pinned tree is here, as JSON.
    pub(crate) fn pinned(&self, id: FileId) -> Option<String> {
        let pin = lock(&self.pins.trees).get(&id).cloned()?;
        let Progress { files, bytes, failed, is_done } = *lock(&pin.progress);
        Some(format!(
            "{{\"is_done\":{is_done},\"files\":{files},\"bytes\":{bytes},\"failed\":{failed}}}"
        ))
    }

    /// Fetches a tree.
    async fn walk(self: &Arc<Self>, top: FileId, caller: &Caller) -> Progress {
        let counts = Arc::new(Counts::default());
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let (mut directories, mut files) = (vec![top], JoinSet::new());
        while let Some(directory) = directories.pop() {
            let Ok(entries) = self.entries(caller, directory).await else {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            for entry in entries {
                if counts.files.fetch_add(1, Ordering::Relaxed) >= self.settings.inodes_max as u64 {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                if entry.kind == FileKind::Directory {
                    directories.push(entry.id);
                    continue;
                }
                let Ok(place) = places.clone().acquire_owned().await else { continue };
                let (shared, caller, counts) = (self.clone(), caller.clone(), counts.clone());
                files.spawn(async move {
                    match shared.fetch_whole(&caller, entry.id, entry.kind).await {
                        Ok(bytes) => counts.bytes.fetch_add(bytes, Ordering::Relaxed),
                        Err(_) => counts.failed.fetch_add(1, Ordering::Relaxed),
                    };
                    drop(place);
                });
                while files.try_join_next().is_some() {}
            }
        }
        while files.join_next().await.is_some() {}
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (files, bytes, failed) =
            (count(&counts.files), count(&counts.bytes), count(&counts.failed));
        Progress { files, bytes, failed, is_done: true }
    }

    /// All entries of a directory.
    async fn entries(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<Vec<Listed>> {
        let handle = self.open_directory(caller, id).await?;
        let (mut entries, mut from): (Vec<Listed>, u64) = (Vec::new(), 0);
        let outcome = loop {
            match self.read_directory(handle, from, ENTRIES, true).await {
                Ok(page) => {
                    let Some(last) = page.last() else { break Ok(()) };
                    from = last.next;
                    entries.extend(page);
                }
                Err(error) => break Err(error),
            }
        };
        self.handles.remove(handle);
        outcome.map(|()| entries)
    }

    /// Fetches all of a file; how many bytes it has.
    async fn fetch_whole(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        kind: FileKind,
    ) -> Result<u64> {
        match kind {
            FileKind::Symlink => return self.read_symlink(caller, id).await.map(|_| 0),
            FileKind::Regular => {}
            _ => return Ok(0),
        }
        let access = Access { read: true, ..Access::default() };
        let opened = self.open_at_server(caller, id, access).await?;
        let (file, mut at) = (self.file(id), 0);
        while at < opened.size {
            let end = opened.size.min(at + u64::from(STEP));
            self.read_file(caller, &file, at..end, Width::Exact).await?;
            at = end;
        }
        Ok(opened.size)
    }
}

#[derive(Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}
