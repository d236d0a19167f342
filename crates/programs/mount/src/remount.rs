//! `-o remount`: a mount that is there gets other flags of the kernel, `ro` and `rw` first of all.
//!
//! mount(8) says which options the mount has by its table or by fstab, and behind them what is
//! wanted. What the kernel keeps is set there, and the mount's daemon sees it in the kernel's table
//! ([`watch`]); what the daemon was started with stays as it is, and whoever wants that changed is
//! refused before anything is done.
//!
//! Invariant: when `ro` has succeeded, what was written before is at its servers.

use crate::options::Options;
use anyhow::{Context, bail};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tieline_base::registry;
use tieline_base::report::Usage;
use tieline_client::Volume;
use tieline_machine::table;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What the kernel's table says of every FUSE mount, and mount(8) says again.
const OF_THE_TABLE: &[&str] =
    &["user_id", "group_id", "default_permissions", "allow_other", "max_read", "rootmode", "fd"];
/// Another mount namespace may change the mount, which is not told here.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A machine that mounts all the time changes its table all the time.
const LOOKS_APART: Duration = Duration::from_millis(200);

/// Is it wanted that a mount is mounted again?
pub fn is_wanted(lists: &[String]) -> bool {
    words(lists).any(|word| word == "remount")
}

fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty())
}

pub fn run(mountpoint: &Path, lists: &[String]) -> anyhow::Result<()> {
    let shown = mountpoint.display();
    let entry = registry::at(mountpoint).filter(|_| table::is_mounted(mountpoint));
    let entry = entry.with_context(|| format!("no tieline mount is at {shown}"))?;
    let wanted: Vec<&str> = words(lists).filter(|word| *word != "remount").collect();
    check(&wanted, entry.options.as_deref())?;
    let now = rustix::fs::statvfs(mountpoint).with_context(|| format!("cannot look at {shown}"))?;
    let flags = wanted.iter().fold(flags_of(now.f_flag), |flags, word| with(flags, word));
    match rustix::mount::mount_remount(mountpoint, flags, c"") {
        Ok(()) => {}
        Err(Errno::BUSY) => {
            bail!("{shown} stays as it is: files are open to be written (`fuser -vm {shown}`)")
        }
        Err(Errno::PERM) => bail!("{shown} stays as it is: only root may change a mount"),
        Err(error) => return Err(error).with_context(|| format!("cannot remount {shown}")),
    }
    if flags.contains(MountFlags::RDONLY) {
        let synced = File::open(mountpoint).and_then(|top| top.sync_all());
        synced.with_context(|| {
            format!("{shown} is read-only now, but not all that was written is at its servers")
        })?;
    }
    Ok(())
}

/// May all of these be said to a mount that was made with `mounted`? Of a daemon from before this
/// was noted it is not known.
fn check(wanted: &[&str], mounted: Option<&[String]>) -> Result<(), Usage> {
    let is_of_table = |word: &str| OF_THE_TABLE.contains(&word.split('=').next().unwrap_or(word));
    let own: Vec<&str> = wanted.iter().copied().filter(|word| !is_of_table(word)).collect();
    let before: Vec<&str> = words(mounted.unwrap_or_default()).collect();
    let parsed = |more: &[&str]| -> Result<Options, Usage> {
        Ok(Options::parse(before.iter().chain(more).copied())?.without_kernels())
    };
    let as_mounted = parsed(&[])?;
    if parsed(&own)? == as_mounted {
        return Ok(());
    }
    let changed = own.iter().filter(|word| parsed(&[**word]).ok().as_ref() != Some(&as_mounted));
    let changed: Vec<_> = changed.map(|word| format!("`{word}`")).collect();
    Err(Usage(format!(
        "{} cannot be changed while it is mounted: unmount, and mount with it (ro, rw, suid, dev \
         and exec can)",
        changed.join(", ")
    )))
}

fn flags_of(now: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let is_set = |pair: &&(StatVfsMountFlags, MountFlags)| now.contains(pair.0);
    pairs.iter().filter(is_set).fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag)
}

fn with(mut flags: MountFlags, word: &str) -> MountFlags {
    let (flag, is_on) = match word {
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "suid" | "allow_suid" => (MountFlags::NOSUID, false),
        "nodev" => (MountFlags::NODEV, true),
        "dev" | "allow_dev" => (MountFlags::NODEV, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "exec" => (MountFlags::NOEXEC, false),
        _ => return flags,
    };
    flags.set(flag, is_on);
    flags
}

/// Tells the client whether its mount is read-only, however that was changed.
pub async fn watch(mountpoint: std::path::PathBuf, volume: Arc<Volume>) {
    let Some(device) = table::device_at(&mountpoint) else { return };
    let changes = match changes_of_table() {
        Ok(changes) => changes,
        Err(error) => return tracing::warn!(%error, "cannot watch the table of mounts"),
    };
    loop {
        if let Some(is_read_only) = table::is_read_only(&device)
            && volume.set_read_only(is_read_only)
        {
            tracing::info!(is_read_only, "the mount was changed");
        }
        tokio::time::sleep(LOOKS_APART).await;
        if let Ok(Ok(mut change)) =
            tokio::time::timeout(LOOK_EVERY, changes.ready(Interest::PRIORITY)).await
        {
            change.clear_ready();
        }
    }
}

/// The kernel marks the table's file when it changes.
fn changes_of_table() -> std::io::Result<AsyncFd<File>> {
    let table = File::open("/proc/self/mountinfo")?;
    // SAFETY: the file is owned by what is returned, which keeps it open and gives it to nobody.
    Ok(unsafe { AsyncFd::register_with_interest(table, Interest::PRIORITY) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn what_the_kernel_keeps_can_be_changed_and_nothing_else() {
        let mounted = list("wait=30 s,_netdev,noexec,relatime");
        let told = |wanted: &str| {
            let wanted: Vec<&str> = wanted.split(',').collect();
            check(&wanted, Some(&mounted)).map_err(|Usage(why)| why)
        };
        for fine in [
            "ro",
            "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,ro",
            "rw,_netdev,nofail,wait=30s,relatime,ro",
            "ro,exec,suid,dev,hold=on",
        ] {
            assert_eq!(told(fine), Ok(()), "{fine}");
        }
        for (wrong, named) in [
            ("ro,wait=5 s", "`wait=5 s` cannot"),
            ("noatime", "`noatime` cannot"),
            ("ro,ino32,journal=off", "`ino32`, `journal=off` cannot"),
            ("ro,frobnicate", "`frobnicate` is not known"),
        ] {
            let why = told(wrong).unwrap_err();
            assert!(why.contains(named), "{wrong}: {why}");
        }
        // Of a mount that did not note its options.
        assert!(check(&["ro"], None).is_ok() && check(&["ro", "wait=5 s"], None).is_err());
    }

    #[test]
    fn the_last_word_counts_and_others_stay() {
        let now = flags_of(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NOATIME);
        let after = |text: &str| text.split(',').fold(now, with);
        assert_eq!(after("rw,remount,ro"), now | MountFlags::RDONLY);
        assert_eq!(after("ro,rw"), now);
        assert_eq!(
            after("suid,nodev,noexec"),
            MountFlags::NOATIME | MountFlags::NODEV | MountFlags::NOEXEC
        );
        assert!(is_wanted(&list("rw,remount,ro")) && !is_wanted(&list("ro")));
    }
}
