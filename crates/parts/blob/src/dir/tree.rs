//! Names of objects below the store's directory, and the walk over them.
//!
//! ```text
//! objects/0001/000000/000/abc/0000000000000/0001-000000000abc-00000005
//!         mdt  grant: 24, 12, 12 bits  serial without its low 12 bits
//! ```
//!
//! Sessions get their grants and serials in order, so no directory holds more than some thousands
//! of entries; names sort as their numbers do, so that a page of a listing reads one directory per
//! level.
//!
//! All names are relative to an open directory: if another file system is mounted over the path, or
//! ours goes away, nothing is ever written elsewhere.

use crate::{FOREIGN_MAX, Foreign, Listed};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use tieline_types::{FileKind, GrantedId};

pub(super) const OBJECTS: &str = "objects";
const LEVELS: usize = 5;
/// Hexadecimal digits of each level's names.
const WIDTHS: [usize; LEVELS] = [4, 6, 3, 3, 13];
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Numbers of the directories that lead to an object, from above.
type Key = [u64; LEVELS];

fn key(chunk: GrantedId) -> Key {
    let grant = chunk.grant.0;
    let low = |bits: u64| bits & 0xfff;
    [u64::from(chunk.mdt.0), grant >> 24, low(grant >> 12), low(grant), chunk.serial >> 12]
}

/// The directory of an object.
pub(super) fn parent(chunk: GrantedId) -> String {
    let mut path = OBJECTS.to_owned();
    for (number, width) in key(chunk).into_iter().zip(WIDTHS) {
        path.push_str(&format!("/{number:0width$x}"));
    }
    path
}

pub(super) fn path(chunk: GrantedId) -> String {
    format!("{}/{chunk}", parent(chunk))
}

/// The directories from `objects` down to `parent`, without `parent` itself.
fn ancestors(parent: &str) -> impl DoubleEndedIterator<Item = &str> {
    let ends: Vec<usize> = parent.match_indices('/').map(|(at, _)| at).collect();
    ends.into_iter().map(|at| parent.split_at(at).0)
}

/// Makes `parent` and what leads to it. Tells which directories got a new entry.
pub(super) fn make_parent(
    root: impl AsFd,
    parent: &str,
    mut changed: impl FnMut(&str),
) -> Result<(), Errno> {
    let mut above = OBJECTS;
    for directory in ancestors(parent).skip(1).chain([parent]) {
        match rustix::fs::mkdirat(&root, directory, Mode::from_raw_mode(0o700)) {
            Ok(()) => changed(above),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        above = directory;
    }
    Ok(())
}

/// Removes `parent` and what leads to it, as far as that is empty.
pub(super) fn prune(root: impl AsFd, parent: &str) {
    let below_objects = ancestors(parent).skip(1).collect::<Vec<_>>();
    for directory in [parent].into_iter().chain(below_objects.into_iter().rev()) {
        // Not empty, most of the time; then those above are not empty either.
        if rustix::fs::unlinkat(&root, directory, AtFlags::REMOVEDIR).is_err() {
            return;
        }
    }
}

pub(super) fn open_directory(root: impl AsFd, path: &str) -> Result<File, Errno> {
    rustix::fs::openat(root, path, DIRECTORY, Mode::empty()).map(File::from)
}

/// Up to `limit` chunks after `after`, in order, and what else lies in the directories that are
/// come by for the first time.
pub(super) fn list(
    root: impl AsFd,
    after: Option<GrantedId>,
    limit: usize,
) -> Result<Listed, Errno> {
    let objects = rustix::fs::openat(root, OBJECTS, DIRECTORY, Mode::empty())?;
    let found = Listed::default();
    let mut walk = Walk { after, after_key: after.map(key), limit, found };
    walk.descend(objects, OBJECTS, &[], after.is_some())?;
    Ok(walk.found)
}

struct Walk {
    after: Option<GrantedId>,
    after_key: Option<Key>,
    limit: usize,
    found: Listed,
}

impl Walk {
    /// Visits the directory at `path`, to which `numbers` lead. `is_border`: `after` lies within
    /// it, or did.
    fn descend(
        &mut self,
        directory: OwnedFd,
        path: &str,
        numbers: &[u64],
        is_border: bool,
    ) -> Result<(), Errno> {
        let level = numbers.len();
        let Some(width) = WIDTHS.get(level).copied() else {
            return self.collect(directory, (path, numbers), is_border);
        };
        let border = self.after_key.and_then(|key| key.get(level).copied()).filter(|_| is_border);
        let mut below = BTreeSet::new();
        for_each_name(&directory, |name, kind| {
            // Some file systems do not tell the kind; then opening tells.
            let may_be = kind == FileType::Directory || kind == FileType::Unknown;
            match parse(name, width).filter(|_| may_be) {
                Some(number) => drop(below.insert(number)),
                None => self.note_foreign(path, name, kind, is_border),
            }
        })?;
        for number in below.split_off(&border.unwrap_or(0)) {
            if self.found.chunks.len() >= self.limit {
                break;
            }
            let name = format!("{number:0width$x}");
            match rustix::fs::openat(&directory, &name, DIRECTORY, Mode::empty()) {
                Ok(below) => {
                    let (path, numbers) = (format!("{path}/{name}"), [numbers, &[number]].concat());
                    self.descend(below, &path, &numbers, border == Some(number))?;
                }
                // Emptied and removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR) => {
                    self.note_foreign(path, name.as_bytes(), FileType::Unknown, is_border);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn collect(
        &mut self,
        directory: OwnedFd,
        (path, numbers): (&str, &[u64]),
        is_border: bool,
    ) -> Result<(), Errno> {
        let mut chunks = BTreeSet::new();
        for_each_name(&directory, |name, kind| {
            let is_file = kind == FileType::RegularFile || kind == FileType::Unknown;
            let chunk = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            let is_ours = |chunk: &GrantedId| {
                is_file && key(*chunk) == numbers && chunk.to_string().as_bytes() == name
            };
            match chunk.filter(is_ours) {
                Some(chunk) => drop(chunks.insert(chunk)),
                None => self.note_foreign(path, name, kind, is_border),
            }
        })?;
        let is_wanted = |chunk: &GrantedId| self.after.is_none_or(|after| *chunk > after);
        let room = self.limit - self.found.chunks.len();
        self.found.chunks.extend(chunks.into_iter().filter(is_wanted).take(room));
        Ok(())
    }

    /// What is in a directory that an earlier page came by was told with that.
    fn note_foreign(&mut self, path: &str, name: &[u8], kind: FileType, is_border: bool) {
        // NFS keeps what was removed while it was open for a while.
        let is_passing = name.starts_with(b".nfs");
        if is_border || is_passing || self.found.foreign.len() >= FOREIGN_MAX {
            return;
        }
        let path = [path.as_bytes(), b"/", name].concat();
        self.found.foreign.push(Foreign { path, kind: file_kind(kind) });
    }
}

/// The number that a directory's name stands for.
fn parse(name: &[u8], width: usize) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    let number = u64::from_str_radix(text, 16).ok()?;
    (format!("{number:0width$x}") == text).then_some(number)
}

/// Files where the file system does not tell.
fn file_kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

fn for_each_name(
    directory: impl AsFd,
    mut visit: impl FnMut(&[u8], FileType),
) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            visit(name, entry.file_type());
        }
    }
    Ok(())
}

