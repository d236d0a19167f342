//! Writes the objects of a repository: each under the digest of what is stored, once.
//!
//! What is there already is not written again.
//!
//! Invariant: an object appears whole or not at all.

use crate::hash::{self, Kind};
use flate2::write::ZlibEncoder;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_types::{Algorithm, Digest, Encoding};

/// What zlib and the makers of the format take where nobody says otherwise.
const LEVEL: u32 = 6;

/// As objects are stored.
pub fn pack(plain: &[u8]) -> Vec<u8> {
    let mut stream = ZlibEncoder::new(Vec::new(), flate2::Compression::new(LEVEL));
    let packed = stream.write_all(plain).and_then(|()| stream.finish());
    packed.unwrap_or_else(|error| unreachable!("memory takes what is written: {error}"))
}

/// Where the objects are, and what was written so far.
pub struct Objects {
    storage: PathBuf,
    /// Beside them, on the same file system.
    drafts: PathBuf,
    serial: AtomicU64,
    pub new: AtomicU64,
    pub new_bytes: AtomicU64,
}

impl Objects {
    pub fn new(storage: &Path, drafts: &Path) -> Self {
        Self {
            storage: storage.to_owned(),
            drafts: drafts.to_owned(),
            serial: AtomicU64::new(0),
            new: AtomicU64::new(0),
            new_bytes: AtomicU64::new(0),
        }
    }

    /// Packs and stores some bytes.
    pub fn put(&self, plain: &[u8], kind: Kind) -> io::Result<Digest> {
        self.put_packed(&pack(plain), kind)
    }

    pub fn put_packed(&self, packed: &[u8], kind: Kind) -> io::Result<Digest> {
        let digest = Digest::compute(Algorithm::Sha1, Encoding::Zlib, packed);
        let path = self.storage.join(hash::key(&digest, kind));
        // One of another length is what a disk that failed left: it is replaced.
        let is_there = fs::metadata(&path).is_ok_and(|there| there.len() == packed.len() as u64);
        if !is_there {
            self.place(&path, packed)?;
            self.new.fetch_add(1, Ordering::Relaxed);
            self.new_bytes.fetch_add(packed.len() as u64, Ordering::Relaxed);
        }
        Ok(digest)
    }

    /// A file appears whole or not at all; it is durable when [`Objects::settle`] was called.
    pub fn place(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let at =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(at)?;
        }
        let draft = self.drafts.join(self.serial.fetch_add(1, Ordering::Relaxed).to_string());
        let mut file = File::create_new(&draft).map_err(at)?;
        file.write_all(bytes).and_then(|()| fs::rename(&draft, path)).map_err(at)
    }

    /// All that was written is durable.
    pub fn settle(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.storage)?)?)
    }
}
