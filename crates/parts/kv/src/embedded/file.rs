//! The store's file: opened if it is there, else made under another name and published when it is
//! whole. So is its log.
//!
//! A machine that stops while the engine makes a new file would otherwise leave one that is neither
//! a store nor absent.
//!
//! Invariant: a file is renamed, or emptied, only by who holds its lock; a log, by who holds that
//! of its store.

use super::log::Place;
use redb::StorageBackend;
use redb::backends::FileBackend;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(super) struct Opened {
    pub file: File,
    /// Its name for now: [`publish`] it.
    pub unfinished: Option<PathBuf>,
}

/// Opens the file at `path`, or an empty one that is to be there. `WouldBlock` says that another
/// process makes it now.
pub(super) fn open(path: &Path) -> io::Result<Opened> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => return Ok(Opened { file, unfinished: None }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let unfinished = with_end(path, ".new");
    let file = claim(&unfinished)?;
    if path.try_exists()? {
        // Somebody published between the two looks.
        return Err(io::ErrorKind::WouldBlock.into());
    }
    file.set_len(0)?;
    Ok(Opened { file, unfinished: Some(unfinished) })
}

/// Opens or creates a file and locks it; readable by its owner only, for it will hold everybody's
/// names.
fn claim(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // What was opened may have been published before it was locked.
    let is_there = fs::metadata(path).is_ok_and(|there| {
        file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    });
    if is_there { Ok(file) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Gives a whole file its name, for good.
pub(super) fn publish(unfinished: &Path, path: &Path) -> io::Result<()> {
    fs::rename(unfinished, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The log beside a store's file.
pub(super) struct LogBeside(PathBuf);

impl LogBeside {
    pub fn new(store: &Path) -> Self {
        Self(with_end(store, "-wal"))
    }
}

impl Place for LogBeside {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        backend(OpenOptions::new().read(true).write(true).open(&self.0)?)
    }

    fn make(&self, header: &[u8]) -> io::Result<Box<dyn StorageBackend>> {
        let unfinished = with_end(&self.0, ".new");
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(header)?;
        file.sync_all()?;
        publish(&unfinished, &self.0)?;
        backend(file)
    }

    fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.0)
    }
}

fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
