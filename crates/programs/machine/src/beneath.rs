//! A local tree that is written, or read, beneath a descriptor.
//!
//! Verbs that root runs write where users may write too: whoever may rename there can put a link in
//! the place of a directory at any moment. So the directory that was named is opened once, as its
//! name leads to it; everything below it is reached from the descriptor of the directory that it is
//! in, one name at a time and never through a link. That holds on every kernel, and however deep
//! the tree is. What a file has beside its bytes is set on its descriptor, as whom it was found.
//!
//! A descriptor of a file that must not be opened (a pipe, a link, a directory that may not be
//! listed) is one of `O_PATH`; the kernel takes it as a path through /proc, which leads to that
//! very file.
//!
//! Invariants: no link below the named directory is followed; no file that is there is opened to be
//! written, but for a log of ours; a file has its own name only when it is whole.

use anyhow::{Context, bail};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are tried for a draft before somebody takes them all.
const NAMES_TRIED: usize = 64;
/// Of logs: they name files and users.
pub const LOG_MODE: u32 = 0o600;
/// What a mode gives to others than the owner.
const OTHERS: u32 = 0o077;

/// A file of any kind, held whatever becomes of its name.
#[derive(Debug)]
pub struct Held(File);

/// A directory, and how it is called in messages.
#[derive(Debug)]
pub struct Directory {
    held: Held,
    shown: PathBuf,
}

/// A file that is not whole yet. Removed unless it is given its name.
pub struct Draft<'d> {
    held: Held,
    at: &'d Directory,
    /// `None` once it has its own.
    name: Option<OsString>,
}

impl Held {
    /// What a path leads to, links on the way included.
    pub fn named(path: &Path) -> io::Result<Self> {
        Self::path(CWD, path, OFlags::empty())
    }

    /// The same, but a link at its end is held itself.
    pub fn named_itself(path: &Path) -> io::Result<Self> {
        Self::path(CWD, path, OFlags::NOFOLLOW)
    }

