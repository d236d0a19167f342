//! What is published: anything whose directories can be listed and whose files can be read.
//!
//! Paths are from the tree's root: empty, `/a`, `/a/b`.

use crate::xattrs::Xattrs;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tieline_types::{FileKind, Time};

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Item {
    /// Empty for the root.
    pub name: Vec<u8>,
    pub kind: FileKind,
    /// The low twelve bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub device: u32,
    pub mtime: Time,
    /// Entries with the same are names of one file, if it has several.
    pub file: u64,
    pub links: u32,
    pub target: Option<Vec<u8>>,
    pub xattrs: Xattrs,
}

pub trait Tree {
    fn root(&mut self) -> io::Result<Item>;

    /// In any order, without `.` and `..`.
    fn list(&mut self, path: &[u8]) -> io::Result<Vec<Item>>;

    /// The bytes of a regular file.
    fn open(&mut self, path: &[u8]) -> io::Result<Box<dyn Read + '_>>;
}

/// A tree with nothing in it.
pub struct Empty {
    at: Time,
}

impl Empty {
    /// As if made then.
    pub fn new(at: Time) -> Self {
        Self { at }
    }
}

impl Tree for Empty {
    fn root(&mut self) -> io::Result<Item> {
        Ok(Item {
            name: Vec::new(),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            device: 0,
            mtime: Time { nanos: 0, ..self.at },
            file: 1,
            links: 2,
            target: None,
            xattrs: Xattrs::new(),
        })
    }

    fn list(&mut self, _: &[u8]) -> io::Result<Vec<Item>> {
        Ok(Vec::new())
    }

    fn open(&mut self, _: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// A directory of this machine.
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        let below = path.strip_prefix(b"/").unwrap_or(path);
        self.root.join(OsStr::from_bytes(below))
    }

    /// A directory of the tree, reached name by name and through no link: who may change the tree
    /// could have anything read. The root may be reached by one.
    fn held(&self, path: &[u8]) -> io::Result<Held> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut held = rustix::fs::open(&self.root, flags, Mode::empty())?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            held = rustix::fs::openat(&held, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(Held(held))
    }

    fn item(path: &Path, name: Vec<u8>, metadata: &Metadata) -> io::Result<Item> {
        let kind = FileKind::from_mode_bits(metadata.mode());
        let kind = kind.ok_or_else(|| io::Error::other("it is of no known kind"))?;
        let is_link = kind == FileKind::Symlink;
        let target = is_link.then(|| fs::read_link(path)).transpose()?;
        Ok(Item {
            name,
            kind,
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.size(),
            device: metadata.rdev() as u32,
            mtime: Time { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 },
            file: metadata.ino(),
            links: metadata.nlink() as u32,
            target: target.map(|target| target.into_os_string().into_vec()),
            xattrs: if is_link { Xattrs::new() } else { xattrs(path) },
        })
    }
}

/// A directory, whatever becomes of its name.
struct Held(OwnedFd);

impl Held {
    /// A path to what is in it.
    fn way(&self, name: &[u8]) -> PathBuf {
        let way = Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string());
        way.join(OsStr::from_bytes(name))
    }
}

/// Names which file it was.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Tree for Directory {
    fn root(&mut self) -> io::Result<Item> {
        let metadata = fs::metadata(&self.root).map_err(at(&self.root))?;
        if !metadata.is_dir() {
            return Err(at(&self.root)(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Self::item(&self.root, Vec::new(), &metadata)
    }

    fn list(&mut self, path: &[u8]) -> io::Result<Vec<Item>> {
        let folder = self.path(path);
        let held = self.held(path).map_err(at(&folder))?;
        let mut items = Vec::new();
        for entry in fs::read_dir(held.way(b"")).map_err(at(&folder))? {
            let name = entry.map_err(at(&folder))?.file_name();
            let (path, way) = (folder.join(&name), held.way(name.as_bytes()));
            let metadata = fs::symlink_metadata(&way).map_err(at(&path))?;
            items.push(Self::item(&way, name.into_vec(), &metadata).map_err(at(&path))?);
        }
        Ok(items)
    }

    fn open(&mut self, path: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        let cut = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(cut);
        let path = self.path(path);
        let held = self.held(above).map_err(at(&path))?;
        // What became something else meanwhile is not followed, and not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&held.0, name, flags, Mode::empty());
        let file = File::from(opened.map_err(|error| at(&path)(error.into()))?);
        let metadata = file.metadata().map_err(at(&path))?;
        if !metadata.is_file() {
            return Err(at(&path)(io::Error::other("it is no regular file any more")));
        }
        Ok(Box::new(file))
    }
}

/// Those of users; a file system that has none has none to publish.
fn xattrs(path: &Path) -> Xattrs {
    const NAMES_MAX: usize = 64 << 10;
    let mut names = vec![0; NAMES_MAX];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names[..]) else { return Xattrs::new() };
    names.truncate(length);
    let names = names.split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    let each = |name: &[u8]| {
        let mut value = vec![0; NAMES_MAX];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
        value.truncate(length);
        Some((name.to_vec(), value))
    };
    names.filter_map(each).collect()
}
