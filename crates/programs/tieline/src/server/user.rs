//! As whom a server runs: whoever starts it, or the user that its settings name, if root does.
//!
//! Invariant: the process is that user before it opens or makes anything that it goes on with.

use crate::server::identities::{groups_of_user, user_of_machine};
use crate::server::settings::Plan;
use anyhow::{Context, bail};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::Path;

/// Says that root shall stay root.
pub const ROOT: &str = "root";
/// Below these only root listens.
const PORTS_OF_ALL: u16 = 1024;

/// Becomes the user that the settings name. All threads do.
pub fn become_user(plan: &Plan) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let Some(user) = plan.user.as_deref() else {
        tracing::warn!(
            "runs as root, which it need not be: set `user = \"tieline\"`, and give that user the \
             directories (or `user = \"root\"`, and no more is said of it)"
        );
        return Ok(());
    };
    if user == ROOT {
        return Ok(());
    }
    let (uid, gid) = user_of_machine(user).with_context(|| format!("no user `{user}` here"))?;
    let name = CString::new(user)?;
    // SAFETY: the name ends with a zero byte; ids are plain numbers. The library changes all
    // threads.
    let changed = unsafe {
        libc::initgroups(name.as_ptr(), gid) == 0
            && libc::setgid(gid) == 0
            && libc::setuid(uid) == 0
    };
    if !changed {
        let error = io::Error::last_os_error();
        return Err(error).with_context(|| format!("cannot become user `{user}`"));
    }
    tracing::info!(user, uid, "runs as");
    Ok(())
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

/// Is the port one that the user may listen at?
pub fn check_port(listen: &str) -> anyhow::Result<()> {
    let port = listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match port.filter(|port| (1..PORTS_OF_ALL).contains(port)) {
        None => Ok(()),
        Some(port) => bail!(
            "user: port {port} is root's: listen at {PORTS_OF_ALL} or above, or have systemd start \
             the server (User=, AmbientCapabilities=CAP_NET_BIND_SERVICE)"
        ),
    }
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
    fn ports_of_root_are_told() {
        assert!(check_port("0.0.0.0:7640").is_ok() && check_port("[::]:0").is_ok());
        assert!(check_port("[::]:443").unwrap_err().to_string().contains("443"));
    }
}
