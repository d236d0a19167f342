//! The cache of a site: whole chunks in a directory that all its nodes share.
//!
//! A chunk lies under its digest. Whoever wants one looks for it; if it is not there, one node
//! claims it ([`crate::claims`]), fetches it and publishes it (temporary name, then rename), and
//! the others look again now and then until it is there, or until whoever fetches is dead. A claim
//! that is dropped is given back: the next tries, with its own rights.
//!
//! Invariants: a chunk is compared whole with its digest each time it enters a node, before a byte
//! of it is served; one that differs is discarded, told and fetched again; a storage that hangs
//! holds up nobody for longer than [`PATIENCE`], and one that cannot be written serves what it has;
//! whoever waits for another node waits while that gives signs of life, and no longer than his own
//! reader; a directory over which the storage is not mounted any more is not filled in its place.

use crate::claims::{Claims, Held, Taken, Watch};
use crate::storage::{Storage, foreign, is_foreign, is_strange, lets_others_in};
use crate::trouble::Trouble;
use crate::{Error, Kind, cleaner, lock, marker};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Digest, Encoding};
use tieline_world::Dice;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

pub(crate) const NAME: &str = "site";
/// Longer chunks are not kept.
const LENGTH_MAX: u64 = 256 << 20;
/// Work on the storage at once, for one node.
const JOBS_MAX: usize = 16;
/// One look at the storage, or one chunk from it.
const PATIENCE: Duration = Duration::from_secs(15);
/// Where directories are missing they are made, and looked for again after these pauses: two nodes
/// that make one at once may see it as stale for a while (GlusterFS).
const PLACED_AGAIN_MS: [u64; 6] = [0, 50, 200, 1000, 2000, 4000];
/// A file that was closed has all its bytes after so long.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// How often to look whether another has fetched it.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(200);
/// A chunk in use is marked so at most this often.
const TOUCH_APART: Duration = Duration::from_secs(3600);
const TOUCHED_MAX: usize = 65_536;
/// Chunks that are not looked for here: bad ones that cannot be discarded.
const BARRED_MAX: usize = 4096;
const BARRED: Duration = Duration::from_secs(600);

/// What an operator says of a site's cache.
#[derive(Clone, Debug)]
pub struct SiteSettings {
    pub path: PathBuf,
    /// High and low water marks: above the one, the cleaner evicts down to the other.
    pub marks: Option<(u64, u64)>,
    /// For people: which process of which node this is.
    pub owner: String,
    /// A node that gives no sign of life for so long is taken for dead.
    pub life: Duration,
}

impl SiteSettings {
    pub const LIFE: Duration = Duration::from_secs(8);
}

/// A site's cache, as one node uses it.
#[derive(Clone)]
pub struct SiteCache {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub path: PathBuf,
    pub storage: Arc<dyn Storage>,
    pub settings: SiteSettings,
    pub claims: Arc<Claims>,
    pub trouble: Trouble,
    /// It cannot be written to, so that nothing is claimed.
    pub writing: Trouble,
    /// Woken when the storage is full.
    pub full: Arc<Notify>,
    /// The file system that it lies on.
    device: AtomicU64,
    dice: Arc<dyn Dice>,
    jobs: Arc<Semaphore>,
    touched: Mutex<BTreeMap<Digest, Instant>>,
    barred: Mutex<BTreeMap<Digest, Instant>>,
}

/// What became of looking for a chunk.
pub enum Looked {
    /// Verified.
    Here(Bytes),
    /// It is for us to fetch it for all.
    Ours(Claim),
    /// Another node has not fetched it yet.
    Late,
    /// The cache cannot help: fetch it as if there were none.
    Aside,
}

impl Looked {
    fn here(bytes: Bytes) -> Self {
        METRICS.cache_served_bytes.with_label_values(&[NAME]).inc_by(bytes.len() as u64);
        Self::Here(bytes)
    }
}

/// What lies where a chunk belongs.
enum Found {
    /// Verified.
    Whole(Bytes),
    Nothing,
    /// Something else, and what is wrong with it.
    Bad(String),
}

