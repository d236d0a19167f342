//! The seam: where ranges of chunks come from.

use crate::Whose;
use bytes::Bytes;
use std::ops::Range;
use tieline_servers::Error;
use tieline_types::{ChunkRef, Encoding, ErrorKind};
use tokio::time::Instant;

/// Somewhere chunks lie.
#[async_trait::async_trait]
pub trait Source: Send + Sync {
    /// Short, for logs and metrics.
    fn name(&self) -> &'static str;

    /// What it has of the ranges that are wanted, or wider; in any order, and nothing at all if it
    /// has none of them. A fault says that nobody else is to be asked: what it waited for, the
    /// next would wait for again.
    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault>;

    /// Takes judged bytes that came from further away. It may keep them, sooner or later.
    fn keep(&self, _chunk: &ChunkRef, _piece: &Piece) {}
}

/// Ranges of one chunk that are wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    pub chunk: ChunkRef,
    /// In order, apart from each other, none empty.
    pub ranges: Vec<Range<u64>>,
    pub whose: Whose,
    /// Nobody waits beyond. `None`: from when a server is asked, as long as servers are waited for.
    pub until: Option<Instant>,
}

/// Bytes of a chunk.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where in the chunk they begin.
    pub offset: u64,
    pub bytes: Bytes,
    pub proof: Proof,
    /// Sources above may want to keep it: it came from far, and nobody offered it to them yet.
    pub is_news: bool,
}

/// What shows that bytes are those that the metadata speaks of: it comes with them, and is judged
/// before they go on ([`judge`](crate::judge)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// They were judged when they came here.
    Judged,
    /// The metadata has no digest of their chunk. They agree with the checks that it keeps, if it
    /// does, and with those that came with them: that finds damage, and no lie.
    Checks,
    /// They are all of the chunk, encoded so: its digest says.
    Whole(Encoding),
}

impl Piece {
    /// Bytes that came from far.
    pub fn new(offset: u64, bytes: Bytes, proof: Proof) -> Self {
        Self { offset, bytes, proof, is_news: true }
    }

    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// Why bytes did not come: what all who wait for them are told.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: ErrorKind,
    pub what: String,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            ErrorKind::Corrupt => Self::Corrupt { what: fault.what },
            kind => Self::local(kind, fault.what),
        }
    }
}

/// Bytes of a chunk from an offset, at least those that were asked.
pub type Outcome = Result<(u64, Bytes), Fault>;

/// Whoever was to bring it is gone.
pub(crate) fn lost() -> Fault {
    Fault { kind: ErrorKind::Cancelled, what: "fetch of a chunk".to_owned() }
}
