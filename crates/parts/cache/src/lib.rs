//! Chunks kept in a directory: of one node, and of all nodes of a site.
//!
//! * [`NodeCache`]: blocks of chunks on a local disk, in use by one mount. Exact readers keep what
//!   they read, and no more; a chunk that is whole is compared with its digest.
//! * [`SiteCache`]: whole chunks on storage that many nodes share, named by their digests. One node
//!   fetches a chunk, the others wait for it ([`claims`]); one of them cleans up ([`cleaner`]).
//! * [`Storage`]: what a shared directory can do at least; [`AwkwardStorage`] can less.
//! * [`survey`]: what operators ask of either directory while it is in use.
//! * [`pins`]: chunks that stay.
//!
//! Knows chunk ids, lengths, digests and paths; no network, no MDS, no client. docs/formats.md says
//! what a directory looks like.
//!
//! Invariants: no byte is handed on that was not compared with its check here, and none from a
//! shared directory whose chunk was not compared whole with its digest; a cache that fails costs
//! time and no reader; all of a directory may go at any moment; every wait ends.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod awkward;
mod claims;
mod cleaner;
pub mod found;
mod marker;
mod node;
pub mod pins;
mod site;
mod storage;
pub mod survey;
mod trouble;

pub use awkward::{Awkward, AwkwardStorage};
pub use marker::Kind;
pub use node::{NodeCache, NodeSettings, forget_unused};
pub use site::{Claim, Looked, SiteCache, SiteSettings, exposure};
pub use storage::{LocalStorage, Space, Stat, Storage};

use bytes::Bytes;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{ChunkId, ChunkRef, Digest, Encoding, ErrorKind};

/// What a cache has to know of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub chunk: ChunkId,
    /// Bytes of the whole chunk.
    pub length: u64,
    /// Of its plain bytes.
    pub digest: Option<Digest>,
}

impl Known {
    pub fn new(chunk: ChunkId, length: u64, digest: Option<Digest>) -> Self {
        let digest = match chunk {
            ChunkId::Granted(_) => digest,
            ChunkId::Content(digest) => Some(digest),
        };
        let digest = digest.filter(|digest| digest.covers() == Encoding::Plain);
        Self { chunk, length, digest }
    }
}

impl From<&ChunkRef> for Known {
    fn from(chunk: &ChunkRef) -> Self {
        Self::new(chunk.chunk, chunk.length, chunk.digest)
    }
}

/// Why a directory cannot be a cache.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} cannot be used as a cache: {reason}")]
    Unfit { path: PathBuf, reason: String },
    #[error("another mount uses the cache {path}: give each mount a directory of its own")]
    InUse { path: PathBuf },
    #[error("cannot {doing} the cache {path}")]
    Failed { path: PathBuf, doing: &'static str, source: io::Error },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unfit { .. } => ErrorKind::InvalidArgument,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::Failed { .. } => ErrorKind::StorageFault,
        }
    }
}

/// Do the bytes of a whole chunk, in parts, have its digest?
fn is_whole_in_parts(parts: &[(u64, Bytes)], digest: &Digest) -> bool {
    digest.is_of_parts(parts.iter().map(|(_, part)| &part[..]))
}

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