impl SiteCache {
    /// Makes the directory a site's cache if it is empty. Blocks; needs tokio's runtime around it.
    pub fn open(
        settings: SiteSettings,
        storage: Arc<dyn Storage>,
        dice: Arc<dyn Dice>,
    ) -> Result<Self, Error> {
        let path = settings.path.clone();
        marker::ensure(&*storage, &path, Kind::Site).map_err(|error| match error {
            Error::Failed { source, .. } if is_closed(&source) => somebody_elses(&path),
            error => error,
        })?;
        let failed = |source| Error::Failed { path: path.clone(), doing: "look at", source };
        let device = storage.device(&path).map_err(failed)?;
        let claims = Arc::new(Claims {
            storage: storage.clone(),
            folder: path.join("claims"),
            owner: format!("{}\n", settings.owner),
            life: settings.life,
        });
        let inner = Arc::new(Inner {
            path,
            storage,
            claims,
            trouble: Trouble::all(),
            writing: Trouble::writing(),
            full: Arc::default(),
            device: AtomicU64::new(device),
            dice,
            jobs: Arc::new(Semaphore::new(JOBS_MAX)),
            touched: Mutex::default(),
            barred: Mutex::default(),
            settings,
        });
        // A directory that cannot be written to may be read all the same.
        match inner.make_folders() {
            Err(error) if is_foreign(&error) => return Err(somebody_elses(&inner.path)),
            Err(error) => inner.not_written(&error),
            Ok(()) => {}
        }
        tokio::spawn(cleaner::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The whole chunk with that digest, if it is here or comes while we wait; or the right to
    /// bring it.
    pub async fn look(&self, digest: &Digest, length: u64, until: Instant) -> Looked {
        let inner = &self.inner;
        if length > LENGTH_MAX || inner.is_barred(digest) || inner.trouble.is_now() {
            return Looked::Aside;
        }
        match self.look_patiently(digest, length, until).await {
            Ok(looked) => {
                inner.trouble.over(&inner.path, NAME);
                looked
            }
            Err(error) => {
                inner.trouble.note(&inner.path, NAME, &error);
                Looked::Aside
            }
        }
    }

    async fn look_patiently(
        &self,
        digest: &Digest,
        length: u64,
        until: Instant,
    ) -> io::Result<Looked> {
        let name = digest.to_string();
        let mut watch: Option<Watch> = None;
        let mut pause = LOOK_FIRST;
        loop {
            let found = self.find(digest, length).await?;
            if let Found::Whole(bytes) = found {
                return Ok(Looked::here(bytes));
            }
            // Who waits for another already has nothing to write.
            if watch.is_none() && self.inner.writing.is_now() {
                return Ok(Looked::Aside);
            }
            let claimed = name.clone();
            let taken = self.blocking(move |inner| {
                // Who takes the place of another looks past what this node remembers.
                let taken = inner.take(&claimed, watch)?;
                if matches!(taken, Taken::Ours(_)) && watch.is_some() {
                    inner.refresh(&claimed);
                }
                Ok(taken)
            });
            let taken = match taken.await {
                // What is there may be read all the same.
                Err(error) if is_read_only(&error) => {
                    if matches!(found, Found::Bad(_)) {
                        self.inner.bar(digest);
                    }
                    return Ok(Looked::Aside);
                }
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                    self.inner.not_written(&error);
                    return Ok(Looked::Aside);
                }
                taken => taken?,
            };
            match taken {
                Taken::Ours(generation) => {
                    let held = self.inner.claims.hold(&name, generation);
                    // Another may have brought it between our look and our claim. Only who holds
                    // the claim takes a bad one away: others would take what came in its place.
                    match self.find(digest, length).await? {
                        Found::Whole(bytes) => return Ok(Looked::here(bytes)),
                        Found::Nothing => {}
                        Found::Bad(why) => self.discard(digest, why).await?,
                    }
                    METRICS.cache_missed_bytes.with_label_values(&[NAME]).inc_by(length);
                    let (cache, digest) = (self.clone(), *digest);
                    return Ok(Looked::Ours(Claim { cache, digest, _held: held }));
                }
                Taken::Theirs(seen) => watch = Some(seen),
            }
            if Instant::now() >= until {
                return Ok(Looked::Late);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LOOK_LAST);
        }
    }

    /// Reads a chunk and compares it whole.
    async fn find(&self, digest: &Digest, length: u64) -> io::Result<Found> {
        let digest = *digest;
        self.blocking(move |inner| inner.find(&digest, length)).await
    }

    async fn discard(&self, digest: &Digest, why: String) -> io::Result<()> {
        let digest = *digest;
        self.blocking(move |inner| inner.discard(&digest, &why)).await
    }

    /// Work on the storage, in a thread of its own. A storage that hangs is left alone.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let inner = self.inner.clone();
        let job = async {
            // The semaphore is never closed; if it were, jobs would only lose their bound.
            let permit = inner.jobs.clone().acquire_owned().await.ok();
            let inner = inner.clone();
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                work(&inner)
            });
            task.await.map_err(io::Error::other)?
        };
        tokio::time::timeout(PATIENCE, job).await.map_err(late)?
    }
}

