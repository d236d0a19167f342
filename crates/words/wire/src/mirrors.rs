//! Messages about copies of chunks: what a client tells its MDS, what an operator asks for, and
//! what an MDS has its OSSs do.

use crate::bounds::{OSTS_MAX, PAGE_MAX};
use crate::data::ObjectOwner;
use crate::meta::LeaseGrant;
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, Attributes, ChunkRef, Digest, FileId, GrantedId, ObjectName, OstIndex, OstPlace,
    PoolName,
};

/// A place gave bytes that do not match their checks, or has lost them. Believed only after the
/// OSS has looked: a report takes no place away.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReportPlace {
    #[n(0)]
    pub chunk: GrantedId,
    #[n(1)]
    pub ost: OstIndex,
    /// For people.
    #[n(2)]
    pub what: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReportPlaceReply {}

/// Gives a file more mirrors than it has. Its chunks are copied in the background.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExtendMirrors {
    #[n(0)]
    pub id: FileId,
    /// How many more.
    #[n(1)]
    pub count: u8,
    /// Where the new ones shall be; `None`: where the file is now.
    #[n(2)]
    pub pool: Option<PoolName>,
}

/// Takes one copy of each chunk away from a file, a page of extents at a time, from offset 0 on;
/// with the last page the layout has one mirror less. Refused where no whole copy would be left.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SplitMirror {
    #[n(0)]
    pub id: FileId,
    /// How many mirrors the file has, as far as the asker knows: if others, nothing happens.
    #[n(1)]
    pub mirrors: u8,
    /// Which one goes, counted from 0.
    #[n(2)]
    pub mirror: u8,
    /// Only copies on these OSTs.
    #[n(3)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub within: Option<Vec<OstIndex>>,
    /// Extents that end after this offset.
    #[n(4)]
    pub offset: u64,
    /// At most 1,024.
    #[n(5)]
    pub limit: u32,
    /// Nothing is changed: only say what would go.
    #[n(6)]
    pub is_look: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SplitMirrorReply {
    /// As in [`crate::meta::ExtentPage`].
    #[n(0)]
    pub covered: u64,
    /// It was the last page.
    #[n(1)]
    pub is_done: bool,
    /// Copies that go.
    #[n(2)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub gone: Vec<GoneCopy>,
    /// Chunks that keep all their copies, since other files have them too.
    #[n(3)]
    pub shared: u32,
    #[n(4)]
    pub attributes: Attributes,
    #[n(5)]
    pub lease: LeaseGrant,
}

/// A copy that a file gives up.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GoneCopy {
    /// Of the extent in the file.
    #[n(0)]
    pub offset: u64,
    /// With the places that stay.
    #[n(1)]
    pub chunk: ChunkRef,
    #[n(2)]
    pub ost: OstIndex,
}

/// Has missing copies of a page of extents made before others, and tells which are missing still.
/// May be asked again until none is.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ResyncFile {
    #[n(0)]
    pub id: FileId,
    /// Extents that end after this offset.
    #[n(1)]
    pub offset: u64,
    /// At most 1,024.
    #[n(2)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ResyncFileReply {
    /// As in [`crate::meta::ExtentPage`].
    #[n(0)]
    pub covered: u64,
    /// Chunks of the page, and those that lack copies.
    #[n(1)]
    pub chunks: u32,
    #[n(2)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub lacking: Vec<LackingChunk>,
}

/// A chunk without all the copies it shall have.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LackingChunk {
    /// Of the extent in the file.
    #[n(0)]
    pub offset: u64,
    #[n(1)]
    pub chunk: GrantedId,
    #[n(2)]
    pub length: u64,
    /// How many copies it lacks.
    #[n(3)]
    pub copies: u32,
    /// The last attempt to make one failed: where, and why.
    #[n(4)]
    pub trouble: Option<Trouble>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Trouble {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub reason: String,
}

/// Makes an OST hold a good copy of a chunk, fetched from another. Only another server may ask.
///
/// What is there already is kept if it is whole and matches; else it is replaced in one step. When
/// it is answered the copy survives the machine.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FetchChunk {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub chunk: GrantedId,
    #[n(2)]
    pub length: u64,
    /// What the whole chunk must match, if that is known.
    #[n(3)]
    pub digest: Option<Digest>,
    /// Places to fetch it from, in this order.
    #[n(4)]
    #[cbor(with = "AtMost::<{ ChunkRef::PLACES_MAX }>")]
    pub from: Vec<OstPlace>,
    /// For the new object, if its source does not tell.
    #[n(5)]
    pub owner: ObjectOwner,
    /// For the OSS to show where it fetches: it may read nothing by itself.
    #[n(6)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FetchChunkReply {
    /// It was fetched: no good copy was there.
    #[n(0)]
    pub is_fetched: bool,
    /// OSTs of `from` whose copy is damaged or gone.
    #[n(1)]
    #[cbor(with = "AtMost::<{ ChunkRef::PLACES_MAX }>")]
    pub bad: Vec<OstIndex>,
}

/// Reads a range of an object where it lies, and checks it: the bytes do not travel.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct VerifyObject {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub object: ObjectName,
    #[n(2)]
    pub offset: u64,
    /// At most 64 MiB.
    #[n(3)]
    pub length: u64,
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct VerifyObjectReply {
    /// Of the range as it is now.
    #[n(0)]
    pub digest: Digest,
    /// Blocks of it that do not match their CRC32C.
    #[n(1)]
    pub bad_blocks: u32,
    /// Offset in the object of the first of them.
    #[n(2)]
    pub first_bad: Option<u64>,
    /// Bytes found: fewer than asked if the object is too short.
    #[n(3)]
    pub length: u64,
}
