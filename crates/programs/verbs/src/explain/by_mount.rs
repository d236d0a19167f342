//! What a mount makes of who has no ticket to ask servers with: as whom it serves him, and whether
//! it lets him.
//!
//! The file is opened or listed through the mount, as a program would. What would change something
//! is not tried: the kernel judges it by what the mount shows, for the user that he is here, and we
//! do by the same for the one that servers take him for.
//!
//! Invariant: nothing is changed.

use super::{Subject, TAKEN, Verdict, Wish};
use rustix::fs::Access;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tieline_base::location::Location;
use tieline_people::Served;
use tieline_types::{Caller, Gid, Mode, Uid};

/// As long as an attribute can be.
const ROOM: usize = 64 << 10;
/// Of a mode: others may make and remove names.
const CHANGE: u32 = 0o3;

/// As whom a mount serves us; nothing, if it does not, or is an older one.
pub fn served(mountpoint: &Path) -> Option<Served> {
    let mut room = vec![0; ROOM];
    let length = rustix::fs::getxattr(mountpoint, tieline_fuse::WHO, &mut room[..]).ok()?;
    serde_json::from_slice(room.get(..length)?).ok()
}

/// Who that is, with what he lacks.
pub(super) fn subject(served: Served, lack: &str) -> Subject {
    let caller = Caller {
        uid: Uid(served.uid),
        gid: Gid(served.gid),
        groups: served.groups.into_iter().map(Gid).collect(),
        proof: None,
    };
    let how = format!("{} ({lack})", served.how);
    Subject { principal: None, name: None, caller, how, is_self: true }
}

/// Whether the mount lets us, and where not.
pub(super) fn verdicts(location: &Location, caller: &Caller, wish: Wish) -> Vec<Verdict> {
    let Some(mountpoint) = &location.mountpoint else { return vec![] };
    let path = mountpoint.join(OsStr::from_bytes(&location.path));
    let directory = || path.parent().unwrap_or(mountpoint).to_owned();
    match wish {
        Wish::Read => vec![verdict(&path, "it was opened and read", read(&path))],
        Wish::Write => vec![verdict(&path, "it was opened", write(&path))],
        Wish::Execute => vec![by_kernel(&path, Access::EXEC_OK)],
        Wish::Create => {
            let is_taken = std::fs::symlink_metadata(&path).is_ok();
            let taken = is_taken.then(|| judged(path.clone(), false, TAKEN.to_owned()));
            let judged = [by_kernel(&directory(), CHANGES), names(&directory(), None, caller)];
            judged.into_iter().chain(taken).collect()
        }
        Wish::Delete => {
            vec![going(&directory(), &path), names(&directory(), Some(&path), caller)]
        }
        Wish::Chmod => {
            let (is_own, rule) = match std::fs::symlink_metadata(&path) {
                Ok(found) => {
                    let owner = found.uid();
                    (owner == caller.uid.0, format!("its owner wanted, which is {owner}"))
                }
                Err(error) => (false, error.to_string()),
            };
            vec![judged(path, is_own, rule)]
        }
    }
}

const CHANGES: Access = Access::WRITE_OK.union(Access::EXEC_OK);

fn read(path: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return std::fs::read_dir(path).map(drop);
    }
    // Who opens a pipe waits.
    if !kind.is_file() {
        return Ok(rustix::fs::access(path, Access::READ_OK)?);
    }
    File::open(path)?.read(&mut [0]).map(drop)
}

fn write(path: &Path) -> io::Result<()> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(rustix::fs::access(path, Access::WRITE_OK)?);
    }
    OpenOptions::new().append(true).open(path).map(drop)
}

fn by_kernel(path: &Path, wished: Access) -> Verdict {
    let asked = rustix::fs::access(path, wished).map_err(io::Error::from);
    Verdict { by: "kernel", ..verdict(path, "by what the mount shows", asked) }
}

/// Does the kernel let us take a name away? access(2) knows nothing of sticky directories.
fn going(directory: &Path, path: &Path) -> Verdict {
    let own = rustix::process::geteuid();
    let is_kept = || -> io::Result<bool> {
        let (found, file) = (std::fs::metadata(directory)?, std::fs::symlink_metadata(path)?);
        Ok(!own.is_root() && is_stuck(&found, file.uid(), own.as_raw()))
    };
    match is_kept() {
        Ok(true) => {
            let rule = "it is sticky, and neither it nor the file is its caller's".to_owned();
            Verdict { by: "kernel", ..judged(directory.to_owned(), false, rule) }
        }
        _ => by_kernel(directory, CHANGES),
    }
}

/// Is a file of `owner` kept from whoever has another uid?
fn is_stuck(directory: &Metadata, owner: u32, uid: u32) -> bool {
    directory.mode() & Mode::STICKY != 0 && owner != uid && directory.uid() != uid
}

/// May the one that servers take us for change a directory's names, and take away that one?
fn names(directory: &Path, gone: Option<&Path>, caller: &Caller) -> Verdict {
    let judge = || -> io::Result<(bool, String)> {
        let found = std::fs::metadata(directory)?;
        let bits = rights(&found, caller);
        let owner = gone.map(std::fs::symlink_metadata).transpose()?.map(|file| file.uid());
        let is_stuck = owner.is_some_and(|owner| is_stuck(&found, owner, caller.uid.0));
        let stuck = if is_stuck { ", and it is sticky" } else { "" };
        let rule = format!("mode {:04o}, wx wanted{stuck}", found.mode() & 0o7777);
        Ok((bits & CHANGE == CHANGE && !is_stuck, rule))
    };
    match judge() {
        Ok((is_allowed, rule)) => judged(directory.to_owned(), is_allowed, rule),
        Err(error) => judged(directory.to_owned(), false, error.to_string()),
    }
}

/// What a mode gives somebody.
fn rights(found: &Metadata, caller: &Caller) -> u32 {
    let is_member = caller.gid.0 == found.gid() || caller.groups.contains(&Gid(found.gid()));
    let shift = match () {
        () if caller.uid.0 == found.uid() => 6,
        () if is_member => 3,
        () => 0,
    };
    found.mode() >> shift & 0o7
}

fn verdict(path: &Path, done: &str, asked: io::Result<()>) -> Verdict {
    let is_allowed = asked.is_ok();
    let rule = asked.map_or_else(|error| error.to_string(), |()| done.to_owned());
    Verdict { by: "mount, asked", path: path.display().to_string(), is_allowed, rule }
}

fn judged(path: PathBuf, is_allowed: bool, rule: String) -> Verdict {
    Verdict { by: "server", path: path.display().to_string(), is_allowed, rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn who_is_served_as_nobody_is_judged_as_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let caller = Caller { uid: Uid(65534), gid: Gid(65534), groups: vec![], proof: None };
        let file = dir.path().join("f");
        std::fs::write(&file, "text").unwrap();
        let may = |mode, gone| {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            names(dir.path(), gone, &caller).is_allowed
        };
        assert!(may(0o777, None) && may(0o777, Some(file.as_path())) && !may(0o775, None));
        assert!(may(0o1777, None) && !may(0o1777, Some(file.as_path())));
        let own = Caller { uid: Uid(rustix::process::geteuid().as_raw()), ..caller.clone() };
        assert!(names(dir.path(), Some(&file), &own).is_allowed);
        assert!(read(&file).is_ok() && read(dir.path()).is_ok() && write(&file).is_ok());
        assert!(!verdict(&file, "done", read(&dir.path().join("none"))).is_allowed);
        assert_eq!(std::fs::read(&file).unwrap(), b"text");
    }
}
