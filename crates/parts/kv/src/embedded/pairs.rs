//! Reading: pairs of redb, and over them what its log holds beyond.

use super::redb_error;
use super::tables::{Page, Tables};
use crate::{Error, Key, Range, Snapshot, Value};
use std::sync::Arc;
use tieline_types::Version;

/// The pairs of redb in one state.
pub(super) type Pairs = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(super) fn get(pairs: &Pairs, key: &Key) -> Result<Option<Value>, redb::Error> {
    Ok(pairs.get(key.as_slice())?.map(|value| value.value().to_vec()))
}

/// The first `limit` pairs of the keys that `page` covers: its writes over redb's pairs.
pub(super) fn scan(
    pairs: &Pairs,
    page: Page,
    limit: usize,
) -> Result<Vec<(Key, Value)>, redb::Error> {
    let Page { writes, covered } = page;
    // An empty range is no error for callers.
    let end = (&covered.end).max(&covered.start);
    let range = pairs.range::<&[u8]>(covered.start.as_slice()..end.as_slice())?;
    if covered.is_reverse {
        merge(range.rev(), writes, limit, |newer, key| newer >= key)
    } else {
        merge(range, writes, limit, |newer, key| newer <= key)
    }
}

type Guard<'a> = redb::AccessGuard<'a, &'static [u8]>;
type Found<'a> = Result<(Guard<'a>, Guard<'a>), redb::StorageError>;

/// The first `limit` pairs of both, where a write hides the pair of its key. `is_reached` says of
/// a write's key and a pair's whether the first comes no later.
fn merge<'a>(
    found: impl Iterator<Item = Found<'a>>,
    writes: Vec<(Arc<Key>, Option<Arc<Value>>)>,
    limit: usize,
    is_reached: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<Vec<(Key, Value)>, redb::Error> {
    let mut merged = Vec::new();
    let mut writes = writes.into_iter().peekable();
    let enter = |merged: &mut Vec<_>, key: Arc<Key>, value: Option<Arc<Value>>| {
        merged.extend(value.map(|value| (Arc::unwrap_or_clone(key), Arc::unwrap_or_clone(value))));
    };
    for pair in found {
        let (key, value) = pair?;
        let key = key.value();
        let mut is_hidden = false;
        while let Some((newer, write)) = writes.next_if(|(newer, _)| is_reached(newer, key)) {
            is_hidden = newer.as_slice() == key;
            enter(&mut merged, newer, write);
        }
        if !is_hidden {
            merged.push((key.to_vec(), value.value().to_vec()));
        }
        if merged.len() >= limit {
            merged.truncate(limit);
            return Ok(merged);
        }
    }
    writes.for_each(|(key, value)| enter(&mut merged, key, value));
    merged.truncate(limit);
    Ok(merged)
}

/// Tables as they were: redb keeps its pages for as long as this is there.
pub(super) struct RedbSnapshot {
    pub pairs: Pairs,
    pub tables: Tables,
    pub version: Version,
    /// For messages.
    pub store: String,
}

#[async_trait::async_trait]
impl Snapshot for RedbSnapshot {
    fn version(&self) -> Version {
        self.version
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let get = |key: &Key| match self.tables.get(key) {
            Some(value) => Ok(value.map(Arc::unwrap_or_clone)),
            None => get(&self.pairs, key).map_err(|error| redb_error(&self.store, error)),
        };
        keys.iter().map(get).collect()
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let page = |rest: &Range, wanted| {
            let page = self.tables.page(rest, wanted);
            let covered = page.covered.clone();
            let found = scan(&self.pairs, page, wanted);
            Ok((found.map_err(|error| redb_error(&self.store, error))?, covered))
        };
        in_pages(range, limit, page)
    }
}

/// The first `limit` pairs of `range`, from as many pages as that takes. A page is what a stretch
/// at the beginning of a range holds, up to a number of pairs, and the stretch.
pub(super) fn in_pages(
    range: Range,
    limit: usize,
    page: impl Fn(&Range, usize) -> Result<(Vec<(Key, Value)>, Range), Error>,
) -> Result<Vec<(Key, Value)>, Error> {
    let mut pairs = Vec::new();
    let mut rest = range;
    while pairs.len() < limit && rest.start < rest.end {
        let (found, covered) = page(&rest, limit - pairs.len())?;
        pairs.extend(found);
        rest = rest.after(&covered);
    }
    Ok(pairs)
}
