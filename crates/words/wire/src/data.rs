//! Messages between whoever holds bytes and an OSS.

use crate::bounds::{CHECKS_MAX, ENTRIES_MAX, OSTS_MAX, XATTRS_MAX};
use crate::meta::Xattr;
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, Digest, FileId, FileKind, Gid, GrantedId, Mode, ObjectName, OstIndex, Time, Uid,
    Version,
};

/// What an object remembers of the file it was written for, so that a lost MDT can be rebuilt.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ObjectOwner {
    #[n(0)]
    pub file: FileId,
    /// Offset in the file of the chunk's first byte, or [`ObjectOwner::SCATTERED`].
    #[n(1)]
    pub offset: u64,
    /// The file's version that the writer started from.
    #[n(2)]
    pub version: Version,
    /// Path within the file system when it was written; may be out of date.
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub path: Vec<u8>,
}

impl ObjectOwner {
    /// No file has bytes there: the chunk's lie in several places of its file, with gaps between
    /// them, and only extents say where.
    pub const SCATTERED: u64 = u64::MAX;
}

/// Writes a whole chunk, which is the frame's bulk. The same chunk with the same bytes may be put
/// again.
///
/// When it is answered the chunk survives the OSS process; after [`SyncFile`] also the machine.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PutChunk {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub chunk: GrantedId,
    #[n(2)]
    pub owner: ObjectOwner,
    /// CRC32C per 4 KiB block of the bulk.
    #[n(3)]
    #[cbor(with = "AtMost::<CHECKS_MAX>")]
    pub checks: Vec<u32>,
    /// A [`crate::capability::SignedCapability`], unless the connection's flavor is null.
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
    /// So much of the room that was granted to the client is this chunk's. Of a put that is refused
    /// it is the client's again, and one that is repeated takes none anew.
    #[n(5)]
    pub room: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PutChunkReply {}

/// Asks that room be kept for chunks that will come: the client answers for their bytes before they
/// are there. What is granted is kept for [`GrantRoom::KEPT_SECONDS`] after the client last asked
/// or put, over all its connections; another boot of the server knows nothing of it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GrantRoom {
    #[n(0)]
    pub ost: OstIndex,
    /// The client has no more than this: the rest is given back. `None`: it does not know, and is
    /// told all that it has as if it were new.
    #[n(1)]
    pub held: Option<u64>,
    /// Beyond that. 0: only gives back, and says that it is there.
    #[n(2)]
    pub wanted: u64,
}

impl GrantRoom {
    pub const KEPT_SECONDS: u64 = 300;

    /// What a chunk of `length` bytes takes of room where objects take up whole units: its bytes,
    /// their checks (4 bytes for each 4 KiB) and tree (32 for each 16 KiB), what it says of its
    /// file, and its name.
    pub fn cost(length: u64, unit: u64) -> u64 {
        const LABEL: u64 = 8 << 10;
        let unit = unit.clamp(1, 64 << 10);
        let object = length.saturating_add(length / 1024 + length / 512).saturating_add(LABEL);
        object.div_ceil(unit).saturating_mul(unit).saturating_add(unit)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GrantRoomReply {
    /// In addition.
    #[n(0)]
    pub granted: u64,
    /// See [`GrantRoom::cost`].
    #[n(1)]
    pub unit: u64,
    /// Bytes that the OST can still take from anybody: emptier ones are chosen more often.
    #[n(2)]
    pub bytes_free: u64,
}

/// Reads a range of an object. The OSS widens it to whole blocks, so that it can be verified.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadObject {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub object: ObjectName,
    #[n(2)]
    pub offset: u64,
    /// At most 64 MiB.
    #[n(3)]
    pub length: u32,
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
    /// The asker has the BLAKE3 of this range, which holds what is read, and wants it proven.
    #[n(5)]
    pub hashed: Option<Hashed>,
}

/// A range of an object whose BLAKE3 somebody has: all of an object of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Hashed {
    #[n(0)]
    pub offset: u64,
    /// At most 64 MiB.
    #[n(1)]
    pub length: u64,
}

/// The bytes are the frame's bulk.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadObjectReply {
    /// Where the bulk starts in the object: a multiple of 4 KiB, at or before what was asked.
    #[n(0)]
    pub offset: u64,
    /// CRC32C per 4 KiB block of the bulk.
    #[n(1)]
    #[cbor(with = "AtMost::<CHECKS_MAX>")]
    pub checks: Vec<u32>,
    /// Bytes of the whole object.
    #[n(2)]
    pub object_length: u64,
    /// What shows that the bulk is of the range whose BLAKE3 the asker has, if he has it: the
    /// values of the subtrees beside it ([`tieline_types::tree`]).
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub proof: Option<Vec<u8>>,
}

