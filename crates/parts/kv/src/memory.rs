//! The engine of tests and simulated worlds: an ordered map. It is durable as soon as it is
//! decided, as long as it exists.
//!
//! No thread, no clock, no hash map: the same calls in the same order have the same outcome.

use crate::overlay::{Base, Batch, Limits, Overlay};
use crate::{Error, Key, Range, Snapshot, Store, Transaction, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use tieline_types::Version;

/// A store in memory. A clone is the same store: a simulated server that is started again finds
/// what it left.
#[derive(Clone)]
pub struct MemoryStore {
    overlay: Arc<Overlay<MemoryBase>>,
}

impl MemoryStore {
    pub fn new() -> Self {
        let base = MemoryBase::default();
        Self { overlay: Overlay::new(base, "memory".into(), Version(0), Limits::default()) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait::async_trait]
impl Store for MemoryStore {
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

#[derive(Default)]
struct MemoryBase(RwLock<Pairs>);

/// What was applied, and up to which commit. A snapshot is a copy that shares keys and values.
#[derive(Clone, Default)]
struct Pairs {
    map: BTreeMap<Arc<Key>, Arc<Value>>,
    version: Version,
}

impl Pairs {
    fn get(&self, key: &Key) -> Option<Value> {
        self.map.get(key).map(|value| value.as_ref().clone())
    }

    fn scan(&self, range: &Range, limit: usize) -> Vec<(Key, Value)> {
        // An empty range is no error for callers; the map would panic on some.
        let end = (&range.end).max(&range.start);
        let found = self
            .map
            .range::<Key, _>(&range.start..end)
            .map(|(key, value)| (key.as_ref().clone(), value.as_ref().clone()));
        if range.is_reverse {
            found.rev().take(limit).collect()
        } else {
            found.take(limit).collect()
        }
    }
}

#[async_trait::async_trait]
impl Snapshot for Pairs {
    fn version(&self) -> Version {
        self.version
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        Ok(keys.iter().map(|key| self.get(key)).collect())
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        Ok(Pairs::scan(self, &range, limit))
    }
}

const POISONED: &str = "the memory store's lock is poisoned";

impl Base for MemoryBase {
    const IS_IMMEDIATE: bool = true;

    async fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        let pairs = self.0.read().expect(POISONED);
        Ok(keys.iter().map(|key| pairs.get(key)).collect())
    }

    async fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        Ok(self.0.read().expect(POISONED).scan(range, limit))
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        let mut pairs = self.0.write().expect(POISONED);
        for (key, value) in &batch.writes {
            match value {
                Some(value) => pairs.map.insert(key.clone(), value.clone()),
                None => pairs.map.remove(key),
            };
        }
        pairs.version = batch.version;
        Ok(())
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(self.0.read().expect(POISONED).clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms() {
        crate::conformance::run(|| async { Arc::new(MemoryStore::new()) as Arc<dyn Store> }).await;
    }

    #[tokio::test]
    async fn conforms_on_one_thread() {
        crate::conformance::run(|| async { Arc::new(MemoryStore::new()) as Arc<dyn Store> }).await;
    }
}
