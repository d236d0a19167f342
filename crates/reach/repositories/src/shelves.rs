//! The shelves of repositories, and which of them is asked.

use crate::Directory;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_types::{ErrorKind, RepositoryName};
use tokio::time::{Instant, timeout_at};

/// A shelf that failed is asked last for so long.
const TROUBLE_KEPT: Duration = Duration::from_secs(30);
/// One that does not answer leaves this part of the time to the next.
const SHARE: u32 = 2;

/// What is wanted of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want<'k> {
    /// A path below the shelf, `/` between its components.
    pub key: &'k str,
    pub offset: u64,
    /// `None`: all to its end.
    pub length: Option<u64>,
    /// More is refused.
    pub most: u64,
}

/// Why a shelf gave nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {kind}")]
pub struct Trouble {
    pub kind: ErrorKind,
    pub what: String,
}

impl Trouble {
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

/// Where files of a repository lie.
#[async_trait::async_trait]
pub trait Shelf: Send + Sync {
    async fn get(&self, want: Want<'_>) -> Result<Bytes, Trouble>;
}

/// Makes the shelf of a source, as the map has it; `None` for a scheme that it does not know.
pub type Opener = dyn Fn(&str) -> Option<Arc<dyn Shelf>> + Send + Sync;

/// All repositories of a federation.
pub struct Repositories {
    map: MapCell,
    opener: Box<Opener>,
    shelves: Mutex<BTreeMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    shelf: Arc<dyn Shelf>,
    failed: Option<Instant>,
}

impl Repositories {
    /// `opener` makes shelves of other sources than directories.
    pub fn new(map: MapCell, opener: Box<Opener>) -> Self {
        Self { map, opener, shelves: Mutex::default() }
    }

    pub fn map(&self) -> &MapCell {
        &self.map
    }

    /// What lies under a key of a repository.
    pub async fn get(
        &self,
        repository: &RepositoryName,
        want: Want<'_>,
        until: Instant,
    ) -> Result<Bytes, Trouble> {
        self.get_right(repository, want, until, &|_| true).await
    }

    /// The same, from the first shelf that has what is right.
    pub async fn get_right(
        &self,
        repository: &RepositoryName,
        want: Want<'_>,
        until: Instant,
        is_right: &(dyn Fn(&Bytes) -> bool + Sync),
    ) -> Result<Bytes, Trouble> {
        let unknown = || Trouble::new(ErrorKind::Stale, format!("repository {repository}"));
        let sources = {
            let current = self.map.current();
            let mut all = current.map.repositories();
            all.find(|known| known.name == *repository).ok_or_else(unknown)?.sources.clone()
        };
        let mut last = unknown();
        let shelves = self.in_order(sources);
        let mut left = shelves.len();
        for (source, shelf) in shelves {
            left -= 1;
            let now = Instant::now();
            let span = until.saturating_duration_since(now);
            let share = if left == 0 { until } else { now + span / SHARE };
            let slow = || Trouble::new(ErrorKind::Timeout, format!("{} at {source}", want.key));
            let got = timeout_at(share, shelf.get(want)).await.unwrap_or_else(|_| Err(slow()));
            // What the last one has is judged by who asked, who says what is wrong.
            let is_good = |bytes: &Bytes| left == 0 || is_right(bytes);
            let wrong =
                || Trouble::new(ErrorKind::Corrupt, format!("{} has other bytes", want.key));
            let got = got.and_then(|bytes| whole(bytes, want));
            match got.and_then(|bytes| is_good(&bytes).then_some(bytes).ok_or_else(wrong)) {
                Ok(bytes) => return Ok(bytes),
                Err(trouble) => {
                    tracing::info!(%repository, source, %trouble, "a source is passed over");
                    if trouble.kind != ErrorKind::NotFound {
                        self.failed(&source);
                    }
                    // One that may have it tomorrow says more than one that has it not.
                    if last.kind == ErrorKind::Stale || trouble.kind != ErrorKind::NotFound {
                        last = trouble;
                    }
                }
            }
        }
        Err(last)
    }

    /// Those that failed lately last.
    fn in_order(&self, sources: Vec<String>) -> Vec<(String, Arc<dyn Shelf>)> {
        let mut shelves = self.lock();
        let known = |source: String| {
            let known = match shelves.get(&source) {
                Some(known) => known.clone(),
                None => {
                    let known = Known { shelf: self.open(&source)?, failed: None };
                    shelves.insert(source.clone(), known.clone());
                    known
                }
            };
            let is_bad = known.failed.is_some_and(|at| at.elapsed() < TROUBLE_KEPT);
            Some((is_bad, source, known.shelf))
        };
        let mut known: Vec<_> = sources.into_iter().filter_map(known).collect();
        known.sort_by_key(|(is_bad, ..)| *is_bad);
        known.into_iter().map(|(_, source, shelf)| (source, shelf)).collect()
    }

    fn open(&self, source: &str) -> Option<Arc<dyn Shelf>> {
        match source.strip_prefix("file://") {
            Some(path) => Some(Arc::new(Directory::new(path))),
            None => (self.opener)(source),
        }
    }

    fn failed(&self, source: &str) {
        if let Some(known) = self.lock().get_mut(source) {
            known.failed = Some(Instant::now());
        }
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As many bytes as were wanted, if that was said.
fn whole(bytes: Bytes, want: Want<'_>) -> Result<Bytes, Trouble> {
    let short = || Trouble::new(ErrorKind::Corrupt, format!("{} is shorter than it was", want.key));
    let is_whole = want.length.is_none_or(|length| length == bytes.len() as u64);
    is_whole.then_some(bytes).ok_or_else(short)
}
