//! Bytes that programs were answered for and that cannot be stored, on a local disk.
//!
//! A directory per mount, and in it for each file its bytes and a manifest ([`entry`]). The mount's
//! daemon writes; `umount` names what is there; `tieline spool` lists it, puts it back and drops
//! it, also while the mount is there.
//!
//! A directory is looked at once, and then reached by its descriptor: whoever may write above it
//! can put a link in its place at any moment. In one that is ours alone nobody plants anything.
//!
//! Invariants: bytes are durable before the manifest that names them is there under its name;
//! nobody but the directory's owner may read any of it, or has any of it read; whoever changes
//! anything in a directory holds its lock for that long; there are never more bytes and files than
//! the operator said.

pub mod entry;

use anyhow::{Context, bail};
use entry::{About, Entry, Manifest};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_machine::beneath::{Directory, Held};
use tieline_owed::spool::{Base, Claim, Lost, Spool};
use tieline_types::{Attributes, ByteSize, FileId};

/// Enough for what a mount holds at most, and for a while.
pub(crate) const BYTES_DEFAULT: ByteSize = ByteSize(1 << 30);
/// Files in one directory.
const FILES_MAX: usize = 10_000;
/// More files than that are synced with all that their disk has to write.
const SYNCED_ONE_BY_ONE: usize = 16;
const LOCK: &str = "lock";

/// `/var/lib/tieline/spool`, or in the user's state directory.
pub fn default_place() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/tieline/spool");
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("tieline/spool")
}

/// What is a mount's own below a place: `extenci-mnt-extenci`.
pub(crate) fn own_directory(place: &Path, fs: &str, mountpoint: &Path) -> PathBuf {
    let shown = mountpoint.to_string_lossy();
    place.join(format!("{fs}-{}", shown.trim_matches('/').replace('/', "-")))
}

/// The spool of one mount.
pub(crate) struct DiskSpool(Arc<Mutex<Store>>);

impl DiskSpool {
    pub fn new(directory: PathBuf, bytes_max: ByteSize, about: About) -> Arc<Self> {
        let (own, used) = (BTreeMap::new(), None);
        Arc::new(Self(Arc::new(Mutex::new(Store { directory, bytes_max, about, own, used }))))
    }

    /// Disks are waited for elsewhere than where programs are served.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let store = self.0.clone();
        let task = move || work(&mut store.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(task).await.context("a task of the spool ended early")?
    }

    async fn change(&self, work: impl FnOnce(&mut Store) -> anyhow::Result<()> + Send + 'static) {
        if let Err(error) = self.with(work).await {
            let error = tieline_base::report::chain(error.as_ref());
            tracing::error!(error, "the spool keeps what is not needed any more");
        }
    }
}

#[async_trait::async_trait]
impl Spool for DiskSpool {
    async fn keep(&self, lost: Vec<Lost>) -> Vec<Result<(), String>> {
        let count = lost.len();
        match self.with(move |store| store.keep(lost)).await {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(tieline_base::report::chain(error.as_ref())); count],
        }
    }

    async fn forget(&self, file: FileId, claim: Claim) {
        self.change(move |store| store.edit(file, |manifest| manifest.forget(claim))).await;
    }

    async fn answered(&self, file: FileId) {
        self.change(move |store| store.edit(file, Manifest::answered)).await;
    }

    async fn changed(&self, file: FileId, base: Base, over: Vec<Range<u64>>) {
        let work = move |store: &mut Store| {
            store.edit(file, |manifest| {
                manifest.base = Some(base.into());
                over.into_iter().for_each(|range| manifest.written_over(range));
            })
        };
        self.change(work).await;
    }
}

struct Store {
    directory: PathBuf,
    bytes_max: ByteSize,
    about: About,
    /// The entries of this process, by file.
    own: BTreeMap<FileId, String>,
    /// Bytes and files that are there, as far as this process knows.
    used: Option<(u64, usize)>,
}

