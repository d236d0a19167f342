//! Messages about pools whose files lie whole in a directory, too: what an MDS has the OSS do whose
//! machine has that directory.
//!
//! The OSS knows the directory by the federation map: messages name the pool. A path is below that
//! directory, name by name.

use crate::bounds::{DEPTH_MAX, ENTRIES_MAX, EXTENTS_MAX};
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, Extent, FileId, Gid, MdtIndex, Mode, Name, OstIndex, PoolName, Time, Uid, Version,
};

/// Names from an exposed directory down; none is that directory.
pub type Path = Vec<Name>;

/// Puts bytes of a file together, a page of extents at a time, in their order. Nobody sees them
/// before [`Step::Place`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StageFile {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub pool: PoolName,
    #[n(2)]
    pub file: FileId,
    /// Which bytes: what is put together of others goes.
    #[n(3)]
    pub content: Version,
    #[n(4)]
    pub size: u64,
    /// At most 1,024; what lies between them is a hole.
    #[n(5)]
    #[cbor(with = "AtMost::<EXTENTS_MAX>")]
    pub extents: Vec<Extent>,
    /// It is the first page.
    #[n(6)]
    pub is_first: bool,
    /// The last one: the bytes are durable when it is answered.
    #[n(7)]
    pub is_last: bool,
    /// For the OSS to show to others from which it fetches.
    #[n(8)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StageFileReply {}

/// Changes what lies in an exposed directory: one step after the other. Each can be done again; no
/// path stands in two of them.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ArrangeExposed {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub pool: PoolName,
    /// Which MDT says so, and how often it was started: what an earlier start says is refused.
    #[n(2)]
    pub mdt: MdtIndex,
    #[n(3)]
    pub boot: u64,
    /// The directory was marked as ours before: one without the mark is another.
    #[n(4)]
    pub is_marked: bool,
    /// At most 512.
    #[n(5)]
    #[cbor(with = "AtMost::<{ Step::COUNT_MAX }>")]
    pub steps: Vec<Step>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ArrangeExposedReply {
    /// Of each step.
    #[n(0)]
    #[cbor(with = "AtMost::<{ Step::COUNT_MAX }>")]
    pub outcomes: Vec<StepOutcome>,
    /// Another number since the server was started: what it put together is forgotten.
    #[n(1)]
    pub boot: u64,
    /// The directory is marked as ours.
    #[n(2)]
    pub is_marked: bool,
}

/// Owner and mode, by the numbers of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Dress {
    #[n(0)]
    pub uid: Uid,
    #[n(1)]
    pub gid: Gid,
    #[n(2)]
    pub mode: Mode,
    #[n(3)]
    pub mtime: Time,
    #[n(4)]
    pub is_directory: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Step {
    /// Also where one is already.
    #[n(1)]
    MakeDirectory {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
        #[n(1)]
        dress: Dress,
    },
    /// Gives what was put together its name; what had the name goes.
    #[n(2)]
    Place {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
        #[n(1)]
        file: FileId,
        #[n(2)]
        content: Version,
        #[n(3)]
        dress: Dress,
    },
    /// Gives a file another name.
    #[n(3)]
    Link {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        from: Path,
        #[n(1)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
    },
    #[n(4)]
    Move {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        from: Path,
        #[n(1)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
    },
    #[n(5)]
    Dress {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
        #[n(1)]
        dress: Dress,
    },
    /// Takes a name away. When it is answered that survives the machine.
    #[n(6)]
    Remove {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
    },
    /// Takes a directory away that is empty.
    #[n(7)]
    RemoveDirectory {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
    },
    /// Looks whether a file is as it was left.
    #[n(8)]
    Check {
        #[n(0)]
        #[cbor(with = "AtMost::<DEPTH_MAX>")]
        path: Path,
        #[n(1)]
        size: u64,
        #[n(2)]
        mtime: Time,
    },
}

impl Step {
    pub const COUNT_MAX: usize = 512;

    /// The paths that it changes.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let (first, second) = match self {
            Self::MakeDirectory { path, .. }
            | Self::Place { path, .. }
            | Self::Dress { path, .. }
            | Self::Remove { path }
            | Self::RemoveDirectory { path }
            | Self::Check { path, .. } => (path, None),
            Self::Link { from, path } | Self::Move { from, path } => (path, Some(from)),
        };
        std::iter::once(first).chain(second)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum StepOutcome {
    #[n(1)]
    Done,
    /// What it is about is not there, or is not as it was left.
    #[n(2)]
    Missing,
    /// Why it cannot be done, for people.
    #[n(3)]
    Failed(#[n(0)] String),
}

/// Some names in an exposed directory, in the order of their bytes, directories before what is in
/// them.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListExposed {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub pool: PoolName,
    /// Of this directory.
    #[n(2)]
    #[cbor(with = "AtMost::<DEPTH_MAX>")]
    pub directory: Path,
    /// Those after this one.
    #[n(3)]
    pub after: Option<Name>,
    /// 1 to 4,096.
    #[n(4)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListExposedReply {
    #[n(0)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub names: Vec<ExposedName>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExposedName {
    #[n(0)]
    pub name: Name,
    #[n(1)]
    pub is_directory: bool,
}
