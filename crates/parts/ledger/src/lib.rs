//! What survives the loss of an MDT's store: its change log, its dumps, and the way back.
//!
//! ```text
//!  commits ──▶ journal (log) ──▶ segments ─┐   second place
//!     │                                    ├──▶ restore ──▶ an empty store
//!  snapshot ──▶ dump ──────────▶ dumps ────┘
//! ```
//!
//! * [`log`]: every group of commits, appended to segments in a directory elsewhere.
//! * [`dump`]: one state of the store as a stream, in parts for whoever asks, or beside the log.
//! * [`stream`]: reading streams; [`directory`]: the names of a log's files.
//! * [`restore`]: the newest dump and what the log has after it, into an empty store, whose log
//!   goes on from there.
//! * [`sources`]: which dump and segments count for that, and how far.
//! * [`rebuild`]: what the objects know, where there is neither.
//!
//! Invariants: a group is in the log before the store has it; a log is pruned only behind a dump
//! that was written, synced and read again; a store is restored into nothing, and its superblock
//! comes last.

pub mod directory;
pub mod dump;
pub mod log;
pub mod rebuild;
pub mod restore;
mod sources;
pub mod stream;

use std::path::PathBuf;
use tieline_format::ledger::LedgerError;
use tieline_types::{FsName, MdtIndex, Version};

/// Whose ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub fs: FsName,
    pub mdt: MdtIndex,
}

/// Why a ledger cannot be kept or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {doing} {}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{}, byte {at}", .path.display())]
    Stream { path: PathBuf, at: u64, source: LedgerError },
    #[error("{} ends in the middle, at byte {at}", .path.display())]
    Cut { path: PathBuf, at: u64 },
    #[error("{}: {what}", .path.display())]
    Malformed { path: PathBuf, what: String },
    #[error("{} is of {found}, wanted is {wanted}", .path.display())]
    Foreign { path: PathBuf, found: String, wanted: String },
    #[error("store {store} is not empty: restore into a new one, or move it away first")]
    NotEmpty { store: String },
    #[error("no complete dump is there, and the log begins after version {after}")]
    NoDump { after: Version },
    #[error(
        "neither a whole dump nor a log of {mdt} is there: `tieline mdt verify` tells what files \
         hold",
        mdt = .mdt.label()
    )]
    Nothing { mdt: MdtIndex },
    #[error(
        "the log lacks what happened between versions {from} and {to}: find the missing segments, \
         or restore what is before the hole with --up-to-hole"
    )]
    Hole { from: Version, to: Version },
    #[error(
        "{} is damaged, and what it had behind version {reached} is wanted: find a whole copy of \
         it, or restore what is before with --up-to-hole",
        .path.display()
    )]
    Damaged { path: PathBuf, reached: Version, source: Box<Error> },
    #[error(
        "the change log at {} goes on to version {reached}, and the store ends at {durable}: it is \
         another store, or older than its log. Restore the store from the log (`tieline mdt \
         restore`), or move the log away for a new one",
        .place.display()
    )]
    OtherStore { place: PathBuf, reached: Version, durable: Version },
    #[error(
        "{} ends at version {reached}, and {} goes on from {version}: these are logs of two \
         stores. Name the files of the one that is wanted, not their directory (`tieline mdt \
         verify` tells what each holds)",
        .one.display(), .other.display()
    )]
    TwoStores { one: PathBuf, other: PathBuf, reached: Version, version: Version },
    #[error(
        "the change log at {} goes on to version {reached}, and what was named ends at {named}: \
         name it, too, or move it away if what it has beyond is not wanted",
        .place.display()
    )]
    NotNamed { place: PathBuf, reached: Version, named: Version },
    #[error("what was restored has no superblock: the dump is of no MDT")]
    NoSuperblock,
    #[error("record of what is restored is damaged")]
    Record(#[from] tieline_format::RecordError),
    #[error("the metadata store did not do it")]
    Store(#[from] tieline_kv::Error),
}

impl Error {
    fn damaged(path: PathBuf, reached: Version, damage: Self) -> Self {
        Self::Damaged { path, reached, source: Box::new(damage) }
    }

    /// Of a build that is newer than this one.
    fn is_newer(&self) -> bool {
        matches!(self, Self::Stream { source: LedgerError::Version(_), .. })
    }

    /// With its causes.
    fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}

impl Identity {
    fn label(&self) -> String {
        format!("{} of {}", self.mdt.label(), self.fs)
    }
}

#[cfg(test)]
mod tests;
