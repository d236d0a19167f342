//! The base of the embedded engine: groups go to the log and into tables in memory; redb takes them
//! up later, many at once.
//!
//! ```text
//!   group ──▶ log: one write, one sync ──▶ table being filled
//!                                              │ full, or nothing came for a while
//!                                              ▼
//!   redb ◀── checkpoint: one durable commit ── sealed table
//! ```
//!
//! While a sealed table is on its way to redb, on a thread of its own, the other is filled, and the
//! log's other segment. If that is full, too, groups wait for the checkpoint. A group that is
//! larger than a segment goes to redb itself, after all that was before it.
//!
//! A checkpoint that fails ends the store: the next group is told why. All that was said to be
//! durable is in the log.
//!
//! Invariants: a segment's turn comes again only after redb has what was in it, durably; redb is
//! at one version at any time, and so is redb with the tables over it.

mod reusable;

use super::log::{Log, LogId, Place};
use super::pairs::{Pairs, RedbSnapshot, get, in_pages, scan};
use super::room::{Need, Room};
use super::tables::Tables;
use super::{FORMAT, FORMAT_KNOWN, LOG, PAIRS, STORE, VERSION, io_error, new_log_id, redb_error};
use crate::overlay::{Base, Batch, Writes};
use crate::{Error, Key, Range, Snapshot, Value};
use redb::{Database, ReadableDatabase};
use reusable::Looked;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::Version;

/// What was written is taken up by redb when nothing came for so long: soon enough that little is
/// left to do for who stops or opens the store, and not while others wait for the disk.
const IDLE: Duration = Duration::from_secs(1);

/// One is taken up while the other is filled: both must find room.
const TABLES: u64 = 2;

/// When a table is full.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Of a segment of the log.
    pub segment_bytes: u64,
    pub pairs: usize,
}

impl Default for Sizes {
    /// Thousands of groups share a checkpoint, and are read back within a second at a start.
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, pairs: 8192 }
    }
}

pub(super) struct RedbBase {
    database: Database,
    /// For messages.
    store: String,
    room: Room,
    /// Its file, if it is one.
    file: Option<File>,
    /// What it has in it beyond what is in use.
    looked: Mutex<Option<Looked>>,
    place: Box<dyn Place>,
    sizes: Sizes,
    /// A group came since the opening.
    had_group: AtomicBool,
    tables: RwLock<Tables>,
    /// Is locked before the tables.
    progress: Mutex<Progress>,
    /// A table was sealed or taken up, is not empty any more, or the store is closing.
    changed: Condvar,
}

struct Progress {
    log: Log,
    is_closing: bool,
    /// Something failed: nothing is written any more.
    is_over: bool,
    /// Why, until somebody was told.
    failure: Option<Error>,
}

/// What a base is made of.
pub(super) struct Parts {
    pub database: Database,
    pub store: String,
    pub room: Room,
    pub file: Option<File>,
    pub place: Box<dyn Place>,
    pub sizes: Sizes,
}

impl RedbBase {
    /// Goes on after `version`, with the store's `log` if it has one and what that holds beyond
    /// redb (`replayed`). That is taken up as long as the disk takes it: a store that was opened
    /// is read and frees room, and one that meets the disk's end here has lost nothing.
    pub fn start(
        parts: Parts,
        log: Option<Log>,
        replayed: Batch,
        version: Version,
    ) -> Result<Self, Error> {
        let Parts { database, store, room, file, place, sizes } = parts;
        let mut log = match log {
            Some(log) => log,
            None => Log::make(&*place, new_log_id()).map_err(|error| io_error(&store, error))?,
        };
        log.start(version, sizes.segment_bytes);
        let (id, batch) = (log.id(), Batch { version, ..replayed });
        let progress = Progress { log, is_closing: false, is_over: false, failure: None };
        let (tables, progress) = (RwLock::default(), Mutex::new(progress));
        let (had_group, changed) = (AtomicBool::default(), Condvar::new());
        let looked = Mutex::default();
        let this = Self {
            database,
            store,
            room,
            file,
            looked,
            place,
            sizes,
            had_group,
            tables,
            progress,
            changed,
        };
        this.write(&batch, Some(id))?;
        Ok(this)
    }

    /// Brings sealed tables to redb until the store is closing: what the engine's second thread
    /// does.
    pub fn checkpoint_until_closed(&self) {
        while let Some(table) = self.wait_for_sealed() {
            let outcome = self.checkpoint(&table, None);
            let mut progress = self.progress();
            match outcome {
                Ok(()) => self.tables_mut().forget_sealed(),
                Err(error) => {
                    progress.failure = Some(error);
                    progress.is_over = true;
                }
            }
            self.changed.notify_all();
        }
    }

