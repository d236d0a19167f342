//! Where a file's bytes are: extents over immutable chunks, and the places where chunks lie.
//!
//! Invariants: the extents of a file never overlap and are ordered by offset; what no extent covers
//! is a hole and reads as zeroes; a chunk never changes.

use crate::{ChunkId, OstIndex};
use minicbor::{Decode, Encode};
use std::fmt;

/// BLAKE3 of a whole sealed chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Digest(
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub [u8; 32],
);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// What an object is called at its OST.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Encode, Decode)]
pub enum ObjectName {
    /// An object we made: one chunk, or a pack of chunks named after its first.
    #[n(1)]
    Chunk(#[n(0)] ChunkId),
    /// A file that was there before us, below the OST's adopted tree. If size or time differ from
    /// what is remembered here, it was changed behind us and is not served.
    #[n(2)]
    External {
        #[n(0)]
        path: String,
        #[n(1)]
        size: u64,
        /// Nanoseconds since 1970.
        #[n(2)]
        mtime_ns: i64,
    },
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(chunk) => chunk.fmt(f),
            Self::External { path, .. } => path.fmt(f),
        }
    }
}

/// One place of a chunk: `length` bytes at `offset` of an object, which may be larger than the
/// chunk.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Place {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub object: ObjectName,
    #[n(2)]
    pub offset: u64,
    #[n(3)]
    pub length: u64,
    /// Known to lag behind its mirrors: not read from until it was synced again.
    #[n(4)]
    pub is_stale: bool,
}

impl Place {
    /// Is it an object with the chunk's name, that holds the chunk and nothing else?
    pub fn is_own(&self, chunk: ChunkId) -> bool {
        self.object == ObjectName::Chunk(chunk) && self.offset == 0
    }
}

/// A chunk as readers see it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChunkRef {
    #[n(0)]
    pub chunk: ChunkId,
    /// Bytes of the whole chunk.
    #[n(1)]
    pub length: u64,
    /// Offset within the chunk of the extent's first byte.
    #[n(2)]
    pub skip: u64,
    /// At least one.
    #[n(3)]
    pub places: Vec<Place>,
    #[n(4)]
    pub digest: Option<Digest>,
    /// Adler-32 of the whole chunk.
    #[n(5)]
    pub adler32: Option<u32>,
    /// CRC32C per 4 KiB block, for places whose objects do not carry their own.
    #[n(6)]
    pub checks: Option<Vec<u32>>,
}

/// What an extent holds.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Content {
    /// The bytes themselves, at most 16 KiB.
    #[n(1)]
    Inline(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    #[n(2)]
    Chunk(#[n(0)] ChunkRef),
    /// Nothing: only in a commit, where it cuts a hole.
    #[n(3)]
    Hole,
}

/// `length` bytes of a file from `offset`.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Extent {
    #[n(0)]
    pub offset: u64,
    #[n(1)]
    pub length: u64,
    #[n(2)]
    pub content: Content,
}

/// Why an extent was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    #[error("extent at {offset} with {length} bytes is empty or ends beyond the largest file")]
    Range { offset: u64, length: u64 },
    #[error("extent at {offset} holds {held} inline bytes and says {length}; at most 16 KiB")]
    Inline { offset: u64, length: u64, held: usize },
    #[error("extent at {offset} wants bytes outside chunk {chunk} or its places")]
    Chunk { offset: u64, chunk: ChunkId },
}

impl Extent {
    /// Largest file: what a signed 64-bit offset can name, rounded down to a block.
    pub const FILE_SIZE_MAX: u64 = i64::MAX as u64 - 4095;

    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The part of it that lies in `from..to`.
    pub fn within(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (self.offset.max(from), self.end().min(to));
        if from >= to {
            return None;
        }
        let skip = from - self.offset;
        let content = match &self.content {
            Content::Inline(bytes) => {
                let end = skip + (to - from);
                Content::Inline(bytes.get(skip as usize..end as usize)?.to_vec())
            }
            Content::Chunk(chunk) => {
                let mut chunk = chunk.clone();
                chunk.skip += skip;
                Content::Chunk(chunk)
            }
            Content::Hole => Content::Hole,
        };
        Some(Self { offset: from, length: to - from, content })
    }

    /// Checks an extent that came from outside.
    pub fn validate(&self) -> Result<(), ExtentError> {
        let (offset, length) = (self.offset, self.length);
        let end = offset.checked_add(length).filter(|&end| end <= Self::FILE_SIZE_MAX);
        if length == 0 || end.is_none() {
            return Err(ExtentError::Range { offset, length });
        }
        match &self.content {
            Content::Inline(bytes)
                if bytes.len() as u64 != length
                    || bytes.len() > crate::Layout::INLINE_MAX as usize =>
            {
                Err(ExtentError::Inline { offset, length, held: bytes.len() })
            }
            Content::Chunk(chunk) => {
                let end = chunk.skip.checked_add(length);
                let is_inside = end.is_some_and(|end| end <= chunk.length);
                let is_whole = |place: &Place| place.length == chunk.length;
                if is_inside && !chunk.places.is_empty() && chunk.places.iter().all(is_whole) {
                    Ok(())
                } else {
                    Err(ExtentError::Chunk { offset, chunk: chunk.chunk })
                }
            }
            Content::Inline(_) | Content::Hole => Ok(()),
        }
    }
}
