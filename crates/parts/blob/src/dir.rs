//! Objects in a directory on any file system.
//!
//! An object is a file: data, trailer, footer ([`object`]). It is written under a temporary name in
//! `tmp` and renamed to its place in the fan-out below `objects` ([`tree`]); a marker says whose
//! objects these are ([`marker`]). Files that were used lately stay open with their trailers
//! ([`cache`]): reading from them costs no system call here, the kernel sends straight from the
//! file. All other work runs on blocking threads, at most [`JOBS_MAX`] at once.
//!
//! Durability: a put leaves bytes and names to the kernel; a sync writes files, their directories
//! and the directories that were made for them. What an earlier process put is made durable when
//! the store is opened, so a sync never has to know of it.
//!
//! Invariants: nothing under `objects` is ever changed, only published and unlinked; one process
//! per directory; nothing is written once the marker is not at its path any more.

mod cache;
mod marker;
mod object;
mod sync;
mod tree;

pub use marker::Identity;

use crate::range::BlockRange;
use crate::{Abilities, ChunkStore, Error, Slice, Space};
use bytes::Bytes;
use cache::ObjectCache;
use marker::{Marker, MarkerError};
use object::{Object, OpenError};
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sync::{ChangedDirectories, SyncReport};
use tieline_format::object::ObjectTrailer;
use tieline_types::ChunkId;
use tieline_world::{Bulk, Dice, FileRange};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const TMP: &str = "tmp";
/// Blocking jobs at once: enough to keep a disk array or a parallel file system busy.
const JOBS_MAX: usize = 32;
/// Syncs of one call that run side by side, so that the file system can commit them together.
const SYNCS_AT_ONCE: usize = 8;
/// Open files are cheap for the kernel, but processes have a limit.
const OBJECTS_OPEN_MAX: u64 = 4096;
/// Puts of one chunk take turns; those of different chunks seldom meet.
const TURNS: usize = 64;
/// How often a deletion may take away the directory that a put has just made, before it is given
/// up.
const PUBLISH_TRIES: usize = 16;

/// An OST's objects in a directory.
#[derive(Clone)]
pub struct DirChunks {
    directory: Arc<Directory>,
    jobs: Arc<Semaphore>,
}

/// What the blocking jobs share.
struct Directory {
    path: PathBuf,
    root: File,
    marker: Marker,
    abilities: Abilities,
    cache: ObjectCache,
    turns: [Mutex<()>; TURNS],
    drafts: AtomicU64,
    changed: ChangedDirectories,
}

