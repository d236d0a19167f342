//! Messages between a client and an MDS: the namespace.
//!
//! Requests name files by id, never by path. Every reply that tells something cacheable carries a
//! [`LeaseGrant`].

use crate::Failure;
use crate::bounds::{
    CHECKS_MAX, ENTRIES_MAX, EXTENTS_MAX, NAMES_MAX, OSTS_MAX, PAGE_MAX, UNITS_MAX, XATTRS_MAX,
};
use crate::capability::CapabilityGrant;
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, Attributes, Caller, Digest, Extent, FileId, FileKind, Gid, GrantedId, Layout, MdtIndex,
    Mode, Name, OstIndex, PoolName, RenameMode, SetTime, SiteName, Time, Uid, Version, XattrMode,
    XattrName,
};

/// How long what a reply says may be believed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct LeaseGrant {
    /// The version of the MDT that was read.
    #[n(0)]
    pub as_of: Version,
    /// Lease units held from now on (see [`crate::notice::Recall::unit`]); what lies under others
    /// is good once.
    #[n(1)]
    #[cbor(with = "AtMost::<UNITS_MAX>")]
    pub units: Vec<FileId>,
    /// Those of `units` that are directories nobody else holds, until a recall says otherwise: the
    /// session may change what is in them itself, and send what it did in a [`Batch`].
    #[n(2)]
    #[cbor(with = "AtMost::<UNITS_MAX>")]
    pub exclusive: Option<Vec<ExclusiveUnit>>,
}

/// A directory that a session holds alone, and what it needs to make files in it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExclusiveUnit {
    /// The directory as it is now.
    #[n(0)]
    pub attributes: Attributes,
    /// What new files in it inherit.
    #[n(1)]
    pub layout: Layout,
    /// It has no names at all.
    #[n(2)]
    pub is_empty: bool,
    /// The MDT has quotas: what is made here may have to be promised ([`crate::quotas`]).
    #[n(3)]
    pub has_limits: Option<bool>,
}

/// One file, as lookups and creations answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EntryReply {
    /// `None`: there is no such name (an answer that may be cached too), or it is a junction.
    #[n(0)]
    pub attributes: Option<Attributes>,
    /// The name is where another MDT is mounted: ask that MDT for its root.
    #[n(1)]
    pub junction: Option<MdtIndex>,
    #[n(2)]
    pub lease: LeaseGrant,
    /// Target of a symlink.
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Lookup {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
}

