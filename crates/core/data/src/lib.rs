//! The chunk service of an OSS: puts, reads, syncs and deletions on its OSTs.
//!
//! * [`service`]: dispatches requests to targets.
//! * [`rights`]: who may do what: the capabilities that are shown.
//! * [`proofs`]: what shows readers that bytes are of the chunk whose digest they have.
//! * [`copies`]: objects looked at where they lie, and fetched from other OSTs.
//! * [`target`]: one OST: its store and its local limits.
//! * [`room`]: what is free of it, and promised to whom.
//! * [`site`]: those limits: how much is filled, and for whom.
//! * [`adopted`]: files that were there before us: listed, read, their checksums told.
//! * [`exposing`]: whole files under their names, in a directory of an exposed pool.
//! * [`tape`]: files put together for a site's HSM, and chunks made of what it brings back.
//! * [`volatile`]: which of its objects are not durable yet, and which never became so.
//!
//! Believes capabilities, not clients. Believes nobody about bytes: what is put is verified against
//! its checks before it is stored. Knows no socket and no file system namespace.
//!
//! Invariants: an answered put survives this process; after a sync also the machine; the site's own
//! limits come before anybody's wishes.

mod adopted;
mod copies;
mod exposing;
mod proofs;
mod rights;
mod room;
mod service;
mod site;
mod tape;
mod target;
mod volatile;

pub use copies::ObjectSource;
pub use exposing::{ExposedAt, Owners};
pub use rights::Rights;
pub use service::{ChunkService, fill};
pub use site::Limits;
pub use tape::TapeService;

use std::sync::Arc;
use tieline_blob::{AdoptedTree, ChunkStore};

/// One OST to be served.
pub struct TargetParts {
    pub store: Arc<dyn ChunkStore>,
    pub limits: Limits,
    /// Files that were there before us.
    pub adopted: Option<Arc<AdoptedTree>>,
}

#[cfg(test)]
mod tests;
