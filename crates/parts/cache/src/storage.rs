//! What a shared directory has to do: whole files, written once.
//!
//! Nothing here locks, overwrites, appends or maps, so that HDFS by FUSE and dCache by NFS will do.
//! A file that goes away while it is read may answer with ESTALE, and one that another node makes
//! right now with ENODATA (GlusterFS shows names before they are wholly made; gluster/glusterfs
//! issue 3688). Neither is a storage that fails: it is asked again. All calls block.
//!
//! Whoever can write to the directory can put anything there. No link below it is followed, and
//! nothing is waited for that is no regular file ([`is_strange`]): a FIFO would hold its reader up
//! for ever.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is on its way is asked for again after so long each: a third of a second in all.
const AGAIN_MS: [u64; 6] = [0, 1, 4, 16, 64, 256];
/// What a mode gives to the group and to everybody, and the part of it that leads through a
/// directory.
const OTHERS: u32 = 0o077;
const SEARCHED: u32 = 0o011;

/// What a listing or a look at one file tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    pub length: u64,
    /// When it was last written, touched or read, as far as the storage knows: milliseconds since
    /// 1970 by the storage's clock.
    pub used_ms: u64,
    pub modified_ms: u64,
}

/// Room on a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    pub bytes_total: u64,
    pub bytes_free: u64,
}

/// A directory on storage that many nodes see.
pub trait Storage: Send + Sync {
    /// A new file with all its bytes, which others may see later; `AlreadyExists` if there is one
    /// of that name.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// All bytes of a file, but not more than `length_max` and one. What is no regular file is
    /// strange ([`is_strange`]).
    fn read(&self, path: &Path, length_max: u64) -> io::Result<Vec<u8>>;
    /// As the storage has it now, not as this node remembers it. What is no regular file is empty.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Says that the file is in use now.
    fn touch(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory; a link to one has none ([`followed`]).
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// With all that leads to it.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// Takes from others what they may do in a directory, where nothing is for others. One of
    /// somebody else is foreign ([`is_foreign`]).
    fn protect(&self, path: &Path) -> io::Result<()>;
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Which file system it is on: another number, another one.
    fn device(&self, path: &Path) -> io::Result<u64>;
}

/// A file system that is mounted here.
#[derive(Clone, Copy, Default, Debug)]
pub enum LocalStorage {
    /// What is made is for whoever makes it alone.
    #[default]
    Private,
    /// Others may read it, as far as the directory lets them in.
    Shared,
}

impl LocalStorage {
    fn file_mode(self) -> u32 {
        match self {
            Self::Private => 0o600,
            Self::Shared => 0o644,
        }
    }

    fn folder_mode(self) -> u32 {
        match self {
            Self::Private => 0o700,
            Self::Shared => 0o755,
        }
    }
}

impl Storage for LocalStorage {
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        make(path, self.file_mode(), |file| file.write_all(bytes))
    }

    fn read(&self, path: &Path, length_max: u64) -> io::Result<Vec<u8>> {
        settled(|| {
            let file = open(path)?;
            let known = file.metadata()?;
            if !known.is_file() {
                return Err(strange());
            }
            let length = known.len().min(length_max);
            let mut bytes = Vec::with_capacity(length as usize + 1);
            file.take(length_max.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        // Network file systems ask their server when a file is opened, not when it is looked at.
        settled(|| {
            let known = match open(path) {
                Ok(file) => file.metadata()?,
                Err(error) if is_strange(&error) => std::fs::symlink_metadata(path)?,
                Err(error) => return Err(error),
            };
            let length = if known.is_file() { known.len() } else { 0 };
            let modified_ms = milliseconds(known.mtime(), known.mtime_nsec());
            let used_ms = milliseconds(known.atime(), known.atime_nsec()).max(modified_ms);
            Ok(Stat { length, used_ms, modified_ms })
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        settled(|| std::fs::rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        settled(|| std::fs::remove_file(path))
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        settled(|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entries = Dir::read_from(rustix::fs::open(path, flags, Mode::empty())?)?;
            let names = entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
            Ok(names.filter(|name| name != "." && name != "..").collect())
        })
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mode = self.folder_mode();
        settled(|| std::fs::DirBuilder::new().recursive(true).mode(mode).create(path))
    }

    fn protect(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Private => protect(path, self.folder_mode()),
            Self::Shared => Ok(()),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space { bytes_total: bytes(found.f_blocks), bytes_free: bytes(found.f_bavail) })
    }

    fn device(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.dev())
    }
}

/// A directory that an operator named, which may be a link.
pub(crate) fn followed(root: &Path) -> PathBuf {
    root.join(".")
}

/// Opens whatever is there without waiting for anybody.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()) {
        // A link; a socket or a device that nobody serves.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => Err(strange()),
        opened => Ok(File::from(opened?)),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is no regular file")]
struct Strange;

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Strange)
}

/// Is there something under a file's name that is no regular file? No cache put it there.
pub(crate) fn is_strange(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Strange>())
}

