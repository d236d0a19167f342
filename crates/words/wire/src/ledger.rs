//! Messages about what an MDT keeps for bad days: deleted files, dumps, and checks of itself.

use crate::bounds::ENTRIES_MAX;
use minicbor::{Decode, Encode};
use tieline_types::{AtMost, FileId, FileKind, Gid, Mode, Name, Time, Uid, Version};

/// Lists what was deleted from a directory (which may be deleted itself) and can be brought back:
/// to others than root, what they own.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListDeleted {
    #[n(0)]
    pub directory: FileId,
    /// Files after this one, in the order of their ids.
    #[n(1)]
    pub after: Option<FileId>,
    /// At most 4,096.
    #[n(2)]
    pub limit: u32,
    /// Instead, the names there that files lost while they had others.
    #[n(3)]
    pub is_lost: Option<bool>,
    /// Of lost names, those of the file `after` from behind this one on, and of files after it.
    #[n(4)]
    pub after_name: Option<Name>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListDeletedReply {
    #[n(0)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub files: Vec<DeletedFile>,
    /// Where the next page begins: after this file. None: this was the last.
    #[n(1)]
    pub next: Option<FileId>,
    /// The server's time, for what remains of each file's.
    #[n(2)]
    pub now: Time,
    /// How long deleted files are kept.
    #[n(3)]
    pub keep_ms: u64,
    /// Of lost names: the next page begins after this one of `next`.
    #[n(4)]
    pub next_name: Option<Name>,
}

/// A file of any kind that lost its last name; or one of several.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DeletedFile {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub kind: FileKind,
    #[n(3)]
    pub mode: Mode,
    #[n(4)]
    pub uid: Uid,
    #[n(5)]
    pub gid: Gid,
    #[n(6)]
    pub size: u64,
    #[n(7)]
    pub mtime: Time,
    /// When, and by whom.
    #[n(8)]
    pub deleted: Time,
    #[n(9)]
    pub by: Uid,
    /// It lost this name while it had others.
    #[n(10)]
    pub is_lost: Option<bool>,
}

/// Brings a deleted file back under a name, or gives one that is there a name for one that it lost.
/// Its owner may, and root.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Undelete {
    #[n(0)]
    pub id: FileId,
    /// The directory it was deleted from.
    #[n(1)]
    pub from: FileId,
    /// Where it goes: a directory of the same MDT.
    #[n(2)]
    pub parent: FileId,
    #[n(3)]
    pub name: Name,
    /// The name that it lost while it had others.
    #[n(4)]
    pub lost: Option<Name>,
}

/// A part of a dump of the MDT's store, for an operator. The reply's bulk holds frames as
/// `format::ledger` defines them.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DumpMdt {
    /// Where the last part ended; none begins a dump.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub cursor: Option<Vec<u8>>,
    /// Only what was committed after this version, from the change log.
    #[n(1)]
    pub since: Option<Version>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DumpMdtReply {
    /// None: this was the last part.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub cursor: Option<Vec<u8>>,
}

/// Begins a check of the MDT and of its objects, or asks how one goes on, for an operator. A check
/// that nobody asks after ends.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CheckMdt {
    /// None begins one.
    #[n(0)]
    pub job: Option<u64>,
    /// Findings that were received: those from here on are told. [`Self::GIVE_UP`] ends the check.
    #[n(1)]
    pub received: u64,
    #[n(2)]
    pub is_repair: bool,
    /// Reads every byte of every object too.
    #[n(3)]
    pub reads_bytes: bool,
}

impl CheckMdt {
    /// As `received`: no more is wanted, and the check ends.
    pub const GIVE_UP: u64 = u64::MAX;
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CheckMdtReply {
    #[n(0)]
    pub job: u64,
    #[n(1)]
    #[cbor(with = "AtMost::<256>")]
    pub findings: Vec<Finding>,
    /// What it looks at now, for people: `names`, `objects of OST0001`.
    #[n(2)]
    pub phase: String,
    /// Records and objects that were looked at.
    #[n(3)]
    pub looked_at: u64,
    #[n(4)]
    pub is_end: bool,
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Finding {
    /// Which kind, for programs: `missing-chunk`.
    #[n(0)]
    pub what: String,
    /// The file it concerns, as a path below the MDT's root; empty if none has that name.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub path: Vec<u8>,
    #[n(2)]
    pub file: Option<FileId>,
    /// One lower-case clause for people.
    #[n(3)]
    pub detail: String,
    #[n(4)]
    pub outcome: Outcome,
}

/// What became of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Outcome {
    /// It can be repaired, and was not.
    #[n(1)]
    Left,
    #[n(2)]
    Repaired,
    /// Nothing here brings back what is gone.
    #[n(3)]
    Lost,
}
