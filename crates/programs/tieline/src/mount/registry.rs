//! Which mounts there are on this machine: one small file per mount, written by its daemon.
//!
//! Verbs that are given a path below a mount find here which servers it stands for, and `umount`
//! which process to wait for.
//!
//! Invariants: an entry counts only while its process lives; the daemon removes its entry when it
//! ends.

use crate::mount::caches::CachesAt;
use crate::process::ProcessId;
use crate::proving::Proving;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub mountpoint: PathBuf,
    /// As in `crate::source::Source`.
    pub source: String,
    /// Lives as long as the mount: its holder, if it has one.
    pub process: ProcessId,
    /// The process that serves it; another one after it died.
    #[serde(default)]
    pub daemon: Option<ProcessId>,
    /// Network namespace its daemon is in, if not that of the machine.
    pub netns: Option<PathBuf>,
    /// The federation's public key, as digits.
    pub mapkey: String,
    /// `HOST:PORT` of `/metrics` and `/health`.
    pub admin: Option<String>,
    /// How the mount proves itself.
    #[serde(default)]
    pub proving: Proving,
    #[serde(default)]
    pub caches: CachesAt,
    /// How owners are shown, as `-o idmap=` says it.
    #[serde(default)]
    pub idmap: Option<String>,
}

/// An entry on disk; dropping it removes it.
pub struct Registered(PathBuf);

impl Entry {
    /// Writes the entry where others find it.
    pub fn register(&self) -> anyhow::Result<Registered> {
        let directory = own_directory();
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let path = directory.join(format!("{}.json", self.process.pid));
        let text = serde_json::to_vec_pretty(self)?;
        crate::server::maps::write_whole(&path, &text)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Registered(path))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// All mounts whose daemons live.
pub fn all() -> Vec<Entry> {
    let mut directories = vec![system_directory()];
    if own_directory() != system_directory() {
        directories.push(own_directory());
    }
    let mut entries: Vec<Entry> = directories.iter().flat_map(|path| read(path)).collect();
    entries.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    entries
}

/// The mount at an absolute path.
pub fn at(mountpoint: &Path) -> Option<Entry> {
    all().into_iter().find(|entry| entry.mountpoint == mountpoint)
}

/// The mount that an absolute path is below, and the rest of the path.
pub fn covering(path: &Path) -> Option<(Entry, PathBuf)> {
    let covers = all().into_iter().filter(|entry| path.starts_with(&entry.mountpoint));
    let entry = covers.max_by_key(|entry| entry.mountpoint.components().count())?;
    let rest = path.strip_prefix(&entry.mountpoint).ok()?.to_owned();
    Some((entry, rest))
}

fn read(directory: &Path) -> Vec<Entry> {
    let Ok(files) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut entries = Vec::new();
    for file in files.flatten().filter(|file| file.path().extension() == Some("json".as_ref())) {
        let Ok(text) = std::fs::read(file.path()) else { continue };
        let Ok(entry) = serde_json::from_slice::<Entry>(&text) else { continue };
        if entry.process.is_alive() {
            entries.push(entry);
        } else {
            // Its daemon was killed: nobody else will clean up.
            let _ = std::fs::remove_file(file.path());
        }
    }
    entries
}

fn system_directory() -> PathBuf {
    PathBuf::from("/run/tieline/mounts")
}

fn own_directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return system_directory();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("tieline/mounts"),
        None => std::env::temp_dir().join(format!("tieline-{}/mounts", uid.as_raw())),
    }
}
