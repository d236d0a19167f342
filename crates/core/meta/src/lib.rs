//! The namespace of one MDT: operations, leases, sessions, placement, and the freeing of chunks.
//!
//! A request comes in with its session and number; a reply goes out. In between (`service`): the
//! operation (`ops/`, one per file) reads and writes a transaction and says what it touches; leases
//! of others on that are recalled; the transaction commits with the answer beside its effects; the
//! reply waits until it is durable.
//!
//! What sees all of an MDT is [`Mdt`], its fields and its methods, in `mdt/`: each file there is
//! one thing that needs the whole. Everything else is a table, or a decision, that knows no MDT.
//!
//! * `ops/`: one namespace operation per file, each a function over a `view::View` of a
//!   transaction.
//! * `names`, `permission`: what operations on names do alike, and who may do what.
//! * `delegation`, `made`: who acts for another, and what of the tree he may touch.
//! * `walked`: which ids a session may be told of.
//! * `chunks`: the records of extents in the store (their arithmetic: `tieline_ranges::stored`).
//! * `mirrors`: noting copies of chunks that are missing.
//! * `exposed`: noting what is changed of pools whose files lie in a directory, too.
//! * `tape`: which HSM has a file, and what becomes of its copy there.
//! * `background`: changes that no client asked for.
//! * `leases`: who may believe what for how long (who has files open and writes them:
//!   `tieline_sessions`).
//! * `locks`: advisory locks, and who waits for them.
//! * `sessions`, `serials`: clients, their grants, their stored answers; numbers that are given out
//!   once.
//! * `placement`: which OSTs a file's chunks go round.
//! * `quotas`: who uses how much, and who may use more.
//! * `room`: how much the store's disk has.
//! * [`identities`]: who principals are, in the store.
//!
//! Of an MDT as a whole (`mdt/`):
//!
//! * `service`: a request from asking to answer; `recall`, `writers`: asking others first;
//!   `entitled`: who may hold which lease.
//! * `trees`: whole directories and trees of them, in bulk.
//! * `capabilities`: what clients show to OSSs.
//! * `quotas`: limits with clients and other MDTs.
//! * `mirrors`, `junctions`, `identities`, `room`, `exposed`: what is told and asked of each.
//! * `tended`: what background work needs.
//!
//! Knows no socket, no blob and no object: recalls, questions after limits, what is heard of bad
//! copies and what is to be taken away leave through [`Recaller`], [`LimitsKeeper`],
//! [`CopyMender`] and [`Exposer`]. What goes on in the
//! background is somebody else's to begin.
//!
//! Invariants: an answer is given only after the commit that holds its effects is durable; one
//! numbered request takes effect once; nobody sees a change before everybody who could believe the
//! contrary has been told or their lease has run out.

mod background;
mod chunks;
mod delegation;
mod error;
mod exposed;
mod identities;
mod leases;
mod locks;
mod made;
mod mdt;
mod mirrors;
mod names;
mod ops;
mod permission;
mod placement;
mod quotas;
mod room;
mod serials;
mod sessions;
mod settings;
mod tape;
mod view;
mod walked;

pub use delegation::Delegation;
pub use error::Error;
pub use mdt::{Mdt, check_store};
pub use room::StoreRoom;
pub use settings::Settings;

use std::sync::Arc;
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_kv::Store;
use tieline_ledger::log::Log;
use tieline_types::{
    Caller, FileId, Grant, GrantedId, LostLock, OstIndex, PoolName, RequestNumber, SessionId,
};
use tieline_wire::mirrors::Trouble;
use tieline_wire::notice::Recall;
use tieline_wire::quotas::{QuotaNews, QuotaNewsReply, QuotaShares, QuotaSharesReply};
use tieline_wire::{Failure, NoticeAnswer};
use tieline_world::World;

