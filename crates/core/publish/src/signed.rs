//! The answerer over what was published: whoever asks the address of a repository that the map says
//! is signed is answered from its newest revision.
//!
//! [`fetched`] brings what is signed and what is named by its digest, and lets nothing on that was
//! not verified. [`view`] is one revision as a tree; [`ids`] says which file has which id.
//!
//! A manifest holds for as long as it says; after most of that time the next question has it looked
//! for anew, so that what is told never outlives it. One that cannot be had, or is not believed,
//! changes nothing: the revision that was believed last is answered from, and the log says why.
//!
//! Invariants: no revision follows a later one; memory for catalogs and ids is bounded.

mod fetched;
mod ids;
mod view;

use crate::keys::MasterKey;
use crate::manifest::Manifest;
use crate::trust::Trust;
use fetched::Fetcher;
use ids::Ids;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::map::{Catalog as Kind, Repository};
use tieline_repositories::Repositories;
use tieline_servers::read_only::Asked;
use tieline_servers::{Answerer, Holds};
use tieline_types::{Caller, Digest, ErrorKind, MdtIndex};
use tieline_wire::{Failure, Request};
use tieline_world::Clock;
use tokio::time::Instant;
use view::View;

/// The part of a manifest's time after which a newer one is looked for: before clients stop
/// believing what they were told, which they do at nine tenths.
const LOOK_AFTER: f64 = 0.85;
/// Who waits for a look at a newer manifest waits no longer than this: there is one to go on with.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// After a look that failed, the next one.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The same where nothing is known yet.
const AGAIN: Duration = Duration::from_secs(2);

