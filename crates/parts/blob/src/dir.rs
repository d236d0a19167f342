//! Objects in a directory on any file system.
//!
//! An object is a file: data, trailer, footer ([`object`]). It is written under a temporary name in
//! `tmp` and renamed to its place in the fan-out below `objects` ([`tree`]); a marker says whose
//! objects these are ([`marker`]). Files that were used lately stay open with their trailers
//! ([`cache`]): reading from them costs one short system call here, which tells whether the file
//! was cut or removed behind us; the kernel sends straight from it. All other work runs on blocking
//! threads, at most [`JOBS_MAX`] at once.
//!
//! Durability: a put leaves bytes and names to the kernel; a sync writes files, their directories
//! and the directories that were made for them. What an earlier process put is made durable when
//! the store is opened, so a sync never has to know of it.
//!
//! Invariants: nothing under `objects` is ever changed, only published, replaced whole by a repair,
//! and unlinked; one process
//! per directory; nothing is written once the marker is not at its path any more.

mod cache;
mod directory;
mod marker;
mod object;
mod prepare;
mod sync;
mod tree;

pub(crate) use object::{Object, OpenError};

use crate::Identity;
use crate::range::BlockRange;
use crate::{Abilities, ChunkStore, Error, Listed, Slice, Space};
use bytes::Bytes;
use directory::Directory;
use marker::{Marker, MarkerError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sync::SyncReport;
use tieline_format::object::ObjectTrailer;
use tieline_types::GrantedId;
use tieline_world::{Bulk, Dice, FileRange};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Blocking jobs at once: enough to keep a disk array or a parallel file system busy.
const JOBS_MAX: usize = 32;
/// How an object is opened. A FIFO in its place keeps nobody waiting.
const OBJECT: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Syncs of one call that run side by side, so that the file system can commit them together.
const SYNCS_AT_ONCE: usize = 8;

/// An OST's objects in a directory.
#[derive(Clone)]
pub struct DirChunks {
    directory: Arc<Directory>,
    jobs: Arc<Semaphore>,
    /// Some object could not be read while it was being sent.
    has_failed: Arc<AtomicBool>,
}

impl DirChunks {
    /// Does a directory hold the objects of an OST, whosever?
    pub fn is_ost(path: &Path) -> bool {
        Marker::exists(path) || path.join(tree::OBJECTS).exists()
    }

    /// Makes an empty directory the store of `identity`. One that is already is left as it is.
    /// Blocking.
    pub fn format(path: &Path, identity: &Identity, dice: &dyn Dice) -> Result<(), Error> {
        if Marker::exists(path) {
            return Marker::verify(path, identity).map_err(|error| marker_error(path, error));
        }
        let wrong = |reason: &str| wrong_store(path, reason);
        if !path.is_dir() {
            return Err(wrong("there is no such directory: is its file system mounted?"));
        }
        if path.join(tree::OBJECTS).exists() {
            return Err(wrong("it holds objects but no marker: whose are they?"));
        }
        let mut uuid = [0; 16];
        dice.fill(&mut uuid);
        Marker::create(path, identity, uuid)
            .map_err(|source| failed(path, "write its marker", source))
    }

    /// Opens the store of `identity`, cleans up after an earlier process and makes what it put
    /// durable. Blocking.
    pub fn open(path: &Path, identity: &Identity) -> Result<Self, Error> {
        let marker = Marker::open(path, identity).map_err(|error| marker_error(path, error))?;
        let uuid = marker.uuid.clone();
        let directory = Directory::open(path, marker)?;
        tracing::info!(path = %path.display(), ost = %identity.ost.label(), uuid,
            abilities = ?directory.abilities, "opened object directory");
        let (directory, jobs) = (Arc::new(directory), Arc::new(Semaphore::new(JOBS_MAX)));
        Ok(Self { directory, jobs, has_failed: Arc::default() })
    }

    /// Is the directory the store of `identity`? For who only reads. Blocking.
    pub(crate) fn verify(path: &Path, identity: &Identity) -> Result<(), Error> {
        Marker::verify(path, identity).map_err(|error| marker_error(path, error))
    }

    /// Runs a job on a blocking thread. A job that was begun is finished, even if nobody waits for
    /// it any more.
    async fn blocking<T: Send + 'static>(
        &self,
        doing: &'static str,
        job: impl FnOnce(&Directory) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let directory = self.directory.clone();
        // The semaphore is never closed; if it were, jobs would only lose their bound.
        let permit = self.jobs.clone().acquire_owned().await.ok();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            job(&directory)
        });
        match task.await {
            Ok(result) => result,
            Err(error) => Err(failed(&self.directory.path, doing, io::Error::other(error))),
        }
    }

    async fn object(&self, chunk: GrantedId) -> Result<Arc<Object>, Error> {
        match self.directory.remembered(chunk) {
            Some(object) => Ok(object),
            None => self.blocking("read", move |directory| directory.object(chunk)).await,
        }
    }
}