impl DirChunks {
    /// Makes an empty directory the store of `identity`. One that is already is left as it is.
    /// Blocking.
    pub fn format(path: &Path, identity: &Identity, dice: &dyn Dice) -> Result<(), Error> {
        if Marker::exists(path) {
            return Self::open(path, identity).map(drop);
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
        let root = File::open(path).map_err(|source| failed(path, "open the directory", source))?;
        let abilities = prepare(path, &root, &marker)?;
        tracing::info!(path = %path.display(), ost = %identity.ost.label(), uuid = marker.uuid,
            ?abilities, "opened object directory");
        let directory = Directory {
            path: path.to_owned(),
            root,
            marker,
            abilities,
            cache: ObjectCache::new(objects_open_max()),
            turns: std::array::from_fn(|_| Mutex::default()),
            drafts: AtomicU64::default(),
            changed: ChangedDirectories::default(),
        };
        Ok(Self { directory: Arc::new(directory), jobs: Arc::new(Semaphore::new(JOBS_MAX)) })
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

    async fn object(&self, chunk: ChunkId) -> Result<Arc<Object>, Error> {
        match self.directory.cache.get(chunk) {
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

    async fn read(&self, chunk: ChunkId, offset: u64, length: u32) -> Result<Slice, Error> {
        let object = self.object(chunk).await?;
        let range = BlockRange::widen(offset, length, object.length);
        let file = object.file.clone();
        let bulk = match range.length {
            0 => Bulk::Empty,
            length => Bulk::File(FileRange { file, offset: range.offset, length }),
        };
        let bulk = if self.directory.abilities.sendfile {
            bulk
        } else {
            self.blocking("read", move |directory| {
                let bytes = bulk.to_bytes();
                bytes.map(Bulk::from).map_err(|source| failed(&directory.path, "read", source))
            })
            .await?
        };
        let checks = range.checks(&object.trailer.checks);
        Ok(Slice { offset: range.offset, bulk, checks, object_length: object.length })
    }

    async fn stat(&self, chunk: ChunkId) -> Result<(ObjectTrailer, u64), Error> {
        let object = self.object(chunk).await?;
        Ok((object.trailer.clone(), object.length))
    }

    async fn delete(&self, chunk: ChunkId) -> Result<bool, Error> {
        self.blocking("delete", move |directory| directory.delete(chunk)).await
    }

    async fn sync(&self, chunks: &[ChunkId]) -> Result<(), Error> {
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

    async fn list(&self, after: Option<ChunkId>, limit: usize) -> Result<Vec<ChunkId>, Error> {
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

impl Directory {
    fn put(&self, trailer: ObjectTrailer, data: &[u8]) -> Result<(), Error> {
        let (chunk, length) = (trailer.chunk, data.len() as u64);
        self.check_in_place()?;
        // A put that is repeated must succeed also when there is no more room.
        if self.is_there(&trailer, length)? {
            return Ok(());
        }
        let (draft, file) =
            Draft::create(self, chunk).map_err(|error| self.io_error("create a file", error))?;
        let object = Object::write(file, trailer, data)
            .map_err(|source| self.io_error("write an object", source))?;
        let _turn = self.turn(chunk);
        if self.is_there(&object.trailer, length)? {
            return Ok(());
        }
        let epoch = self.cache.epoch();
        self.publish(draft, chunk).map_err(|source| self.io_error("publish an object", source))?;
        self.cache.insert(epoch, Arc::new(object));
        Ok(())
    }

    /// Is the same object there already? One with other bytes is an error; a damaged one does not
    /// count.
    fn is_there(&self, trailer: &ObjectTrailer, length: u64) -> Result<bool, Error> {
        match self.object(trailer.chunk) {
            Ok(object) if object.is_same(trailer, length) => Ok(true),
            Ok(_) => Err(Error::Different { chunk: trailer.chunk, store: self.describe() }),
            Err(Error::Absent { .. }) => Ok(false),
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "damaged object is put again");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives a draft its final name. The caller has the chunk's turn.
    fn publish(&self, mut draft: Draft<'_>, chunk: ChunkId) -> io::Result<()> {
        let parent = tree::parent(chunk);
        let path = format!("{parent}/{chunk}");
        for _ in 0..PUBLISH_TRIES {
            match rustix::fs::renameat(&self.root, &draft.path, &self.root, &path) {
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
                Ok(()) => {
                    draft.is_published = true;
                    return Ok(());
                }
            }
            let made = self.changed.noting(|note| tree::make_parent(&self.root, &parent, note));
            match made {
                // A deletion may take away an empty directory in the middle of this.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// An object that is on disk, from memory if it is remembered there.
    fn object(&self, chunk: ChunkId) -> Result<Arc<Object>, Error> {
        if let Some(object) = self.cache.get(chunk) {
            return Ok(object);
        }
        let epoch = self.cache.epoch();
        match self.open_file(chunk).map_err(OpenError::from).and_then(|f| Object::open(f, chunk)) {
            Ok(object) => {
                let object = Arc::new(object);
                self.cache.insert(epoch, object.clone());
                Ok(object)
            }
            Err(OpenError::Damaged(reason)) => {
                Err(Error::Damaged { chunk, store: self.describe(), reason })
            }
            Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                // Objects that seem gone because the file system is gone must not be reported as
                // deleted.
                self.check_in_place()?;
                Err(Error::Absent { chunk, store: self.describe() })
            }
            Err(OpenError::Io(source)) => Err(self.io_error("open an object", source)),
        }
    }

    fn open_file(&self, chunk: ChunkId) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, tree::path(chunk), flags, Mode::empty()).map(File::from)
    }

    fn delete(&self, chunk: ChunkId) -> Result<bool, Error> {
        let _turn = self.turn(chunk);
        let removed = rustix::fs::unlinkat(&self.root, tree::path(chunk), AtFlags::empty());
        self.cache.delete(chunk);
        match removed {
            Ok(()) => {
                tree::prune(&self.root, &tree::parent(chunk));
                Ok(true)
            }
            Err(Errno::NOENT) => self.check_in_place().map(|()| false),
            Err(errno) => Err(self.io_error("delete an object", errno.into())),
        }
    }

    fn space(&self) -> Result<Space, Error> {
        self.check_in_place()?;
        let volume = rustix::fs::fstatvfs(&self.root)
            .map_err(|errno| self.io_error("tell its space", errno.into()))?;
        if volume.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(Error::ReadOnly { store: self.describe() });
        }
        let unit = if volume.f_frsize == 0 { volume.f_bsize } else { volume.f_frsize };
        let (bytes_total, bytes_free) = (volume.f_blocks * unit, volume.f_bavail * unit);
        // File systems without a table of inodes say 0: then only bytes run out.
        let (objects_total, objects_free) = match volume.f_files {
            0 => (bytes_total / unit.max(1), bytes_free / unit.max(1)),
            files => (files, volume.f_favail),
        };
        Ok(Space { bytes_total, bytes_free, objects_total, objects_free })
    }

    fn check_in_place(&self) -> Result<(), Error> {
        self.marker.check_in_place().map_err(|error| marker_error(&self.path, error))
    }

    fn turn(&self, chunk: ChunkId) -> MutexGuard<'_, ()> {
        let turn = &self.turns[chunk.serial as usize % TURNS];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self) -> String {
        describe(&self.path)
    }

    fn io_error(&self, doing: &'static str, source: io::Error) -> Error {
        failed(&self.path, doing, source)
    }
}

/// A file that is being written. Removed unless it is published.
struct Draft<'d> {
    root: &'d File,
    path: String,
    is_published: bool,
}

impl<'d> Draft<'d> {
    fn create(directory: &'d Directory, chunk: ChunkId) -> io::Result<(Self, File)> {
        let number = directory.drafts.fetch_add(1, Ordering::Relaxed);
        let path = format!("{TMP}/{chunk}.{number}");
        let file = create_file(&directory.root, &path)?;
        Ok((Self { root: &directory.root, path, is_published: false }, file))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed now is removed when the store is opened next.
            let _ = rustix::fs::unlinkat(self.root, &self.path, AtFlags::empty());
        }
    }
}

fn create_file(root: &File, path: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

/// Makes a directory of ours usable: its subdirectories, what is left of earlier processes, what it
/// can do.
fn prepare(path: &Path, root: &File, marker: &Marker) -> Result<Abilities, Error> {
    let errno = |doing| move |errno: Errno| failed(path, doing, errno.into());
    match make_subdirectories(root) {
        Ok(()) => {}
        Err(Errno::ROFS) => {
            let sendfile = can_send(&marker.file);
            return Ok(Abilities { range: true, append: false, rename: false, sendfile });
        }
        Err(other) => return Err(errno("make its subdirectories")(other)),
    }
    let left = tree::clear(root, TMP).map_err(errno("remove old temporary files"))?;
    if left > 0 {
        tracing::info!(path = %path.display(), left, "removed objects that were not finished");
    }
    rustix::fs::syncfs(root).map_err(errno("sync"))?;
    probe(root, &marker.file).map_err(errno("try what it can do"))
}

fn make_subdirectories(root: &File) -> Result<(), Errno> {
    for name in [TMP, tree::OBJECTS] {
        match rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Tries what the file system can do. Without rename it cannot be used.
fn probe(root: &File, marker: &File) -> Result<Abilities, Errno> {
    let (first, second) = (format!("{TMP}/probe"), format!("{TMP}/probe.renamed"));
    let file = create_file(root, &first)?;
    rustix::io::pwrite(&file, b"probe", 0)?;
    rustix::fs::renameat(root, &first, root, &second)?;
    let mut byte = [0];
    let range = rustix::io::pread(&file, &mut byte, 2)? == 1 && byte == *b"o";
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let append = rustix::fs::openat(root, &second, flags, Mode::empty());
    rustix::fs::unlinkat(root, &second, AtFlags::empty())?;
    Ok(Abilities { range, append: append.is_ok(), rename: true, sendfile: can_send(marker) })
}

fn can_send(file: &File) -> bool {
    let Ok((_reader, writer)) = rustix::pipe::pipe() else { return false };
    matches!(rustix::fs::sendfile(&writer, file, Some(&mut 0), 1), Ok(1))
}

/// A quarter of what this process may open: connections need some too.
fn objects_open_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(OBJECTS_OPEN_MAX, |limit| (limit / 4).min(OBJECTS_OPEN_MAX)) as usize
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
