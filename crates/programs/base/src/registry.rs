//! Which mounts there are on this machine: one small file per mount, written by its daemon.
//!
//! Verbs that are given a path below a mount find here which servers it stands for, and `umount`
//! which process to wait for.
//!
//! A path may be one mount here and another one in another mount namespace, such as that of a job:
//! what is of one's own goes first, and what is of another counts if it is mounted here too.
//!
//! Invariants: an entry counts only while its process lives; the daemon removes its entry when it
//! ends.

use crate::proving::Proving;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tieline_auth::MapVerifier;
use tieline_files::Unsent;
use tieline_machine::process::ProcessId;
use tieline_machine::table;
use tieline_types::{ByteSize, FsName};

/// Nothing of an entry is secret, and users of the machine ask about its mounts.
const READABLE: u32 = 0o644;

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
    /// The mount namespace that it was mounted in. Earlier builds do not say.
    #[serde(default)]
    pub mountns: Option<u64>,
    /// Network namespace its daemon is in, if not that of the machine.
    pub netns: Option<PathBuf>,
    /// The federation's public key when it was mounted, as digits.
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
    /// What was said with `-o`. Earlier builds do not say.
    #[serde(default)]
    pub options: Option<Vec<String>>,
    /// Where bytes are that cannot be stored, if there are any.
    #[serde(default)]
    pub spool: Option<PathBuf>,
    /// Seconds that its end may take.
    #[serde(default)]
    pub wait: Option<u64>,
    /// It is not mounted any more, and its daemon sends what is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// Where verbs find the caches of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CachesAt {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<PathBuf>,
    /// Others may read the site's (`at-rest=trusted`).
    #[serde(default)]
    pub is_shared: bool,
    /// Storage of OSTs that is read directly, by their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub direct: Vec<(u16, PathBuf)>,
    /// The federation's directory in a node's cache.
    #[serde(default)]
    pub scope: String,
}

/// What a mount that ends has not sent yet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ending {
    pub files: u64,
    pub bytes: u64,
    pub changes: u64,
    /// Targets whose servers it waits for and cannot reach.
    pub away: Vec<String>,
}

impl From<Unsent> for Ending {
    fn from(unsent: Unsent) -> Self {
        let Unsent { files, bytes, changes, away } = unsent;
        Self { files, bytes, changes, away }
    }
}

/// As people are told.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (files, changes) = (self.files, self.changes);
        write!(f, "{files} file{} ({})", plural(files), ByteSize(self.bytes))?;
        write!(f, " and {changes} change{} are not at their servers yet", plural(changes))?;
        match self.away.as_slice() {
            [] => Ok(()),
            [one] => write!(f, "; {one} is away"),
            all => write!(f, "; {} are away", all.join(", ")),
        }
    }
}

/// Which federation this is: two may have one name. By the first key that it had.
pub fn scope(fs: &FsName, key: &MapVerifier) -> String {
    format!("{fs}-{}", key.to_hex().get(..16).unwrap_or_default())
}

/// An entry on disk; dropping it removes it.
pub struct Registered(PathBuf);

/// This process's mount namespace.
pub fn own_mountns() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/mnt").ok().map(|namespace| namespace.ino())
}

impl Entry {
    /// Is it of the same federation? Keys change, and what it is known by stays.
    pub fn is_together_with(&self, other: &Self) -> bool {
        self.mapkey == other.mapkey || self.caches.scope == other.caches.scope
    }

    /// Was it mounted in this process's mount namespace?
    pub fn is_own(&self) -> bool {
        self.mountns.is_none_or(|mountns| own_mountns().is_none_or(|own| own == mountns))
    }

    /// Can this process see it? Mounts may be passed on to other namespaces.
    fn is_here(&self) -> bool {
        self.is_own() || table::is_mounted(&self.mountpoint)
    }

    /// Writes the entry where others find it.
    pub fn register(&self) -> anyhow::Result<Registered> {
        let directory = own_directory();
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        if !is_trusted(&directory) {
            bail!("{} is somebody else's: set XDG_RUNTIME_DIR", directory.display());
        }
        // Whoever buries a mount of the same pid must not take this one for it.
        let ProcessId { pid, started } = self.process;
        let path = directory.join(format!("{pid}-{started}.json"));
        let text = serde_json::to_vec_pretty(self)?;
        tieline_machine::private::write_whole(&path, &text)
            .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(READABLE)))
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
    directories.retain(|directory| is_trusted(directory));
    let mut entries: Vec<Entry> = directories.iter().flat_map(|path| read(path)).collect();
    entries.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    entries
}

/// The mount at an absolute path; else one that was there and has not ended.
pub fn at(mountpoint: &Path) -> Option<Entry> {
    let is_it = |entry: &Entry| entry.mountpoint == mountpoint && entry.is_here();
    let here = all().into_iter().filter(is_it);
    here.min_by_key(|entry| (!entry.is_own(), entry.ending.is_some()))
}

/// The entry of a mount as it is now.
pub fn again(entry: &Entry) -> Option<Entry> {
    all().into_iter().find(|other| other.process == entry.process)
}

/// The mount that an absolute path is below, and the rest of the path.
pub fn covering(path: &Path) -> Option<(Entry, PathBuf)> {
    let is_there = |entry: &Entry| {
        entry.ending.is_none() && path.starts_with(&entry.mountpoint) && entry.is_here()
    };
    let covers = all().into_iter().filter(is_there);
    let nearest = |entry: &Entry| (entry.mountpoint.components().count(), entry.is_own());
    let entry = covers.max_by_key(nearest)?;
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

/// Nobody but root and ourselves may tell us which servers a mount stands for: in a directory for
/// everybody's temporary files the name may be taken.
fn is_trusted(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    directory.ancestors().take(2).all(|path| {
        let found = std::fs::symlink_metadata(path);
        found.is_ok_and(|found| found.is_dir() && [0, own].contains(&found.uid()))
    })
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
