//! What all engines share: optimistic transactions over recent commits in memory, above a base
//! that is durable.
//!
//! ```text
//!   transactions ──reads──▶ recent commits ──miss──▶ base (ordered pairs)
//!        │ commit              ▲      │ retire           ▲
//!        ▼                     │      ▼                  │
//!     decide (one lock) ───────┴─▶ pending ──flush: one group, one durable write
//! ```
//!
//! * A transaction begins at the newest version. What it reads it remembers, keys and ranges;
//!   anything newer among the recent commits is a conflict, at the read or at the commit. A commit
//!   that passes gets the next version and is seen by all from then on, though not yet durable.
//! * Whatever is pending is flushed together ([`Overlay::flush`]): by whoever commits, if the base
//!   is immediate, else by a thread of the engine. Those who wait for durability are told in the
//!   order of versions.
//! * A recent commit is retired once the base holds it and no transaction is older. A transaction
//!   that holds up more memory than is allowed for is given up instead: it conflicts.
//!
//! Reads look at the recent commits, then at the base, then at the recent commits again. The base
//! may meanwhile have received something newer than the transaction, but then the second look
//! finds it: it cannot retire before the transaction.
//!
//! Knows nothing of engines, nothing of threads.
//!
//! Invariants: versions of pending, flushed and recent commits are ordered (`flushed <= version`);
//! the base holds exactly the commits up to some version between `flushed` and `version`; a failed
//! flush is the last.

mod state;
#[cfg(test)]
mod tests;
mod transaction;

use crate::{Committed, Durable, Error, Journal, Key, Range, Snapshot, Transaction, Value};
use state::State;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use tieline_telemetry::metrics::METRICS;
use tieline_types::Version;
use tokio::sync::Semaphore;
use transaction::{OverlayTransaction, ReadSet};

/// Writes of one or more commits; `None` deletes.
pub type Writes = BTreeMap<Arc<Key>, Option<Arc<Value>>>;

/// What is written to the base in one step.
#[derive(Default)]
pub struct Batch {
    pub writes: Writes,
    /// The newest version among them.
    pub version: Version,
}

/// Where pairs are kept.
pub trait Base: Send + Sync + 'static {
    /// Flushing is so cheap that each commit does it itself.
    const IS_IMMEDIATE: bool;

    /// The values of `keys`. A base on this machine answers at once, without waiting.
    fn get(&self, keys: &[&Key]) -> impl Future<Output = Result<Vec<Option<Value>>, Error>> + Send;

    fn scan(
        &self,
        range: &Range,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, Error>> + Send;

    /// Is there room for these writes? Where there is none nothing is decided: who reads what was
    /// would wait with it.
    fn has_room(&self, _writes: &Writes) -> bool {
        true
    }

    /// Waits, blocking, until there is room for it. `false`: the store is closed before there is.
    fn wait_for_room(&self, _batch: &Batch) -> bool {
        true
    }

    /// Writes all of it, durably, or nothing; blocks. After an error the base is not used again.
    fn apply(&self, batch: &Batch) -> Result<(), Error>;

    /// What it holds now, for as long as somebody reads it.
    fn snapshot(&self) -> impl Future<Output = Result<Box<dyn Snapshot>, Error>> + Send;
}

/// Bounds of what is held in memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Commits wait while more than this is on its way to the base.
    pub pending_bytes: u32,
    /// Old transactions are given up when they hold up more than this of flushed commits.
    pub recent_bytes: usize,
}

impl Limits {
    /// A commit counts as this much beyond its pairs, so that empty ones are bounded too.
    pub const COMMIT_COST: usize = 128;

    /// Commits that can be decided and not yet durable, at most.
    pub const fn pending_commits(self) -> u64 {
        self.pending_bytes as u64 / Self::COMMIT_COST as u64
    }
}

impl Default for Limits {
    /// 64 MiB is a second of a fast disk; twice that lets readers linger over a flush.
    fn default() -> Self {
        Self { pending_bytes: 64 << 20, recent_bytes: 128 << 20 }
    }
}

/// Transactions over a base.
pub struct Overlay<B> {
    base: B,
    /// For messages.
    store: String,
    limits: Limits,
    state: Mutex<State>,
    /// Tells the engine's thread that something is pending, or that the store is closing.
    work: Condvar,
    /// Groups reach the journal, then the base, in the order of their versions.
    flushing: Mutex<Option<Box<dyn Journal>>>,
    /// Bytes that may still become pending; closed when the store ends.
    room: Arc<Semaphore>,
}

impl<B: Base> Overlay<B> {
    /// Goes on after `version`, which is durable in the base.
    pub fn new(base: B, store: String, version: Version, limits: Limits) -> Arc<Self> {
        Self::with_journal(base, store, version, limits, None)
    }

