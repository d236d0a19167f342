//! A row of a catalog: one name, and all that is known of it but its bytes.

use crate::hash::{self, PathHash};
use crate::xattrs::{self, Xattrs};
use tieline_types::{Algorithm, Digest, Encoding, FileKind, Mode, Name, Time};

const DIRECTORY: u64 = 1;
const MOUNTPOINT: u64 = 2;
const FILE: u64 = 4;
const SYMLINK: u64 = 8;
const SPECIAL: u64 = 16;
const NESTED_ROOT: u64 = 32;
const CHUNKED: u64 = 64;
const EXTERNAL: u64 = 128;
const ALGORITHM_AT: u32 = 8;
const ENCODING_AT: u32 = 11;
const THREE_BITS: u64 = 7;

/// Longest target of a symlink, as Linux has it.
const TARGET_MAX: usize = 4096;
/// What is told as the size of directories, whatever they have: the same names have the same row.
pub const DIRECTORY_SIZE: u64 = 4096;

/// What lies where a directory's row has another catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seam {
    None,
    /// What is below is in another catalog.
    Mountpoint,
    /// What is above is.
    Root,
}

/// As SQLite gives it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Raw {
    pub path: PathHash,
    pub parent: PathHash,
    pub hardlinks: i64,
    pub hash: Option<Vec<u8>>,
    pub size: i64,
    pub mode: i64,
    pub mtime: i64,
    pub mtimens: Option<i64>,
    pub flags: i64,
    pub name: Vec<u8>,
    pub symlink: Vec<u8>,
    pub uid: i64,
    pub gid: i64,
    pub xattr: Option<Vec<u8>>,
}

/// As it is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub path: PathHash,
    pub parent: PathHash,
    pub kind: FileKind,
    pub mode: Mode,
    pub links: u32,
    /// Files of one directory with the same are one; 0: it is alone.
    pub group: u32,
    /// Of regular files in one piece, in the encoding that it covers.
    pub digest: Option<Digest>,
    /// How all digests of it are.
    pub hashed: (Algorithm, Encoding),
    pub size: u64,
    pub device: u32,
    pub mtime: Time,
    /// Empty for the repository's root.
    pub name: Vec<u8>,
    pub target: Option<Vec<u8>>,
    pub uid: u32,
    pub gid: u32,
    pub xattrs: Xattrs,
    pub seam: Seam,
    /// Its bytes are in several pieces.
    pub is_chunked: bool,
    /// Its bytes are on servers of another kind.
    pub is_external: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a row that cannot be ({0})")]
pub struct RowError(pub &'static str);

impl TryFrom<Raw> for Row {
    type Error = RowError;

    fn try_from(raw: Raw) -> Result<Self, RowError> {
        let no = |what| move || RowError(what);
        let flags = u64::try_from(raw.flags).map_err(|_| RowError("flags"))?;
        let has = |bits| flags & bits == bits;
        let mode = u32::try_from(raw.mode).map_err(|_| RowError("mode"))?;
        let kind = FileKind::from_mode_bits(mode).ok_or_else(no("kind"))?;
        let is_same = match kind {
            FileKind::Directory => has(DIRECTORY),
            FileKind::Symlink => has(SYMLINK),
            FileKind::Regular => has(FILE) && !has(SYMLINK) && !has(SPECIAL),
            _ => has(FILE) && !has(SYMLINK),
        };
        if !is_same || has(DIRECTORY) && kind != FileKind::Directory {
            return Err(RowError("kind and flags"));
        }
        let seam = match (has(MOUNTPOINT), has(NESTED_ROOT)) {
            (true, true) => return Err(RowError("a catalog's root and another's place")),
            (false, false) => Seam::None,
            _ if kind != FileKind::Directory => return Err(RowError("a catalog of no directory")),
            (true, false) => Seam::Mountpoint,
            (false, true) => Seam::Root,
        };
        if !raw.name.is_empty() && Name::new(raw.name.clone()).is_err() {
            return Err(RowError("name"));
        }
        let nanos = raw.mtimens.unwrap_or_default();
        let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
        let hashed = hashed(flags)?;
        let is_chunked = has(CHUNKED) && kind == FileKind::Regular;
        let digest = match (&raw.hash, kind) {
            (Some(bytes), FileKind::Regular) => {
                Some(Digest::new(hashed.0, hashed.1, bytes).ok_or_else(no("digest"))?)
            }
            _ => None,
        };
        let number = u64::try_from(raw.size).map_err(|_| RowError("size"))?;
        let has_bytes = digest.is_some() || is_chunked || number == 0;
        if kind == FileKind::Regular && !has_bytes {
            return Err(RowError("a file without bytes"));
        }
        let (size, device) = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => (0, number as u32),
            FileKind::Symlink => (raw.symlink.len() as u64, 0),
            _ => (number, 0),
        };
        let target = (kind == FileKind::Symlink).then_some(raw.symlink);
        if target.as_ref().is_some_and(|target| target.len() > TARGET_MAX) {
            return Err(RowError("target"));
        }
        let owner = |id: i64| u32::try_from(id).map_err(|_| RowError("owner"));
        let xattrs = raw.xattr.as_deref().map(xattrs::read).transpose();
        Ok(Self {
            path: raw.path,
            parent: raw.parent,
            kind,
            mode: Mode::new(mode),
            links: (raw.hardlinks as u32).max(1),
            group: (raw.hardlinks as u64 >> 32) as u32,
            digest,
            hashed,
            size,
            device,
            mtime: Time { seconds: raw.mtime, nanos: nanos.ok_or_else(no("mtimens"))? },
            name: raw.name,
            target,
            uid: owner(raw.uid)?,
            gid: owner(raw.gid)?,
            xattrs: xattrs.map_err(|_| RowError("xattr"))?.unwrap_or_default(),
            seam,
            is_chunked,
            is_external: has(EXTERNAL),
        })
    }
}

