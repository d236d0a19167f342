//! An ordered key-value space with serializable transactions: the seam every metadata engine
//! stands behind.
//!
//! A transaction reads one state of the store ([`Transaction::read`] in batches,
//! [`Transaction::scan`] with a bound), buffers its writes, and commits them all or not at all.
//! Two transactions that met are an ordinary outcome: [`Error::Conflict`], from a read or from the
//! commit, means *run it again*. A commit answers when it is durable; engines gather the commits
//! that wait together into one group.
//!
//! * [`MemoryStore`]: for tests and simulated worlds.
//! * [`EmbeddedStore`]: redb in one file, and a write-ahead log beside it.
//! * [`PostgresStore`]: a schema of a PostgreSQL database, owned by one server at a time.
//! * [`conformance`]: what every engine must do, as one suite.
//!
//! Beside transactions there are [`Snapshot`]s, for reading all of a store while others write, and
//! a [`Journal`], which sees every group of commits before it is durable.
//!
//! Knows nothing of files, and nothing of what keys mean.
//!
//! Invariants: a transaction sees its own writes; what it read was one state at one version, and
//! if it wrote, nothing it read has changed when it commits; versions grow with every commit that
//! writes.

pub mod conformance;
mod embedded;
mod memory;
#[cfg(test)]
mod model;
mod overlay;
mod postgres;
mod snapshot;

pub use embedded::EmbeddedStore;
pub use memory::MemoryStore;
pub use overlay::{Batch, Writes};
pub use postgres::{PostgresServer, PostgresServerError, PostgresSettings, PostgresStore, scratch};

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use tieline_types::{ByteSize, ErrorKind, Version};

/// A key: any bytes, at most [`KEY_MAX`]. Keys are ordered as their bytes are.
pub type Key = Vec<u8>;
/// A value: any bytes, at most [`VALUE_MAX`].
pub type Value = Vec<u8>;

pub const KEY_MAX: usize = 512;
pub const VALUE_MAX: usize = 1 << 20;

/// An engine.
#[async_trait::async_trait]
pub trait Store: Send + Sync {
    /// Begins a transaction on the newest committed state (which may still be on its way to the
    /// disk: a transaction that read it commits after it).
    async fn begin(&self) -> Result<Box<dyn Transaction>, Error>;

    /// One durable state of the whole store, for long reads: it conflicts with nobody and holds
    /// nobody up.
    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        snapshot::of_transaction(self).await
    }

    /// Versions from now on are above `version`: for a store that is filled with another's pairs.
    async fn advance(&self, version: Version) -> Result<(), Error> {
        snapshot::check_advanced(self, version).await
    }

    /// For messages: `embedded /srv/tieline/mdt0000.redb`.
    fn describe(&self) -> String;

    /// How many bytes of its disk the store has and will use again before it takes more. Blocks.
    fn reusable(&self) -> u64 {
        0
    }
}

/// A transaction. Dropped, it did nothing.
#[async_trait::async_trait]
pub trait Transaction: Send {
    /// The version this transaction reads.
    fn version(&self) -> Version;

    /// The values of `keys`, in their order, in one round trip.
    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error>;

    /// The first `limit` pairs of a range, in order (or from its end).
    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error>;

    /// Buffers a write.
    fn put(&mut self, key: Key, value: Value);

    /// Buffers a deletion. An absent key is no error.
    fn delete(&mut self, key: Key);

    /// Decides now, in memory and in order; the returned future ends when the effects are durable.
    ///
    /// Between the two, other transactions already see the effects. Dropping the future does not
    /// undo them.
    async fn commit(self: Box<Self>) -> Result<Committed, Error>;
}

/// One state of a store, whatever is committed meanwhile.
#[async_trait::async_trait]
pub trait Snapshot: Send {
    /// Everything up to this commit is in it, and nothing later.
    fn version(&self) -> Version;

    /// As [`Transaction::read`].
    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error>;

    /// As [`Transaction::scan`].
    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error>;
}

/// Keeps what is committed a second time, elsewhere. Calls block.
pub trait Journal: Send {
    /// The store is opened: it holds everything up to `durable`, and nothing later (what the
    /// journal has beyond that never happened); commits go on after `version`.
    fn start(&mut self, durable: Version, version: Version) -> std::io::Result<()>;

    /// Keeps a group of commits that follows the one before it. The engine makes it durable
    /// afterwards; after an error it does not, and the store ends.
    fn append(&mut self, batch: &Batch) -> std::io::Result<()>;
}

/// How a store is opened.
#[derive(Default)]
pub struct Opening {
    /// How much of it stays in memory.
    pub cache: ByteSize,
    /// The value of this key decides whether the store is opened: why not, else.
    pub check: Option<(Key, Check)>,
    pub journal: Option<Box<dyn Journal>>,
    /// Directories whose file systems commits are written to: without room there, commits wait.
    pub disks: Vec<PathBuf>,
}

/// Judges a value, or its absence.
pub type Check = Box<
    dyn Fn(Option<Value>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + Sync,
>;

/// A decided commit.
pub struct Committed {
    /// The commit's own version, or the one that was read if nothing was written.
    pub version: Version,
    /// Ends when the commit, and everything it read, is durable.
    pub durable: Durable,
}

pub type Durable = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Keys from `start` (included) to `end` (excluded).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub start: Key,
    pub end: Key,
    /// From the end backwards.
    pub is_reverse: bool,
}

impl Range {
    pub fn new(start: Key, end: Key) -> Self {
        Self { start, end, is_reverse: false }
    }

    pub fn reverse(self) -> Self {
        Self { is_reverse: true, ..self }
    }

    /// The part from where it begins to `last`, included.
    fn up_to(&self, last: &Key) -> Self {
        if self.is_reverse {
            Self { start: last.clone(), ..self.clone() }
        } else {
            // The next key after `last` is one zero byte longer.
            let end = [last.as_slice(), &[0]].concat();
            Self { end, ..self.clone() }
        }
    }

    /// What is left of it after `covered`, with which it begins.
    fn after(&self, covered: &Self) -> Self {
        if self.is_reverse {
            Self { end: covered.start.clone(), ..self.clone() }
        } else {
            Self { start: covered.end.clone(), ..self.clone() }
        }
    }
}

/// What an engine can answer instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction got in between: run this one again.
    #[error("transactions conflict")]
    Conflict,
    /// Nothing of what was to be written is, and it may be tried again.
    #[error("store {store} is full: make room on its disk, or move it to a larger one")]
    Full { store: String },
    #[error("store {store} is in use by another server")]
    InUse { store: String },
    /// Nothing was written to it.
    #[error("store {store} is not opened")]
    Refused { store: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("store {store} could not keep its change log")]
    Journal { store: String, source: std::io::Error },
    /// Nothing is known of what was last committed: the server must stop, and start again from the
    /// store.
    #[error("store {store} failed")]
    Failed { store: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// An earlier failure ended the store.
    #[error("store {store} ended after a failure")]
    Ended { store: String },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict => ErrorKind::Conflict,
            Self::Full { .. } => ErrorKind::NoSpace,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::Refused { .. }
            | Self::Journal { .. }
            | Self::Failed { .. }
            | Self::Ended { .. } => ErrorKind::StorageFault,
        }
    }
}
