//! What is done to the names in an exposed directory.

use crate::error::{Error, failed, failed_at, shown};
use crate::staged::{PREFIX, Staged, draft_name};
use crate::{Dress, mark};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_types::{ByteSize, Name, Time};

/// What stays free of a disk: so much, or one part in a hundred of it, whichever is less.
const SPARE: u64 = 1 << 30;
const SPARE_PART: u64 = 100;

/// An exposed directory.
pub struct ExposedTree {
    path: PathBuf,
    root: Arc<File>,
}

/// A name in a directory, and whether it is a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub name: Name,
    pub is_directory: bool,
}

impl ExposedTree {
    /// Opens a directory that is exposed for `owner`, or takes it if it is free to be.
    pub fn open(path: &Path, owner: &str, was_marked: bool) -> Result<Self, Error> {
        let root = Arc::new(mark::open(path, owner, was_marked)?);
        let tree = Self { path: path.to_owned(), root };
        tree.remove_drafts()?;
        Ok(tree)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it still what its name leads to? A disk may be mounted over it, or be gone.
    pub fn is_in_place(&self) -> bool {
        let there = rustix::fs::stat(&self.path);
        let own = rustix::fs::fstat(&self.root);
        matches!((there, own), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Begins a file of `size` bytes that are not to be holes.
    pub fn stage(&self, size: u64) -> Result<Staged, Error> {
        let disk = rustix::fs::fstatvfs(&self.root).map_err(failed_at("measure", &self.path))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let total = disk.f_blocks.saturating_mul(disk.f_frsize);
        let needed = size.saturating_add(SPARE.min(total / SPARE_PART));
        if free < needed {
            let (free, needed) = (ByteSize(free), ByteSize(needed));
            return Err(Error::NoRoom { path: self.path.clone(), free, needed });
        }
        Staged::new(&self.root, &self.path)
    }

    pub fn make_directory(&self, path: &[Name], dress: &Dress) -> Result<(), Error> {
        let Some((name, parent)) = self.parent(path)? else { return Ok(()) };
        let made = rustix::fs::mkdirat(&parent, name.as_bytes(), Mode::from_raw_mode(0o700));
        match made {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let there = stat(&parent, name).map_err(failed("look at", path))?;
                if !is_exact(&parent, name) {
                    return Err(Error::Case(shown(path)));
                }
                if FileType::from_raw_mode(there.st_mode) != FileType::Directory {
                    self.unlink(&parent, path, name)?;
                    rustix::fs::mkdirat(&parent, name.as_bytes(), Mode::from_raw_mode(0o700))
                        .map_err(failed("make directory", path))?;
                }
            }
            Err(errno) => return Err(failed("make directory", path)(errno)),
        }
        let own = open_directory(&parent, name).map_err(failed("open", path))?;
        wear(&own, dress).map_err(failed("give", path))
    }

    /// Gives a staged file its name, in the place of whatever file has it.
    pub fn place(&self, path: &[Name], staged: &Staged, dress: &Dress) -> Result<(), Error> {
        let Some((name, parent)) = self.parent(path)? else { return Err(missing(path)) };
        wear(&staged.file, dress).map_err(failed("give", path))?;
        match staged.link(&parent, name.as_bytes()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => self.check_replaced(&parent, path, name)?,
            Err(errno) => return Err(failed("make", path)(errno)),
        }
        let draft = draft_name();
        staged.link(&parent, draft.as_bytes()).map_err(failed("make", path))?;
        rustix::fs::renameat(&parent, &draft, &parent, name.as_bytes()).map_err(|errno| {
            let _ = rustix::fs::unlinkat(&parent, &draft, AtFlags::empty());
            failed("make", path)(errno)
        })
    }

    /// Gives a file that is there another name.
    pub fn link(&self, from: &[Name], path: &[Name]) -> Result<(), Error> {
        let Some((old, from_parent)) = self.parent(from)? else { return Err(missing(from)) };
        let Some((name, parent)) = self.parent(path)? else { return Err(missing(path)) };
        let own = stat(&from_parent, old).map_err(failed("look at", from))?;
        if FileType::from_raw_mode(own.st_mode) != FileType::RegularFile {
            return Err(missing(from));
        }
        let (old, new) = (old.as_bytes(), name.as_bytes());
        let link = || rustix::fs::linkat(&from_parent, old, &parent, new, AtFlags::empty());
        match link() {
            Err(Errno::EXIST) => {
                let there = stat(&parent, name).map_err(failed("look at", path))?;
                if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) {
                    return Ok(());
                }
                self.check_replaced(&parent, path, name)?;
                self.unlink(&parent, path, name)?;
                link().map_err(failed("make", path))
            }
            other => other.map_err(failed("make", path)),
        }
    }

    /// Moves a file or a directory. Where it was moved before, nothing happens.
    pub fn rename(&self, from: &[Name], path: &[Name]) -> Result<(), Error> {
        let Some((name, parent)) = self.parent(path)? else { return Err(missing(path)) };
        let arrived = || stat(&parent, name).map(drop).map_err(failed("look at", path));
        let from_parent = match self.parent(from) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(missing(from)),
            Err(Error::Missing(_)) => return arrived(),
            Err(error) => return Err(error),
        };
        let (old, from_parent) = (from_parent.0.as_bytes(), from_parent.1);
        let new = name.as_bytes();
        let moved = |flags| rustix::fs::renameat_with(&from_parent, old, &parent, new, flags);
        match moved(RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => arrived(),
            Err(Errno::EXIST) => {
                if rustix::fs::statat(&from_parent, old, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    return arrived();
                }
                self.clear(&parent, path, name)?;
                moved(RenameFlags::NOREPLACE).map_err(failed("move", path))
            }
            // Not every file system can refuse to replace.
            Err(Errno::INVAL | Errno::NOSYS) => match stat(&parent, name) {
                Ok(_) => {
                    self.clear(&parent, path, name)?;
                    moved(RenameFlags::empty()).map_err(failed("move", path))
                }
                Err(_) => moved(RenameFlags::empty()).map_err(failed("move", path)),
            },
            Err(errno) => Err(failed("move", from)(errno)),
        }
    }