    /// Nobody waits for room any more.
    pub fn close_room(&self) {
        self.room.close();
    }

    /// No group comes any more: what is sealed is the last that is taken up beside.
    pub fn stop(&self) {
        if let Ok(mut progress) = self.progress.lock() {
            progress.is_closing = true;
        }
        self.changed.notify_all();
    }

    /// Brings to redb what is left, so that the store needs no log; if that fails it keeps it.
    pub fn close(&self) {
        let Ok(mut progress) = self.progress.lock() else { return };
        if let Some(error) = progress.failure.take() {
            // No group came that could have been told.
            tracing::error!(store = %self.store, ?error, "its write-ahead log was not taken up");
        }
        if std::mem::replace(&mut progress.is_over, true) || self.tables().sealed().is_some() {
            return;
        }
        let rest = self.tables().copy().into_filling();
        let rest = Batch { version: progress.log.version(), ..rest };
        let closed = self.checkpoint(&rest, Some(0)).and_then(|()| {
            let removed = progress.log.remove(&*self.place);
            removed.map_err(|error| io_error(&self.store, error))
        });
        if let Err(error) = closed {
            tracing::warn!(store = %self.store, ?error, "closed with a write-ahead log");
        }
    }

    /// The next sealed table; seals one itself when nothing came for a while. `None`: no more.
    fn wait_for_sealed(&self) -> Option<Arc<Batch>> {
        let mut progress = self.progress();
        loop {
            if progress.is_over {
                return None;
            }
            let (sealed, is_empty) = {
                let tables = self.tables();
                (tables.sealed(), tables.filled() == 0)
            };
            if sealed.is_some() || progress.is_closing {
                return sealed;
            }
            if is_empty {
                progress = self.changed.wait(progress).expect(POISONED);
                continue;
            }
            let seen = progress.log.version();
            let waited = self.changed.wait_timeout(progress, IDLE).expect(POISONED);
            progress = waited.0;
            let is_idle = waited.1.timed_out() && progress.log.version() == seen;
            if is_idle && self.tables().sealed().is_none() {
                self.seal(&mut progress);
            }
        }
    }

    /// Is what was filled to be sealed? Where room is short, a table is small: then redb takes it
    /// up all the same, and what deletions free there it uses again.
    fn is_full(&self, progress: &Progress) -> bool {
        let filled = self.tables().filled();
        let needed = Need::of_filled(filled as u64, progress.log.used()).times(TABLES);
        filled >= self.sizes.pairs || filled > 0 && !self.room.is_there(needed)
    }

    fn checkpoint(&self, table: &Batch, log: Option<LogId>) -> Result<(), Error> {
        // At a close the disk itself decides: the engine is not used again, and the log stays.
        let need = Need::of_checkpoint(table);
        self.room.wait(need);
        self.room.take(need);
        // A panicking engine must not leave anybody waiting.
        let written = catch_unwind(AssertUnwindSafe(|| self.write(table, log)));
        written.unwrap_or_else(|_| Err(self.failed("the engine panicked")))?;
        METRICS.checkpoints.inc();
        METRICS.checkpoint_pairs.inc_by(table.writes.len() as u64);
        Ok(())
    }

    /// Seals the table that is being filled: redb has the other, and so that one's segment.
    fn seal(&self, progress: &mut Progress) {
        self.tables_mut().seal();
        progress.log.turn();
        self.changed.notify_all();
    }

