//! The overlay's memory: recent commits, what is pending, who is active, who waits. All of it
//! under one lock.

use super::{Batch, Writes};
use crate::{Error, Key, Range, Value};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error as StdError;
use std::ops::Bound;
use std::sync::Arc;
use tieline_types::Version;
use tokio::sync::oneshot;

/// Ends when a version is durable, or the store failed.
pub(super) type Waiting = oneshot::Receiver<Result<(), Error>>;

/// The newest write of a key.
struct Recent {
    version: Version,
    value: Option<Arc<Value>>,
}

/// A write in the order of versions, for retiring.
struct Logged {
    version: Version,
    key: Arc<Key>,
    bytes: usize,
}

/// What a group holds.
#[derive(Clone, Copy, Default)]
pub(super) struct Group {
    pub commits: u64,
    /// Room that was taken for it.
    pub bytes: usize,
}

pub(super) struct State {
    /// The newest commit.
    version: Version,
    /// The newest commit that is durable.
    flushed: Version,
    /// Transactions older than this were given up.
    floor: Version,
    recent: BTreeMap<Arc<Key>, Recent>,
    log: VecDeque<Logged>,
    log_bytes: usize,
    /// How many transactions read each version.
    active: BTreeMap<Version, usize>,
    pending: Writes,
    group: Group,
    waiters: BTreeMap<Version, Vec<oneshot::Sender<Result<(), Error>>>>,
    has_failed: bool,
    pub is_closing: bool,
}

impl State {
    pub fn new(version: Version) -> Self {
        Self {
            version,
            flushed: version,
            floor: Version(0),
            recent: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            active: BTreeMap::new(),
            pending: Writes::new(),
            group: Group::default(),
            waiters: BTreeMap::new(),
            has_failed: false,
            is_closing: false,
        }
    }

    pub fn check_alive(&self, store: &str) -> Result<(), Error> {
        if self.has_failed { Err(Error::Ended { store: store.to_owned() }) } else { Ok(()) }
    }

    /// A new transaction's snapshot; [`State::end`] gives it back.
    pub fn begin(&mut self) -> Version {
        *self.active.entry(self.version).or_default() += 1;
        self.version
    }

    pub fn end(&mut self, snapshot: Version, recent_bytes: usize) {
        if let Some(count) = self.active.get_mut(&snapshot) {
            *count -= 1;
            if *count == 0 {
                self.active.remove(&snapshot);
                self.retire(recent_bytes);
            }
        }
    }

    /// The recent value of a key: `None` if the base must be asked.
    pub fn get(&self, key: &Key) -> Option<Option<Arc<Value>>> {
        self.recent.get(key).map(|recent| recent.value.clone())
    }

    /// The first `limit` recent writes in a range.
    pub fn scan(&self, range: &Range, limit: usize) -> Vec<(Arc<Key>, Option<Arc<Value>>)> {
        let writes = self.recent_in(range).map(|(key, recent)| (key.clone(), recent.value.clone()));
        if range.is_reverse {
            writes.rev().take(limit).collect()
        } else {
            writes.take(limit).collect()
        }
    }

    pub fn check_key(&self, key: &Key, snapshot: Version) -> Result<(), Error> {
        match self.recent.get(key) {
            Some(recent) if recent.version > snapshot => Err(Error::Conflict),
            _ => self.check_floor(snapshot),
        }
    }

    pub fn check_range(&self, range: &Range, snapshot: Version) -> Result<(), Error> {
        if self.recent_in(range).any(|(_, recent)| recent.version > snapshot) {
            return Err(Error::Conflict);
        }
        self.check_floor(snapshot)
    }

    fn check_floor(&self, snapshot: Version) -> Result<(), Error> {
        if snapshot < self.floor { Err(Error::Conflict) } else { Ok(()) }
    }

