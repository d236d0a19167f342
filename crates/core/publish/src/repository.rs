//! A repository where it is made: its storage, which a web server may serve as it is, and its keys.
//!
//! ```text
//! STORAGE/.cvmfspublished   the manifest: written last, by rename
//! STORAGE/.cvmfswhitelist   which certificate may sign it
//! STORAGE/.cvmfsreflog      all roots there were
//! STORAGE/.cvmfs_master_replica   "you may replicate this"
//! STORAGE/data/XX/…         the objects
//! STORAGE/.tieline/         ours alone: settings, the lock, drafts
//! ```
//!
//! Invariants: one process at a time publishes; whatever ends it in the middle, the former revision
//! is whole; what it left is cleared by the next.

use crate::catalog::CatalogError;
use crate::hash::{self, Kind};
use crate::history::{self, Logged, Tagged};
use crate::keys::{KeyError, Keys};
use crate::manifest::{self, Manifest};
use crate::objects::Objects;
use crate::plan;
pub use crate::plan::Limits;
use crate::publish::{Former, PublishError, Publisher};
use crate::tree::Tree;
use crate::trust::{Trust, TrustError};
use crate::whitelist::{self, Whitelist};
use crate::{keys, seal};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tieline_types::{Algorithm, Digest, RepositoryName, Time};
use tieline_world::World;

/// Where storage is unless said otherwise: where CVMFS and its web servers have it.
pub const STORAGE_DEFAULT: &str = "/srv/cvmfs";
/// How long a whitelist holds unless said otherwise.
pub const WHITELIST_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3600);

const OWN: &str = ".tieline";
const SETTINGS: &str = "repository.toml";
const LOCK: &str = "lock";
const DRAFTS: &str = "drafts";
const REPLICA: &str = ".cvmfs_master_replica";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}")]
    Io { what: String, source: io::Error },
    #[error(
        "{} has a repository already: publish to it, or choose another --storage",
        .0.display()
    )]
    Exists(PathBuf),
    #[error(
        "{} has no repository: make one with `tieline repo create`, or say where it is with \
         --storage",
        .0.display()
    )]
    Missing(PathBuf),
    #[error("{} is the storage of {is}, not of {wanted}", .storage.display())]
    Other { storage: PathBuf, is: RepositoryName, wanted: RepositoryName },
    #[error("{0} is published by another process just now: wait for it")]
    Busy(RepositoryName),
    #[error("settings in {} ({why})", .path.display())]
    Settings { path: PathBuf, why: String },
    #[error("`{0}` is no fully qualified repository name: it needs a dot, as in sw.example.org")]
    Name(RepositoryName),
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error("nothing was published")]
    Publish(#[from] PublishError),
    #[error("its history cannot be written, and nothing was published")]
    History(#[from] CatalogError),
    #[error("what is published in {} is not to be gone on from", .storage.display())]
    Former { storage: PathBuf, source: TrustError },
}

/// What a repository's maker remembers of it.
#[derive(Serialize, Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Settings {
    repository: RepositoryName,
    /// Directory with its keys.
    keys: PathBuf,
    /// Seconds for which clients need not ask again.
    ttl: u64,
}

/// How to make one.
pub struct Create {
    pub keys: PathBuf,
    pub ttl: Duration,
    pub whitelist: Duration,
}

/// How to publish.
#[derive(Default)]
pub struct Publish {
    /// Elsewhere than they were.
    pub keys: Option<PathBuf>,
    /// Another than before.
    pub ttl: Option<Duration>,
    pub limits: Limits,
}

/// What was published.
pub struct Published {
    pub revision: u64,
    /// Nothing is new.
    pub is_unchanged: bool,
    pub root: Digest,
    pub entries: u64,
    pub bytes: u64,
    pub catalogs: u64,
    /// Objects that were not there, and their bytes as they are stored.
    pub new: u64,
    pub new_bytes: u64,
}

/// A repository that this process alone changes, for as long as it lives.
pub struct Repository {
    storage: PathBuf,
    settings: Settings,
    world: World,
    _lock: File,
}

