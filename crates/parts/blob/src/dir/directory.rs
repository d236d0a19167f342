//! The work itself, on blocking threads: publish, open, delete.
//!
//! Invariants: an object appears under its name whole or not at all; two puts of one chunk cannot
//! both publish.

use super::cache::ObjectCache;
use super::marker::Marker;
use super::object::{Object, OpenError};
use super::sync::ChangedDirectories;
use super::{OBJECT, describe, failed, marker_error, prepare, tree};
use crate::{Abilities, Error, Space};
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_format::object::ObjectTrailer;
use tieline_types::GrantedId;

/// Where objects are written before they have their name.
pub(super) const TMP: &str = "tmp";
/// Puts of one chunk take turns; those of different chunks seldom meet.
const TURNS: usize = 64;
/// How often a deletion may take away the directory that a put has just made, before it is given
/// up.
const PUBLISH_TRIES: usize = 16;

/// What the blocking jobs share.
pub(super) struct Directory {
    pub path: PathBuf,
    pub root: File,
    marker: Marker,
    pub abilities: Abilities,
    pub cache: ObjectCache,
    turns: [Mutex<()>; TURNS],
    drafts: AtomicU64,
    pub changed: ChangedDirectories,
}

impl Directory {
    pub fn open(path: &Path, marker: Marker) -> Result<Self, Error> {
        let root = File::open(path).map_err(|source| failed(path, "open the directory", source))?;
        let abilities = prepare::prepare(path, &root, &marker)?;
        Ok(Self {
            path: path.to_owned(),
            root,
            marker,
            abilities,
            cache: ObjectCache::new(prepare::objects_open_max()),
            turns: std::array::from_fn(|_| Mutex::default()),
            drafts: AtomicU64::default(),
            changed: ChangedDirectories::default(),
        })
    }

    pub fn put(&self, trailer: ObjectTrailer, data: &[u8]) -> Result<(), Error> {
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
        let turn = self.turn(chunk);
        if self.is_there(&object.trailer, length)? {
            return Ok(());
        }
        let epoch = self.cache.epoch();
        self.publish(draft, chunk).map_err(|source| self.io_error("publish an object", source))?;
        let object = Arc::new(object);
        self.cache.insert(epoch, object.clone());
        drop(turn);
        object.write_early();
        Ok(())
    }

    /// Publishes an object over whatever is there.
    pub fn replace(&self, trailer: ObjectTrailer, data: &[u8]) -> Result<(), Error> {
        let chunk = trailer.chunk;
        self.check_in_place()?;
        let (draft, file) =
            Draft::create(self, chunk).map_err(|error| self.io_error("create a file", error))?;
        let object = Object::write(file, trailer, data)
            .map_err(|source| self.io_error("write an object", source))?;
        let _turn = self.turn(chunk);
        self.publish(draft, chunk).map_err(|source| self.io_error("publish an object", source))?;
        // Whoever opened the old one meanwhile does not remember it.
        self.cache.delete(chunk);
        self.cache.insert(self.cache.epoch(), Arc::new(object));
        Ok(())
    }

    /// An object that is open already, unless its file was cut or removed behind us.
    pub fn remembered(&self, chunk: GrantedId) -> Option<Arc<Object>> {
        let object = self.cache.get(chunk)?;
        if object.is_as_opened() {
            return Some(object);
        }
        self.cache.delete(chunk);
        None
    }

    /// An object as its name leads to it now: what is open may have another, or none.
    pub fn named(&self, chunk: GrantedId) -> Result<Arc<Object>, Error> {
        let object = self.object(chunk)?;
        if self.is_at_its_name(&object) {
            return Ok(object);
        }
        self.cache.delete(chunk);
        self.object(chunk)
    }

    fn is_at_its_name(&self, object: &Object) -> bool {
        let path = tree::path(object.trailer.chunk);
        let there = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW);
        let (Ok(there), Ok(known)) = (there, object.file.metadata()) else { return false };
        (there.st_dev, there.st_ino) == (known.dev(), known.ino())
    }

    /// Has the object opened and its trailer read anew.
    pub fn forget(&self, chunk: GrantedId) {
        self.cache.delete(chunk);
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
    fn publish(&self, mut draft: Draft<'_>, chunk: GrantedId) -> io::Result<()> {
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
    pub fn object(&self, chunk: GrantedId) -> Result<Arc<Object>, Error> {
        if let Some(object) = self.remembered(chunk) {
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
            Err(OpenError::Io(source)) => {
                let (path, store) = (tree::path(chunk), self.describe());
                Err(Error::Unopened { chunk, path, store, source })
            }
        }
    }

    pub fn open_file(&self, chunk: GrantedId) -> Result<File, Errno> {
        rustix::fs::openat(&self.root, tree::path(chunk), OBJECT, Mode::empty()).map(File::from)
    }

    pub fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
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

    pub fn space(&self) -> Result<Space, Error> {
        self.check_in_place()?;
        prepare::check_subdirectories(&self.path, &self.root)?;
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
        Ok(Space { bytes_total, bytes_free, unit, objects_total, objects_free })
    }

    fn check_in_place(&self) -> Result<(), Error> {
        self.marker.check_in_place().map_err(|error| marker_error(&self.path, error))
    }

    fn turn(&self, chunk: GrantedId) -> MutexGuard<'_, ()> {
        let turn = &self.turns[chunk.serial as usize % TURNS];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn describe(&self) -> String {
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
    fn create(directory: &'d Directory, chunk: GrantedId) -> io::Result<(Self, File)> {
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

pub(super) fn create_file(root: &File, path: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o600)).map(File::from)
}