impl Store {
    fn keep(&mut self, lost: Vec<Lost>) -> anyhow::Result<Vec<Result<(), String>>> {
        let directory = made(&self.directory)?;
        let _lock = Lock::of(&directory)?;
        let (mut outcomes, mut written): (Vec<_>, Vec<Entry>) = Default::default();
        for one in lost {
            // More of a file of which this call has something already.
            let own = self.own.get(&one.file);
            let known = written.iter().position(|entry| own == Some(&entry.name));
            let known = known.map(|at| written.swap_remove(at));
            outcomes.push(match self.write(&directory, known, &one) {
                Ok(entry) => {
                    written.push(entry);
                    Ok(())
                }
                Err(error) => {
                    // What there is may be less than it was.
                    self.used = None;
                    Err(tieline_base::report::chain(error.as_ref()))
                }
            });
        }
        let is_synced = written.len() > SYNCED_ONE_BY_ONE;
        if is_synced {
            rustix::fs::syncfs(File::open(directory.held().way())?)?;
        }
        for entry in &written {
            if !is_synced {
                entry.sync()?;
            }
            entry.publish(!is_synced)?;
        }
        if is_synced {
            rustix::fs::syncfs(File::open(directory.held().way())?)?;
        }
        directory.sync()?;
        Ok(outcomes)
    }

    /// Writes one file's bytes, and what its manifest is to be.
    fn write(
        &mut self,
        directory: &Arc<Directory>,
        known: Option<Entry>,
        lost: &Lost,
    ) -> anyhow::Result<Entry> {
        let known = known.map_or_else(|| self.entry(directory, lost.file), |one| Ok(Some(one)))?;
        let is_new = known.is_none();
        let length = lost.length();
        self.room(directory, length, usize::from(is_new))?;
        let mut entry = match known {
            Some(entry) => entry,
            None => Entry::unused(directory, Manifest::new(&self.about, lost))?,
        };
        let before = entry.manifest.bytes();
        entry.lay(lost)?;
        entry.prepare()?;
        self.own.insert(lost.file, entry.name.clone());
        let grown = entry.manifest.bytes().saturating_sub(before);
        if let Some((bytes, files)) = &mut self.used {
            (*bytes, *files) = (*bytes + grown, *files + usize::from(is_new));
        }
        Ok(entry)
    }

    fn room(&mut self, directory: &Arc<Directory>, bytes: u64, files: usize) -> anyhow::Result<()> {
        let fits = |(used, count): (u64, usize)| {
            used.saturating_add(bytes) <= self.bytes_max.0 && count + files <= FILES_MAX
        };
        if self.used.is_some_and(fits) {
            return Ok(());
        }
        // Others take away what they put back.
        let found = entry::all_in(directory);
        let used = (found.iter().map(|entry| entry.manifest.bytes()).sum(), found.len());
        if !fits(used) {
            let (directory, max) = (self.directory.display(), self.bytes_max);
            bail!("{directory} is full ({max}, or {FILES_MAX} files: -o spool-size=)");
        }
        self.used = Some(used);
        Ok(())
    }

    /// This process's entry of a file, if that is there still.
    fn entry(&self, directory: &Arc<Directory>, file: FileId) -> anyhow::Result<Option<Entry>> {
        let Some(name) = self.own.get(&file) else { return Ok(None) };
        Entry::read(directory, name)
    }

    fn edit(&mut self, file: FileId, edit: impl FnOnce(&mut Manifest)) -> anyhow::Result<()> {
        let directory = opened(&self.directory)?;
        let _lock = Lock::of(&directory)?;
        let Some(mut entry) = self.entry(&directory, file)? else { return Ok(()) };
        edit(&mut entry.manifest);
        self.used = None;
        if entry.manifest.bytes() > 0 {
            entry.prepare()?;
            return entry.publish(true);
        }
        self.own.remove(&file);
        entry.remove()
    }
}

/// A directory in which one changes something at a time.
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn of(directory: &Directory) -> anyhow::Result<Self> {
        let path = Path::new(&directory.held().way()).join(LOCK);
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = file.with_context(|| directory.path(LOCK.as_ref()).display().to_string())?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self { _file: file })
    }
}

