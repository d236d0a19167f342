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
//! * [`EmbeddedStore`]: redb in one file.
//! * [`conformance`]: what every engine must do, as one suite.
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

pub use embedded::EmbeddedStore;
pub use memory::MemoryStore;

use std::future::Future;
use std::pin::Pin;
use tieline_types::{ErrorKind, Version};

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

    /// For messages: `embedded /srv/tieline/mdt0000.redb`.
    fn describe(&self) -> String;
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
}

/// What an engine can answer instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction got in between: run this one again.
    #[error("transactions conflict")]
    Conflict,
    #[error("store {store} is full")]
    Full { store: String },
    #[error("store {store} is in use by another server")]
    InUse { store: String },
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
            Self::Failed { .. } | Self::Ended { .. } => ErrorKind::StorageFault,
        }
    }
}
