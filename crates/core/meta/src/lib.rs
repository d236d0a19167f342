//! The namespace of one MDT: operations, leases, sessions, placement, and the freeing of chunks.
//!
//! A request comes in with its session and number; a reply goes out. In between ([`service`]): the operation (`ops/`, one per
//! file) reads and writes a transaction and says what it touches; leases of others on that are recalled; the transaction
//! commits with the answer beside its effects; the reply waits until it is durable.
//!
//! * `ops/`: one namespace operation per file, each a pure function over a [`view::View`] of a transaction.
//! * [`leases`]: who may believe what for how long.
//! * [`sessions`]: clients, their grants, their stored answers.
//! * [`placement`]: which OSTs a file's chunks go round.
//! * [`collector`]: deletes chunks nobody refers to, and files nobody can name.
//! * [`federation`]: changes of the federation map, as pure functions.
//!
//! Knows no socket and no blob: recalls and deletions leave through [`Recaller`] and [`ObjectRemover`].
//!
//! Invariants: an answer is given only after the commit that holds its effects is durable; one numbered request takes effect
//! once; nobody sees a change before everybody who could believe the contrary has been told or their lease has run out.

use std::sync::Arc;
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_kv::Store;
use tieline_types::{
    Caller, ChunkId, ClientId, ErrorKind, Grant, MdtIndex, OstIndex, RequestNumber, SessionId,
};
use tieline_wire::data::OstState;
use tieline_wire::notice::Recall;
use tieline_wire::{Failure, NoticeAnswer, Request};
use tieline_world::World;

/// One served MDT. All methods may be called from many tasks.
pub struct Mdt {}

/// What an MDT is plugged into.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub world: World,
    pub map: MapCell,
    pub recaller: Arc<dyn Recaller>,
    pub remover: Arc<dyn ObjectRemover>,
}

/// What an operator says.
#[derive(Clone, Debug)]
pub struct Settings {
    pub mdt: MdtIndex,
    pub lease: Duration,
    /// A session that is silent this long is ended when its leases are in somebody's way, or after ten times as long.
    pub session_keep: Duration,
    /// How long freed chunks stay readable.
    pub freed_keep: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mdt: MdtIndex(0),
            lease: Duration::from_secs(20),
            session_keep: Duration::from_secs(60),
            freed_keep: Duration::from_secs(60),
        }
    }
}

/// Takes leases back, over whatever connection the session has.
#[async_trait::async_trait]
pub trait Recaller: Send + Sync {
    /// `None`: no answer within `patience`, or not connected (an early `None` does not end the lease).
    async fn recall(
        &self,
        session: SessionId,
        recall: Recall,
        patience: Duration,
    ) -> Option<NoticeAnswer>;
}

/// Deletes chunks at OSTs.
#[async_trait::async_trait]
pub trait ObjectRemover: Send + Sync {
    async fn remove(&self, ost: OstIndex, chunks: Vec<ChunkId>) -> Result<(), Failure>;
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Asker {
    pub session: SessionId,
    pub number: RequestNumber,
    pub caller: Caller,
    /// Stored answers below this number are not needed any more.
    pub answered_below: RequestNumber,
}

/// A session, opened or resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    pub session: SessionId,
    pub grant: Grant,
    pub is_resumed: bool,
    pub boot: u64,
    pub lease: Duration,
}

/// Why an MDT does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("store {store} belongs to {found}, the settings say {wanted}")]
    OtherMdt { store: String, found: String, wanted: String },
    #[error("store {store} needs features {features:#x} that this build lacks: use a newer build")]
    Features { store: String, features: u64 },
    #[error("store {store} cannot be read")]
    Record { store: String, source: tieline_format::RecordError },
    #[error("store {store} failed")]
    Store { store: String, source: tieline_kv::Error },
}

impl Mdt {
    /// Opens the store, or makes a new MDT with a root directory in an empty one.
    pub async fn start(_parts: Parts, _settings: Settings) -> Result<Arc<Self>, StartError> {
        todo!("meta room")
    }

    /// Opens a session, or resumes the one the client names.
    pub async fn open_session(
        &self,
        _client: ClientId,
        _session: Option<SessionId>,
        _description: &str,
    ) -> Result<Opened, Failure> {
        todo!("meta room")
    }

    /// A frame came from the session: its leases are good for as long again.
    pub fn heard(&self, _session: SessionId) {
        todo!("meta room")
    }

    /// The session's connection is gone. Its leases run on until they expire.
    pub fn disconnected(&self, _session: SessionId) {
        todo!("meta room")
    }

    /// The session is over: leases, answers and orphans are given back.
    pub async fn end_session(&self, _session: SessionId) -> Result<(), Failure> {
        todo!("meta room")
    }

    /// Answers one namespace request with the encoded reply. Requests of other rooms are refused.
    pub async fn call(&self, _asker: &Asker, _request: Request) -> Result<Vec<u8>, Failure> {
        todo!("meta room")
    }

    /// What an OSS said of its OSTs just now; placement and `Usage` use it for a minute.
    pub fn observe(&self, _states: Vec<OstState>) {
        todo!("meta room")
    }

    /// Background work: ends dead sessions, deletes freed chunks. Runs until dropped.
    pub async fn run(self: Arc<Self>) {
        todo!("meta room")
    }

    /// For `/health`: why this MDT cannot serve, if so.
    pub fn trouble(&self) -> Option<(ErrorKind, String)> {
        todo!("meta room")
    }
}
