//! Records of files on tape.

use super::Inode;
use crate::Record;
use minicbor::{Decode, Encode};
use tieline_types::{OnTape, PoolName, TapeCopy, Time, Version, WishState};

/// What a file's record says of its copy on tape: the rest is in [`Archived`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OfTape {
    /// The bytes that tape has: the commit that last changed them.
    #[n(0)]
    pub content: Version,
    /// Bytes that OSTs gave up, and that were not restored since.
    #[n(1)]
    pub released: Option<u64>,
}

impl Inode {
    /// How it stands to its copy on tape, if it has one.
    pub fn on_tape(&self) -> Option<OnTape> {
        let OfTape { content, released } = self.tape?;
        Some(match (content == self.content_version(), released.is_some()) {
            (true, false) => OnTape::Archived,
            (true, true) => OnTape::Released,
            (false, false) => OnTape::Dirty,
            (false, true) => OnTape::DirtyReleased,
        })
    }

    /// Bytes that OSTs have. As in Lustre, of what is released a block is told: programs take a
    /// file without blocks for one hole, and would not read it.
    pub fn on_disk(&self) -> u64 {
        match self.tape.and_then(|tape| tape.released) {
            Some(released) => self.stored.saturating_sub(released).max(512),
            None => self.stored,
        }
    }
}

/// Where a chunk begins in the copy of its file on tape.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapePlace {
    /// Whose HSM has the copy.
    #[n(0)]
    pub pool: PoolName,
    #[n(1)]
    pub offset: u64,
}

/// What tape has of a file; which, the key says.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Archived {
    #[n(0)]
    pub copy: TapeCopy,
    /// The commit that had last changed the bytes.
    #[n(1)]
    pub content: Version,
}

impl Record for Archived {
    const VERSION: u8 = 1;
    const NAME: &'static str = "copy on tape";
}

/// A file is to be archived or restored; which, the key says.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Wished {
    #[n(0)]
    pub state: WishState,
}

impl Record for Wished {
    const VERSION: u8 = 1;
    const NAME: &'static str = "wish of tape";
}

/// A copy on tape that no file needs any more: the HSM is told to remove it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapeRemoval {
    #[n(0)]
    pub pool: PoolName,
    #[n(1)]
    pub uris: Vec<String>,
    #[n(2)]
    pub since: Time,
    /// Tries that failed.
    #[n(3)]
    pub tries: u32,
    /// Not before: milliseconds since 1970.
    #[n(4)]
    pub next_ms: u64,
}

impl Record for TapeRemoval {
    const VERSION: u8 = 1;
    const NAME: &'static str = "removal from tape";
}
