//! What a server says unasked, on the connection the client made.

use crate::bounds::{BESIDE_MAX, FILES_MAX, NAMES_MAX};
use minicbor::{Decode, Encode};
use tieline_types::{AtMost, FileId, Name, Version};

/// A notice. The receiver answers each with the same number.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Notice {
    /// Something under a lease is about to change: forget, then answer.
    #[n(1)]
    Recall(#[n(0)] Recall),
    /// There is a newer federation map.
    #[n(2)]
    MapChanged(#[n(0)] Version),
    /// The server will be away for so many milliseconds at most: wait for it, without hurry.
    #[n(3)]
    Hold(#[n(0)] u64),
    /// Idle locks on the file may be in somebody's way: free what no program holds, then answer.
    #[n(4)]
    FreeLocks(#[n(0)] FileId),
}

/// A lease is taken back.
///
/// What was answered `as_of` a version up to `at` must not be cached under `unit` any more, however
/// late it arrives.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Recall {
    /// The directory whose names, own attributes, and attributes and extents of non-directories
    /// end. For a file without any name left: the file.
    #[n(0)]
    pub unit: FileId,
    #[n(1)]
    pub at: Version,
    /// Names in `unit` that change.
    #[n(2)]
    #[cbor(with = "AtMost::<NAMES_MAX>")]
    pub names: Vec<Name>,
    /// Files whose attributes or bytes change: cached bytes of all others stay good if the version
    /// is unchanged.
    #[n(3)]
    #[cbor(with = "AtMost::<FILES_MAX>")]
    pub files: Vec<FileId>,
    /// Nothing changes yet, but somebody looks: the unit is held no longer alone. What was done
    /// under it is to be sent (see [`crate::meta::Batch`]) before this is answered; what is
    /// believed stays good. Unit 0 is the whole MDT.
    /// With `files`, these alone are looked at: what was written to them is to be committed, as far
    /// as it can be within two seconds, and the answer's `open` names those that are still written.
    #[n(4)]
    pub is_shared: Option<bool>,
    /// Whoever looks writes them, too: from now on each write is committed before it returns, until
    /// an answer of a later version does not say [`is_written`] of the file.
    ///
    /// [`is_written`]: tieline_types::Attributes::is_written
    #[n(5)]
    pub writes: Option<bool>,
    /// What changes is moved: directories among `names`, or `unit` itself where there are none, are
    /// found elsewhere then.
    #[n(6)]
    pub moves: Option<bool>,
    /// Nothing changes, and nobody looks: the answer's `open` names those of `files` that programs
    /// hold open to be written here, or of which bytes wait to be sent.
    #[n(7)]
    pub asks_open: Option<bool>,
    /// With `is_shared`: other directories that the receiver holds alone and where it has not
    /// worked lately. Whoever looks comes to them next. The answer's `shared` names those where
    /// nothing waits to be sent: they are held no longer alone either.
    #[n(8)]
    #[cbor(with = "AtMost::<BESIDE_MAX>")]
    pub beside: Option<Vec<FileId>>,
}

impl Recall {
    /// Of a unit, and nothing else.
    pub fn of(unit: FileId, at: Version) -> Self {
        let (names, files, beside) = (vec![], vec![], None);
        let (is_shared, writes, moves, asks_open) = (None, None, None, None);
        Self { unit, at, names, files, is_shared, writes, moves, asks_open, beside }
    }

    /// Somebody looks at a unit.
    pub fn look(unit: FileId, at: Version) -> Self {
        Self { is_shared: Some(true), ..Self::of(unit, at) }
    }
}

/// The answer to a notice.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct NoticeAnswer {
    /// The receiver's own mutation in that directory is under way: caching is off there until it is
    /// quiet.
    #[n(0)]
    pub is_contended: bool,
    /// Those of `files` that programs hold open here. If one loses its last name, it is kept until
    /// released. And whatever else they hold open in `unit` that was opened under its lease: of
    /// those the receiver is asked from then on.
    #[n(1)]
    #[cbor(with = "AtMost::<FILES_MAX>")]
    pub open: Vec<FileId>,
    /// Those of `beside` that the receiver holds no longer alone, and where nothing waits.
    #[n(2)]
    #[cbor(with = "AtMost::<BESIDE_MAX>")]
    pub shared: Option<Vec<FileId>>,
}
