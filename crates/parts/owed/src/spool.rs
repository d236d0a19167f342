//! Bytes that programs were answered for and that cannot be stored: where they go.
//!
//! The program around a client plugs a [`Spool`] in, which knows a place on disk. A [`Claim`] says
//! who may be told still: bytes of a file that whoever wrote them holds open are not answered for.

use bytes::Bytes;
use std::ops::Range;
use tieline_types::{Caller, ErrorKind, FileId, Time, Version};

/// Who was promised bytes that are handed over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Claim {
    /// A program was answered for them.
    Answered,
    /// Whoever wrote them holds the file open, and will be told.
    Open,
    /// A copy of what may be stored still.
    Waiting,
}

/// Bytes of one file that are not stored.
#[derive(Clone, Debug)]
pub struct Lost {
    pub file: FileId,
    /// From the file system's root, as far as it was seen; empty if it was not.
    pub path: Vec<u8>,
    pub pieces: Vec<Piece>,
    pub claim: Claim,
    pub kind: ErrorKind,
    pub why: String,
    pub writer: Caller,
    /// What they were written over.
    pub base: Option<Base>,
}

/// Bytes in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub place: Place,
    pub bytes: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    At(u64),
    /// Behind whatever the file has, in the order of the pieces.
    Appended,
    /// Nothing of a file's: a record of an earlier process that nobody can read, or a text.
    Record,
}

/// A file without what was lost of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base {
    pub version: Option<Version>,
    pub mtime: Option<Time>,
    pub size: u64,
}

impl Lost {
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }
}

/// Where bytes go that cannot be stored. What is given later lies over what was given before.
#[async_trait::async_trait]
pub trait Spool: Send + Sync {
    /// Keeps them, durable when it returns; says for each file why not, if not.
    async fn keep(&self, lost: Vec<Lost>) -> Vec<Result<(), String>>;
    /// What is under this claim need not be kept any more.
    async fn forget(&self, file: FileId, claim: Claim);
    /// Nobody can be told any more of what is under [`Claim::Open`].
    async fn answered(&self, file: FileId);
    /// This client alone has changed the file: it is so now, and in these ranges anew.
    async fn changed(&self, file: FileId, base: Base, over: Vec<Range<u64>>);
}
