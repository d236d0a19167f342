//! Changes that no client asked for: what an MDT's background work has it do.
//!
//! Whoever looks after an MDT finds out what is to be done; the MDT does it, in a transaction of
//! its own, on what is there then.

use crate::{FileId, GrantedId, Name, OstIndex, SessionId, TapeCopy, Version};
use std::collections::BTreeSet;

/// A change that no client asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A session lets go of a nameless file.
    Release(FileId, SessionId),
    /// A file that lingered goes over to those who have it open.
    Keep(FileId, BTreeSet<SessionId>),
    /// A nameless file goes, or what is left of one that is gone: a bounded part at a time.
    Remove(FileId),
    /// A file that was deleted at this millisecond was kept long enough.
    Purge(u64, FileId),
    /// Names that files had lost by this millisecond, by the keys of their records, were kept long
    /// enough.
    Forget(u64, Vec<Vec<u8>>),
    /// Chunks of a file that lack copies are noted: a bounded number at a time.
    NoteCopies(FileId),
    /// Tape has a file as it was at this version. Not done if it is another now, or gone: then that
    /// copy is removed again.
    Archived(FileId, Version, TapeCopy),
    /// All that tape alone had of a file is at OSTs again. Not done if something is not.
    Restored(FileId),
    Repair(Repair),
}

/// What is put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Repair {
    /// A file's names are those that lead to it, its links as many.
    Names(FileId),
    /// A name leads to its file, or goes.
    Entry(FileId, Name),
    /// Names in a directory that is gone go.
    Entries(FileId),
    /// A directory's entries and links are off by these.
    Counts(FileId, i64, i64),
    Size(FileId, u64),
    /// A file's stored bytes are off by these.
    Stored(FileId, i64),
    /// A chunk's references are off by these.
    References(GrantedId, i64),
    /// A place of a chunk that has others is not to be read any more.
    Stale(GrantedId, OstIndex),
}