/// What an MDT is plugged into.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub world: World,
    pub map: MapCell,
    pub recaller: Arc<dyn Recaller>,
    pub copies: Arc<dyn CopyMender>,
    pub exposer: Arc<dyn Exposer>,
    pub limits: Arc<dyn LimitsKeeper>,
    /// The change log that is the store's journal, if it has one.
    pub log: Option<Arc<Log>>,
}

/// Takes leases and idle locks back, over whatever connection the session has.
#[async_trait::async_trait]
pub trait Recaller: Send + Sync {
    /// `None`: no answer within `patience`, or not connected (an early `None` does not end the
    /// lease).
    async fn recall(
        &self,
        session: SessionId,
        recall: Recall,
        patience: Duration,
    ) -> Option<NoticeAnswer>;

    /// Has a session free its idle locks on a file. Says whether it answered within `patience`.
    async fn free_locks(&self, session: SessionId, file: FileId, patience: Duration) -> bool;

    /// Ends the connection of a session, if it has one: what a welcome tells its client must know
    /// before it goes on.
    fn hang_up(&self, session: SessionId);
}

/// Has bad and missing copies of chunks made again.
pub trait CopyMender: Send + Sync {
    /// Somebody found a place bad.
    fn suspect(&self, chunk: GrantedId, ost: OstIndex);

    /// Somebody waits for the copies that a chunk of this file lacks. Says what was in the way when
    /// it was tried.
    fn hurry(&self, chunk: GrantedId, file: FileId) -> Option<Trouble>;
}

/// Looks after pools whose files lie whole in a directory, too.
#[async_trait::async_trait]
pub trait Exposer: Send + Sync {
    /// Files of a pool were changed and noted.
    fn noted(&self, pool: &PoolName);

    /// Takes files away that are about to have other bytes, or to lose a name to another. Done when
    /// none of them lies there any more.
    async fn take_away(&self, pool: &PoolName, files: Vec<FileId>) -> Result<(), Failure>;
}

/// The MDT that keeps the limits of quotas, as the others reach it.
#[async_trait::async_trait]
pub trait LimitsKeeper: Send + Sync {
    async fn shares(
        &self,
        message: QuotaShares,
        patience: Duration,
    ) -> Result<QuotaSharesReply, Failure>;

    async fn news(&self, message: QuotaNews, patience: Duration)
    -> Result<QuotaNewsReply, Failure>;
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Asker {
    pub session: SessionId,
    pub number: RequestNumber,
    pub caller: Caller,
    /// The caller is spoken for by a door.
    pub delegation: Option<Arc<Delegation>>,
    /// The connection's machine may ask as root, too: it is told of whatever it names.
    pub may_be_root: bool,
    /// Of a batch: those of its items' callers.
    pub of_items: Vec<Option<Arc<Delegation>>>,
    /// Stored answers below this number are not needed any more.
    pub answered_below: RequestNumber,
}

/// What a client says of itself, and what is seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Coming<'a> {
    pub description: &'a str,
    /// Who it proved to be, and from which machine it comes.
    pub host: &'a str,
    /// Who it proved to be; the machine alone if nothing was proven. What one has is bounded.
    pub party: &'a str,
    /// How long it waits for us, if it says so.
    pub wait: Option<Duration>,
}

/// A session, opened or resumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    pub session: SessionId,
    pub grant: Grant,
    pub is_resumed: bool,
    pub boot: u64,
    pub lease: Duration,
    /// Locks that it lost unheard.
    pub lost_locks: Vec<LostLock>,
}

/// Why an MDT does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("store {store} belongs to {found}, the settings say {wanted}")]
    OtherMdt { store: String, found: String, wanted: String },
    #[error("store {store} needs features {features:#x} that this build lacks: use a newer build")]
    Features { store: String, features: u64 },
    #[error(
        "store {store} has no superblock and is not empty: a restore did not end; move the store \
         away and restore again"
    )]
    Unfinished { store: String },
    #[error("store {store} cannot be read")]
    Record { store: String, source: tieline_format::RecordError },
    #[error("store {store} failed")]
    Store { store: String, source: tieline_kv::Error },
}

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