    /// Waits until there is no sealed table.
    fn wait_for_checkpoint<'a>(
        &'a self,
        mut progress: MutexGuard<'a, Progress>,
    ) -> Result<MutexGuard<'a, Progress>, Error> {
        if self.tables().sealed().is_some() {
            METRICS.checkpoint_waits.inc();
        }
        loop {
            if progress.is_over {
                let failure = progress.failure.take();
                return Err(failure.unwrap_or_else(|| self.failed("it failed before")));
            }
            if self.tables().sealed().is_none() {
                return Ok(progress);
            }
            progress = self.changed.wait(progress).expect(POISONED);
        }
    }

    /// Writes a group or a table to redb, durably, and which log the store has if that changes.
    fn write(&self, batch: &Batch, log: Option<LogId>) -> Result<(), Error> {
        let run = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_two_phase_commit(true);
            transaction.set_quick_repair(true);
            {
                let mut pairs = transaction.open_table(PAIRS)?;
                for (key, value) in &batch.writes {
                    match value {
                        Some(value) => pairs.insert(key.as_slice(), value.as_slice())?,
                        None => pairs.remove(key.as_slice())?,
                    };
                }
                let mut store = transaction.open_table(STORE)?;
                store.insert(VERSION, batch.version.0)?;
                if let Some(log) = log {
                    store.insert(FORMAT, FORMAT_KNOWN)?;
                    store.insert(LOG, log)?;
                }
            }
            transaction.commit()?;
            Ok(())
        };
        run().map_err(|error| redb_error(&self.store, error))
    }

    /// Runs `look` on what redb holds now.
    fn read<T>(&self, look: impl FnOnce(&Pairs) -> Result<T, redb::Error>) -> Result<T, Error> {
        let run = || {
            let transaction = self.database.begin_read()?;
            look(&transaction.open_table(PAIRS)?)
        };
        run().map_err(|error: redb::Error| redb_error(&self.store, error))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect(POISONED)
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().expect(POISONED)
    }

    fn tables_mut(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().expect(POISONED)
    }

    /// Is there anything that redb does not hold yet?
    #[cfg(test)]
    pub fn waits_in_log(&self) -> bool {
        self.tables().version().is_some()
    }

    /// Is a table on its way to redb?
    #[cfg(test)]
    pub fn has_sealed(&self) -> bool {
        self.tables().sealed().is_some()
    }

    fn failed(&self, why: &'static str) -> Error {
        Error::Failed { store: self.store.clone(), source: why.into() }
    }
}

const POISONED: &str = "a thread of the store panicked";

impl Base for RedbBase {
    const IS_IMMEDIATE: bool = false;

    async fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        let newer: Vec<_> = {
            let tables = self.tables();
            keys.iter().map(|key| tables.get(key)).collect()
        };
        let mut values = Vec::with_capacity(keys.len());
        if newer.iter().all(Option::is_some) {
            values.extend(newer.into_iter().flatten().map(|value| value.map(Arc::unwrap_or_clone)));
            return Ok(values);
        }
        self.read(|pairs| {
            for (key, newer) in keys.iter().zip(newer) {
                values.push(match newer {
                    Some(value) => value.map(Arc::unwrap_or_clone),
                    None => get(pairs, key)?,
                });
            }
            Ok(values)
        })
    }

    async fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        in_pages(range.clone(), limit, |rest, wanted| {
            let page = self.tables().page(rest, wanted);
            let covered = page.covered.clone();
            Ok((self.read(|pairs| scan(pairs, page, wanted))?, covered))
        })
    }

    fn wait_for_room(&self, batch: &Batch) -> bool {
        // With the first a server says that it starts: who reads does not wait for room.
        let is_first = !self.had_group.swap(true, Ordering::Relaxed);
        is_first || self.room.wait(Need::of_group(batch))
    }

    fn has_room(&self, writes: &Writes) -> bool {
        let is_first = !self.had_group.load(Ordering::Relaxed);
        is_first || self.room.is_there(Need::of_commit(writes))
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        let mut progress = self.progress();
        let frame = progress.log.frame(batch);
        if !progress.log.can_hold(&frame) {
            progress = self.wait_for_checkpoint(progress)?;
            if self.tables().filled() > 0 {
                self.seal(&mut progress);
                progress = self.wait_for_checkpoint(progress)?;
            }
            self.room.take(Need::of_group(batch));
            self.write(batch, None).inspect_err(|_| progress.is_over = true)?;
            progress.log.go_on_after(batch.version);
            return Ok(());
        }
        let is_full = self.is_full(&progress);
        if progress.is_over || is_full || !progress.log.has_room(&frame) {
            progress = self.wait_for_checkpoint(progress)?;
            self.seal(&mut progress);
        }
        if let Err(error) = progress.log.append(frame, batch.version) {
            progress.is_over = true;
            return Err(io_error(&self.store, error));
        }
        let mut tables = self.tables_mut();
        if tables.filled() == 0 {
            self.changed.notify_all();
        }
        tables.enter(batch);
        Ok(())
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        // Nothing is sealed while the tables are looked at, so redb gets nothing newer.
        let tables = self.tables();
        let open = || -> Result<_, redb::Error> {
            let transaction = self.database.begin_read()?;
            let pairs = transaction.open_table(PAIRS)?;
            let version = transaction.open_table(STORE)?.get(VERSION)?.map_or(0, |v| v.value());
            Ok((pairs, Version(version)))
        };
        let (pairs, in_redb) = open().map_err(|error| redb_error(&self.store, error))?;
        let tables = tables.copy();
        let version = tables.version().unwrap_or(in_redb);
        Ok(Box::new(RedbSnapshot { pairs, tables, version, store: self.store.clone() }))
    }
}
