//! The marker file `tieline-ost`: whose objects a directory holds.
//!
//! Without it a mount point whose file system is not mounted would look like an empty OST, and be
//! filled. The process that serves the directory holds a lock on it.

use crate::owner::{self, Identity, MARKER as NAME};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const DRAFT: &str = "tieline-ost.new";

/// The open and locked marker of a directory.
#[derive(Debug)]
pub(super) struct Marker {
    pub file: File,
    path: PathBuf,
    /// Device and inode, by which it is known again.
    node: (u64, u64),
    pub uuid: String,
}

/// Why a directory was not taken.
pub(super) enum MarkerError {
    /// For people: what is wrong and what to do.
    Wrong(String),
    /// The same, of a directory that is not there, or has no marker.
    Absent(String),
    Io(&'static str, io::Error),
}

impl Marker {
    /// Finds and locks the marker in `directory`.
    pub fn open(directory: &Path, identity: &Identity) -> Result<Self, MarkerError> {
        let (file, uuid) = read(directory, identity)?;
        lock(&file)?;
        let node = node(&file.metadata().map_err(|e| MarkerError::Io("stat its marker", e))?);
        Ok(Self { file, path: directory.join(NAME), node, uuid })
    }

    /// Is the directory `identity`'s?
    pub fn verify(directory: &Path, identity: &Identity) -> Result<(), MarkerError> {
        read(directory, identity).map(drop)
    }

    /// Is there a marker, whosever?
    pub fn exists(directory: &Path) -> bool {
        directory.join(NAME).symlink_metadata().is_ok()
    }

    /// Writes a marker, durably. A draft of an earlier attempt is replaced.
    pub fn create(directory: &Path, identity: &Identity, uuid: [u8; 16]) -> io::Result<()> {
        let text = owner::marker(identity, uuid);
        let draft = directory.join(DRAFT);
        // Of an earlier attempt, or somebody's link.
        let _ = std::fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, directory.join(NAME))?;
        File::open(directory)?.sync_all()
    }

    /// Says why the directory is no longer what it was, if so: unmounted, mounted over, or
    /// replaced.
    pub fn check_in_place(&self) -> Result<(), MarkerError> {
        match self.path.metadata() {
            Ok(metadata) if node(&metadata) == self.node => Ok(()),
            Ok(_) => Err(MarkerError::Wrong(
                "another directory is at its path now: was something mounted over it?".to_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MarkerError::Wrong(
                format!("its marker {NAME} is gone: was it unmounted? mount it again and restart"),
            )),
            Err(error) => Err(MarkerError::Io("find its marker", error)),
        }
    }
}

/// The open marker and its uuid, if it is `identity`'s.
fn read(directory: &Path, identity: &Identity) -> Result<(File, String), MarkerError> {
    let mut file = match File::open(directory.join(NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent(directory)),
        Err(error) => return Err(MarkerError::Io("open its marker", error)),
    };
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| MarkerError::Io("read its marker", error))?;
    let uuid = owner::check(&text, identity).map_err(MarkerError::Wrong)?;
    Ok((file, uuid))
}

fn node(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn absent(directory: &Path) -> MarkerError {
    MarkerError::Absent(if directory.is_dir() {
        format!("it has no marker {NAME}: is its file system mounted? if it is new, format it")
    } else {
        "there is no such directory: is its file system mounted?".to_owned()
    })
}

fn lock(file: &File) -> Result<(), MarkerError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            Err(MarkerError::Wrong("another process serves it already".to_owned()))
        }
        // Some network file systems are mounted without locks.
        Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK)) => {
            tracing::warn!(%errno, "file system has no locks: do not serve it twice");
            Ok(())
        }
        Err(errno) => Err(MarkerError::Io("lock its marker", errno.into())),
    }
}
