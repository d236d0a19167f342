//! As whom the servers of a development federation run: whoever starts it; where there is a realm
//! root gives them to `nobody` with what they keep.
//!
//! Root stays root where nobody proves who he is, so that stores and objects may be handled by
//! hand, where `nobody` would not come through to the federation's folder, and where files are
//! adopted that may be root's alone.
//!
//! Invariant: what is given is the servers' own: state, storage, logs, and the keys they prove
//! themselves with.

use crate::Up;
use anyhow::Context;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use tieline_base::report::Usage;
use tieline_machine::users::ROOT;
use tieline_machine::users::user_of_machine;

const USUAL: &str = "nobody";
/// What lets others through a directory.
const PASSABLE: u32 = 0o001;

/// The user that settings name; `None` if it is not root who asks.
pub fn of_servers(dir: &Path, up: &Up) -> anyhow::Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return match &up.user {
            Some(_) => Err(Usage("--user: only root can be somebody else".into()).into()),
            None => Ok(None),
        };
    }
    if let Some(user) = &up.user {
        let is_there = user == ROOT || user_of_machine(user).is_some();
        let unknown = || Usage(format!("--user: there is no user `{user}` here"));
        return Ok(Some(is_there.then(|| user.clone()).ok_or_else(unknown)?));
    }
    let is_closed = |path: &&Path| path.metadata().is_ok_and(|meta| meta.mode() & PASSABLE == 0);
    let user = match dir.ancestors().find(is_closed) {
        _ if !up.kerberos || up.adopt.is_some() || user_of_machine(USUAL).is_none() => ROOT,
        Some(closed) => {
            let closed = closed.display();
            eprintln!(
                "the servers run as root, since {closed} lets nobody else in: open it (chmod o+x), \
                 give another --dir, or say --user root"
            );
            ROOT
        }
        None => USUAL,
    };
    Ok(Some(user.to_owned()))
}

/// Gives something, and all in it, to the servers' user.
pub fn give(path: &Path, user: Option<&str>) -> anyhow::Result<()> {
    let Some((uid, gid)) = user.and_then(user_of_machine) else { return Ok(()) };
    give_to(path, (uid, gid)).with_context(|| format!("cannot give {} away", path.display()))
}

fn give_to(path: &Path, (uid, gid): (u32, u32)) -> std::io::Result<()> {
    lchown(path, Some(uid), Some(gid))?;
    if !path.symlink_metadata()?.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        give_to(&entry?.path(), (uid, gid))?;
    }
    Ok(())
}
