//! What was fetched of repositories and verified: signed texts, and catalogs by their digests.

use crate::catalog::Catalog;
use crate::hash::{self, Kind};
use crate::manifest::{self, Manifest};
use crate::trust::Trust;
use crate::{seal, whitelist};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_repositories::{Repositories, Want};
use tieline_types::{Digest, ErrorKind, RepositoryName, Time};
use tieline_wire::Failure;
use tieline_world::Clock;
use tokio::time::Instant;

/// The largest catalog that is fetched, as it is stored.
const PACKED_MAX: u64 = 256 << 20;
/// Of a certificate, as it is stored.
const CERTIFICATE_MAX: u64 = 1 << 20;
/// What all catalogs that are held may take, but for the one that was asked for last.
const HELD_MAX: u64 = 256 << 20;

pub struct Fetcher {
    repositories: Arc<Repositories>,
    catalogs: Mutex<Catalogs>,
}

#[derive(Default)]
struct Catalogs {
    /// With the time of their last use.
    held: BTreeMap<Digest, (u64, Arc<Catalog>)>,
    clock: u64,
}

impl Fetcher {
    pub fn new(repositories: Arc<Repositories>) -> Self {
        Self { repositories, catalogs: Mutex::default() }
    }

    /// The manifest that is there, if it is believed.
    pub async fn manifest(
        &self,
        trust: &Trust,
        clock: &dyn Clock,
        until: Instant,
    ) -> Result<Manifest, Failure> {
        let name = &trust.repository;
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(ErrorKind::Corrupt, format!("{name}: {error}"))
        };
        let published = self.text(name, manifest::FILE, until).await?;
        let (_, certificate) = trust.read(&published).map_err(|error| wrong(&error))?;
        let whitelist = self.text(name, whitelist::FILE, until).await?;
        let key = hash::key(&certificate, Kind::Certificate);
        let most = (CERTIFICATE_MAX, Some(&certificate));
        let certificate = self.get(name, &key, most, until).await?;
        let now = Time::of_clock(clock.wall());
        let verified = trust.verify(&published, &certificate, &whitelist, now);
        verified.map_err(|error| wrong(&error))
    }

    /// A catalog, from memory or from where it is stored.
    pub async fn catalog(
        &self,
        name: &RepositoryName,
        (digest, size, prefix): (&Digest, Option<u64>, &[u8]),
        until: Instant,
    ) -> Result<Arc<Catalog>, Failure> {
        if let Some(held) = self.held(digest) {
            return Ok(held);
        }
        let key = hash::key(digest, Kind::Catalog);
        let wrong = {
            let (name, key) = (name.clone(), key.clone());
            move |why: &dyn std::fmt::Display| {
                let detail = format!("catalog {key} of {name} ({why}): have it published anew");
                Failure::new(ErrorKind::Corrupt, detail)
            }
        };
        let packed = self.get(name, &key, (PACKED_MAX, Some(digest)), until).await?;
        let (digest, prefix) = (*digest, prefix.to_vec());
        let opened = tokio::task::spawn_blocking(move || {
            if !digest.is_of(&packed) {
                return Err(wrong(&"it does not have its digest"));
            }
            let catalog = Catalog::unpack(&packed, size).map_err(|error| wrong(&error))?;
            if catalog.prefix != prefix {
                return Err(wrong(&"it is of another path"));
            }
            Ok(Arc::new(catalog))
        });
        let stopped = |_| Failure::new(ErrorKind::Internal, "a read of a repository's catalog");
        let opened = opened.await.map_err(stopped)?;
        let opened = opened.inspect_err(|failure| tracing::warn!(%failure, "not believed"))?;
        self.hold(digest, opened.clone());
        Ok(opened)
    }

    async fn text(
        &self,
        name: &RepositoryName,
        key: &str,
        until: Instant,
    ) -> Result<Bytes, Failure> {
        self.get(name, key, (seal::BYTES_MAX, None), until).await
    }

    async fn get(
        &self,
        name: &RepositoryName,
        key: &str,
        (most, digest): (u64, Option<&Digest>),
        until: Instant,
    ) -> Result<Bytes, Failure> {
        let want = Want { key, offset: 0, length: None, most };
        let is_right = |bytes: &Bytes| digest.is_none_or(|digest| digest.is_of(bytes));
        let got = self.repositories.get_right(name, want, until, &is_right).await;
        got.map_err(|trouble| {
            let kind = match trouble.kind {
                // Nobody takes back what is published: a source lags behind, or lost it.
                ErrorKind::NotFound => ErrorKind::StorageFault,
                kind => kind,
            };
            Failure::new(kind, format!("{key} of {name} ({trouble})"))
        })
    }

    fn held(&self, digest: &Digest) -> Option<Arc<Catalog>> {
        let mut catalogs = self.lock();
        catalogs.clock += 1;
        let clock = catalogs.clock;
        let (used, catalog) = catalogs.held.get_mut(digest)?;
        *used = clock;
        Some(catalog.clone())
    }

    /// Those that were not used for long go, if there are too many.
    fn hold(&self, digest: Digest, catalog: Arc<Catalog>) {
        let mut catalogs = self.lock();
        catalogs.clock += 1;
        let clock = catalogs.clock;
        let mut room = HELD_MAX.saturating_sub(catalog.size);
        catalogs.held.remove(&digest);
        let mut by_use: Vec<_> = catalogs
            .held
            .iter()
            .map(|(digest, (used, held))| (*used, *digest, held.size))
            .collect();
        by_use.sort_unstable_by(|one, other| other.cmp(one));
        for (_, digest, size) in by_use {
            match room.checked_sub(size) {
                Some(left) => room = left,
                None => drop(catalogs.held.remove(&digest)),
            }
        }
        catalogs.held.insert(digest, (clock, catalog));
    }

    fn lock(&self) -> MutexGuard<'_, Catalogs> {
        // Nothing panics while it is held.
        self.catalogs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
