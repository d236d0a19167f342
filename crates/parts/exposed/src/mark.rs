//! How an exposed directory is known to be ours: by an extended attribute, or where its file
//! system has none by a file.
//!
//! A directory is taken when it is empty, belongs to us, and nobody else may write there; it is
//! marked, and from then on one without the mark is another (its disk is not mounted).

use crate::error::{Error, failed_at};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const ATTRIBUTE: &str = "user.tieline.exposed";
/// Where there are no attributes.
pub const FILE: &str = ".tieline-exposed";
const LENGTH_MAX: usize = 512;
/// Nobody exposes files there, whoever may change the map.
const SYSTEM: [&str; 14] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/spool",
];

/// Opens a directory that is exposed for `owner`, or to be.
pub fn open(path: &Path, owner: &str, was_marked: bool) -> Result<File, Error> {
    let absent = || Error::Absent(path.to_owned());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) if !was_marked => {
            check_place(path)?;
            make(path).map_err(|_| absent())?;
            open()
        }
        other => other,
    };
    let root = File::from(opened.map_err(|errno| match errno {
        Errno::NOENT => absent(),
        Errno::NOTDIR | Errno::LOOP => Error::NoDirectory(path.to_owned()),
        errno => failed_at("open", path)(errno),
    })?);
    check_place(path)?;
    match read(&root) {
        Some(found) if found == owner => return Ok(root),
        Some(found) => return Err(Error::Foreign { path: path.to_owned(), owner: found }),
        None if was_marked => return Err(Error::Unmarked(path.to_owned())),
        None => {}
    }
    check_free(&root, path)?;
    write(&root, owner).map_err(failed_at("mark", path))?;
    tracing::info!(directory = %path.display(), owner, "a directory is exposed");
    Ok(root)
}

/// Is a directory in order that is exposed for `owner`, or to be? Nothing is changed.
pub fn look(path: &Path, owner: &str) -> Result<(), Error> {
    check_place(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => Error::Absent(path.to_owned()),
        Errno::NOTDIR | Errno::LOOP => Error::NoDirectory(path.to_owned()),
        errno => failed_at("open", path)(errno),
    })?;
    let root = File::from(root);
    match read(&root) {
        Some(found) if found == owner => Ok(()),
        Some(owner) => Err(Error::Foreign { path: path.to_owned(), owner }),
        None => check_free(&root, path),
    }
}

/// A directory whose parent is there: a disk that is not mounted is seldom so.
fn make(path: &Path) -> Result<(), Errno> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))
}

/// Wherever its name leads: links on the way are followed first.
fn check_place(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    let real = path.canonicalize().or_else(|_| parent.canonicalize());
    let real = real.map_err(|_| Error::Absent(path.to_owned()))?;
    let is_system = SYSTEM.iter().any(|system| real.starts_with(system));
    let is_shallow = real.parent().is_none();
    if is_system || is_shallow { Err(Error::System(path.to_owned())) } else { Ok(()) }
}

/// Is it empty, ours, and nobody else's to write to?
fn check_free(root: &File, path: &Path) -> Result<(), Error> {
    let about = root.metadata().map_err(|_| Error::Absent(path.to_owned()))?;
    if about.mode() & 0o022 != 0 {
        return Err(Error::Loose { path: path.to_owned(), mode: about.mode() & 0o7777 });
    }
    let us = rustix::process::geteuid().as_raw();
    if about.uid() != us {
        let owner = format!("uid {}, not to the server's ({us})", about.uid());
        return Err(Error::Foreign { path: path.to_owned(), owner });
    }
    let names = Dir::read_from(root).map_err(failed_at("list", path))?;
    for name in names {
        let name = name.map_err(failed_at("list", path))?;
        if !matches!(name.file_name().to_bytes(), b"." | b".." | b"lost+found") {
            return Err(Error::NotEmpty(path.to_owned()));
        }
    }
    Ok(())
}

fn read(root: &File) -> Option<String> {
    let mut value = [0; LENGTH_MAX];
    if let Ok(length) = rustix::fs::fgetxattr(root, ATTRIBUTE, &mut value) {
        return Some(String::from_utf8_lossy(value.get(..length)?).into_owned());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(root, FILE, flags, Mode::empty()).ok()?;
    let length = rustix::io::pread(&file, &mut value, 0).ok()?;
    Some(String::from_utf8_lossy(value.get(..length)?).into_owned())
}

fn write(root: &File, owner: &str) -> Result<(), Errno> {
    match rustix::fs::fsetxattr(root, ATTRIBUTE, owner.as_bytes(), XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {}
        other => return other.and_then(|()| rustix::fs::fsync(root)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, FILE, flags, Mode::from_raw_mode(0o644))?;
    let written = rustix::io::write(&file, owner.as_bytes());
    if written.is_err() {
        let _ = rustix::fs::unlinkat(root, FILE, AtFlags::empty());
    }
    written?;
    rustix::fs::fsync(&file)?;
    rustix::fs::fsync(root)
}
