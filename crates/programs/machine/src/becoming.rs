//! As whom a server or a door runs: whoever starts it, or the user that its settings name, if root
//! does.
//!
//! Invariant: the process is that user before it opens or makes anything that it goes on with.

use crate::users::{ROOT, user_of_machine};
use anyhow::{Context, bail};
use std::ffi::CString;
use std::io;

/// Below these only root listens.
const PORTS_OF_ALL: u16 = 1024;

/// Becomes the user that the settings name. All threads do.
pub fn become_user(user: Option<&str>) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let Some(user) = user else {
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

/// Is the port one that the user may listen at?
pub fn check_port(listen: &str) -> anyhow::Result<()> {
    let port = listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match port.filter(|port| (1..PORTS_OF_ALL).contains(port)) {
        None => Ok(()),
        Some(port) => bail!(
            "user: port {port} is root's: listen at {PORTS_OF_ALL} or above, or have systemd start \
             it (User=, AmbientCapabilities=CAP_NET_BIND_SERVICE)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_root_are_told() {
        assert!(check_port("0.0.0.0:7640").is_ok() && check_port("[::]:0").is_ok());
        assert!(check_port("[::]:443").unwrap_err().to_string().contains("443"));
    }
}