    /// The same, with a journal that was started.
    pub fn with_journal(
        base: B,
        store: String,
        version: Version,
        limits: Limits,
        journal: Option<Box<dyn Journal>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            base,
            store,
            limits,
            state: Mutex::new(State::new(version)),
            work: Condvar::new(),
            flushing: Mutex::new(journal),
            room: Arc::new(Semaphore::new(limits.pending_bytes as usize)),
        })
    }

    pub fn store(&self) -> &str {
        &self.store
    }

    pub fn base(&self) -> &B {
        &self.base
    }

    pub async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.lock().check_alive(&self.store)?;
        self.base.snapshot().await
    }

    /// Versions from now on are above `version`. It is durable with the next commit.
    pub fn advance(&self, version: Version) -> Result<(), Error> {
        // Nothing is on its way to the base while versions jump.
        let _turn = self.flushing.lock().expect("a flush panicked");
        let mut state = self.lock();
        state.check_alive(&self.store)?;
        state.advance(version);
        Ok(())
    }

    pub fn begin(self: &Arc<Self>) -> Result<Box<dyn Transaction>, Error> {
        let snapshot = {
            let mut state = self.lock();
            state.check_alive(&self.store)?;
            state.begin()
        };
        Ok(Box::new(OverlayTransaction::new(self.clone(), snapshot)))
    }

    /// Writes what is pending, as one group. Says whether the store goes on.
    pub fn flush(&self) -> bool {
        let mut journal = self.flushing.lock().expect("a flush panicked");
        let (batch, group) = {
            let mut state = self.lock();
            if state.check_alive(&self.store).is_err() {
                return false;
            }
            state.take_pending()
        };
        if group.commits == 0 {
            return true;
        }
        // A panicking engine must not leave anybody waiting.
        let result = catch_unwind(AssertUnwindSafe(|| {
            if !self.base.wait_for_room(&batch) {
                return Err(Error::Full { store: self.store.clone() });
            }
            if let Some(journal) = &mut *journal {
                let failed = |source| Error::Journal { store: self.store.clone(), source };
                journal.append(&batch).map_err(failed)?;
            }
            self.base.apply(&batch)
        }));
        match result.unwrap_or_else(|_| Err(self.panicked())) {
            Ok(()) => {
                METRICS.commit_groups.inc();
                METRICS.commits.inc_by(group.commits);
                self.lock().flushed(batch.version, self.limits.recent_bytes);
                self.room.add_permits(group.bytes);
                true
            }
            Err(error) => {
                tracing::error!(store = %self.store, error = %chain(&error), "store ended");
                self.room.close();
                self.lock().fail(error, &self.store);
                false
            }
        }
    }

    /// Waits (blocking) until something is pending. Says whether there will be more work.
    pub fn wait_for_work(&self) -> bool {
        let mut state = self.lock();
        while state.is_idle() {
            if state.is_closing {
                return false;
            }
            state = self.work.wait(state).expect("the overlay's lock is poisoned");
        }
        true
    }

    /// No more commits; what is pending is still work.
    pub fn close(&self) {
        self.room.close();
        self.lock().is_closing = true;
        self.work.notify_all();
    }

    /// Waits until `bytes` more may be pending.
    async fn take_room(&self, bytes: usize) -> Result<u32, Error> {
        // A commit above the bound waits until it is alone.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.limits.pending_bytes);
        match self.room.acquire_many(bytes).await {
            Ok(permit) => {
                permit.forget();
                Ok(bytes)
            }
            Err(_) => Err(Error::Ended { store: self.store.clone() }),
        }
    }

    /// Decides a commit, in memory and in order. `bytes` of room were taken for it.
    fn decide(
        &self,
        snapshot: Version,
        reads: &ReadSet,
        writes: Writes,
        bytes: u32,
    ) -> Result<Committed, Error> {
        let decided = {
            let mut state = self.lock();
            let checked = state.check_alive(&self.store);
            checked.and_then(|()| reads.check(&state, snapshot)).map(|()| {
                // From here on it has happened, in memory.
                state.commit(writes, bytes as usize)
            })
        };
        let (version, waiting) = decided.inspect_err(|_| self.room.add_permits(bytes as usize))?;
        if B::IS_IMMEDIATE {
            self.flush();
        } else {
            self.work.notify_one();
        }
        Ok(Committed { version, durable: self.durable(waiting) })
    }

    /// The end of a transaction that only read: durable when all it may have seen is.
    fn decide_reads(&self, snapshot: Version) -> Result<Committed, Error> {
        let mut state = self.lock();
        state.check_alive(&self.store)?;
        let durable = state.wait_for(snapshot);
        Ok(Committed { version: snapshot, durable: self.durable(durable) })
    }

    fn durable(&self, waiting: state::Waiting) -> Durable {
        let store = self.store.clone();
        // The sender goes without a word only when the whole store went.
        Box::pin(async move { waiting.await.unwrap_or(Err(Error::Ended { store })) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the overlay's lock is poisoned")
    }

    fn panicked(&self) -> Error {
        Error::Failed { store: self.store.clone(), source: "the engine panicked".into() }
    }
}

/// An error with its causes, for the log.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
