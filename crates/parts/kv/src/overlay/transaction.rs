//! A transaction over the overlay: its snapshot, what it read, what it will write.
//!
//! A scan goes in pages. Each page takes some recent writes, as many pairs of the base as that
//! stretch of keys needs, and merges both with the transaction's own writes; so a page costs what
//! it returns, however much is pending elsewhere.
//!
//! Reads of an embedded base block the task. They are answered from the engine's cache in
//! microseconds, less than handing them to another thread would take; a miss costs one read of the
//! disk.

use super::state::State;
use super::{Base, Limits, Overlay, Writes};
use crate::{Committed, Error, Key, Range, Transaction, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tieline_types::Version;

/// What a transaction depends on.
#[derive(Default)]
pub(super) struct ReadSet {
    keys: BTreeSet<Key>,
    ranges: Vec<Range>,
}

impl ReadSet {
    /// Conflicts if any of it is newer than `snapshot`.
    pub fn check(&self, state: &State, snapshot: Version) -> Result<(), Error> {
        self.keys.iter().try_for_each(|key| state.check_key(key, snapshot))?;
        self.ranges.iter().try_for_each(|range| state.check_range(range, snapshot))
    }
}

pub(super) struct OverlayTransaction<B: Base> {
    overlay: Arc<Overlay<B>>,
    snapshot: Version,
    reads: ReadSet,
    writes: Writes,
}

/// Pairs of a stretch of keys, `None` for those that are deleted.
type Layer = BTreeMap<Key, Option<Arc<Value>>>;

/// The beginning of a scan.
struct Page {
    pairs: Vec<(Key, Value)>,
    /// The keys it answers for.
    covered: Range,
}

/// Recent writes a page looks at beyond the pairs it wants, since some of them may be deletions.
const PAGE_SLACK: usize = 64;

impl<B: Base> OverlayTransaction<B> {
    pub fn new(overlay: Arc<Overlay<B>>, snapshot: Version) -> Self {
        Self { overlay, snapshot, reads: ReadSet::default(), writes: Writes::new() }
    }

    /// What the store holds for `keys` in this transaction's state.
    async fn read_store(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        let recent = self
            .check_then(keys, |state| keys.iter().map(|key| state.get(key)).collect::<Vec<_>>())?;
        let missing: Vec<&Key> = keys
            .iter()
            .zip(&recent)
            .filter(|(_, found)| found.is_none())
            .map(|(k, _)| *k)
            .collect();
        if missing.is_empty() {
            return Ok(recent.into_iter().flatten().map(to_value).collect());
        }
        let mut from_base = self.overlay.base.get(&missing).await?.into_iter();
        // The base may have received something newer since the first look.
        self.check_then(&missing, |_| ())?;
        let merge = |found: Option<Option<Arc<Value>>>| match found {
            Some(value) => to_value(value),
            None => from_base.next().flatten(),
        };
        Ok(recent.into_iter().map(merge).collect())
    }

    fn check_then<T>(&self, keys: &[&Key], then: impl FnOnce(&State) -> T) -> Result<T, Error> {
        let state = self.overlay.lock();
        state.check_alive(&self.overlay.store)?;
        keys.iter().try_for_each(|key| state.check_key(key, self.snapshot))?;
        Ok(then(&state))
    }

    /// At most `want` pairs from the beginning of `range`.
    async fn scan_page(&self, range: &Range, want: usize) -> Result<Page, Error> {
        let (layer, mut covered) = self.scan_layer(range, want.saturating_add(PAGE_SLACK))?;
        let deletions = layer.values().filter(|value| value.is_none()).count();
        let limit = want.saturating_add(deletions);
        let from_base = self.overlay.base.scan(&covered, limit).await?;
        if from_base.len() >= limit
            && let Some((last, _)) = from_base.last()
        {
            covered = covered.up_to(last);
        }
        let mut pairs = merge(from_base, layer, &covered);
        if range.is_reverse {
            pairs.reverse();
        }
        if pairs.len() >= want {
            pairs.truncate(want);
            if let Some((last, _)) = pairs.last() {
                covered = covered.up_to(last);
            }
        }
        let state = self.overlay.lock();
        state.check_alive(&self.overlay.store)?;
        state.check_range(&covered, self.snapshot)?;
        Ok(Page { pairs, covered })
    }

    /// The recent writes at the beginning of `range`, at most `limit`, own writes over them, and
    /// the stretch they cover.
    fn scan_layer(&self, range: &Range, limit: usize) -> Result<(Layer, Range), Error> {
        let recent = {
            let state = self.overlay.lock();
            state.check_alive(&self.overlay.store)?;
            state.scan(range, limit)
        };
        let covered = match recent.last() {
            Some((last, _)) if recent.len() >= limit => range.up_to(last),
            _ => range.clone(),
        };
        let mut layer: Layer =
            recent.into_iter().map(|(key, value)| (key.as_ref().clone(), value)).collect();
        for (key, value) in self.writes.range::<Key, _>(&covered.start..&covered.end) {
            layer.insert(key.as_ref().clone(), value.clone());
        }
        Ok((layer, covered))
    }
}

#[async_trait::async_trait]
impl<B: Base> Transaction for OverlayTransaction<B> {
    fn version(&self) -> Version {
        self.snapshot
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let own: Vec<_> = keys.iter().map(|key| self.writes.get(key).cloned()).collect();
        let others: Vec<&Key> =
            keys.iter().zip(&own).filter(|(_, own)| own.is_none()).map(|(key, _)| key).collect();
        let mut from_store = self.read_store(&others).await?.into_iter();
        self.reads.keys.extend(others.into_iter().cloned());
        let merge = |own: Option<Option<Arc<Value>>>| match own {
            Some(value) => to_value(value),
            None => from_store.next().flatten(),
        };
        Ok(own.into_iter().map(merge).collect())
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let mut pairs = Vec::new();
        let mut rest = range;
        while pairs.len() < limit && rest.start < rest.end {
            let page = self.scan_page(&rest, limit - pairs.len()).await?;
            pairs.extend(page.pairs);
            rest = rest.after(&page.covered);
            self.reads.ranges.push(page.covered);
        }
        Ok(pairs)
    }

    fn put(&mut self, key: Key, value: Value) {
        debug_assert!(key.len() <= crate::KEY_MAX && value.len() <= crate::VALUE_MAX);
        self.writes.insert(Arc::new(key), Some(Arc::new(value)));
    }

    fn delete(&mut self, key: Key) {
        self.writes.insert(Arc::new(key), None);
    }

    async fn commit(mut self: Box<Self>) -> Result<Committed, Error> {
        if self.writes.is_empty() {
            return self.overlay.decide_reads(self.snapshot);
        }
        let writes = std::mem::take(&mut self.writes);
        if !self.overlay.base.has_room(&writes) {
            return Err(Error::Full { store: self.overlay.store.clone() });
        }
        let pairs = writes.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, |v| v.len()));
        let bytes = self.overlay.take_room(Limits::COMMIT_COST + pairs.sum::<usize>()).await?;
        self.overlay.decide(self.snapshot, &self.reads, writes, bytes)
    }
}

impl<B: Base> Drop for OverlayTransaction<B> {
    fn drop(&mut self) {
        // A poisoned lock has been said where it happened; here a panic would abort the process.
        if let Ok(mut state) = self.overlay.state.lock() {
            state.end(self.snapshot, self.overlay.limits.recent_bytes);
        }
    }
}

/// The pairs of both within `covered`, in ascending order; the layer holds what is newer.
fn merge(from_base: Vec<(Key, Value)>, layer: Layer, covered: &Range) -> Vec<(Key, Value)> {
    let mut pairs: BTreeMap<Key, Value> = from_base.into_iter().collect();
    for (key, value) in layer {
        if key < covered.start || key >= covered.end {
            continue;
        }
        match value {
            Some(value) => pairs.insert(key, Arc::unwrap_or_clone(value)),
            None => pairs.remove(&key),
        };
    }
    pairs.into_iter().collect()
}

fn to_value(value: Option<Arc<Value>>) -> Option<Value> {
    value.map(Arc::unwrap_or_clone)
}