#[async_trait::async_trait]
impl ChunkStore for DirChunks {
    fn abilities(&self) -> Abilities {
        self.directory.abilities
    }

    fn describe(&self) -> String {
        describe(&self.directory.path)
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        let trailer = trailer.clone();
        self.blocking("write", move |directory| directory.put(trailer, &data)).await
    }

    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        let trailer = trailer.clone();
        self.blocking("write", move |directory| directory.replace(trailer, &data)).await
    }

    fn forget(&self, chunk: GrantedId) {
        self.directory.forget(chunk);
    }

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        let object = self.object(chunk).await?;
        let range = BlockRange::widen(offset, length, object.length);
        let file = object.file.clone();
        let bulk = match range.length {
            0 => Bulk::Empty,
            length => {
                let has_failed = self.has_failed.clone();
                Bulk::File(FileRange { file, offset: range.offset, length, has_failed })
            }
        };
        // A disk that failed is read before anything is said.
        let is_sound = !self.has_failed.load(Ordering::Relaxed);
        let bulk = if self.directory.abilities.sendfile && is_sound {
            bulk
        } else {
            self.blocking("read", move |directory| {
                let bytes = bulk.to_bytes();
                bytes.map(Bulk::from).map_err(|source| failed(&directory.path, "read", source))
            })
            .await?
        };
        let checks = range.checks(&object.trailer.checks);
        let (object_length, file) = (object.length, object.trailer.file);
        let tree = object.trailer.tree.clone();
        Ok(Slice { offset: range.offset, bulk, checks, object_length, file, tree })
    }

    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error> {
        let object = self.blocking("look at", move |directory| directory.named(chunk)).await?;
        Ok((object.trailer.clone(), object.length))
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        self.blocking("delete", move |directory| directory.delete(chunk)).await
    }

    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        let group_size = chunks.len().div_ceil(SYNCS_AT_ONCE).max(1);
        let mut groups = JoinSet::new();
        for group in chunks.chunks(group_size) {
            let (store, group) = (self.clone(), group.to_vec());
            let job = |directory: &Directory| Ok(directory.sync_files(group));
            groups.spawn(async move { store.blocking("sync", job).await });
        }
        let mut report = SyncReport::default();
        while let Some(group) = groups.join_next().await {
            let group = group
                .map_err(|error| failed(&self.directory.path, "sync", io::Error::other(error)))?;
            report.merge(group?);
        }
        let chunks = chunks.to_vec();
        self.blocking("sync", move |directory| directory.sync_names(&chunks, report)).await
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        self.blocking("list", move |directory| {
            tree::list(&directory.root, after, limit)
                .map_err(|errno| failed(&directory.path, "list objects", errno.into()))
        })
        .await
    }

    async fn space(&self) -> Result<Space, Error> {
        self.blocking("tell its space", |directory| directory.space()).await
    }
}

/// An object below a store's directory, for who only reads. Blocking.
pub(crate) fn open_read_only(root: &File, chunk: GrantedId) -> Result<Object, OpenError> {
    let file = rustix::fs::openat(root, tree::path(chunk), OBJECT, Mode::empty())?;
    Object::open(File::from(file), chunk)
}

#[cfg(test)]
pub(crate) fn object_path(root: &Path, chunk: GrantedId) -> std::path::PathBuf {
    root.join(tree::path(chunk))
}

fn describe(path: &Path) -> String {
    format!("directory {}", path.display())
}

fn wrong_store(path: &Path, reason: impl Into<String>) -> Error {
    Error::WrongStore { store: describe(path), reason: reason.into() }
}

fn marker_error(path: &Path, error: MarkerError) -> Error {
    match error {
        MarkerError::Wrong(reason) => wrong_store(path, reason),
        MarkerError::Absent(reason) => Error::Missing { store: describe(path), reason },
        MarkerError::Io(doing, source) => failed(path, doing, source),
    }
}

/// Full and read-only have their own kinds, whatever was being done.
fn failed(path: &Path, doing: &'static str, source: io::Error) -> Error {
    let store = describe(path);
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Error::Full { store },
        Some(Errno::ROFS) => Error::ReadOnly { store },
        _ => Error::Failed { store, doing, source },
    }
}

#[cfg(test)]
mod tests;
