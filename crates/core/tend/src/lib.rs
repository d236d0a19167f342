//! What goes on in the background of an MDT.
//!
//! Each piece of it is a [`chore`]: it looks at the store, finds out what is to be done, and does
//! a bounded amount of it, again and again. Changes of names and files are the MDT's own: it makes
//! them in its transactions, and says what only it knows ([`Tended`]). Freed chunks, notes of
//! copies and the dumps beside the log are nobody's but ours.
//!
//! * `collector`: ends dead sessions; deletes chunks nobody refers to, files nobody can name.
//! * `mirrors`: bad and missing copies of chunks, and having them made again.
//! * `exposing`: pools whose files lie whole in a directory, too.
//! * `tape`: files that are archived, restored and removed from tape, as wished.
//! * `fsck`: compares records with each other and with the objects, and repairs, when asked.
//! * `counts`: how many files there are, and who uses how much.
//! * `dumps`: dumps beside the change log.
//! * `pace`: a bounded rate.
//!
//! Knows no socket and no blob: questions after objects, copies and tape leave through [`Objects`],
//! [`ObjectMender`], [`ExposedObjects`] and [`TapeDriver`].
//!
//! Invariants: everything is done in bounded transactions, and what fails is left for the next
//! round; nothing is deleted that any record or any living session may still name.

mod chore;
mod collector;
mod counts;
mod dumps;
mod error;
mod exposing;
mod fsck;
mod mirrors;
mod pace;
mod settings;
mod tape;
mod tended;

pub use exposing::{ExposedObjects, Exposures, parked};
pub use mirrors::Mirrors;
pub use settings::Settings;
pub use tended::Tended;

use crate::chore::Chore;
use crate::chore::status::Status;
use crate::fsck::Checks;
use crate::pace::Pace;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_kv::Store;
use tieline_ledger::log::Log;
use tieline_types::{GrantedId, MdtIndex, OstIndex, Time};
use tieline_wire::Failure;
use tieline_wire::chores::ListChoresReply;
use tieline_wire::data::{
    ListObjects, ListObjectsReply, ReadObject, ReadObjectReply, StatObject, StatObjectReply,
};
use tieline_wire::ledger::{CheckMdt, CheckMdtReply};
use tieline_wire::mirrors::{FetchChunk, FetchChunkReply, VerifyObject, VerifyObjectReply};
use tieline_wire::tape::{DriveTape, DriveTapeReply};
use tieline_world::World;
use tokio::task::JoinSet;

/// What background work is plugged into.
pub struct Parts {
    pub mdt: Arc<dyn Tended>,
    pub index: MdtIndex,
    pub settings: Settings,
    /// The MDT's store.
    pub store: Arc<dyn Store>,
    pub world: World,
    pub map: MapCell,
    /// The change log that is the store's journal, if it has one.
    pub log: Option<Arc<Log>>,
    pub objects: Arc<dyn Objects>,
    pub mender: Arc<dyn ObjectMender>,
    pub tape: Arc<dyn TapeDriver>,
    /// What the MDT hears of copies goes there.
    pub mirrors: Arc<Mirrors>,
    pub exposed: Arc<dyn ExposedObjects>,
    /// And what it notes of exposed pools.
    pub exposures: Arc<Exposures>,
}

impl Parts {
    fn now(&self) -> Time {
        Time::of_clock(self.world.clock.wall())
    }
}

/// The objects at OSTs.
#[async_trait::async_trait]
pub trait Objects: Send + Sync {
    async fn remove(&self, ost: OstIndex, chunks: Vec<GrantedId>) -> Result<(), Failure>;

    /// Some of an OST's objects, in the order of their chunks.
    async fn list(&self, message: ListObjects) -> Result<ListObjectsReply, Failure>;

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure>;

    /// A range of an object, with its checks.
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure>;
}

/// Has OSSs check objects and make copies.
#[async_trait::async_trait]
pub trait ObjectMender: Send + Sync {
    async fn verify(
        &self,
        message: VerifyObject,
        patience: Duration,
    ) -> Result<VerifyObjectReply, Failure>;

    async fn fetch(
        &self,
        message: FetchChunk,
        patience: Duration,
    ) -> Result<FetchChunkReply, Failure>;
}

/// Has OSSs run the scripts of their sites' HSMs.
#[async_trait::async_trait]
pub trait TapeDriver: Send + Sync {
    async fn drive(
        &self,
        message: DriveTape,
        patience: Duration,
    ) -> Result<DriveTapeReply, Failure>;
}

/// The background work of one MDT.
pub struct Tender {
    parts: Arc<Parts>,
    checks: Checks,
    /// How each chore is, in their order.
    statuses: Vec<Arc<Status>>,
    /// Those that do not run yet.
    chores: Mutex<Vec<Box<dyn Chore>>>,
}

impl Tender {
    pub fn new(parts: Parts) -> Self {
        let parts = Arc::new(parts);
        let chores = chores(&parts);
        let titles = chores.iter().map(|chore| chore.title());
        let status = |(name, unit)| Arc::new(Status::new(parts.index, name, unit));
        let statuses = titles.map(status).collect();
        Self { parts, checks: Checks::default(), statuses, chores: Mutex::new(chores) }
    }

    /// Does what there is to do. Runs until the MDT ends, or it is dropped.
    pub async fn run(&self) {
        let chores =
            std::mem::take(&mut *self.chores.lock().unwrap_or_else(PoisonError::into_inner));
        let mut running = JoinSet::new();
        for (chore, status) in chores.into_iter().zip(&self.statuses) {
            running.spawn(chore::run(self.parts.clone(), chore, status.clone()));
        }
        while let Some(ended) = running.join_next().await {
            if let Err(error) = ended {
                tracing::error!("a chore is not done until this server starts again: {error}");
            }
        }
    }

    /// How a check goes on, for an operator.
    pub async fn check(&self, message: &CheckMdt) -> Result<CheckMdtReply, Failure> {
        self.checks.ask(&self.parts, message).await
    }

    /// How all background work goes on, for an operator.
    pub fn list(&self) -> ListChoresReply {
        let mut chores: Vec<_> = self.statuses.iter().map(|status| status.tell()).collect();
        chores.push(self.checks.tell());
        ListChoresReply { mdt: self.parts.index, now: self.parts.now(), chores }
    }
}

fn chores(parts: &Arc<Parts>) -> Vec<Box<dyn Chore>> {
    let pace = Arc::new(Pace::new(parts.settings.collect_rate));
    let mut chores: Vec<Box<dyn Chore>> = vec![
        Box::new(collector::Sessions::new(parts)),
        Box::new(collector::Nameless::new(parts)),
        Box::new(collector::DeletedFiles::new(parts, &pace)),
        Box::new(collector::LostNames::new(parts, &pace)),
        Box::new(collector::FreedChunks::new(parts, &pace)),
        Box::new(collector::Strays::new(parts, &pace)),
        Box::new(mirrors::Copies::new(parts)),
        Box::new(exposing::Exposing::new(parts)),
        Box::new(tape::Tape::new(parts)),
        Box::new(counts::Usage::new(parts)),
        Box::new(counts::Files::new(parts)),
    ];
    if let Some(log) = &parts.log {
        chores.push(Box::new(dumps::Dumps::new(parts, log)));
    }
    chores
}

#[cfg(test)]
mod fixture;