    fn path(at: impl std::os::fd::AsFd, path: &Path, more: OFlags) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | more;
        Ok(Self(rustix::fs::openat(at, path, flags, Mode::empty())?.into()))
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Where a link leads.
    pub fn target(&self) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(&self.0, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// A plain file, to be read.
    pub fn open(&self) -> anyhow::Result<File> {
        if !self.metadata()?.is_file() {
            bail!("it is no plain file any more");
        }
        Ok(File::open(self.way())?)
    }

    pub fn owner_set(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        Ok(rustix::fs::chownat(&self.0, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
    }

    pub fn mode_set(&self, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(self.way(), std::fs::Permissions::from_mode(mode))
    }

    pub fn times_set(&self, times: &Timestamps) -> io::Result<()> {
        Ok(rustix::fs::utimensat(CWD, self.way(), times, AtFlags::empty())?)
    }

    pub fn xattr(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::getxattr(self.way(), name, value.as_mut_slice()).ok()?;
        value.truncate(length);
        Some(value)
    }

    pub fn xattr_set(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        rustix::fs::setxattr(self.way(), name, value, XattrFlags::empty())
    }

    pub fn xattr_remove(&self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::removexattr(self.way(), name)
    }

    /// The one path that leads to this file and no other, links not followed any further.
    pub fn way(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

impl Directory {
    /// The directory that somebody named: links on the way are meant.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let held = Held::path(CWD, path, OFlags::DIRECTORY)?;
        Ok(Self { held, shown: path.to_owned() })
    }

    /// The same, where a link in its place counts only if it is the administrator's: root's, or of
    /// whoever asks.
    pub fn open_own(path: &Path) -> anyhow::Result<Self> {
        let held = Held::named_itself(path)?;
        let found = held.metadata()?;
        if found.is_symlink() && !is_ours(found.uid()) {
            bail!("it is a link of uid {}: name the directory that is meant", found.uid());
        }
        Ok(Self::open(path)?)
    }

    /// The directory that a path is in, and its name there.
    pub fn of(path: &Path) -> anyhow::Result<(Self, OsString)> {
        let name = path.file_name().context("it names no file")?;
        let above = path.parent().unwrap_or(Path::new("/"));
        let directory = Self::open(above).with_context(|| above.display().to_string())?;
        Ok((directory, name.to_owned()))
    }

    /// A directory that is held already.
    pub fn of_held(held: Held, shown: PathBuf) -> io::Result<Self> {
        match held.metadata()?.is_dir() {
            true => Ok(Self { held, shown }),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub fn held(&self) -> &Held {
        &self.held
    }

    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// How something in it is called in messages.
    pub fn path(&self, name: &OsStr) -> PathBuf {
        self.shown.join(name)
    }

    /// What has that name here.
    pub fn look(&self, name: &OsStr) -> io::Result<Option<Held>> {
        match Held::path(&self.held.0, Path::new(check(name)?), OFlags::NOFOLLOW) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Goes on into a directory that is there.
    pub fn enter(&self, name: &OsStr) -> anyhow::Result<Self> {
        let held = self.look(name)?.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        if !held.metadata()?.is_dir() {
            return Err(taken(&held));
        }
        Ok(Self { held, shown: self.path(name) })
    }

    /// Goes on into a directory, which is made if nothing is there: nobody else's until it has its
    /// own mode.
    pub fn enter_or_make(&self, name: &OsStr) -> anyhow::Result<Self> {
        match rustix::fs::mkdirat(&self.held.0, check(name)?, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What is at a path below.
    pub fn find(&self, path: &Path) -> anyhow::Result<Held> {
        let mut names = Vec::new();
        for component in path.components() {
            let Component::Normal(name) = component else { bail!("{} leads out", path.display()) };
            names.push(name);
        }
        let name = names.pop().context("it names no file")?;
        let mut below: Option<Self> = None;
        for name in names {
            below = Some(below.as_ref().unwrap_or(self).enter(name)?);
        }
        let found = below.as_ref().unwrap_or(self).look(name)?;
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }

    /// All names in it.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::new(self.readable()?)?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }

    fn readable(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.held.0, ".", flags, Mode::empty())?)
    }

    /// A new file, of nobody's name yet. `mode`: as of any new file, less the umask.
    pub fn draft(&self, mode: u32) -> io::Result<Draft<'_>> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        for _ in 0..NAMES_TRIED {
            // Short, whatever it will be called: no file system finds it too long.
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!(".tieline-{}-{serial}", std::process::id()));
            match self.create(&name, mode) {
                Err(Errno::EXIST) => {}
                made => return Ok(Draft { held: made?, at: self, name: Some(name) }),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn create(&self, name: &OsStr, mode: u32) -> Result<Held, Errno> {
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.held.0, name, new, Mode::from_raw_mode(mode))?;
        Ok(Held(made.into()))
    }

    /// Gives a file that is there another name.
    pub fn link(&self, file: &Held, name: &OsStr) -> io::Result<()> {
        let follow = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, file.way(), &self.held.0, check(name)?, follow)?)
    }

    pub fn make_symlink(&self, target: &OsStr, name: &OsStr) -> anyhow::Result<Held> {
        rustix::fs::symlinkat(target, &self.held.0, check(name)?)?;
        let made = self.look(name)?.context("it is gone again")?;
        if made.target().ok().as_deref() != Some(target) {
            bail!("something else has that name by now");
        }
        Ok(made)
    }

    /// A pipe, socket or device, which nobody else may use before it has its own mode.
    pub fn make_special(&self, kind: FileType, device: u64, name: &OsStr) -> Result<Held, Errno> {
        let name = check(name).map_err(|_| Errno::INVAL)?;
        rustix::fs::mknodat(&self.held.0, name, kind, Mode::RUSR, device)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.held.0, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&made)?;
        // Another in its place would be given away.
        let is_it = FileType::from_raw_mode(found.st_mode) == kind && found.st_nlink == 1;
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if !is_it || (is_device && found.st_rdev != device) {
            return Err(Errno::EXIST);
        }
        Ok(Held(made.into()))
    }

    /// Takes a name away, not what has it.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.held.0, check(name)?, AtFlags::empty())?)
    }

    /// Replaces a file in one step, and makes that durable. `mode` is what it has, whatever the
    /// umask.
    pub fn write_whole(
        &self,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        owner: Option<(u32, u32)>,
    ) -> io::Result<()> {
        // Always the same name: what a crash left behind is not there twice.
        let mut temporary = name.to_owned();
        temporary.push(".new");
        match self.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let held = self.create(check(&temporary)?, 0o600)?;
        let draft = Draft { held, at: self, name: Some(temporary) };
        (&draft.held.0).write_all(bytes)?;
        if let Some((uid, gid)) = owner {
            draft.held.owner_set(uid, gid)?;
        }
        draft.held.0.set_permissions(std::fs::Permissions::from_mode(mode))?;
        draft.held.0.sync_all()?;
        draft.replace(name)?;
        self.sync()
    }

    /// A log that goes on where it ended, for its owner alone.
    pub fn log(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        // A pipe in its place is not waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.held.0, check(name)?, flags, Mode::from(LOG_MODE));
        let file = File::from(file?);
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() != 1 {
            let why = "it is no file of its own: move it away";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        if found.mode() & OTHERS != 0 && found.uid() == rustix::process::geteuid().as_raw() {
            file.set_permissions(std::fs::Permissions::from_mode(LOG_MODE))?;
        }
        Ok(file)
    }
}

impl Draft<'_> {
    pub fn file(&self) -> &File {
        &self.held.0
    }

    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Gives it its name, unless something has it.
    pub fn publish(mut self, name: &OsStr) -> io::Result<()> {
        let Some(draft) = &self.name else { return Ok(()) };
        let (at, name) = (&self.at.held.0, check(name)?);
        match rustix::fs::renameat_with(at, draft, at, name, RenameFlags::NOREPLACE) {
            // Some file systems only know the plain rename.
            Err(Errno::INVAL) if self.at.look(name)?.is_some() => return Err(Errno::EXIST.into()),
            Err(Errno::INVAL) => rustix::fs::renameat(at, draft, at, name)?,
            renamed => renamed?,
        }
        self.name = None;
        Ok(())
    }

    /// Gives it its name, in the place of a file, or of a link itself, that has it.
    pub fn replace(mut self, name: &OsStr) -> io::Result<()> {
        let Some(draft) = &self.name else { return Ok(()) };
        if let Some(there) = self.at.look(name)? {
            let kind = there.metadata()?.file_type();
            if !kind.is_file() && !kind.is_symlink() {
                let why = "a device, a pipe or a directory has that name: give another";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
        }
        rustix::fs::renameat(&self.at.held.0, draft, &self.at.held.0, name)?;
        self.name = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = self.at.remove(name);
        }
    }
}

/// Replaces a file that somebody named by its path; nobody but its owner may read it, unless `mode`
/// says so.
pub fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (at, name) = Directory::of(path).map_err(io::Error::other)?;
    at.write_whole(&name, bytes, mode, None)
}

/// Why a name cannot be had, and what to do.
pub fn taken(by: &Held) -> anyhow::Error {
    match by.metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_symlink() => anyhow::anyhow!(
            "a symbolic link has that name, and nothing is written through it: move it away"
        ),
        Ok(kind) if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() => {
            anyhow::anyhow!("a device or a pipe has that name: move it away, or give another")
        }
        _ => anyhow::anyhow!("something else has that name already: move it away"),
    }
}

/// Nobody else could have put it there.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// One name, and no way to elsewhere.
fn check(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    match bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no name of a file")),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests;
