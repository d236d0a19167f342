//! What the write-ahead log holds and redb does not yet, for readers: two tables in memory, one
//! that is being filled and one, sealed, on its way to redb.
//!
//! Invariant: a write is in a table from when its group is durable until redb has it, durably; so
//! who looks here first and then into redb misses nothing.

use crate::overlay::{Batch, Writes};
use crate::{Key, Range, Value};
use std::ops::Bound;
use std::sync::Arc;
use tieline_types::Version;

/// Writes a page looks at beyond the pairs it wants, since some of them may be deletions.
const PAGE_SLACK: usize = 64;

/// Both tables.
#[derive(Default)]
pub(super) struct Tables {
    filling: Batch,
    sealed: Option<Arc<Batch>>,
}

/// Writes at the beginning of a range, in its direction, and the keys they answer for.
pub(super) struct Page {
    pub writes: Vec<(Arc<Key>, Option<Arc<Value>>)>,
    pub covered: Range,
}

impl Tables {
    /// A group that became durable.
    pub fn enter(&mut self, batch: &Batch) {
        let writes = batch.writes.iter().map(|(key, value)| (key.clone(), value.clone()));
        self.filling.writes.extend(writes);
        self.filling.version = batch.version;
    }

    /// Pairs of the table that is being filled.
    pub fn filled(&self) -> usize {
        self.filling.writes.len()
    }

    /// Seals what was filled, and begins an empty table. The other has reached redb.
    pub fn seal(&mut self) {
        assert!(self.sealed.is_none(), "a sealed table would be lost");
        assert!(!self.filling.writes.is_empty(), "an empty table has no version");
        self.sealed = Some(Arc::new(std::mem::take(&mut self.filling)));
    }

    pub fn sealed(&self) -> Option<Arc<Batch>> {
        self.sealed.clone()
    }

    /// Redb has the sealed table, durably.
    pub fn forget_sealed(&mut self) {
        self.sealed = None;
    }

    /// The tables as they are.
    pub fn copy(&self) -> Self {
        let Batch { writes, version } = &self.filling;
        let filling = Batch { writes: writes.clone(), version: *version };
        Self { filling, sealed: self.sealed.clone() }
    }

    /// What was filled since the last was sealed.
    pub fn into_filling(self) -> Batch {
        self.filling
    }

    /// Of the newest write here, if there is any.
    pub fn version(&self) -> Option<Version> {
        self.oldest_first().map(|table| table.version).last()
    }

    /// The newest write of a key: `None` if redb must be asked.
    pub fn get(&self, key: &Key) -> Option<Option<Arc<Value>>> {
        self.oldest_first().filter_map(|table| table.writes.get(key)).last().cloned()
    }

    /// The writes at the beginning of `range`, enough of them for `wanted` pairs.
    pub fn page(&self, range: &Range, wanted: usize) -> Page {
        let most = wanted.saturating_add(PAGE_SLACK);
        let mut covered = range.clone();
        let mut writes = Writes::new();
        for table in self.oldest_first() {
            // Those of the older table end where it does, or before.
            let found = within(&table.writes, &covered);
            let found: Vec<_> = if range.is_reverse {
                found.rev().take(most).collect()
            } else {
                found.take(most).collect()
            };
            if let Some((last, _)) = found.last()
                && found.len() == most
            {
                covered = covered.up_to(last);
            }
            writes.extend(found.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let is_covered = |key: &Arc<Key>| covered.start <= **key && **key < covered.end;
        let writes = writes.into_iter().filter(|(key, _)| is_covered(key));
        let writes = if range.is_reverse { writes.rev().collect() } else { writes.collect() };
        Page { writes, covered }
    }

    fn oldest_first(&self) -> impl Iterator<Item = &Batch> {
        let filling = Some(&self.filling).filter(|table| !table.writes.is_empty());
        self.sealed.as_deref().into_iter().chain(filling)
    }
}

fn within<'a>(
    writes: &'a Writes,
    range: &Range,
) -> impl DoubleEndedIterator<Item = (&'a Arc<Key>, &'a Option<Arc<Value>>)> + use<'a> {
    // An empty range is no error for callers; the map would panic on some.
    let end = (&range.end).max(&range.start);
    writes.range::<Key, _>((Bound::Included(&range.start), Bound::Excluded(end)))
}
