//! An adopted tree: files that were there before us, read where they are and never changed.
//!
//! A file is named by its path below the tree, and by the size and time it had when it was adopted:
//! if they differ now, it was changed behind us, and is not read. Paths are walked by the kernel
//! and never leave the tree, not by `..` and not by a symlink.
//!
//! Names of files are any bytes, names of objects are text: [`object_path`] writes what is not
//! UTF-8, and `%`, as `%XX`.
//!
//! Invariants: nothing is ever written here; what is read was the file as it was adopted, before
//! and after reading.

use crate::range::BlockRange;
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_types::acl::{ACCESS_NAME, DEFAULT_NAME};
use tieline_types::{ErrorKind, FileKind, Shown, Time};

/// A tree of files below a directory.
pub struct AdoptedTree {
    root: PathBuf,
    /// The names of the directory that was listed last: its next page needs them again.
    listed: Mutex<Option<Names>>,
}

type Names = (Vec<u8>, Arc<Vec<Vec<u8>>>);
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// An adopted file, as it was then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptedFile {
    /// As [`object_path`] wrote it.
    pub path: String,
    pub size: u64,
    pub mtime_ns: i64,
}

/// What is there now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptedFound {
    pub name: Vec<u8>,
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: Time,
    pub target: Option<Vec<u8>>,
    /// Those below `user.` and the access lists, of files and directories.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Some entries of a directory.
pub struct AdoptedPage {
    /// The directory below the tree.
    pub directory: Vec<u8>,
    pub own: AdoptedFound,
    pub entries: Vec<AdoptedFound>,
    pub is_end: bool,
}

/// Why an adopted file or directory is not read.
#[derive(Debug, thiserror::Error)]
pub enum AdoptedError {
    #[error(
        "adopted file {path} was changed behind Tieline: it had {size} bytes of {mtime_ns} ns, \
         now {now}: re-import it with `tieline import --in-place`"
    )]
    Changed { path: String, size: u64, mtime_ns: i64, now: String },
    #[error("{path} is not below the adopted tree {root}")]
    Outside { path: String, root: String },
    #[error("{path} does not exist below the adopted tree {root}")]
    Absent { path: String, root: String },
    #[error("cannot read {path} below the adopted tree {root}")]
    Failed { path: String, root: String, source: io::Error },
}

impl AdoptedError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Outside { .. } => ErrorKind::InvalidArgument,
            Self::Absent { .. } => ErrorKind::NotFound,
            Self::Changed { .. } | Self::Failed { .. } => ErrorKind::StorageFault,
        }
    }
}

/// Does a path lead nowhere but down, if there are no links on the way?
fn is_plain(path: &[u8]) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

type Result<T, E = AdoptedError> = std::result::Result<T, E>;