impl Repository {
    /// Makes one, with its keys unless they are there, and a first revision that is empty.
    pub fn create(
        name: &RepositoryName,
        storage: &Path,
        how: &Create,
        world: &World,
    ) -> Result<Self, Error> {
        if !name.as_str().contains('.') {
            return Err(Error::Name(name.clone()));
        }
        if storage.join(manifest::FILE).exists() {
            return Err(Error::Exists(storage.to_owned()));
        }
        let own = storage.join(OWN);
        let made = fs::create_dir_all(storage);
        let made = made.and_then(|()| match fs::DirBuilder::new().mode(0o700).create(&own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
        made.map_err(io_at(&own))?;
        let lock = lock(name, storage)?;
        let keys = std::path::absolute(&how.keys).map_err(io_at(&how.keys))?;
        let settings = Settings { repository: name.clone(), keys, ttl: how.ttl.as_secs().max(1) };
        let (storage, world) = (storage.to_owned(), world.clone());
        let mut repository = Self { storage, settings, world, _lock: lock };
        repository.keys().prepare(&repository.world)?;
        repository.keep()?;
        repository.sign_whitelist(how.whitelist)?;
        repository.write(REPLICA, b"")?;
        let mut empty = crate::tree::Empty::new(repository.now());
        repository.publish(&mut empty, &Publish::default(), &mut |_| ())?;
        Ok(repository)
    }

    /// One that was made.
    pub fn open(name: &RepositoryName, storage: &Path, world: &World) -> Result<Self, Error> {
        let path = storage.join(OWN).join(SETTINGS);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing(storage.to_owned()));
            }
            text => text.map_err(io_at(&path))?,
        };
        let read = toml::from_str::<Settings>(&text);
        let settings = read.map_err(|error| Error::Settings { path, why: error.to_string() })?;
        if settings.repository != *name {
            let (storage, wanted) = (storage.to_owned(), name.clone());
            return Err(Error::Other { storage, is: settings.repository, wanted });
        }
        let lock = lock(name, storage)?;
        Ok(Self { storage: storage.to_owned(), settings, world: world.clone(), _lock: lock })
    }

    pub fn keys(&self) -> Keys {
        let (folder, repository) = (self.settings.keys.clone(), self.settings.repository.clone());
        Keys { folder, repository }
    }

    /// Signs which certificate is the right one, from now on for so long.
    pub fn sign_whitelist(&self, life: Duration) -> Result<(), Error> {
        let keys = self.keys();
        let (pem, _) = keys.signer()?;
        let certificate = keys::Certificate::parse(&pem).map(|known| known.der);
        let now = self.now();
        let expires =
            Time { seconds: now.seconds.saturating_add_unsigned(life.as_secs()), nanos: 0 };
        let whitelist = Whitelist {
            expires: whitelist::stamp(expires),
            repository: self.settings.repository.clone(),
            fingerprints: certificate.iter().map(|der| whitelist::fingerprint(der)).collect(),
        };
        let master = keys.master()?;
        let text = whitelist.text(now);
        let sealed = seal::close(&text, Algorithm::Sha1, |hash| master.sign_whitelist(hash))?;
        self.write(whitelist::FILE, &sealed)
    }

    /// Publishes a tree. `told` hears of the bytes that were read.
    pub fn publish(
        &mut self,
        tree: &mut dyn Tree,
        how: &Publish,
        told: &mut dyn FnMut(u64),
    ) -> Result<Published, Error> {
        let mut settings = self.settings.clone();
        if let Some(keys) = &how.keys {
            settings.keys = std::path::absolute(keys).map_err(io_at(keys))?;
        }
        if let Some(ttl) = how.ttl {
            settings.ttl = ttl.as_secs().max(1);
        }
        let repository = &settings.repository;
        let keys = Keys { folder: settings.keys.clone(), repository: repository.clone() };
        let (certificate, signer) = keys.signer()?;
        let drafts = self.drafts()?;
        let objects = Objects::new(&self.storage, &drafts);
        let before = self.former(&keys)?;
        let fetch = |digest: &Digest| self.object(digest, Kind::Catalog);
        let former = match &before {
            Some(before) => Former::read(before.catalog, &fetch)?,
            None => Former::default(),
        };
        let divided = plan::divided(tree, how.limits).map_err(PublishError::from)?;
        let now = self.now().seconds.max(0) as u64;
        let ttl = settings.ttl;
        let mut publisher = Publisher { tree, objects: &objects, former, divided, now, ttl, told };
        let root = publisher.run()?;
        let is_unchanged = before.as_ref().is_some_and(|before| before.catalog == root.digest);
        let revision = match &before {
            Some(before) if is_unchanged => before.revision,
            before => before.as_ref().map_or(0, |before| before.revision) + 1,
        };
        let counters = root.counters;
        let all = ["regular", "symlink", "special", "dir"].map(|of| counters.get(of));
        let published = Published {
            revision,
            is_unchanged,
            root: root.digest,
            // The root of a nested catalog is in two.
            entries: all.iter().sum::<u64>() - counters.get("nested"),
            bytes: counters.get("file_size"),
            catalogs: counters.get("nested") + 1,
            new: objects.new.load(Ordering::Relaxed),
            new_bytes: objects.new_bytes.load(Ordering::Relaxed),
        };
        let stored = |what: io::Result<Digest>| what.map_err(io_at(&self.storage));
        let certificate = stored(objects.put(&certificate, Kind::Certificate))?;
        // By another key the same tree is signed anew: the former is on no whitelist any more.
        let is_same = |before: &Manifest| {
            before.ttl.as_secs() == ttl && before.certificate == Some(certificate)
        };
        if is_unchanged && before.as_ref().is_some_and(is_same) {
            return Ok(published);
        }
        let packed = match before.as_ref().and_then(|before| before.history) {
            Some(digest) => self.object(&digest, Kind::History).ok().map(|bytes| (digest, bytes)),
            None => None,
        };
        let packed = packed.as_ref().map(|(digest, bytes)| (digest, &bytes[..]));
        let head = Tagged { catalog: &root.digest, size: root.size, revision, at: now };
        let history = history::history(repository, packed, &head)?;
        let history = stored(objects.put(&history, Kind::History))?;
        let log = [
            (root.digest, Logged::Catalog),
            (certificate, Logged::Certificate),
            (history, Logged::History),
        ];
        let known = fs::read(self.storage.join(history::REFLOG)).ok();
        let reflog = history::reflog(repository, known.as_deref(), &log, now)?;
        let manifest = Manifest {
            catalog: root.digest,
            catalog_size: Some(root.size),
            ttl: Duration::from_secs(ttl),
            revision,
            repository: Some(repository.clone()),
            certificate: Some(certificate),
            history: Some(history),
            published: now,
        };
        let text = manifest.text();
        let sealed = seal::close(&text, Algorithm::Sha1, |hash| signer.sign_manifest(hash))?;
        // All that it names is durable before it is.
        objects.settle().map_err(io_at(&self.storage))?;
        self.write(history::REFLOG, &reflog)?;
        self.write(manifest::FILE, &sealed)?;
        objects.settle().map_err(io_at(&self.storage))?;
        self.settings = settings;
        self.keep()?;
        Ok(published)
    }

    /// The manifest that is in place, believed as clients would; `None`: there is none yet.
    fn former(&self, keys: &Keys) -> Result<Option<Manifest>, Error> {
        let path = self.storage.join(manifest::FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(io_at(&path))?,
        };
        let trust =
            Trust { repository: self.settings.repository.clone(), keys: vec![keys.public()?] };
        let former = |source| Error::Former { storage: self.storage.clone(), source };
        // The whitelist may have expired: that is for clients to mind, and for `repo resign`.
        trust.read(&bytes).map(|(manifest, _)| Some(manifest)).map_err(former)
    }

    /// An object, if it has its digest.
    fn object(&self, digest: &Digest, kind: Kind) -> io::Result<Vec<u8>> {
        let path = self.storage.join(hash::key(digest, kind));
        let at = |why: String| io::Error::other(format!("{}: {why}", path.display()));
        let bytes = fs::read(&path).map_err(|error| at(error.to_string()))?;
        if digest.is_of(&bytes) { Ok(bytes) } else { Err(at("it does not have its digest".into())) }
    }

    /// An empty place for what is being written; what was left by whoever ended early goes.
    fn drafts(&self) -> Result<PathBuf, Error> {
        let drafts = self.storage.join(OWN).join(DRAFTS);
        match fs::remove_dir_all(&drafts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_at(&drafts)(error));
            }
            _ => {}
        }
        fs::create_dir(&drafts).map_err(io_at(&drafts))?;
        Ok(drafts)
    }

    fn keep(&self) -> Result<(), Error> {
        let text = toml::to_string(&self.settings).unwrap_or_default();
        self.write(&format!("{OWN}/{SETTINGS}"), text.as_bytes())
    }

    /// A file of the storage, in place of the one that was there.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let (path, draft) = (self.storage.join(name), self.storage.join(OWN).join("draft"));
        // One of a process that died, or somebody's link.
        let _ = fs::remove_file(&draft);
        let written = File::create_new(&draft).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&draft, &path)).map_err(io_at(&path))
    }

    fn now(&self) -> Time {
        Time::of_clock(self.world.clock.wall())
    }
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = path.display().to_string();
    move |source| Error::Io { what, source }
}

fn lock(name: &RepositoryName, storage: &Path) -> Result<File, Error> {
    let path = storage.join(OWN).join(LOCK);
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(io_at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Busy(name.clone())),
        Err(TryLockError::Error(error)) => Err(io_at(&path)(error)),
    }
}

#[cfg(test)]
mod tests;