/// A directory that nobody else may look into, made if it is not there.
fn made(directory: &Path) -> anyhow::Result<Arc<Directory>> {
    let shown = || directory.display().to_string();
    // What is above may be others' as well.
    let place = directory.parent().unwrap_or(directory);
    std::fs::create_dir_all(place.parent().unwrap_or(place)).with_context(shown)?;
    match DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.with_context(|| place.display().to_string())?,
    }
    let (above, name) = Directory::of(directory).with_context(shown)?;
    own(above.enter_or_make(&name).with_context(shown)?)
}

/// A spool that is there. A link in its place is none.
pub fn opened(directory: &Path) -> anyhow::Result<Arc<Directory>> {
    let held = Held::named_itself(directory);
    let found = held.and_then(|held| Directory::of_held(held, directory.to_owned()));
    own(found.with_context(|| directory.display().to_string())?)
}

/// Whoever may write into a spool chooses what is put back from it, and through which links it is
/// written.
fn own(directory: Directory) -> anyhow::Result<Arc<Directory>> {
    let (found, shown) = (directory.held().metadata()?, directory.shown().display());
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        bail!("{shown} is uid {}'s: run this as that user, or -o spool=DIR elsewhere", found.uid());
    }
    if found.mode() & 0o077 != 0 {
        bail!("{shown} is not ours alone: chmod 700 it, or -o spool=DIR elsewhere");
    }
    Ok(Arc::new(directory))
}

/// What is in a spool and `umount` has not named yet.
pub(crate) fn unnamed(directory: &Path) -> Vec<Entry> {
    let mut all = entry::all_at(directory);
    all.retain(|entry| !entry.manifest.is_named);
    all
}

/// From now on these count as named. Whoever adds to one of them has it named again.
pub(crate) fn mark_named(directory: &Path, named: &[Entry]) -> anyhow::Result<()> {
    let directory = opened(directory)?;
    let _lock = Lock::of(&directory)?;
    for entry in named {
        let Some(mut now) = Entry::read(&directory, &entry.name)? else { continue };
        if now.manifest == entry.manifest {
            now.manifest.is_named = true;
            now.prepare()?;
            now.publish(true)?;
        }
    }
    Ok(())
}

/// Only whoever puts an entry back has changed its file since: it is so now.
pub fn rebase(entry: &Entry, now: &Attributes) -> anyhow::Result<()> {
    let _lock = Lock::of(&entry.directory)?;
    let Some(mut known) = Entry::read(&entry.directory, &entry.name)? else { return Ok(()) };
    let Attributes { version, mtime, size, .. } = *now;
    let base = Base { version: Some(version), mtime: Some(mtime), size };
    known.manifest.base = Some(base.into());
    known.prepare()?;
    known.publish(true)
}

/// Takes an entry away, unless it became another meanwhile.
pub fn take_away(entry: &Entry) -> anyhow::Result<()> {
    let _lock = Lock::of(&entry.directory)?;
    let now = Entry::read(&entry.directory, &entry.name)?;
    let is_same = |now: &Entry| {
        let Manifest { is_named, base, .. } = entry.manifest.clone();
        Manifest { is_named, base, ..now.manifest.clone() } == entry.manifest
    };
    match now {
        Some(now) if !is_same(&now) => {
            bail!("{} became more meanwhile: it stays", entry.shown().display())
        }
        Some(_) => entry.remove(),
        None => Ok(()),
    }
}

/// All spools below a place: of mounts that are there, and of those that were.
pub fn directories(place: &Path) -> io::Result<Vec<PathBuf>> {
    let is_spool = |path: &PathBuf| path.join(LOCK).exists();
    if is_spool(&place.to_owned()) {
        return Ok(vec![place.to_owned()]);
    }
    let found = match std::fs::read_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found?,
    };
    let mut all: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    all.retain(is_spool);
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests;
