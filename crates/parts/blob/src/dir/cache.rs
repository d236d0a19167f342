//! Open objects with their trailers: the most recently used, bounded in number and in bytes.
//!
//! Everything here is quick and in memory: it may be asked from async code. An object that was
//! deleted while somebody opened it is not remembered, else its file would hold disk space until it
//! is displaced.
//!
//! Invariants: at most `objects_max` files are kept open; `ages` and `entries` name the same
//! chunks.

use super::object::Object;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_types::GrantedId;

/// Checks and trees of 20 GiB of data.
const BYTES_MAX: usize = 64 << 20;

pub(super) struct ObjectCache {
    objects_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<GrantedId, Entry>,
    /// Time of last use, counted in uses, to chunk.
    ages: BTreeMap<u64, GrantedId>,
    uses: u64,
    bytes: usize,
    deletions: u64,
}

struct Entry {
    object: Arc<Object>,
    used: u64,
}

/// How many deletions there had been when somebody began to open an object.
#[derive(Clone, Copy)]
pub(super) struct Epoch(u64);

impl ObjectCache {
    pub fn new(objects_max: usize) -> Self {
        Self { objects_max, state: Mutex::default() }
    }

    pub fn get(&self, chunk: GrantedId) -> Option<Arc<Object>> {
        let mut state = self.lock();
        let now = state.tick();
        let entry = state.entries.get_mut(&chunk)?;
        let before = std::mem::replace(&mut entry.used, now);
        let object = entry.object.clone();
        state.ages.remove(&before);
        state.ages.insert(now, chunk);
        Some(object)
    }

    /// To be taken before an object is looked for on disk.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.lock().deletions)
    }

    /// Remembers an object that was found after `epoch`, unless something was deleted since.
    pub fn insert(&self, epoch: Epoch, object: Arc<Object>) {
        let mut state = self.lock();
        if state.deletions != epoch.0 {
            return;
        }
        let chunk = object.trailer.chunk;
        state.remove(chunk);
        let now = state.tick();
        state.bytes += object.weight();
        state.entries.insert(chunk, Entry { object, used: now });
        state.ages.insert(now, chunk);
        while state.entries.len() > self.objects_max || state.bytes > BYTES_MAX {
            let Some((_, oldest)) = state.ages.first_key_value() else { break };
            let oldest = *oldest;
            state.remove(oldest);
        }
    }

    /// Forgets a chunk that is about to be deleted or was replaced.
    pub fn delete(&self, chunk: GrantedId) {
        let mut state = self.lock();
        state.deletions += 1;
        state.remove(chunk);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn remove(&mut self, chunk: GrantedId) {
        if let Some(entry) = self.entries.remove(&chunk) {
            self.ages.remove(&entry.used);
            self.bytes -= entry.object.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{chunk, trailer};

    fn object(serial: u64) -> Arc<Object> {
        let file = Arc::new(tempfile::tempfile().unwrap());
        Arc::new(Object { file, length: 1, total: 1, trailer: trailer(chunk(serial), b"x") })
    }

    #[test]
    fn the_least_recently_used_leaves_first() {
        let cache = ObjectCache::new(2);
        cache.insert(cache.epoch(), object(1));
        cache.insert(cache.epoch(), object(2));
        assert!(cache.get(chunk(1)).is_some());
        cache.insert(cache.epoch(), object(3));
        assert!(cache.get(chunk(2)).is_none());
        assert!(cache.get(chunk(1)).is_some() && cache.get(chunk(3)).is_some());
        let state = cache.lock();
        assert_eq!((state.entries.len(), state.ages.len()), (2, 2));
    }

    #[test]
    fn what_was_deleted_meanwhile_is_not_remembered() {
        let cache = ObjectCache::new(2);
        let epoch = cache.epoch();
        cache.delete(chunk(1));
        cache.insert(epoch, object(1));
        assert!(cache.get(chunk(1)).is_none());
        assert_eq!(cache.lock().bytes, 0);
    }
}
