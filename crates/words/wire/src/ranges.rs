//! Messages between a client and an MDS: extents that move without their bytes.

use crate::bounds::EXTENTS_MAX;
use crate::meta::LeaseGrant;
use minicbor::{Decode, Encode};
use tieline_types::{AtMost, Attributes, ChunkId, Digest, Extent, FileId, SetTime};

/// Makes the chunks of one file's range part of another (or of the same, elsewhere), holes
/// included. Both must have been opened, and what was written to them committed.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CopyRange {
    #[n(0)]
    pub from: FileId,
    #[n(1)]
    pub from_offset: u64,
    #[n(2)]
    pub to: FileId,
    #[n(3)]
    pub to_offset: u64,
    /// What lies beyond the source's end is not copied.
    #[n(4)]
    pub length: u64,
    #[n(5)]
    pub mtime: SetTime,
    /// As in [`crate::meta::Commit`].
    #[n(6)]
    pub clears_setid: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CopyRangeReply {
    /// One call copies a bounded number of extents: ask again for the rest.
    #[n(0)]
    pub copied: u64,
    /// Of the target.
    #[n(1)]
    pub attributes: Attributes,
    #[n(2)]
    pub lease: LeaseGrant,
}

/// Replaces extents by others that hold the same bytes. The file's version and times stay, and
/// nobody is told.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Compact {
    #[n(0)]
    pub id: FileId,
    /// All extents that begin in the range of the first to the last, as they were read; at most
    /// 1,024. If they are not so any more, nothing happens.
    #[n(1)]
    #[cbor(with = "AtMost::<EXTENTS_MAX>")]
    pub was: Vec<SeenExtent>,
    /// They cover the same bytes.
    #[n(2)]
    #[cbor(with = "AtMost::<EXTENTS_MAX>")]
    pub extents: Vec<Extent>,
}

/// What an extent was when it was read.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SeenExtent {
    #[n(0)]
    pub offset: u64,
    #[n(1)]
    pub length: u64,
    #[n(2)]
    pub content: SeenContent,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SeenContent {
    /// BLAKE3 of the bytes.
    #[n(1)]
    Inline(#[n(0)] Digest),
    #[n(2)]
    Chunk {
        #[n(0)]
        chunk: ChunkId,
        #[n(1)]
        skip: u64,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CompactReply {
    /// The extents were as said, and are replaced.
    #[n(0)]
    pub is_done: bool,
}
