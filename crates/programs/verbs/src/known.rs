//! What a mount here knows while the servers are out of reach.
//!
//! Verbs go past the mount, to the servers. Where the mount says that those of a path are away
//! (`user.tieline.away`), `ls`, `stat` and `df` tell what the mount tells, and the others say at
//! once who is away.
//!
//! Invariant: a mount that does not answer is not waited for longer than [`PATIENCE`].

use anyhow::{Context, anyhow};
use rustix::fs::{getxattr, statvfs};
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use tieline_base::location::Location;
use tieline_types::{Attributes, FileId, FileKind, Gid, Mode, Time, Uid, Version};

const AWAY: &str = "user.tieline.away";
const PATIENCE: Duration = Duration::from_secs(3);

/// The site whose servers a mount cannot reach, if the place is on such a mount.
pub fn away(location: &Location) -> Option<String> {
    let path = path(location)?;
    let mount = location.mountpoint.clone()?;
    let site = patiently(move || {
        let within = path.ancestors().take_while(|above| above.starts_with(&mount));
        let mut value = vec![0; 256];
        for place in within {
            match getxattr(place, AWAY, &mut value[..]) {
                Ok(length) => {
                    value.truncate(length);
                    return String::from_utf8(value).ok();
                }
                Err(Errno::NODATA) => return None,
                // A name that the mount does not know: what it is below says the same.
                Err(_) => {}
            }
        }
        None
    });
    site.ok().flatten()
}

/// The same as an error, with what to do next.
pub fn refused(location: &Location, site: &str) -> anyhow::Error {
    let mount = location.mountpoint.as_deref().unwrap_or(Path::new("/"));
    anyhow!(
        "the servers of {site} are out of reach of {}: `tieline doctor` looks for the cause, and \
         the mount itself tells what it knows",
        mount.display()
    )
}

/// Where the place is in the kernel's tree.
pub fn path(location: &Location) -> Option<PathBuf> {
    let mount = location.mountpoint.as_ref()?;
    Some(mount.join(std::ffi::OsStr::from_bytes(&location.path)))
}

/// What the mount tells of a path.
pub fn attributes(path: &Path, follows: bool) -> anyhow::Result<Attributes> {
    let at = path.to_owned();
    let look = move || if follows { at.metadata() } else { at.symlink_metadata() };
    let found = patiently(look)?.with_context(|| path.display().to_string())?;
    Ok(from_metadata(&found))
}

/// What is in a directory, by name.
pub fn names(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let at = path.to_owned();
    let list = move || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(at)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut all = patiently(list)?.with_context(|| path.display().to_string())?;
    all.sort();
    Ok(all)
}

/// Bytes in all, and free ones.
pub fn space(mount: &Path) -> anyhow::Result<(u64, u64)> {
    let at = mount.to_owned();
    let seen = patiently(move || statvfs(&at))?.with_context(|| mount.display().to_string())?;
    Ok((seen.f_blocks * seen.f_frsize, seen.f_bavail * seen.f_frsize))
}

/// The thread of a look that hangs ends with the process.
fn patiently<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    let (done, looked) = mpsc::channel();
    std::thread::spawn(move || done.send(look()));
    let slow = |_| anyhow!("the mount does not know it, and its servers are out of reach");
    looked.recv_timeout(PATIENCE).map_err(slow)
}

fn from_metadata(found: &Metadata) -> Attributes {
    let time = |seconds, nanos| Time { seconds, nanos: u32::try_from(nanos).unwrap_or_default() };
    let born = found.created().ok();
    let born = born.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let born = born.unwrap_or_default();
    Attributes {
        id: FileId(found.ino()),
        kind: FileKind::from_mode_bits(found.mode()).unwrap_or(FileKind::Regular),
        mode: Mode::new(found.mode() & 0o7777),
        links: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
        uid: Uid(found.uid()),
        gid: Gid(found.gid()),
        size: found.size(),
        stored: found.blocks() * 512,
        device: u32::try_from(found.rdev()).unwrap_or_default(),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        btime: Time {
            seconds: i64::try_from(born.as_secs()).unwrap_or_default(),
            nanos: born.subsec_nanos(),
        },
        version: Version(0),
        has_xattrs: None,
        acls: None,
        project: None,
        is_written: None,
        content: None,
        tape: None,
    }
}