impl AdoptedTree {
    pub fn new(root: PathBuf) -> Self {
        Self { root, listed: Mutex::default() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes of a file around a range, widened to whole blocks, and where they begin. Blocking.
    pub fn read(&self, adopted: &AdoptedFile, offset: u64, length: u32) -> Result<(u64, Bytes)> {
        let file = self.open_same(adopted)?;
        let range = BlockRange::widen(offset, length, adopted.size);
        let mut bytes = vec![0; range.length as usize];
        file.read_exact_at(&mut bytes, range.offset)
            .map_err(|source| self.failed(&adopted.path, source))?;
        // It may have been changed while it was read.
        self.check_same(adopted, &file)?;
        Ok((range.offset, bytes.into()))
    }

    /// Up to `limit` entries of a directory after a name. Blocking.
    pub fn list(
        &self,
        directory: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<AdoptedPage> {
        let directory = self.below(directory)?;
        let shown = Shown(&directory).to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = self.open(&directory, &shown, flags)?;
        let failed = |errno: Errno| self.failed(&shown, errno.into());
        let names = self.names(&directory, &folder, after.is_none()).map_err(failed)?;
        let from = after.map_or(0, |after| names.partition_point(|name| name.as_slice() <= after));
        let mut entries = Vec::new();
        for name in names.iter().skip(from).take(limit) {
            match found(&folder, name) {
                Ok(entry) => entries.push(entry),
                // It went while we looked.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        let name = directory.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
        let stat = rustix::fs::fstat(&folder).map_err(failed)?;
        let mut own = describe(name, &stat).map_err(failed)?;
        own.xattrs = xattrs(&folder).map_err(failed)?;
        let is_end = from.saturating_add(limit) >= names.len();
        Ok(AdoptedPage { directory, own, entries, is_end })
    }

    /// The names in a directory, in order; read anew at its first page.
    fn names(&self, path: &[u8], folder: &File, anew: bool) -> Result<Arc<Vec<Vec<u8>>>, Errno> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, names)) = listed.as_ref()
            && !anew
            && known == path
        {
            return Ok(names.clone());
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        let names = Arc::new(names);
        *listed = Some((path.to_vec(), names.clone()));
        Ok(names)
    }

    /// A path below the tree, of one that may be absolute.
    fn below(&self, path: &[u8]) -> Result<Vec<u8>> {
        let outside = || AdoptedError::Outside {
            path: Shown(path).to_string(),
            root: self.root.display().to_string(),
        };
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let below = if path.is_absolute() {
            let real = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
            let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix(&real));
            below.map_err(|_| outside())?
        } else {
            path
        };
        let mut clean = PathBuf::new();
        for part in below.components() {
            match part {
                std::path::Component::Normal(name) => clean.push(name),
                std::path::Component::CurDir => {}
                _ => return Err(outside()),
            }
        }
        Ok(clean.as_os_str().as_bytes().to_vec())
    }

    /// Opens a file that must be what was adopted.
    fn open_same(&self, adopted: &AdoptedFile) -> Result<File> {
        let path = file_path(&adopted.path);
        // A pipe that took the file's name must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.open(&path, &adopted.path, flags) {
            Err(AdoptedError::Absent { .. }) => return Err(self.changed(adopted, "is gone".into())),
            // None was there when it was adopted.
            Err(AdoptedError::Outside { .. }) if is_plain(&path) => {
                return Err(self.changed(adopted, "a symlink stands on the way to it".into()));
            }
            opened => opened?,
        };
        self.check_same(adopted, &file)?;
        Ok(file)
    }

    fn check_same(&self, adopted: &AdoptedFile, file: &File) -> Result<()> {
        let stat =
            rustix::fs::fstat(file).map_err(|errno| self.failed(&adopted.path, errno.into()))?;
        let (size, mtime_ns) = (stat.st_size as u64, nanoseconds(mtime(&stat)));
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && size == adopted.size && mtime_ns == adopted.mtime_ns {
            return Ok(());
        }
        let now = if is_file {
            format!("it has {size} bytes of {mtime_ns} ns")
        } else {
            "it is no file any more".to_owned()
        };
        Err(self.changed(adopted, now))
    }

    fn changed(&self, adopted: &AdoptedFile, now: String) -> AdoptedError {
        let AdoptedFile { path, size, mtime_ns } = adopted.clone();
        AdoptedError::Changed { path, size, mtime_ns, now }
    }

    fn open(&self, path: &[u8], shown: &str, flags: OFlags) -> Result<File> {
        let failed = |errno: Errno| match errno {
            Errno::NOENT => AdoptedError::Absent {
                path: shown.to_owned(),
                root: self.root.display().to_string(),
            },
            // A symlink on the way, or a way out.
            Errno::LOOP | Errno::XDEV => AdoptedError::Outside {
                path: shown.to_owned(),
                root: self.root.display().to_string(),
            },
            errno => self.failed(shown, errno.into()),
        };
        let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, way, Mode::empty()).map_err(failed)?;
        let path = if path.is_empty() { b"." } else { path };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        loop {
            match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
                // The tree was renamed in while the kernel walked it.
                Err(Errno::AGAIN) => {}
                opened => return opened.map(File::from).map_err(failed),
            }
        }
    }

    fn failed(&self, path: &str, source: io::Error) -> AdoptedError {
        let root = self.root.display().to_string();
        AdoptedError::Failed { path: path.to_owned(), root, source }
    }
}

fn found(folder: &File, name: &[u8]) -> Result<AdoptedFound, Errno> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut found = describe(name.to_vec(), &stat)?;
    match found.kind {
        FileKind::Symlink => {
            let target = rustix::fs::readlinkat(folder, name, Vec::new())?;
            found.target = Some(target.into_bytes());
        }
        FileKind::Regular | FileKind::Directory => {
            // Not to be read from: an access list is there to see for whom the bytes are not.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
            found.xattrs = xattrs(&File::from(file))?;
        }
        _ => {}
    }
    Ok(found)
}

fn describe(name: Vec<u8>, stat: &Stat) -> Result<AdoptedFound, Errno> {
    Ok(AdoptedFound {
        name,
        kind: FileKind::from_mode_bits(stat.st_mode).ok_or(Errno::INVAL)?,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        mtime: mtime(stat),
        target: None,
        xattrs: Vec::new(),
    })
}

fn mtime(stat: &Stat) -> Time {
    Time { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

/// A time as the name of an adopted object holds it.
pub fn nanoseconds(time: Time) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos))
}

/// Access lists, and attributes below `user.`; none where the file system keeps none. A list that
/// cannot be read is no list that is not there: without it the mode gives more than the file did.
fn xattrs(file: &File) -> Result<Xattrs, Errno> {
    /// What Linux keeps at most, of names and of one value.
    const ROOM: usize = 64 << 10;
    // Its attributes are not told of a descriptor that reads nothing, but of the name of one.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut all = Vec::new();
    let mut room = vec![0; ROOM];
    for name in [ACCESS_NAME, DEFAULT_NAME] {
        match rustix::fs::getxattr(&path, name, room.as_mut_slice()) {
            Ok(length) => all.push((name.to_vec(), room.get(..length).unwrap_or_default().into())),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut names = vec![0; ROOM];
    let length = rustix::fs::listxattr(&path, names.as_mut_slice()).unwrap_or_default();
    let names = names.get(..length).unwrap_or_default();
    for name in names.split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")) {
        if let Ok(length) = rustix::fs::getxattr(&path, name, room.as_mut_slice()) {
            all.push((name.to_vec(), room.get(..length).unwrap_or_default().into()));
        }
    }
    Ok(all)
}

/// The path of a file as the name of an object.
pub fn object_path(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        text += &chunk.valid().replace('%', "%25");
        text.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02X}")));
    }
    text
}

/// The path of a file that is named so.
pub fn file_path(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| byte == b'%') {
            Some(escaped) => {
                path.push(escaped);
                at += 3;
            }
            None => {
                path.push(byte);
                at += 1;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests;
