//! Exposed pools: their closed files lie whole under their logical names in a directory.
//!
//! Transactions note which files of an exposed pool they change. For each such pool a *lane*
//! ([`lane`]) follows the notes, one batch of steps after the other: it compares a file with what
//! is recorded of it there, and has the OSS do what is missing. Bytes are put together beside that,
//! a few files at once ([`staging`]), and get their names by a step.
//!
//! A change that gives other bytes to a name waits until the old ones are taken away
//! ([`Exposures::take_away`]). So a record is there before anything lies there, and goes only when
//! nothing does.
//!
//! * `plan`: what is to be done for one file or directory; `paths`: where directories are there.
//! * `steps`: a batch, written down before it is sent, and what it came to.
//! * `sweep`: what lies there and is not ours.
//!
//! Invariants: a name there has the bytes that the file system has under it, or had until a moment
//! ago if the file was moved or deleted; steps of one pool are done one batch after the other; what
//! does not succeed is taken away and done anew.

mod lane;
mod paths;
mod plan;
mod staging;
mod steps;
mod sweep;

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::Result;
use lane::Lane;
pub use paths::parked;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::mdt::key;
use tieline_kv::Range;
use tieline_types::{ErrorKind, FileId, PoolName};
use tieline_wire::Failure;
use tieline_wire::exposed::{
    ArrangeExposed, ArrangeExposedReply, ListExposed, ListExposedReply, StageFile, StageFileReply,
};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// How often pools are looked for that are exposed, or no more.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a change waits until old bytes are taken away, before its client asks again.
const PATIENCE: Duration = Duration::from_secs(8);
/// Changes of a pool that may wait so.
const WISHES_MAX: usize = 4096;

/// The OSSs where pools are exposed.
#[async_trait::async_trait]
pub trait ExposedObjects: Send + Sync {
    async fn stage(
        &self,
        message: StageFile,
        patience: Duration,
    ) -> Result<StageFileReply, Failure>;

    async fn arrange(&self, message: ArrangeExposed) -> Result<ArrangeExposedReply, Failure>;

    async fn list_exposed(&self, message: ListExposed) -> Result<ListExposedReply, Failure>;
}

/// What the MDT says and wishes, by pool: in memory.
#[derive(Default)]
pub struct Exposures(Mutex<BTreeMap<PoolName, Arc<Sink>>>);

/// What is said of one pool.
#[derive(Default)]
struct Sink {
    wishes: Mutex<VecDeque<Wish>>,
    woken: Notify,
}

/// Files that are to be taken away.
struct Wish {
    files: Vec<FileId>,
    done: oneshot::Sender<Result<(), Failure>>,
}

impl Exposures {
    /// Files of a pool were changed.
    pub fn noted(&self, pool: &PoolName) {
        self.sink(pool).woken.notify_one();
    }

    /// Waits until none of these files lies there.
    pub async fn take_away(&self, pool: &PoolName, files: Vec<FileId>) -> Result<(), Failure> {
        let sink = self.sink(pool);
        let (done, answer) = oneshot::channel();
        {
            let mut wishes = sink.lock();
            wishes.retain(|wish| !wish.done.is_closed());
            if wishes.len() >= WISHES_MAX {
                let detail = format!("{WISHES_MAX} changes wait for pool {pool}");
                return Err(Failure::new(ErrorKind::Overloaded, detail));
            }
            wishes.push_back(Wish { files, done });
        }
        sink.woken.notify_one();
        let late = || Failure::new(ErrorKind::Timeout, "its OSS does not answer".to_owned());
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }

    fn sink(&self, pool: &PoolName) -> Arc<Sink> {
        let mut sinks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.entry(pool.clone()).or_default().clone()
    }
}

impl Sink {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Wish> {
        let mut wishes = self.lock();
        wishes.drain(..).filter(|wish| !wish.done.is_closed()).collect()
    }
}

/// How a lane is, for operators.
#[derive(Clone, Default)]
struct Told {
    done: u64,
    waiting: u64,
    trouble: Option<String>,
}

/// Has a lane for each exposed pool.
pub struct Exposing {
    parts: Arc<Parts>,
    lanes: BTreeMap<PoolName, Arc<Mutex<Told>>>,
    running: JoinSet<PoolName>,
}

impl Exposing {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone(), lanes: BTreeMap::new(), running: JoinSet::new() }
    }

    /// Pools that are exposed, and those that were and where something may lie still.
    async fn pools(&self) -> Result<BTreeSet<PoolName>> {
        let map = self.parts.map.current();
        let mut pools: BTreeSet<PoolName> =
            map.map.exposed_pools().map(|pool| pool.name.clone()).collect();
        let prefix = key::exposed_pools();
        let range = Range::new(prefix.clone(), key::after(&prefix));
        let mut transaction = self.parts.store.begin().await?;
        let known = transaction.scan(range, usize::MAX).await?;
        pools.extend(known.iter().filter_map(|(key, _)| key::exposed_pool_name(key)));
        Ok(pools)
    }
}

#[async_trait::async_trait]
impl Chore for Exposing {
    fn title(&self) -> (&'static str, &'static str) {
        ("exposed pools", "files")
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    /// Lanes go on by themselves: here is only said how they are.
    async fn round(&mut self, status: &Status) -> Result<()> {
        while let Some(ended) = self.running.try_join_next() {
            match ended {
                Ok(pool) => drop(self.lanes.remove(&pool)),
                Err(error) => tracing::error!("a lane of an exposed pool ended: {error}"),
            }
        }
        if self.running.is_empty() {
            self.lanes.clear();
        }
        for pool in self.pools().await? {
            if self.lanes.contains_key(&pool) {
                continue;
            }
            let told = Arc::<Mutex<Told>>::default();
            let lane = Lane::new(&self.parts, pool.clone(), told.clone());
            self.running.spawn(lane.run());
            self.lanes.insert(pool, told);
        }
        let (mut waiting, mut troubles) = (0, vec![]);
        for (pool, told) in &self.lanes {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            status.did(std::mem::take(&mut told.done));
            waiting += told.waiting;
            troubles.extend(told.trouble.iter().map(|trouble| format!("pool {pool}: {trouble}")));
        }
        status.set_left(Some(waiting));
        if !troubles.is_empty() {
            status.trouble(troubles.join("; "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
