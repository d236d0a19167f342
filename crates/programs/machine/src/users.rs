//! Users of this machine, by nsswitch, and what one of them may do here.
//!
//! Invariant: a thread that does something as somebody else does nothing afterwards.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::path::Path;
use tieline_types::{Caller, Gid, Uid};

/// Says that root shall stay root.
pub const ROOT: &str = "root";
/// Room for an entry of the user database; the largest are those of directories.
const ENTRY: usize = 64 << 10;

/// Who runs this process.
pub fn own_caller() -> Caller {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Caller {
        uid: Uid(rustix::process::geteuid().as_raw()),
        gid: Gid(rustix::process::getegid().as_raw()),
        groups: groups.into_iter().map(|gid| Gid(gid.as_raw())).collect(),
        proof: None,
    }
}

/// The uid and gid of a user of this machine who is not root.
pub fn user_of_machine(name: &str) -> Option<(u32, u32)> {
    ids_of(&CString::new(name).ok()?).filter(|(uid, _)| *uid != 0)
}

/// The gid of a group of this machine that is not root's.
pub fn group_of_machine(name: &str) -> Option<u32> {
    gid_of(&CString::new(name).ok()?).filter(|&gid| gid != 0)
}

/// The groups of a user of this machine, the first among them.
pub fn groups_of_user(name: &str, gid: u32) -> Vec<u32> {
    CString::new(name).map_or_else(|_| vec![gid], |name| groups_of(&name, gid))
}

/// Opens a file as the user that settings name, if root asks; else as we are. Whoever may read it
/// by its mode may still not come through to it.
pub fn open_as(user: Option<&str>, path: &Path) -> io::Result<()> {
    as_user(user, || File::open(path).map(drop))?
}

/// The user whom a process of root becomes, if the settings name one.
pub fn changes_to(user: Option<&str>) -> Option<&str> {
    user.filter(|user| *user != ROOT && rustix::process::geteuid().is_root())
}

/// Does something as the user that settings name, if root asks; else as we are.
pub fn as_user<T: Send>(user: Option<&str>, job: impl FnOnce() -> T + Send) -> io::Result<T> {
    let named = changes_to(user).and_then(|user| Some((user, user_of_machine(user)?)));
    let Some((user, (uid, gid))) = named else { return Ok(job()) };
    let groups = groups_of_user(user, gid);
    // The kernel's own calls, unlike the library's, change one thread: this one ends with them.
    let doing = || {
        // SAFETY: the list lives through the call and has that length; ids are plain numbers.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
                && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
        };
        if !changed {
            return Err(io::Error::last_os_error());
        }
        Ok(job())
    };
    let done = std::thread::scope(|scope| scope.spawn(doing).join());
    done.unwrap_or_else(|_| Err(io::Error::other("the look at it failed")))
}

fn ids_of(name: &CStr) -> Option<(u32, u32)> {
    // SAFETY: a `passwd` of zeroes is one of null pointers and of ids 0.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut room = vec![0; ENTRY];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some((entry.pw_uid, entry.pw_gid))
}

fn gid_of(name: &CStr) -> Option<u32> {
    // SAFETY: a `group` of zeroes is one of null pointers and of id 0.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut room = vec![0; ENTRY];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}

fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; Caller::GROUPS_MAX];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: `groups` has room for `count` ids; the name ends with a zero byte.
    let status = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    groups.truncate(if status < 0 { 0 } else { usize::try_from(count).unwrap_or(0) });
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_cannot_read_or_come_through_to_root_does_not_open_for_him() {
        use std::os::unix::fs::PermissionsExt;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, mode) = (folder.path().join("keys"), |mode| PermissionsExt::from_mode(mode));
        std::fs::write(&path, "keys").unwrap();
        std::fs::set_permissions(&path, mode(0o644)).unwrap();
        std::fs::set_permissions(folder.path(), mode(0o755)).unwrap();
        let denied = |user| {
            let outcome = open_as(Some(user), &path);
            outcome.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        assert!(!denied("daemon"));
        std::fs::set_permissions(folder.path(), mode(0o700)).unwrap();
        assert!(denied("daemon") && !denied(ROOT));
        std::fs::set_permissions(folder.path(), mode(0o755)).unwrap();
        std::fs::set_permissions(&path, mode(0o600)).unwrap();
        assert!(denied("daemon") && open_as(None, &path).is_ok());
        assert!(rustix::process::geteuid().is_root());
    }

    #[test]
    fn root_is_no_user_that_is_looked_up() {
        assert!(user_of_machine("daemon").is_some_and(|(uid, _)| uid > 0));
        assert_eq!(user_of_machine(ROOT), None);
        assert!(group_of_machine("daemon").is_some_and(|gid| gid > 0));
        assert_eq!(group_of_machine("no-such-group"), None);
    }
}