/// Removes the files of a directory that nobody else uses; says how many.
pub(super) fn clear(root: impl AsFd, path: &str) -> Result<usize, Errno> {
    let directory = rustix::fs::openat(root, path, DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        names.push(entry?.file_name().to_owned());
    }
    names.retain(|name| !matches!(name.to_bytes(), b"." | b".."));
    for name in &names {
        rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
    }
    Ok(names.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Grant, MdtIndex};

    fn chunk(grant: u64, serial: u64) -> GrantedId {
        GrantedId { mdt: MdtIndex(1), grant: Grant(grant), serial }
    }

    #[test]
    fn paths_sort_as_chunks_do() {
        let chunks =
            [(0, 0), (0, 0xfff), (0, 0x1000), (1, 0), (0xfff, 9), (0x1000, 0), (1 << 40, 1)];
        let paths: Vec<String> =
            chunks.into_iter().map(|(grant, serial)| path(chunk(grant, serial))).collect();
        assert!(paths.is_sorted(), "{paths:#?}");
        assert_eq!(
            path(chunk(0xabc, 5)),
            "objects/0001/000000/000/abc/0000000000000/0001-000000000abc-00000005"
        );
    }

    #[test]
    fn empty_directories_go_up_to_objects_only() {
        let root = tempfile::tempdir().unwrap();
        let fd = File::open(root.path()).unwrap();
        let changed = std::cell::RefCell::new(Vec::new());
        let note = |directory: &str| changed.borrow_mut().push(directory.to_owned());
        std::fs::create_dir(root.path().join(OBJECTS)).unwrap();
        let near = (parent(chunk(1, 0)), parent(chunk(1, 0x1000)));
        make_parent(&fd, &near.0, note).unwrap();
        assert_eq!(changed.borrow().first().unwrap(), OBJECTS);
        assert_eq!(changed.borrow().len(), LEVELS);
        make_parent(&fd, &near.1, |_| {}).unwrap();
        prune(&fd, &near.0);
        assert!(root.path().join(&near.1).is_dir() && !root.path().join(&near.0).exists());
        prune(&fd, &near.1);
        assert_eq!(std::fs::read_dir(root.path().join(OBJECTS)).unwrap().count(), 0);
    }
}
