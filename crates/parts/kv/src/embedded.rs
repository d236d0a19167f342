//! The engine of one server: redb, a copy-on-write B-tree in one file, and a write-ahead log in
//! another beside it.
//!
//! ```text
//!   overlay ──group──▶ log (one sync) ──▶ tables in memory ──checkpoint──▶ redb
//! ```
//!
//! Everything that waits becomes one group, on a thread of the store's own. A group is durable when
//! the log has it; redb takes up many of them at once, on another thread ([`base`]). Who reads
//! looks into the tables, then into redb.
//!
//! One table of redb holds the pairs, another what the store remembers of itself: its format, the
//! newest version that redb holds, and the id of the log that goes on after it. Commits of redb are
//! in two phases and save the allocator's state (quick repair): a store that was not closed opens
//! in milliseconds, and whatever a power failure left of an unfinished commit is never mistaken for
//! a finished one. What the log holds beyond redb is taken up at the opening. A store that was
//! closed needs no log and has none; one whose log is missing, or is another's, is refused.
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
//! Invariants: one process at a time (redb locks its file, and the log belongs to who has that
//! lock); a version is never used again, not even one that never became durable.

mod base;
mod file;
mod log;
mod pairs;
mod room;
mod tables;

use crate::overlay::{Batch, Limits, Overlay};
use crate::{Check, Error, Key, Opening, Snapshot, Store, Transaction, Value};
use base::{Parts, RedbBase, Sizes};
use log::{Log, LogId, Mismatch, Place};
use redb::backends::FileBackend;
use redb::{Builder, ReadableDatabase, StorageBackend, TableDefinition, TableError};
use room::Room;
use std::fs::File;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use tieline_types::{ByteSize, Version};
use tieline_world::{Dice, SystemDice};

/// The pairs.
const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");
/// What the store remembers of itself.
const STORE: TableDefinition<&str, u64> = TableDefinition::new("store");
const FORMAT: &str = "format";
const VERSION: &str = "version";
/// The id of the store's log; 0, or nothing, if it has none.
const LOG: &str = "log";
/// The layout of both tables, and of the log.
const FORMAT_KNOWN: u64 = 2;
/// The same without a log: goes on as the newer.
const FORMAT_BEFORE: u64 = 1;

/// How far the version moves on at each opening.
const VERSIONS_SKIPPED: u64 = 1 << 20;

/// A store in a file, and its log.
pub struct EmbeddedStore {
    overlay: Arc<Overlay<RedbBase>>,
    committer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
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
        let place = file::LogBeside::new(path);
        if opened.unfinished.is_none() {
            judge_untouched(path, &place, &store, opening.check.as_ref())?;
        }
        let file = opened.file.try_clone().map_err(|error| io_error(&store, error))?;
        let backend = FileBackend::new(opened.file).map_err(|error| redb_error(&store, error))?;
        let start = || {
            let (file, sizes) = (Some(file), Sizes::default());
            Self::start(store.clone(), (backend, file), place, sizes, opening)
        };
        let damaged = |_| Error::Failed {
            store: store.clone(),
            source: "its file is damaged: bring it back with `tieline mdt restore`".into(),
        };
        // The engine does not expect to find its pages damaged.
        let this = std::panic::catch_unwind(AssertUnwindSafe(start)).map_err(damaged)??;
        if let Some(unfinished) = opened.unfinished {
            file::publish(&unfinished, path)
                .map_err(|error| io_error(this.overlay.store(), error))?;
        }
        Ok(this)
    }

    /// Opens (blocking) a store whose file is `backend` and whose log lies at `place`: files, or
    /// what crash tests put there. `file`: the same, if it is one.
    fn start(
        store: String,
        (backend, file): (impl StorageBackend, Option<File>),
        place: impl Place + 'static,
        sizes: Sizes,
        mut opening: Opening,
    ) -> Result<Self, Error> {
        let cache = usize::try_from(opening.cache.0).unwrap_or(usize::MAX);
        let database = Builder::new()
            .set_cache_size(cache)
            .create_with_backend(backend)
            .map_err(|error| redb_error(&store, error))?;
        let limits = Limits::default();
        assert!(limits.pending_commits() < VERSIONS_SKIPPED, "a version could be used again");
        let found = judge(&database, &place, &store, opening.check.as_ref())?;
        let durable = found.beyond.version;
        let version = Version(durable.0 + VERSIONS_SKIPPED);
        if let Some(journal) = &mut opening.journal {
            let failed = |source| Error::Journal { store: store.clone(), source };
            journal.start(durable, version).map_err(failed)?;
        }
        let room = Room::new(std::mem::take(&mut opening.disks));
        let place = Box::new(place);
        let parts = Parts { database, store: store.clone(), room, file, place, sizes };
        let base = RedbBase::start(parts, found.log, found.beyond, version)?;
        let overlay = Overlay::with_journal(base, store.clone(), version, limits, opening.journal);
        let mut this = Self { overlay, committer: None, checkpointer: None };
        let thread = |name: &str, run: fn(&Overlay<RedbBase>)| {
            let overlay = this.overlay.clone();
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(move || run(&overlay)).map_err(|error| io_error(&store, error)).map(Some)
        };
        let commit = |overlay: &Overlay<RedbBase>| {
            while overlay.wait_for_work() && overlay.flush() {}
        };
        this.checkpointer =
            thread("kv-checkpointer", |overlay| overlay.base().checkpoint_until_closed())?;
        this.committer = thread("kv-committer", commit)?;
        Ok(this)
    }
}