/// The parent of a directory, for `..`; the root of an MDT answers with its junction's directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LookupParent {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LookupParentReply {
    #[n(0)]
    pub parent: FileId,
    /// The name in the parent; `None` for the file system's root.
    #[n(1)]
    pub name: Option<Name>,
    /// A file's further names, where it has any.
    #[n(2)]
    #[cbor(with = "AtMost::<NAMES_MAX>")]
    pub others: Option<Vec<NameAt>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct NameAt {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetAttributes {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AttributesReply {
    #[n(0)]
    pub attributes: Attributes,
    #[n(1)]
    pub lease: LeaseGrant,
}

/// Changes what is `Some`. Setting the size cuts or extends the file; extension is a hole.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetAttributes {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub mode: Option<Mode>,
    #[n(2)]
    pub uid: Option<Uid>,
    #[n(3)]
    pub gid: Option<Gid>,
    #[n(4)]
    pub size: Option<u64>,
    #[n(5)]
    pub atime: Option<SetTime>,
    #[n(6)]
    pub mtime: Option<SetTime>,
    /// The size is set through a handle that was opened for writing: permission was decided then.
    #[n(7)]
    pub is_handle: bool,
    /// Somebody read the file: only `atime` is set, only forwards and when it is due, and that is
    /// no change of attributes (`ctime`).
    #[n(8)]
    pub is_access: Option<bool>,
}

/// A page of a directory, in the order of the names' bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadDirectory {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub after: Option<Name>,
    /// At most 4,096 entries.
    #[n(2)]
    pub limit: u32,
    /// With attributes (and leases on them).
    #[n(3)]
    pub is_plus: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadDirectoryReply {
    #[n(0)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub entries: Vec<DirectoryEntry>,
    #[n(1)]
    pub is_end: bool,
    #[n(2)]
    pub lease: LeaseGrant,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DirectoryEntry {
    #[n(0)]
    pub name: Name,
    #[n(1)]
    pub id: FileId,
    #[n(2)]
    pub kind: FileKind,
    #[n(3)]
    pub attributes: Option<Attributes>,
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Option<Vec<u8>>,
}

/// Creates a regular file, or opens the one that is there unless `is_exclusive`.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Create {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub mode: Mode,
    /// The caller's umask; the server applies it (or the directory's default ACL instead).
    #[n(3)]
    pub umask: Mode,
    #[n(4)]
    pub is_exclusive: bool,
    /// Another layout than the directory's.
    #[n(5)]
    pub layout: Option<Layout>,
    /// Without a name (`O_TMPFILE`), as if it were made in `parent`; `name` means nothing. It is
    /// kept until [`Release`], and [`Link`] may give it a name.
    #[n(6)]
    pub is_nameless: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CreateReply {
    /// The file was not there before.
    #[n(0)]
    pub is_new: bool,
    #[n(1)]
    pub open: OpenReply,
}

/// Opens a regular file: permission is decided here and belongs to the handle. With neither right
/// asked for and nothing to be written it is opened to be run, or is open already: who may do
/// anything with it, or owns it, gets its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Open {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub is_read: bool,
    #[n(2)]
    pub is_write: bool,
    /// The session will gather what is written, under this handle or (with neither right asked for)
    /// one that is open already: it is asked for that before another client looks at the file.
    #[n(3)]
    pub writes: Option<bool>,
}

impl Open {
    /// Are its bytes asked for?
    pub fn wants_bytes(&self) -> bool {
        self.is_read || self.is_run()
    }

    pub fn is_run(&self) -> bool {
        !self.is_read && !self.is_write && self.writes != Some(true)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OpenReply {
    #[n(0)]
    pub attributes: Attributes,
    #[n(1)]
    pub layout: Layout,
    /// The OSTs that new chunks go round, in order. Empty: nothing was placed yet (see [`Place`]).
    #[n(2)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub stripe: Vec<OstIndex>,
    /// The first extents, to save a round trip.
    #[n(3)]
    pub extents: ExtentPage,
    #[n(4)]
    pub lease: LeaseGrant,
    /// For the OSSs, as far as was asked; `None` where none is needed.
    #[n(5)]
    pub capability: Option<CapabilityGrant>,
    /// The MDT has quotas: what is written may have to be promised ([`crate::quotas`]).
    #[n(6)]
    pub has_limits: Option<bool>,
}

/// Extents in order, all those from the asked offset up to `covered`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ExtentPage {
    #[n(0)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub extents: Vec<Extent>,
    /// What lies before this offset and in no extent is a hole. The file's end or beyond when all
    /// are here.
    #[n(1)]
    pub covered: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetExtents {
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
pub struct GetExtentsReply {
    #[n(0)]
    pub page: ExtentPage,
    #[n(1)]
    pub attributes: Attributes,
    #[n(2)]
    pub lease: LeaseGrant,
}

/// Makes written chunks part of the file: replaces what the extents cover, extends the size, sets
/// mtime.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Commit {
    #[n(0)]
    pub id: FileId,
    /// Ordered, not overlapping, at most 1,024. `Content::Hole` punches.
    #[n(1)]
    #[cbor(with = "AtMost::<EXTENTS_MAX>")]
    pub extents: Vec<Extent>,
    /// The file is at least this long afterwards.
    #[n(2)]
    pub size_min: u64,
    #[n(3)]
    pub mtime: SetTime,
    /// Written by a root without the right to keep setuid and setgid: clear them. Of all others
    /// they are cleared anyway.
    #[n(4)]
    pub clears_setid: bool,
    /// Extents from this offset on were appended to a file that the client believed to end here:
    /// they go to where it ends now, and the reply's size tells where that was.
    #[n(5)]
    pub append_from: Option<u64>,
    /// The session writes the file no more, or says so anew ([`Open::writes`]).
    #[n(6)]
    pub closes: Option<bool>,
    /// A close was answered for these bytes, under an exclusive lease: they go on while the store
    /// is short of room, as batches do.
    #[n(7)]
    pub is_promised: Option<bool>,
}

/// Chooses OSTs for a file's new chunks: at its first chunk, or because one of them refused.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Place {
    #[n(0)]
    pub id: FileId,
    /// OSTs that just failed.
    #[n(1)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub exclude: Vec<OstIndex>,
    /// A close was answered for the bytes, as in [`Commit::is_promised`]: a stripe, or the first
    /// columns of one, at whose OSTs the client was granted room for them. It is chosen as far as
    /// nothing speaks for others.
    #[n(2)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub wish: Option<Vec<OstIndex>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PlaceReply {
    /// For each column one OST per mirror (see [`Layout::column`]).
    #[n(0)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub stripe: Vec<OstIndex>,
}

/// Gives back a file that lost its last name while this client held it open.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Release {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MakeDirectory {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub mode: Mode,
    #[n(3)]
    pub umask: Mode,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MakeSymlink {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    /// 1 to 4,095 bytes, not interpreted.
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Vec<u8>,
}

/// Creates a FIFO, socket, device, or an unopened regular file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MakeNode {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub kind: FileKind,
    #[n(3)]
    pub mode: Mode,
    #[n(4)]
    pub umask: Mode,
    #[n(5)]
    pub device: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Link {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub parent: FileId,
    #[n(2)]
    pub name: Name,
    /// What has that name goes, as by a rename; else that is an error.
    #[n(3)]
    pub replaces: Option<bool>,
    /// As in [`Unlink`], for what is replaced.
    #[n(4)]
    pub keep: Option<FileId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Unlink {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    /// Programs of this client hold the file open: keep it until [`Release`].
    #[n(2)]
    pub keep: Option<FileId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveDirectory {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Rename {
    #[n(0)]
    pub from_parent: FileId,
    #[n(1)]
    pub from_name: Name,
    #[n(2)]
    pub to_parent: FileId,
    #[n(3)]
    pub to_name: Name,
    #[n(4)]
    pub mode: RenameMode,
    /// As in [`Unlink`], for a target that is replaced.
    #[n(5)]
    pub keep: Option<FileId>,
}

/// What a mutation of names changed: the file concerned, if it still has a record.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChangeReply {
    #[n(0)]
    pub attributes: Option<Attributes>,
    #[n(1)]
    pub lease: LeaseGrant,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadSymlink {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadSymlinkReply {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetXattr {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub name: XattrName,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetXattrReply {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListXattrs {
    #[n(0)]
    pub id: FileId,
}

/// All of them with their values: there are few, and the client caches them under the lease.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListXattrsReply {
    #[n(0)]
    #[cbor(with = "AtMost::<XATTRS_MAX>")]
    pub xattrs: Vec<Xattr>,
    #[n(1)]
    pub lease: LeaseGrant,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Xattr {
    #[n(0)]
    pub name: XattrName,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetXattr {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub name: XattrName,
    /// At most 64 KiB.
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Vec<u8>,
    #[n(3)]
    pub mode: XattrMode,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RemoveXattr {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub name: XattrName,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetLayout {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetLayoutReply {
    /// The layout in force: the file's own, or what a new file in the directory would inherit.
    #[n(0)]
    pub layout: Layout,
    /// It was set here and not inherited.
    #[n(1)]
    pub is_own: bool,
    #[n(2)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub stripe: Vec<OstIndex>,
}

/// Sets a directory's default layout, or the layout of a file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SetLayout {
    #[n(0)]
    pub id: FileId,
    /// `None`: back to what the parent directory says.
    #[n(1)]
    pub layout: Option<LayoutChange>,
}

/// What `setstripe` was told; what it was not told is inherited.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct LayoutChange {
    #[n(0)]
    pub stripe_count: Option<tieline_types::StripeCount>,
    #[n(1)]
    pub stripe_size: Option<u32>,
    #[n(2)]
    pub pool: Option<PoolChoice>,
    #[n(3)]
    pub mirrors: Option<u8>,
    #[n(4)]
    pub sync: Option<u8>,
    #[n(5)]
    pub inline_limit: Option<u32>,
    #[n(6)]
    pub chunk_size: Option<u32>,
    /// The pool of each mirror; any OST where it is `None`. Takes the place of `pool`.
    #[n(7)]
    #[cbor(with = "AtMost::<{ Layout::MIRRORS_MAX as usize }>")]
    pub mirror_pools: Option<Vec<Option<PoolName>>>,
    /// Of a file without bytes: the OSTs that its chunks go round first, in this order.
    #[n(8)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub osts: Option<Vec<OstIndex>>,
    /// Of a file, also one that has bytes: what is not told stays as the file has it. Its chunks
    /// stay where they are: who asks moves them.
    #[n(9)]
    pub moves: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum PoolChoice {
    /// Any OST.
    #[n(1)]
    Any,
    #[n(2)]
    Pool(#[n(0)] PoolName),
}

/// What a session did by itself under exclusive leases, in its order: carried out in one
/// transaction, as far as one is large enough.
///
/// An item that fails does not stop those after it. An item that was carried out before, under this
/// session or one that was lost, changes nothing again: the ids tell.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Batch {
    /// At most [`Batch::ITEMS_MAX`].
    #[n(0)]
    #[cbor(with = "AtMost::<{ Batch::ITEMS_MAX }>")]
    pub items: Vec<BatchItem>,
}

impl Batch {
    pub const ITEMS_MAX: usize = 4096;
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BatchItem {
    #[n(0)]
    pub caller: Caller,
    /// When the client did it, by its own clock.
    #[n(1)]
    pub at: Time,
    /// The file that it makes, of a run of [`Reserve`]; or the one that it is about.
    #[n(2)]
    pub id: FileId,
    /// Number of the call: Create, MakeDirectory, MakeSymlink, MakeNode, Link, Unlink,
    /// RemoveDirectory, Rename, SetAttributes or Commit.
    #[n(3)]
    pub op: u16,
    /// Its message.
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub message: Vec<u8>,
}

impl BatchItem {
    /// About so many bytes are sent of it.
    pub fn weight(&self) -> usize {
        // Caller, time and what stands around them, roughly.
        self.message.len() + 64
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BatchReply {
    /// One for each item.
    #[n(0)]
    #[cbor(with = "AtMost::<{ Batch::ITEMS_MAX }>")]
    pub outcomes: Vec<BatchOutcome>,
    #[n(1)]
    pub lease: LeaseGrant,
}

/// What became of one item.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct BatchOutcome {
    /// Of the file it was about, if that still has a record.
    #[n(0)]
    pub version: Option<Version>,
    #[n(1)]
    pub stored: Option<u64>,
    /// It was refused, and changed nothing.
    #[n(2)]
    pub failure: Option<Failure>,
}

/// File ids for a session to give out itself: from now on it may be granted exclusive leases.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Reserve {
    /// At most 16,384.
    #[n(0)]
    pub count: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReserveReply {
    /// The first of a run of `count` serials of this MDT.
    #[n(0)]
    pub first: u64,
    #[n(1)]
    pub count: u32,
}

/// Space and objects, per OST, as the MDS last heard from each OSS; and its own inodes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Usage {}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UsageReply {
    #[n(0)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub osts: Vec<OstUsage>,
    /// Files of every kind in this MDT.
    #[n(1)]
    pub inodes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OstUsage {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub site: SiteName,
    #[n(2)]
    pub is_active: bool,
    /// `None`: the OSS has not answered yet, or not for a minute.
    #[n(3)]
    pub state: Option<crate::data::OstState>,
    /// When the OSS last answered.
    #[n(4)]
    pub heard: Option<Time>,
}

/// Keeps checksums of adopted chunks that were read for the first time. Changes no version and no
/// time, and nothing of chunks that have objects of their own.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RecordSums {
    #[n(0)]
    pub id: FileId,
    /// At most 64.
    #[n(1)]
    #[cbor(with = "AtMost::<{ RecordSums::COUNT_MAX }>")]
    pub sums: Vec<ChunkSums>,
}

impl RecordSums {
    pub const COUNT_MAX: usize = 64;
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChunkSums {
    #[n(0)]
    pub chunk: GrantedId,
    #[n(1)]
    #[cbor(with = "AtMost::<CHECKS_MAX>")]
    pub checks: Vec<u32>,
    #[n(2)]
    pub adler32: u32,
    #[n(3)]
    pub digest: Digest,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RecordSumsReply {
    /// Chunks that were still there.
    #[n(0)]
    pub recorded: u32,
}
