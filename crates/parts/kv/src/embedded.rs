//! The engine of one server: redb, a copy-on-write B-tree in one file.
//!
//! One table holds the pairs, another what the store remembers of itself: its format and the
//! newest version. Everything that waits becomes one redb transaction and one durable commit, on a
//! thread of the store's own. Commits are in two phases and save the allocator's state (quick
//! repair): a store that was not closed opens in milliseconds, and whatever a power failure left
//! of an unfinished commit is never mistaken for a finished one.
//!
//! Reads are called where they are wanted, without handing them to another thread: from the cache
//! they take microseconds, less than the hand-over.
//!
//! Each opening moves the version on by more than can have been decided and not yet durable, so
//! that a version that was seen before a crash is never given to another commit after it.
//!
//! Invariants: one process at a time (redb locks the file); a version is never used again, not
//! even one that never became durable.

mod file;

use crate::overlay::{Base, Batch, Limits, Overlay};
use crate::{Error, Key, Range, Store, Transaction, Value};
use redb::backends::FileBackend;
use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use tieline_types::{ByteSize, Version};

/// The pairs.
const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");
/// What the store remembers of itself.
const STORE: TableDefinition<&str, u64> = TableDefinition::new("store");
const FORMAT: &str = "format";
const VERSION: &str = "version";
/// The layout of both tables.
const FORMAT_KNOWN: u64 = 1;

/// How far the version moves on at each opening.
const VERSIONS_SKIPPED: u64 = 1 << 20;

/// A store in one file.
pub struct EmbeddedStore {
    overlay: Arc<Overlay<RedbBase>>,
    committer: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens (blocking) the store at `path`, a new one if nothing is there. `cache` is how much of
    /// it stays in memory.
    pub fn open(path: &Path, cache: ByteSize) -> Result<Self, Error> {
        let store = format!("embedded {}", path.display());
        let opened = match file::open(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Error::InUse { store });
            }
            Err(error) => return Err(io_error(&store, error)),
        };
        let backend = FileBackend::new(opened.file).map_err(|error| redb_error(&store, error))?;
        let this = Self::open_backend(store, backend, cache)?;
        if let Some(unfinished) = opened.unfinished {
            file::publish(&unfinished, path)
                .map_err(|error| io_error(this.overlay.store(), error))?;
        }
        Ok(this)
    }

    /// Opens (blocking) a store on other storage than a file; crash tests put theirs beneath.
    pub fn open_backend(
        store: String,
        backend: impl StorageBackend,
        cache: ByteSize,
    ) -> Result<Self, Error> {
        let cache = usize::try_from(cache.0).unwrap_or(usize::MAX);
        let database = Builder::new()
            .set_cache_size(cache)
            .create_with_backend(backend)
            .map_err(|error| redb_error(&store, error))?;
        let base = RedbBase { database, store: store.clone() };
        let limits = Limits::default();
        assert!(limits.pending_commits() < VERSIONS_SKIPPED, "a version could be used again");
        let version = base.start()?;
        let overlay = Overlay::new(base, store.clone(), version, limits);
        let committer = std::thread::Builder::new()
            .name("kv-committer".into())
            .spawn({
                let overlay = overlay.clone();
                move || while overlay.wait_for_work() && overlay.flush() {}
            })
            .map_err(|error| io_error(&store, error))?;
        Ok(Self { overlay, committer: Some(committer) })
    }
}

impl Drop for EmbeddedStore {
    /// Writes what is still pending: all who wait for it are told.
    fn drop(&mut self) {
        self.overlay.close();
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!(store = self.overlay.store(), "the committer panicked");
        }
    }
}

#[async_trait::async_trait]
impl Store for EmbeddedStore {
    async fn begin(&self) -> Result<Box<dyn Transaction>, Error> {
        self.overlay.begin()
    }

    fn describe(&self) -> String {
        self.overlay.store().to_owned()
    }
}

struct RedbBase {
    database: Database,
    store: String,
}

impl RedbBase {
    /// Checks the format and moves the version on, durably.
    fn start(&self) -> Result<Version, Error> {
        if let Some(format) = self.format()?
            && format != FORMAT_KNOWN
        {
            let source =
                format!("format {format} is not known, {FORMAT_KNOWN} is: use a newer build");
            return Err(Error::Failed { store: self.store.clone(), source: source.into() });
        }
        let mut version = Version(0);
        self.write(|transaction| {
            transaction.open_table(PAIRS)?;
            let mut table = transaction.open_table(STORE)?;
            let last = table.get(VERSION)?.map_or(0, |version| version.value());
            version = Version(last + VERSIONS_SKIPPED);
            table.insert(FORMAT, FORMAT_KNOWN)?;
            table.insert(VERSION, version.0)?;
            Ok(())
        })?;
        Ok(version)
    }

    /// The format of a store that is not new.
    fn format(&self) -> Result<Option<u64>, Error> {
        let read = || -> Result<Option<u64>, redb::Error> {
            match self.database.begin_read()?.open_table(STORE) {
                Ok(table) => Ok(table.get(FORMAT)?.map(|format| format.value())),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        read().map_err(|error| redb_error(&self.store, error))
    }

    /// Runs `fill` in a transaction and makes it durable.
    fn write(
        &self,
        fill: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), Error> {
        let run = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_two_phase_commit(true);
            transaction.set_quick_repair(true);
            fill(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        run().map_err(|error| redb_error(&self.store, error))
    }

    /// Runs `look` on the newest durable state.
    fn read<T>(&self, look: impl FnOnce(&Pairs) -> Result<T, redb::Error>) -> Result<T, Error> {
        let run = || {
            let transaction = self.database.begin_read()?;
            look(&transaction.open_table(PAIRS)?)
        };
        run().map_err(|error: redb::Error| redb_error(&self.store, error))
    }
}

type Pairs = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

impl Base for RedbBase {
    const IS_IMMEDIATE: bool = false;

    fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        self.read(|pairs| {
            let get = |key: &&Key| Ok(pairs.get(key.as_slice())?.map(|v| v.value().to_vec()));
            keys.iter().map(get).collect()
        })
    }

    fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        self.read(|pairs| {
            let found = pairs.range::<&[u8]>(range.start.as_slice()..range.end.as_slice())?;
            if range.is_reverse {
                found.rev().take(limit).map(copy_pair).collect()
            } else {
                found.take(limit).map(copy_pair).collect()
            }
        })
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        self.write(|transaction| {
            let mut pairs = transaction.open_table(PAIRS)?;
            for (key, value) in &batch.writes {
                match value {
                    Some(value) => pairs.insert(key.as_slice(), value.as_slice())?,
                    None => pairs.remove(key.as_slice())?,
                };
            }
            transaction.open_table(STORE)?.insert(VERSION, batch.version.0)?;
            Ok(())
        })
    }
}

type Guard<'a> = redb::AccessGuard<'a, &'static [u8]>;

fn copy_pair<'a>(
    pair: Result<(Guard<'a>, Guard<'a>), redb::StorageError>,
) -> Result<(Key, Value), redb::Error> {
    let (key, value) = pair?;
    Ok((key.value().to_vec(), value.value().to_vec()))
}

fn redb_error(store: &str, error: impl Into<redb::Error>) -> Error {
    let store = store.to_owned();
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => Error::InUse { store },
        redb::Error::Io(error) => io_error(&store, error),
        other => Error::Failed { store, source: Box::new(other) },
    }
}

fn io_error(store: &str, error: io::Error) -> Error {
    let store = store.to_owned();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::Full { store }
        }
        _ => Error::Failed { store, source: Box::new(error) },
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
