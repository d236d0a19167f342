//! Messages between a client and an MDS: advisory locks.
//!
//! Locks live in the MDS's memory and end with the session. An owner is a number that the client's
//! kernel gave it; with the session it is unique. A client keeps a list of its own locks, and
//! asserts them after a start of the MDS before new ones are granted.
//!
//! What programs free may stay held as *idle* locks, if both sides have said so: until the server
//! asks with [`crate::Notice::FreeLocks`].
//!
//! What a silent client lost it is told when it is welcomed ([`crate::Welcome`]); what it writes to
//! that file is refused until it says that it has heard of it ([`AssertLocks`]).

use minicbor::{Decode, Encode};
use tieline_types::{AtMost, FileId, LockKind, LockMode, LockRange};

/// Takes, changes or frees a lock.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Lock {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub kind: LockKind,
    #[n(2)]
    pub owner: u64,
    #[n(3)]
    pub range: LockRange,
    /// `None`: frees the range.
    #[n(4)]
    pub mode: Option<LockMode>,
    /// `None`: an answer at once.
    #[n(5)]
    pub wait: Option<LockWait>,
    /// What programs here free on this file would stay held, idle, until it is asked for.
    #[n(6)]
    pub idles: Option<bool>,
}

/// A place in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LockWait {
    /// Names this wait within the session: asked again with it, the place is kept.
    #[n(0)]
    pub ticket: u64,
    /// The server answers within this time, at most 20 s.
    #[n(1)]
    pub patience_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LockReply {
    #[n(0)]
    pub outcome: LockOutcome,
    /// Locks of this session on the file may be idle: whoever they are in the way of has them
    /// asked for. Only of a grant to one who offered that.
    #[n(1)]
    pub idles: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum LockOutcome {
    /// It is held now (or freed).
    #[n(1)]
    Granted,
    /// Others are in the way, and nobody waits.
    #[n(2)]
    Refused,
    /// Not yet: ask again soon, or cancel.
    #[n(3)]
    Queued,
    /// The wait was cancelled.
    #[n(4)]
    Cancelled,
}

/// Who is in the way of a lock? Takes none.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TestLock {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub kind: LockKind,
    #[n(2)]
    pub owner: u64,
    #[n(3)]
    pub range: LockRange,
    #[n(4)]
    pub mode: LockMode,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TestLockReply {
    /// `None`: nobody.
    #[n(0)]
    pub found: Option<LockFound>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LockFound {
    #[n(0)]
    pub range: LockRange,
    #[n(1)]
    pub mode: LockMode,
    /// The owner, if it is of the asking session.
    #[n(2)]
    pub owner: Option<u64>,
}

/// Gives up a place in the queue.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CancelLock {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub ticket: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CancelLockReply {
    /// It was still waiting, and is not any more. Else it may have been granted.
    #[n(0)]
    pub was_waiting: bool,
}

/// Tells a server that was started anew which locks this session holds. New ones are granted to
/// nobody until all sessions of before have said so, or ended, or the lease time has passed. Also
/// tells that losses were heard of.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AssertLocks {
    /// At most 1,024.
    #[n(0)]
    #[cbor(with = "AtMost::<{ AssertLocks::COUNT_MAX }>")]
    pub locks: Vec<AssertedLock>,
    /// There are no more.
    #[n(1)]
    pub is_last: bool,
    /// Programs here hear of what was lost up to this number, and nothing that they wrote before
    /// comes any more.
    #[n(2)]
    pub heard: Option<u64>,
}

impl AssertLocks {
    pub const COUNT_MAX: usize = 1024;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AssertedLock {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub kind: LockKind,
    #[n(2)]
    pub owner: u64,
    #[n(3)]
    pub range: LockRange,
    #[n(4)]
    pub mode: LockMode,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AssertLocksReply {
    /// Which of them are lost, by their place in the list: others have taken them.
    #[n(0)]
    #[cbor(with = "AtMost::<{ AssertLocks::COUNT_MAX }>")]
    pub lost: Vec<u32>,
}