impl Row {
    /// As SQLite is to have it.
    pub fn raw(&self) -> Raw {
        let flags = match (self.kind, self.seam) {
            (FileKind::Directory, Seam::None) => DIRECTORY,
            (FileKind::Directory, Seam::Mountpoint) => DIRECTORY | MOUNTPOINT,
            (FileKind::Directory, Seam::Root) => DIRECTORY | NESTED_ROOT,
            (FileKind::Symlink, _) => FILE | SYMLINK,
            (FileKind::Regular, _) if self.is_chunked => FILE | CHUNKED | bits(self.hashed),
            (FileKind::Regular, _) => FILE | bits(self.hashed),
            _ => FILE | SPECIAL,
        };
        let number = if self.device > 0 { u64::from(self.device) } else { self.size };
        Raw {
            path: self.path,
            parent: self.parent,
            hardlinks: (i64::from(self.group) << 32) | i64::from(self.links),
            hash: self.digest.map(|digest| digest.as_bytes().to_vec()),
            size: number as i64,
            mode: i64::from(self.kind.mode_bits() | self.mode.bits()),
            mtime: self.mtime.seconds,
            mtimens: Some(i64::from(self.mtime.nanos)),
            flags: flags as i64,
            name: self.name.clone(),
            symlink: self.target.clone().unwrap_or_default(),
            uid: i64::from(self.uid),
            gid: i64::from(self.gid),
            xattr: Some(&self.xattrs).filter(|xattrs| !xattrs.is_empty()).and_then(xattrs::write),
        }
    }

    /// Where its bytes lie, if they are in one piece and there are any.
    pub fn key(&self) -> Option<String> {
        self.digest.filter(|_| self.size > 0).map(|digest| hash::key(&digest, hash::Kind::Whole))
    }
}

fn hashed(flags: u64) -> Result<(Algorithm, Encoding), RowError> {
    let algorithm = match flags >> ALGORITHM_AT & THREE_BITS {
        0 => Algorithm::Sha1,
        1 => Algorithm::Ripemd160,
        2 => Algorithm::Shake128,
        _ => return Err(RowError("algorithm")),
    };
    let encoding = match flags >> ENCODING_AT & THREE_BITS {
        0 => Encoding::Zlib,
        1 => Encoding::Plain,
        _ => return Err(RowError("compression")),
    };
    Ok((algorithm, encoding))
}

fn bits((algorithm, encoding): (Algorithm, Encoding)) -> u64 {
    let algorithm = match algorithm {
        Algorithm::Ripemd160 => 1,
        Algorithm::Shake128 => 2,
        _ => 0,
    };
    let encoding = match encoding {
        Encoding::Zlib => 0,
        Encoding::Plain => 1,
    };
    algorithm << ALGORITHM_AT | encoding << ENCODING_AT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Raw {
        Raw {
            hash: Some(vec![7; 20]),
            size: 3,
            mode: 0o100_644,
            flags: 4,
            name: b"file".to_vec(),
            ..Raw::default()
        }
    }

    #[test]
    fn flags_mean_what_the_format_says() {
        let chunked = Raw { flags: 2244, hash: None, ..file() };
        let row = Row::try_from(chunked).unwrap();
        assert!(row.is_chunked && row.is_external);
        assert_eq!(row.hashed, (Algorithm::Sha1, Encoding::Plain));
        let raw = Raw { mode: 0o040_755, flags: 3, hash: None, hardlinks: 4, ..file() };
        let row = Row::try_from(raw).unwrap();
        assert_eq!((row.seam, row.links), (Seam::Mountpoint, 4));
        let two = Raw { hardlinks: 0x1_0000_0002, flags: 4 + 2 * 256, ..file() };
        let row = Row::try_from(two.clone()).unwrap();
        assert_eq!((row.group, row.links, row.hashed.0), (1, 2, Algorithm::Shake128));
        assert_eq!(row.raw(), Raw { mtimens: Some(0), ..two });
    }

    #[test]
    fn rows_that_cannot_be_are_refused() {
        for wrong in [
            Raw { hash: None, ..file() },
            Raw { hash: Some(vec![7; 19]), ..file() },
            Raw { size: -1, ..file() },
            Raw { mode: 0o040_644, ..file() },
            Raw { mode: -1, ..file() },
            Raw { flags: 12, ..file() },
            Raw { flags: 4 + 7 * 256, ..file() },
            Raw { name: b"a/b".to_vec(), ..file() },
            Raw { name: b"..".to_vec(), ..file() },
            Raw { mtimens: Some(1_000_000_000), ..file() },
            Raw { uid: -1, ..file() },
            Raw { xattr: Some(vec![1, 1]), ..file() },
            Raw { flags: 35, mode: 0o040_755, hash: None, ..file() },
            Raw { flags: 4 + 32, ..file() },
        ] {
            assert!(Row::try_from(wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