impl Drop for EmbeddedStore {
    /// Writes what is still pending, if there is room: all who wait for it are told. Then redb
    /// takes up all that the log holds.
    fn drop(&mut self) {
        let base = self.overlay.base();
        let join = |thread: Option<JoinHandle<()>>| {
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!(store = self.overlay.store(), "a thread of the store panicked");
            }
        };
        self.overlay.close();
        base.close_room();
        join(self.committer.take());
        // Not before: the last groups may wait for a checkpoint.
        base.stop();
        join(self.checkpointer.take());
        base.close();
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

    fn reusable(&self) -> u64 {
        self.overlay.base().reusable()
    }
}

/// Judges a store that is there without touching it: redb notes even in one that it only opened
/// that it did. One that was not closed it repairs first, and is judged then.
fn judge_untouched(
    path: &Path,
    place: &dyn Place,
    store: &str,
    check: Option<&(Key, Check)>,
) -> Result<(), Error> {
    match Builder::new().open_read_only(path) {
        Ok(database) => judge(&database, place, store, check).map(drop),
        // Whatever else it is, opening it says.
        Err(_) => Ok(()),
    }
}

/// A store that may be opened.
struct Found {
    /// The log that it has.
    log: Option<Log>,
    /// What that holds beyond redb, up to the newest version that is durable.
    beyond: Batch,
}

/// Is it a store to be opened? Writes nothing.
fn judge(
    database: &impl ReadableDatabase,
    place: &dyn Place,
    store: &str,
    check: Option<&(Key, Check)>,
) -> Result<Found, Error> {
    let refused = |source| Error::Refused { store: store.to_owned(), source };
    let note = |name| note(database, name).map_err(|error| redb_error(store, error));
    let known = note(FORMAT)?;
    if let Some(format) = known.filter(|format| ![FORMAT_BEFORE, FORMAT_KNOWN].contains(format)) {
        let source = format!("format {format} is not known, {FORMAT_KNOWN} is: use a newer build");
        return Err(refused(source.into()));
    }
    let (id, version) = (note(LOG)?.unwrap_or(0), Version(note(VERSION)?.unwrap_or(0)));
    let found = if id == 0 {
        // Whatever lies where its log would be is of another store, or of the past.
        Found { log: None, beyond: Batch { version, ..Batch::default() } }
    } else {
        let found = find_log(place, id, version).map_err(|error| io_error(store, error))?;
        found.map_err(|mismatch| refused(mismatch.into()))?
    };
    if let Some((key, check)) = check {
        let value = match (known, found.beyond.writes.get(key)) {
            (None, _) => None,
            (Some(_), Some(value)) => value.as_deref().cloned(),
            (Some(_), None) => pair(database, key).map_err(|error| redb_error(store, error))?,
        };
        check(value).map_err(refused)?;
    }
    Ok(found)
}

/// The log of a store that redb holds up to `version`, and what it holds beyond.
fn find_log(place: &dyn Place, id: LogId, version: Version) -> io::Result<Result<Found, Mismatch>> {
    let log = match Log::open(place, id)? {
        Ok(log) => log,
        Err(mismatch) => return Ok(Err(mismatch)),
    };
    Ok(log.replay(version)?.map(|beyond| Found { log: Some(log), beyond }))
}

/// An id for a log that is made. Not from a world that could be simulated: this engine has threads
/// and files, and is in none.
fn new_log_id() -> LogId {
    let mut bytes = [0; 8];
    SystemDice.fill(&mut bytes);
    // 0 is none.
    u64::from_le_bytes(bytes).max(1)
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
