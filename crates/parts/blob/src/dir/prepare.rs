//! What is done when a directory is opened: its subdirectories, what an earlier process left, and
//! what its file system can do.

use super::directory::{TMP, create_file};
use super::marker::Marker;
use super::{failed, tree, wrong_store};
use crate::{Abilities, Error};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Open files are cheap for the kernel, but processes have a limit.
const OBJECTS_OPEN_MAX: u64 = 4096;

/// Makes a directory of ours usable, and says what it can do. One that is mounted read-only can
/// still be read.
pub(super) fn prepare(path: &Path, root: &File, marker: &Marker) -> Result<Abilities, Error> {
    let sendfile = can_send(&marker.file);
    match prepare_for_writing(path, root) {
        Ok((range, append)) => Ok(Abilities { range, append, rename: true, sendfile }),
        Err(Error::ReadOnly { .. }) => {
            Ok(Abilities { range: true, append: false, rename: false, sendfile })
        }
        Err(error) => Err(error),
    }
}

fn prepare_for_writing(path: &Path, root: &File) -> Result<(bool, bool), Error> {
    let errno = |doing| move |errno: Errno| failed(path, doing, errno.into());
    make_subdirectories(root).map_err(errno("make its subdirectories"))?;
    let left = tree::clear(root, TMP).map_err(errno("remove old temporary files"))?;
    if left > 0 {
        tracing::info!(path = %path.display(), left, "removed objects that were not finished");
    }
    rustix::fs::syncfs(root).map_err(errno("sync"))?;
    probe(root).map_err(errno("try what it can do"))
}

/// They are made at a start alone: when one goes later, so did what it held.
pub(super) fn check_subdirectories(path: &Path, root: &File) -> Result<(), Error> {
    for name in [TMP, tree::OBJECTS] {
        match rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(Errno::NOENT) => {
                let reason = format!(
                    "its folder {name} was removed: restart its OSS to begin an empty one, and see \
                     what is lost with `tieline fsck` and `tieline mirror verify`"
                );
                return Err(wrong_store(path, reason));
            }
            Err(errno) => return Err(failed(path, "look for its folders", errno.into())),
        }
    }
    Ok(())
}

fn make_subdirectories(root: &File) -> Result<(), Errno> {
    for name in [TMP, tree::OBJECTS] {
        match rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Tries reading a range and appending. Without rename the file system cannot be used.
fn probe(root: &File) -> Result<(bool, bool), Errno> {
    let (first, second) = (format!("{TMP}/probe"), format!("{TMP}/probe.renamed"));
    let file = create_file(root, &first)?;
    rustix::io::pwrite(&file, b"probe", 0)?;
    rustix::fs::renameat(root, &first, root, &second)?;
    let mut byte = [0];
    let range = rustix::io::pread(&file, &mut byte, 2)? == 1 && byte == *b"o";
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let append = rustix::fs::openat(root, &second, flags, Mode::empty());
    rustix::fs::unlinkat(root, &second, AtFlags::empty())?;
    Ok((range, append.is_ok()))
}

fn can_send(file: &File) -> bool {
    let Ok((_reader, writer)) = rustix::pipe::pipe() else { return false };
    matches!(rustix::fs::sendfile(&writer, file, Some(&mut 0), 1), Ok(1))
}

/// A quarter of what this process may open: connections need some too.
pub(super) fn objects_open_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(OBJECTS_OPEN_MAX, |limit| (limit / 4).min(OBJECTS_OPEN_MAX)) as usize
}