#[derive(Debug, thiserror::Error)]
#[error("it is somebody else's")]
struct Foreign;

pub(crate) fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, Foreign)
}

/// Does a directory belong to somebody who could read all that is put there, or keep us out?
pub(crate) fn is_foreign(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Foreign>())
}

/// A new file, of which no half stays.
fn make(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file =
        settled(|| OpenOptions::new().write(true).create_new(true).mode(mode).open(path))?;
    write(&mut file).inspect_err(|_| {
        // A full disk: an empty claim would stand for somebody who is not there.
        let _ = std::fs::remove_file(path);
    })
}

fn protect(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let known = folder.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if known.uid() != own {
        match maker_in(path) {
            Ok(maker) if maker == known.uid() => {}
            Ok(_) => return Err(foreign()),
            // It is read only: nothing will be put there.
            Err(_) => return Ok(()),
        }
    }
    if known.mode() & OTHERS != 0 {
        // Where there are no modes, people are warned ([`lets_others_in`]).
        let _ = folder.set_permissions(std::fs::Permissions::from_mode(mode));
    }
    Ok(())
}

/// Whose the files are that this process makes there: a server may take root for nobody.
fn maker_in(path: &Path) -> io::Result<u32> {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let probe = path.join(format!(".whose-{node}-{}", std::process::id()));
    make(&probe, 0o600, |_| Ok(()))?;
    let known = std::fs::symlink_metadata(&probe);
    std::fs::remove_file(&probe)?;
    Ok(known?.uid())
}

/// May others than the owner come to what lies in both directories, one in the other?
pub(crate) fn lets_others_in(outer: &Path, inner: &Path) -> bool {
    let is_open =
        |path: &Path| std::fs::metadata(path).is_ok_and(|known| known.mode() & SEARCHED != 0);
    is_open(outer) && is_open(inner)
}

/// Does it again while what it is about is on its way: replaced, removed or made by another node.
pub(crate) fn settled<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for pause in AGAIN_MS {
        match work() {
            Err(error) if is_stale(&error) || is_half_made(&error) => {
                std::thread::sleep(Duration::from_millis(pause));
            }
            outcome => return outcome,
        }
    }
    work()
}

pub(crate) fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

fn is_half_made(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NODATA.raw_os_error())
}

fn milliseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    seconds.saturating_mul(1000) + u64::try_from(nanoseconds).unwrap_or_default() / 1_000_000
}

#[cfg(test)]
pub(crate) fn make_fifo(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(CWD, path, kind, mode, 0).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_finds_no_room_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claim");
        let full = make(&path, 0o600, |file| {
            file.write_all(b"some")?;
            Err(Errno::NOSPC.into())
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!path.exists());
        LocalStorage::Private.create(&path, b"all").unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_strange_and_waits_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let in_it = |name: &str| folder.path().join(name);
        LocalStorage::Private.create(&in_it("file"), b"bytes").unwrap();
        LocalStorage::Private.make_directory(&in_it("folder")).unwrap();
        make_fifo(&in_it("fifo"));
        std::os::unix::fs::symlink(in_it("file"), in_it("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(in_it("socket")).unwrap();
        for name in ["folder", "fifo", "link", "socket"] {
            let read = LocalStorage::Private.read(&in_it(name), 100);
            assert!(read.as_ref().is_err_and(is_strange), "{name}: {read:?}");
            let stat = LocalStorage::Private.stat(&in_it(name)).unwrap();
            assert!(stat.length == 0 && stat.modified_ms > 0, "{name}: {stat:?}");
        }
        assert_eq!(LocalStorage::Private.read(&in_it("file"), 100).unwrap(), b"bytes");
        std::os::unix::fs::symlink(in_it("folder"), in_it("other")).unwrap();
        assert!(
            LocalStorage::Private.list(&in_it("other")).is_err(),
            "nothing is done behind a link"
        );
        assert!(LocalStorage::Private.list(&followed(&in_it("other"))).unwrap().is_empty());
        assert_eq!(LocalStorage::Private.list(folder.path()).unwrap().len(), 6);
    }

    #[test]
    fn what_is_on_its_way_is_asked_for_again_and_not_for_ever() {
        let after = |count: usize, errno: Errno| {
            let mut asked = 0;
            let outcome = settled(|| {
                asked += 1;
                if asked > count { Ok(()) } else { Err(errno.into()) }
            });
            (outcome.map_err(|error| error.raw_os_error()), asked)
        };
        for errno in [Errno::STALE, Errno::NODATA] {
            assert_eq!(after(AGAIN_MS.len(), errno), (Ok(()), AGAIN_MS.len() + 1));
            let failed = Err(Some(errno.raw_os_error()));
            assert_eq!(after(usize::MAX, errno), (failed, AGAIN_MS.len() + 1));
        }
        assert_eq!(after(1, Errno::IO), (Err(Some(Errno::IO.raw_os_error())), 1));
    }
}
