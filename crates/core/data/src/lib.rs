//! The chunk service of an OSS: puts, reads, syncs and deletions on its OSTs.
//!
//! * [`service`]: dispatches requests to targets.
//! * [`target`]: one OST: its store, its local limits, which of its objects are not durable yet.
//!
//! Believes nobody about bytes: what is put is verified against its checks before it is stored. Knows no socket and no file
//! system namespace.
//!
//! Invariants: an answered put survives this process; after a sync also the machine; the site's own limits come before
//! anybody's wishes.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tieline_blob::ChunkStore;
use tieline_types::OstIndex;
use tieline_wire::data::OstState;
use tieline_wire::{Failure, Request};
use tieline_world::Bulk;

/// The OSTs of one OSS. All methods may be called from many tasks.
pub struct ChunkService {}

/// What a site allows, whatever any MDS wishes.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Bytes of the backend that are never filled.
    pub reserve: u64,
    pub is_read_only: bool,
}

/// One OST to be served.
pub struct TargetParts {
    pub store: Arc<dyn ChunkStore>,
    pub limits: Limits,
}

impl ChunkService {
    pub fn new(_targets: BTreeMap<OstIndex, TargetParts>) -> Arc<Self> {
        todo!("data room")
    }

    /// Answers one chunk request: the encoded reply, and the bytes beside it.
    pub async fn call(&self, _request: Request, _bulk: Bytes) -> Result<(Vec<u8>, Bulk), Failure> {
        todo!("data room")
    }

    /// How each OST is now.
    pub async fn states(&self) -> Vec<OstState> {
        todo!("data room")
    }
}