    pub fn dress(&self, path: &[Name], dress: &Dress) -> Result<(), Error> {
        let Some((name, parent)) = self.parent(path)? else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(&parent, name.as_bytes(), flags, Mode::empty());
        let own = File::from(opened.map_err(failed("open", path))?);
        wear(&own, dress).map_err(failed("give", path))
    }

    /// Takes a file's name away. One that is not there is gone.
    pub fn remove(&self, path: &[Name]) -> Result<(), Error> {
        match self.parent(path) {
            Ok(Some((name, parent))) => self.unlink(&parent, path, name),
            Ok(None) | Err(Error::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes an empty directory away. One that is not there is gone.
    pub fn remove_directory(&self, path: &[Name]) -> Result<(), Error> {
        let (name, parent) = match self.parent(path) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Error::Missing(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        match rustix::fs::unlinkat(&parent, name.as_bytes(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTDIR) => self.unlink(&parent, path, name),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Error::InTheWay(shown(path))),
            Err(errno) => Err(failed("remove", path)(errno)),
        }
    }

    /// Is a file there as it was left?
    pub fn is_as_left(&self, path: &[Name], size: u64, mtime: Time) -> bool {
        let Ok(Some((name, parent))) = self.parent(path) else { return false };
        let Ok(there) = stat(&parent, name) else { return false };
        FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && there.st_size as u64 == size
            && there.st_mtime == mtime.seconds
    }

    /// The first names of a directory after one, in the order of their bytes.
    pub fn list(
        &self,
        directory: &[Name],
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Found>, Error> {
        let own = self.directory(directory)?;
        let mut names: BTreeSet<Name> = BTreeSet::new();
        for entry in Dir::read_from(&own).map_err(failed("list", directory))? {
            let entry = entry.map_err(failed("list", directory))?;
            let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
            let is_ours = directory.is_empty()
                && (name.as_bytes() == mark::FILE.as_bytes() || name.as_bytes() == b"lost+found");
            if !is_ours && after.is_none_or(|after| name > *after) {
                names.insert(name);
                if names.len() > limit {
                    names.pop_last();
                }
            }
        }
        let found = names.into_iter().filter_map(|name| {
            let there = stat(&own, &name).ok()?;
            let is_directory = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
            Some(Found { name, is_directory })
        });
        Ok(found.collect())
    }

    /// What was done to the names of directories survives the machine. One that is gone had none.
    pub fn sync(&self, directories: &BTreeSet<Vec<Name>>) -> Result<(), Error> {
        for path in directories {
            match self.directory(path) {
                Ok(own) => rustix::fs::fsync(&own).map_err(failed("sync", path))?,
                Err(Error::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a server left that was killed.
    fn remove_drafts(&self) -> Result<(), Error> {
        let names = Dir::read_from(&*self.root).map_err(failed_at("list", &self.path))?;
        for name in names.flatten() {
            if name.file_name().to_bytes().starts_with(PREFIX.as_bytes()) {
                let _ = rustix::fs::unlinkat(&*self.root, name.file_name(), AtFlags::empty());
            }
        }
        Ok(())
    }

    /// The last name of a path and the directory that has it; `None` for the root.
    fn parent<'p>(&self, path: &'p [Name]) -> Result<Option<(&'p Name, File)>, Error> {
        let Some((name, above)) = path.split_last() else { return Ok(None) };
        Ok(Some((name, self.directory(above)?)))
    }

    fn directory(&self, path: &[Name]) -> Result<File, Error> {
        let mut own = self.root.try_clone().map_err(|_| Error::Absent(self.path.clone()))?;
        if path.is_empty() {
            // A descriptor of its own: two that list share no position.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            return rustix::fs::openat(&own, ".", flags, Mode::empty())
                .map(File::from)
                .map_err(failed_at("open", &self.path));
        }
        for name in path {
            own = open_directory(&own, name).map_err(|errno| match errno {
                // What is a file or a link there is not on our way.
                Errno::NOTDIR | Errno::LOOP => missing(path),
                errno => failed("open", path)(errno),
            })?;
        }
        Ok(own)
    }

    /// May what has a name be replaced by a file?
    fn check_replaced(&self, parent: &File, path: &[Name], name: &Name) -> Result<(), Error> {
        if !is_exact(parent, name) {
            return Err(Error::Case(shown(path)));
        }
        let there = stat(parent, name).map_err(failed("look at", path))?;
        if FileType::from_raw_mode(there.st_mode) != FileType::Directory {
            return Ok(());
        }
        let removed = rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::REMOVEDIR);
        removed.map_err(|_| Error::InTheWay(shown(path)))
    }

    /// Takes away what is not ours.
    fn clear(&self, parent: &File, path: &[Name], name: &Name) -> Result<(), Error> {
        self.check_replaced(parent, path, name)?;
        self.unlink(parent, path, name)
    }

    fn unlink(&self, parent: &File, path: &[Name], name: &Name) -> Result<(), Error> {
        match rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => self.unlink_directory(parent, path, name),
            Err(errno) => Err(failed("remove", path)(errno)),
        }
    }

    fn unlink_directory(&self, parent: &File, path: &[Name], name: &Name) -> Result<(), Error> {
        match rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(_) => Err(Error::InTheWay(shown(path))),
        }
    }
}

fn missing(path: &[Name]) -> Error {
    Error::Missing(shown(path))
}

fn stat(parent: &File, name: &Name) -> Result<Stat, Errno> {
    rustix::fs::statat(parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)
}

fn open_directory(parent: &File, name: &Name) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name.as_bytes(), flags, Mode::empty()).map(File::from)
}

/// Does a directory list exactly this name? Some file systems find others under it, too.
fn is_exact(parent: &File, name: &Name) -> bool {
    let Ok(names) = Dir::read_from(parent) else { return false };
    names.flatten().any(|entry| entry.file_name().to_bytes() == name.as_bytes())
}

/// Gives owner first: that takes bits of the mode away.
fn wear(file: &File, dress: &Dress) -> Result<(), Errno> {
    if let Some((uid, gid)) = dress.owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(dress.mode))?;
    let time = Timespec { tv_sec: dress.mtime.seconds, tv_nsec: dress.mtime.nanos.into() };
    rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })
}