/// Answers from signed catalogs.
pub struct Signed {
    address: String,
    repositories: Arc<Repositories>,
    clock: Arc<dyn Clock>,
    fetcher: Arc<Fetcher>,
    ids: Arc<Ids>,
    held: Mutex<Held>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Held {
    revision: Option<Revision>,
    failed: Option<(Instant, Failure)>,
}

/// What is answered from.
#[derive(Clone)]
struct Revision {
    manifest: Manifest,
    /// By which keys it was believed.
    keys: Vec<Vec<u8>>,
    view: Arc<View>,
    since: Instant,
    /// When to look for a newer one.
    next: Instant,
}

impl Signed {
    /// `None`: the address is no repository's.
    pub fn at(
        address: &str,
        repositories: &Arc<Repositories>,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<dyn Answerer>> {
        let address = address.starts_with(Repository::SCHEME).then(|| address.to_owned())?;
        Some(Arc::new(Self {
            address,
            repositories: repositories.clone(),
            clock: clock.clone(),
            fetcher: Arc::new(Fetcher::new(repositories.clone())),
            ids: Arc::default(),
            held: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }))
    }

    /// The revision that holds now.
    async fn revision(&self, until: Instant) -> Result<Revision, Failure> {
        let (known, keys) = self.known()?;
        if let Some(held) = self.current(&keys)? {
            return Ok(held);
        }
        let _looking = self.looking.lock().await;
        if let Some(held) = self.current(&keys)? {
            return Ok(held);
        }
        let before = self.held().revision.clone().filter(|held| held.keys == keys);
        let until = match &before {
            Some(_) => until.min(Instant::now() + LOOK_PATIENCE),
            None => until,
        };
        let found =
            tokio::time::timeout_at(until, self.look(&known, &keys, before.as_ref(), until));
        let late = |_| {
            let detail = format!("{}: its manifest is waited for in vain", known.name);
            Err(Failure::new(ErrorKind::Timeout, detail))
        };
        let found = found.await.unwrap_or_else(late);
        let mut held = self.held();
        match (found, before) {
            (Ok(revision), _) => {
                held.failed = None;
                held.revision = Some(revision.clone());
                Ok(revision)
            }
            (Err(failure), Some(before)) => {
                let revision = before.manifest.revision;
                tracing::warn!(
                    repository = %known.name, revision, reason = %failure,
                    "no newer revision can be had or believed: this one is gone on with; look at \
                     its servers, or have it published anew"
                );
                let since = Instant::now();
                let next = since + look_after(&before.manifest).min(LOOK_AGAIN);
                let gone_on = Revision { since, next, ..before };
                held.revision = Some(gone_on.clone());
                Ok(gone_on)
            }
            (Err(failure), None) => {
                let (repository, reason) = (&known.name, &failure);
                tracing::warn!(%repository, %reason, "nothing of this repository is believed");
                held.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// What the map says of it.
    fn known(&self) -> Result<(Repository, Vec<Vec<u8>>), Failure> {
        let current = self.repositories.map().current();
        let gone = || {
            let detail = format!("{}: no signed repository of the map", self.address);
            Failure::new(ErrorKind::WrongServer, detail)
        };
        let known = current.map.repository_at(&self.address).ok_or_else(gone)?;
        let Kind::Signed(keys) = &known.catalog else { return Err(gone()) };
        Ok((known.clone(), keys.iter().map(|key| key.0.to_vec()).collect()))
    }

    /// What need not be looked for.
    fn current(&self, keys: &[Vec<u8>]) -> Result<Option<Revision>, Failure> {
        let held = self.held();
        match (&held.revision, &held.failed) {
            (Some(revision), _) if revision.keys == keys && Instant::now() < revision.next => {
                Ok(Some(revision.clone()))
            }
            (None, Some((at, failure))) if at.elapsed() < AGAIN => Err(failure.clone()),
            _ => Ok(None),
        }
    }

    /// The newest revision there is, verified from its master key down.
    async fn look(
        &self,
        known: &Repository,
        keys: &[Vec<u8>],
        before: Option<&Revision>,
        until: Instant,
    ) -> Result<Revision, Failure> {
        let since = Instant::now();
        let trust = Trust {
            repository: known.name.clone(),
            keys: keys.iter().filter_map(|key| MasterKey::from_der(key)).collect(),
        };
        let manifest = self.fetcher.manifest(&trust, &*self.clock, until).await?;
        if let Some(before) = before {
            let refused = |why: &str| {
                let detail = format!("{}: revision {} ({why})", known.name, manifest.revision);
                Err(Failure::new(ErrorKind::Corrupt, detail))
            };
            let was = &before.manifest;
            if manifest.revision < was.revision {
                return refused(&format!("revision {} was there before it", was.revision));
            }
            if manifest.revision == was.revision && manifest.catalog != was.catalog {
                return refused("another tree had that number");
            }
        }
        let same = before.filter(|before| before.manifest.catalog == manifest.catalog);
        let view = match same {
            Some(before) if before.view.mdt == known.mdt => before.view.clone(),
            _ => Arc::new(self.view(known, &manifest, until).await?),
        };
        let next = since + look_after(&manifest);
        if before.is_none_or(|before| before.manifest.revision != manifest.revision) {
            let (repository, revision) = (&known.name, manifest.revision);
            tracing::info!(%repository, revision, "a revision is answered from");
        }
        Ok(Revision { manifest, keys: keys.to_vec(), view, since, next })
    }

    async fn view(
        &self,
        known: &Repository,
        manifest: &Manifest,
        until: Instant,
    ) -> Result<View, Failure> {
        let (digest, size): (Digest, _) = (manifest.catalog, manifest.catalog_size);
        let root = self.fetcher.catalog(&known.name, (&digest, size, b""), until).await?;
        let mdt: MdtIndex = known.mdt;
        let (fetcher, ids, name) = (self.fetcher.clone(), self.ids.clone(), known.name.clone());
        View::new((name, mdt, manifest.revision), root, fetcher, ids).await
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it is held.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_after(manifest: &Manifest) -> Duration {
    manifest.ttl.mul_f64(LOOK_AFTER)
}

#[async_trait::async_trait]
impl Answerer for Signed {
    async fn holds(&self, until: Instant) -> Result<Holds, Failure> {
        let revision = self.revision(until).await?;
        let (edition, lease) = (revision.manifest.revision, revision.manifest.ttl);
        Ok(Holds { edition, since: revision.since, lease })
    }

    async fn answer(
        &self,
        caller: &Caller,
        request: &Request,
        until: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let revision = self.revision(until).await?;
        let current = self.repositories.map().current();
        let tree = view::Until { view: &revision.view, until };
        let asked = Asked { tree: &tree, map: &current.map, mdt: revision.view.mdt, caller };
        asked.answer(request).await
    }
}

#[cfg(test)]
mod tests;