/// The right to bring a chunk, for all nodes. Dropped, it is another's.
pub struct Claim {
    cache: SiteCache,
    digest: Digest,
    _held: Held,
}

impl Claim {
    /// Lets all have the chunk, which the caller has verified. Fails to the log only.
    pub async fn publish(self, bytes: Bytes) {
        let (digest, length) = (self.digest, bytes.len() as u64);
        let published = self.cache.blocking(move |inner| inner.publish(&digest, &bytes)).await;
        let inner = &self.cache.inner;
        match published {
            Ok(()) => {
                inner.writing.over(&inner.path, NAME);
                METRICS.cache_kept_bytes.with_label_values(&[NAME]).inc_by(length);
            }
            Err(error) => inner.not_written(&error),
        }
    }
}

impl Inner {
    fn make_folders(&self) -> io::Result<()> {
        let folders = ["chunks", "claims", "tmp", "poisoned"].into_iter();
        folders.map(|name| self.path.join(name)).try_for_each(|path| {
            // Asked first: some storages refuse what is there.
            match self.storage.list(&path) {
                Err(error) if is_closed(&error) => return Err(foreign()),
                Err(_) => self.make_directory(&path)?,
                Ok(_) => {}
            }
            self.storage.protect(&path)
        })
    }

    /// One that another makes right now may be there without being seen yet, where that takes the
    /// storage several steps.
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        match self.storage.make_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Something could not be written. Where there is no room some is made.
    fn not_written(&self, error: &io::Error) {
        self.writing.note(&self.path, NAME, error);
        if is_full(error) {
            self.full.notify_one();
        }
    }

    /// It may all be deleted at any time; then it is made anew, but on no other file system: that
    /// would be the disk below a storage that is not mounted any more.
    fn restore(&self) -> io::Result<()> {
        let device = self.storage.device(&self.path)?;
        if device != self.device.load(Ordering::Relaxed) {
            // It was mounted again, perhaps, under another number.
            if !marker::is_there(&*self.storage, &self.path) {
                return Err(io::Error::other("it is on another file system than before"));
            }
            self.device.store(device, Ordering::Relaxed);
        }
        marker::ensure(&*self.storage, &self.path, Kind::Site).map_err(io::Error::other)?;
        self.make_folders()
    }

    fn take(&self, name: &str, watch: Option<Watch>) -> io::Result<Taken> {
        match self.claims.take(name, watch) {
            Err(error) if is_gone(&error) => {
                self.restore()?;
                self.claims.take(name, None)
            }
            taken => taken,
        }
    }