    /// Enters a commit that passed all checks.
    pub fn commit(&mut self, writes: Writes, bytes: usize) -> (Version, Waiting) {
        self.version = Version(self.version.0 + 1);
        let version = self.version;
        for (key, value) in writes {
            let bytes = key.len() + value.as_ref().map_or(0, |value| value.len());
            self.log.push_back(Logged { version, key: key.clone(), bytes });
            self.log_bytes += bytes;
            self.recent.insert(key.clone(), Recent { version, value: value.clone() });
            self.pending.insert(key, value);
        }
        self.group.commits += 1;
        self.group.bytes += bytes;
        (version, self.wait_for(version))
    }

    /// Commits go on after `version`, if they were not there yet.
    pub fn advance(&mut self, version: Version) {
        if version > self.version {
            // What was pending at the old version is flushed under the new one.
            self.version = version;
            if self.is_idle() {
                self.flushed = version;
            }
        }
    }

    pub fn wait_for(&mut self, version: Version) -> Waiting {
        let (sender, waiting) = oneshot::channel();
        if version <= self.flushed {
            // The receiver is here: nobody can have dropped it.
            let _ = sender.send(Ok(()));
        } else {
            self.waiters.entry(version).or_default().push(sender);
        }
        waiting
    }

    pub fn is_idle(&self) -> bool {
        self.group.commits == 0
    }

    pub fn take_pending(&mut self) -> (Batch, Group) {
        let writes = std::mem::take(&mut self.pending);
        (Batch { writes, version: self.version }, std::mem::take(&mut self.group))
    }

    /// Everything up to `version` is durable in the base.
    pub fn flushed(&mut self, version: Version, recent_bytes: usize) {
        assert!(self.flushed <= version && version <= self.version, "flushed out of order");
        self.flushed = version;
        let later = self.waiters.split_off(&Version(version.0 + 1));
        for sender in std::mem::replace(&mut self.waiters, later).into_values().flatten() {
            // Whoever dropped the receiver does not want to know.
            let _ = sender.send(Ok(()));
        }
        self.retire(recent_bytes);
    }

    /// The store is over; everyone who waits is told why.
    pub fn fail(&mut self, error: Error, store: &str) {
        self.has_failed = true;
        let fault = Fault::from(error);
        for sender in std::mem::take(&mut self.waiters).into_values().flatten() {
            let _ = sender.send(Err(fault.to_error(store)));
        }
        self.pending.clear();
        self.group = Group::default();
    }

    /// Forgets what the base holds and nobody needs; more than that if readers hold up more than
    /// `recent_bytes`.
    fn retire(&mut self, recent_bytes: usize) {
        let oldest = self.active.keys().next().copied();
        while let Some(front) = self.log.front() {
            let is_needed = oldest.is_some_and(|oldest| oldest < front.version);
            let is_kept = is_needed && self.log_bytes <= recent_bytes;
            if front.version > self.flushed || is_kept {
                break;
            }
            if is_needed {
                self.floor = front.version;
            }
            self.log_bytes -= front.bytes;
            if self.recent.get(&front.key).is_some_and(|recent| recent.version == front.version) {
                self.recent.remove(&front.key);
            }
            self.log.pop_front();
        }
    }

    fn recent_in(&self, range: &Range) -> impl DoubleEndedIterator<Item = (&Arc<Key>, &Recent)> {
        // An empty range is no error for callers; the map would panic on some.
        let end = (&range.end).max(&range.start);
        self.recent.range::<Key, _>((Bound::Included(&range.start), Bound::Excluded(end)))
    }

    #[cfg(test)]
    pub fn recent_len(&self) -> usize {
        self.recent.len()
    }
}

/// An error that several can be told.
enum Fault {
    Full,
    Failed(Arc<dyn StdError + Send + Sync>),
}

impl Fault {
    fn to_error(&self, store: &str) -> Error {
        let store = store.to_owned();
        match self {
            Self::Full => Error::Full { store },
            Self::Failed(source) => {
                Error::Failed { store, source: Box::new(Shared(source.clone())) }
            }
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Full { .. } => Self::Full,
            Error::Failed { source, .. } => Self::Failed(source.into()),
            other => Self::Failed(Arc::new(other)),
        }
    }
}

/// One cause, told to several.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Shared(Arc<dyn StdError + Send + Sync>);
