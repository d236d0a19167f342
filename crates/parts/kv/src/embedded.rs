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
//! Nothing is written before the store was found to be one that this build knows, and before
//! whoever opens it has judged what is in it ([`Opening::check`]).
//!
//! Invariants: one process at a time (redb locks the file); a version is never used again, not
//! even one that never became durable.

mod file;
mod room;

use crate::overlay::{Base, Batch, Limits, Overlay};
use crate::{Check, Error, Key, Opening, Range, Snapshot, Store, Transaction, Value};
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, StorageBackend, TableDefinition, TableError};
use room::Room;
use std::io;
use std::panic::AssertUnwindSafe;
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
        Self::open_with(path, Opening { cache, ..Opening::default() })
    }

    /// The same with a check or a journal.
    pub fn open_with(path: &Path, opening: Opening) -> Result<Self, Error> {
        let store = format!("embedded {}", path.display());
        let opened = match file::open(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Error::InUse { store });
            }
            Err(error) => return Err(io_error(&store, error)),
        };
        if opened.unfinished.is_none() {
            judge_untouched(path, &store, opening.check.as_ref())?;
        }
        let backend = FileBackend::new(opened.file).map_err(|error| redb_error(&store, error))?;
        // The engine does not expect to find its pages damaged.
        let start = AssertUnwindSafe(|| Self::start(store.clone(), backend, opening));
        let damaged = |_| Error::Failed {
            store: store.clone(),
            source: "its file is damaged: bring it back with `tieline mdt restore`".into(),
        };
        let this = std::panic::catch_unwind(start).map_err(damaged)??;
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
        Self::start(store, backend, Opening { cache, ..Opening::default() })
    }

    fn start(
        store: String,
        backend: impl StorageBackend,
        mut opening: Opening,
    ) -> Result<Self, Error> {
        let cache = usize::try_from(opening.cache.0).unwrap_or(usize::MAX);
        let database = Builder::new()
            .set_cache_size(cache)
            .create_with_backend(backend)
            .map_err(|error| redb_error(&store, error))?;
        let room = Room::new(std::mem::take(&mut opening.disks));
        let base = RedbBase { database, store: store.clone(), room };
        let limits = Limits::default();
        assert!(limits.pending_commits() < VERSIONS_SKIPPED, "a version could be used again");
        let durable = judge(&base.database, &base.store, opening.check.as_ref())?;
        let version = Version(durable.0 + VERSIONS_SKIPPED);
        if let Some(journal) = &mut opening.journal {
            let failed = |source| Error::Journal { store: store.clone(), source };
            journal.start(durable, version).map_err(failed)?;
        }
        base.start(version)?;
        let overlay = Overlay::with_journal(base, store.clone(), version, limits, opening.journal);
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
    /// Writes what is still pending, if there is room: all who wait for it are told.
    fn drop(&mut self) {
        self.overlay.close();
        self.overlay.base().room.close();
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

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.overlay.snapshot().await
    }

    async fn advance(&self, version: Version) -> Result<(), Error> {
        self.overlay.advance(version)
    }

    fn describe(&self) -> String {
        self.overlay.store().to_owned()
    }
}

/// Judges a store that is there without touching it: redb notes even in one that it only opened
/// that it did. One that was not closed it repairs first, and is judged then.
fn judge_untouched(path: &Path, store: &str, check: Option<&(Key, Check)>) -> Result<(), Error> {
    match Builder::new().open_read_only(path) {
        Ok(database) => judge(&database, store, check).map(drop),
        // Whatever else it is, opening it says.
        Err(_) => Ok(()),
    }
}

/// Is it a store to be opened? Its newest version. Writes nothing.
fn judge(
    database: &impl ReadableDatabase,
    store: &str,
    check: Option<&(Key, Check)>,
) -> Result<Version, Error> {
    let refused = |source| Error::Refused { store: store.to_owned(), source };
    let note = |name| note(database, name).map_err(|error| redb_error(store, error));
    let known = note(FORMAT)?;
    if let Some(format) = known.filter(|&format| format != FORMAT_KNOWN) {
        let source = format!("format {format} is not known, {FORMAT_KNOWN} is: use a newer build");
        return Err(refused(source.into()));
    }
    if let Some((key, check)) = check {
        let value = match known {
            Some(_) => pair(database, key).map_err(|error| redb_error(store, error))?,
            None => None,
        };
        check(value).map_err(refused)?;
    }
    Ok(Version(note(VERSION)?.unwrap_or(0)))
}

/// What a store that is not new remembers of itself.
fn note(database: &impl ReadableDatabase, name: &str) -> Result<Option<u64>, redb::Error> {
    match database.begin_read()?.open_table(STORE) {
        Ok(table) => Ok(table.get(name)?.map(|note| note.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn pair(database: &impl ReadableDatabase, key: &Key) -> Result<Option<Value>, redb::Error> {
    let table = database.begin_read()?.open_table(PAIRS)?;
    Ok(table.get(key.as_slice())?.map(|value| value.value().to_vec()))
}

struct RedbBase {
    database: Database,
    store: String,
    room: Room,
}

impl RedbBase {
    /// Moves the version on, durably.
    fn start(&self, version: Version) -> Result<(), Error> {
        self.write(|transaction| {
            transaction.open_table(PAIRS)?;
            let mut table = transaction.open_table(STORE)?;
            table.insert(FORMAT, FORMAT_KNOWN)?;
            table.insert(VERSION, version.0)?;
            Ok(())
        })
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

fn get(pairs: &Pairs, keys: &[&Key]) -> Result<Vec<Option<Value>>, redb::Error> {
    let get = |key: &&Key| Ok(pairs.get(key.as_slice())?.map(|value| value.value().to_vec()));
    keys.iter().map(get).collect()
}

fn scan(pairs: &Pairs, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, redb::Error> {
    // An empty range is no error for callers.
    let end = (&range.end).max(&range.start);
    let found = pairs.range::<&[u8]>(range.start.as_slice()..end.as_slice())?;
    if range.is_reverse {
        found.rev().take(limit).map(copy_pair).collect()
    } else {
        found.take(limit).map(copy_pair).collect()
    }
}

/// A table as it was: redb keeps its pages for as long as this is there.
struct RedbSnapshot {
    pairs: Pairs,
    version: Version,
    store: String,
}

#[async_trait::async_trait]
impl Snapshot for RedbSnapshot {
    fn version(&self) -> Version {
        self.version
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let keys: Vec<&Key> = keys.iter().collect();
        get(&self.pairs, &keys).map_err(|error| redb_error(&self.store, error))
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        scan(&self.pairs, &range, limit).map_err(|error| redb_error(&self.store, error))
    }
}

impl Base for RedbBase {
    const IS_IMMEDIATE: bool = false;

    async fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        self.read(|pairs| get(pairs, keys))
    }

    async fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        self.read(|pairs| scan(pairs, range, limit))
    }

    fn wait_for_room(&self, batch: &Batch) -> bool {
        self.room.wait(batch)
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

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let open = || -> Result<_, redb::Error> {
            let transaction = self.database.begin_read()?;
            let pairs = transaction.open_table(PAIRS)?;
            let version = transaction.open_table(STORE)?.get(VERSION)?.map_or(0, |v| v.value());
            Ok((pairs, Version(version)))
        };
        let (pairs, version) = open().map_err(|error| redb_error(&self.store, error))?;
        Ok(Box::new(RedbSnapshot { pairs, version, store: self.store.clone() }))
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