    fn find(&self, digest: &Digest, length: u64) -> io::Result<Found> {
        let path = chunk_path(&self.path, &digest.to_string());
        let length_max = digest.covers().stored_max(length);
        let is_length = |bytes: &Vec<u8>| match digest.covers() {
            Encoding::Plain => bytes.len() as u64 == length,
            Encoding::Zlib => bytes.len() as u64 <= length_max,
        };
        match self.storage.read(&path, length_max) {
            Ok(bytes) if is_length(&bytes) && digest.is_of(&bytes) => {
                self.touch(digest, &path);
                Ok(Found::Whole(bytes.into()))
            }
            Ok(bytes) => {
                Ok(Found::Bad(format!("{} bytes that do not have its digest", bytes.len())))
            }
            Err(error) if is_gone(&error) => Ok(Found::Nothing),
            Err(error) if is_strange(&error) => Ok(Found::Bad(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Takes a bad chunk away, whose claim the caller holds.
    fn discard(&self, digest: &Digest, why: &str) -> io::Result<()> {
        if discard(&*self.storage, &self.path, &digest.to_string(), why, &self.settings.owner) {
            return Ok(());
        }
        self.bar(digest);
        Err(io::Error::other("a poisoned chunk cannot be discarded"))
    }

    fn is_barred(&self, digest: &Digest) -> bool {
        lock(&self.barred).get(digest).is_some_and(|since| since.elapsed() < BARRED)
    }

    fn bar(&self, digest: &Digest) {
        let mut barred = lock(&self.barred);
        if barred.len() >= BARRED_MAX {
            barred.retain(|_, since| since.elapsed() < BARRED);
        }
        if barred.len() < BARRED_MAX {
            barred.insert(*digest, Instant::now());
        }
    }

    /// Says that a chunk is in use, now and then.
    fn touch(&self, digest: &Digest, path: &Path) {
        {
            let mut touched = lock(&self.touched);
            let is_fresh = touched.get(digest).is_some_and(|since| since.elapsed() < TOUCH_APART);
            if is_fresh {
                return;
            }
            if touched.len() >= TOUCHED_MAX {
                touched.clear();
            }
            touched.insert(*digest, Instant::now());
        }
        // Where times cannot be set, chunks go in the order in which they came.
        let _ = self.storage.touch(path);
    }

    /// What this node remembers of names that are not there may be old: a change of our own in the
    /// directory makes it ask again.
    fn refresh(&self, name: &str) {
        let probe = chunk_path(&self.path, name).with_file_name(format!(".{}", self.random()));
        if self.storage.create(&probe, b"").is_ok() {
            let _ = self.storage.remove(&probe);
        }
    }

    fn publish(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        let path = chunk_path(&self.path, &digest.to_string());
        let draft = self.path.join("tmp").join(self.random());
        let place = |draft: &Path| {
            self.storage.create(draft, bytes)?;
            self.until_whole(draft, bytes.len() as u64)?;
            self.storage.rename(draft, &path)
        };
        let mut placed = place(&draft);
        for pause in PLACED_AGAIN_MS {
            if !placed.as_ref().is_err_and(is_gone) {
                break;
            }
            let _ = self.storage.remove(&draft);
            std::thread::sleep(Duration::from_millis(pause));
            self.restore()?;
            if let Some(folder) = path.parent() {
                self.make_directory(folder)?;
            }
            placed = place(&draft);
        }
        if placed.is_err() {
            let _ = self.storage.remove(&draft);
            // Another was faster, where nothing is renamed onto what is there.
            if self.storage.stat(&path).is_ok_and(|stat| stat.length == bytes.len() as u64) {
                return Ok(());
            }
        }
        placed
    }

    /// Some storages have a file's bytes only a while after it was closed, or say then that they
    /// have no room: under its name others would take it for a bad one.
    fn until_whole(&self, draft: &Path, length: u64) -> io::Result<()> {
        let (end, mut pause) = (Instant::now() + SETTLED_MAX, LOOK_FIRST);
        while self.storage.stat(draft)?.length != length {
            if Instant::now() >= end {
                return Err(io::Error::other("what was written to it does not become whole"));
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(LOOK_LAST);
        }
        Ok(())
    }

    pub fn random(&self) -> String {
        let mut bytes = [0; 16];
        self.dice.fill(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Where a chunk lies.
pub(crate) fn chunk_path(root: &Path, name: &str) -> PathBuf {
    root.join("chunks").join(name.get(..2).unwrap_or_default()).join(name)
}

/// The digest whose chunk has this name; `None` for other names, which are nobody's.
pub(crate) fn digest_of(name: &str) -> Option<Digest> {
    name.parse().ok()
}

/// What is wrong with a site's cache that others can read, for people; `None` if they cannot.
pub fn exposure(path: &Path) -> Option<String> {
    lets_others_in(path, &path.join("chunks")).then(|| {
        let shown = path.display();
        format!(
            "every user who may enter {shown} can read what is cached there: `chmod 700 {shown}`, \
             or mount with -o at-rest=trusted if they may"
        )
    })
}

fn somebody_elses(path: &Path) -> Error {
    Error::Unfit {
        path: path.to_owned(),
        reason: "it belongs to another user, whose mounts keep it to themselves: name a directory \
                 of your own; for mounts of several users say -o at-rest=trusted for all of them, \
                 and `chmod -R go+rX` it once"
            .to_owned(),
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// May this node only read there?
fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Has it no room, for anybody or for us?
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Is it not there, or not any more?
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || crate::storage::is_stale(error)
}

/// Takes a bad chunk away, and leaves a note of that. Says whether it is away.
pub(crate) fn discard(
    storage: &dyn Storage,
    root: &Path,
    name: &str,
    why: &str,
    finder: &str,
) -> bool {
    let path = chunk_path(root, name);
    METRICS.cache_poisoned.with_label_values(&[NAME]).inc();
    tracing::warn!(chunk = %name, cache = %root.display(), why, "poisoned chunk in the site cache");
    let note = root.join("poisoned").join(name);
    let _ = storage.create(&note, format!("{why}; found by {finder}\n").as_bytes());
    match storage.remove(&path) {
        Ok(()) => true,
        Err(error) if is_gone(&error) => true,
        // Out of the way at least.
        Err(_) => storage.rename(&path, &root.join("tmp").join(name)).is_ok(),
    }
}

#[cfg(test)]
mod tests;