/// Makes all chunks of a file on this OST survive a power failure.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SyncFile {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub file: FileId,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SyncFileReply {
    /// Objects that were not durable before.
    #[n(0)]
    pub synced: u32,
}

/// Deletes chunks. Only the MDS of the chunk's MDT may ask; absent chunks are no error.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DeleteChunks {
    #[n(0)]
    pub ost: OstIndex,
    /// At most 4,096.
    #[n(1)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub chunks: Vec<GrantedId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DeleteChunksReply {
    #[n(0)]
    pub deleted: u32,
}

/// How the OSTs of this OSS are.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OstStatus {}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OstStatusReply {
    #[n(0)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub osts: Vec<OstState>,
}

/// One OST as its OSS sees it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OstState {
    #[n(0)]
    pub ost: OstIndex,
    /// Bytes the backend has in all, and those a writer may still use.
    #[n(1)]
    pub bytes_total: u64,
    #[n(2)]
    pub bytes_free: u64,
    /// Objects the backend can hold in all, and those it can still take.
    #[n(3)]
    pub objects_total: u64,
    #[n(4)]
    pub objects_free: u64,
    /// Why it takes no chunks now, for people.
    #[n(5)]
    pub trouble: Option<String>,
    /// Its site made it read-only: that no byte is free does not mean that it is full.
    #[n(6)]
    pub is_read_only: Option<bool>,
    /// The realms whose clients its site lets use it; `None`: all.
    #[n(7)]
    #[cbor(with = "AtMost::<1024>")]
    pub realms: Option<Vec<String>>,
}

/// Asks for bytes that mean nothing, as the reply's bulk: a connection that has carried some knows
/// how much its way holds, before anybody waits for what it brings.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Fill {
    /// At most [`Fill::LENGTH_MAX`].
    #[n(0)]
    pub length: u32,
}

impl Fill {
    pub const LENGTH_MAX: u32 = 256 << 10;
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FillReply {}

/// Looks at one object without reading it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StatObject {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub chunk: GrantedId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StatObjectReply {
    #[n(0)]
    pub length: u64,
    #[n(1)]
    pub owner: ObjectOwner,
    /// CRC32C over the object's block checks, as a short name of its content.
    #[n(2)]
    pub check: u32,
}

/// Lists objects in the order of their chunk ids.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListObjects {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub after: Option<GrantedId>,
    /// At most 4,096.
    #[n(2)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListObjectsReply {
    #[n(0)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub chunks: Vec<GrantedId>,
    #[n(1)]
    pub is_end: bool,
    /// What lies where only objects should: at most 256, each in the reply that comes by it first.
    #[n(2)]
    #[cbor(with = "AtMost::<256>")]
    pub foreign: Option<Vec<ForeignName>>,
}

/// What is no object, in an OST's directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ForeignName {
    /// Below that.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub path: Vec<u8>,
    #[n(1)]
    pub kind: FileKind,
}

/// Lists a directory of an OST's adopted tree, in the order of the names' bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListAdopted {
    #[n(0)]
    pub ost: OstIndex,
    /// Below the tree, or absolute and in it.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub directory: Vec<u8>,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub after: Option<Vec<u8>>,
    /// At most 4,096.
    #[n(3)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListAdoptedReply {
    /// The tree's own path at the OSS.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub root: Vec<u8>,
    /// The directory, below the tree.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub directory: Vec<u8>,
    /// What the directory itself is.
    #[n(2)]
    pub own: AdoptedEntry,
    #[n(3)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub entries: Vec<AdoptedEntry>,
    #[n(4)]
    pub is_end: bool,
}

/// A file that was there before us.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AdoptedEntry {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub name: Vec<u8>,
    #[n(1)]
    pub kind: FileKind,
    #[n(2)]
    pub mode: Mode,
    #[n(3)]
    pub uid: Uid,
    #[n(4)]
    pub gid: Gid,
    #[n(5)]
    pub size: u64,
    #[n(6)]
    pub mtime: Time,
    /// Of a symlink.
    #[n(7)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Option<Vec<u8>>,
    /// Of a regular file or directory, those below `user.`.
    #[n(8)]
    #[cbor(with = "AtMost::<XATTRS_MAX>")]
    pub xattrs: Vec<Xattr>,
}

/// Reads a range of an adopted file and tells its checksums.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChecksumAdopted {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub object: ObjectName,
    /// A multiple of 4 KiB.
    #[n(2)]
    pub offset: u64,
    /// At most 64 MiB.
    #[n(3)]
    pub length: u32,
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChecksumAdoptedReply {
    /// CRC32C per 4 KiB block of the range.
    #[n(0)]
    #[cbor(with = "AtMost::<CHECKS_MAX>")]
    pub checks: Vec<u32>,
    #[n(1)]
    pub adler32: u32,
    #[n(2)]
    pub digest: Digest,
}
