//! Objects in memory, for tests and simulated worlds: no threads, no time, the same every run.
//!
//! Knows written from synced: [`MemoryChunks::lose_power`] forgets what was only written.

use crate::range::BlockRange;
use crate::{Abilities, ChunkStore, Error, Listed, Slice, Space};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_format::object::ObjectTrailer;
use tieline_types::GrantedId;
use tieline_world::Bulk;

const OBJECTS_MAX: u64 = 1 << 32;

/// An OST's objects in memory, up to a number of bytes.
pub struct MemoryChunks {
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<GrantedId, Stored>,
    bytes: u64,
}

struct Stored {
    trailer: ObjectTrailer,
    data: Bytes,
    is_synced: bool,
}

impl MemoryChunks {
    /// Holds `capacity` bytes of data; trailers cost nothing.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, state: Mutex::default() }
    }

    /// Forgets what was not synced.
    pub fn lose_power(&self) {
        let mut state = self.lock();
        state.objects.retain(|_, stored| stored.is_synced);
        state.bytes = state.objects.values().map(|stored| stored.data.len() as u64).sum();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self, chunk: GrantedId) -> Error {
        Error::Absent { chunk, store: self.describe() }
    }
}

#[async_trait::async_trait]
impl ChunkStore for MemoryChunks {
    fn abilities(&self) -> Abilities {
        Abilities { range: true, append: true, rename: true, sendfile: false }
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        let mut state = self.lock();
        let chunk = trailer.chunk;
        if let Some(there) = state.objects.get(&chunk) {
            let is_same = there.data.len() == data.len() && there.trailer.checks == trailer.checks;
            let different = || Error::Different { chunk, store: self.describe() };
            return if is_same { Ok(()) } else { Err(different()) };
        }
        let bytes = state.bytes + data.len() as u64;
        if bytes > self.capacity {
            return Err(Error::Full { store: self.describe() });
        }
        state.bytes = bytes;
        state.objects.insert(chunk, Stored { trailer: trailer.clone(), data, is_synced: false });
        Ok(())
    }

    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        let mut state = self.lock();
        let there = state.objects.get(&trailer.chunk).map_or(0, |there| there.data.len() as u64);
        let bytes = state.bytes - there + data.len() as u64;
        if bytes > self.capacity {
            return Err(Error::Full { store: self.describe() });
        }
        state.bytes = bytes;
        let stored = Stored { trailer: trailer.clone(), data, is_synced: false };
        state.objects.insert(trailer.chunk, stored);
        Ok(())
    }

    /// There is no disk.
    fn forget(&self, _: GrantedId) {}

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        let state = self.lock();
        let stored = state.objects.get(&chunk).ok_or_else(|| self.absent(chunk))?;
        let object_length = stored.data.len() as u64;
        let range = BlockRange::widen(offset, length, object_length);
        let start = range.offset as usize;
        let bytes = stored.data.slice(start..start + range.length as usize);
        let checks = range.checks(&stored.trailer.checks);
        let (bulk, file) = (Bulk::from(bytes), stored.trailer.file);
        let tree = stored.trailer.tree.clone();
        Ok(Slice { offset: range.offset, bulk, checks, object_length, file, tree })
    }

    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error> {
        let state = self.lock();
        let stored = state.objects.get(&chunk).ok_or_else(|| self.absent(chunk))?;
        Ok((stored.trailer.clone(), stored.data.len() as u64))
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        let mut state = self.lock();
        let removed = state.objects.remove(&chunk);
        state.bytes -= removed.as_ref().map_or(0, |stored| stored.data.len() as u64);
        Ok(removed.is_some())
    }

    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        let mut state = self.lock();
        let mut absent = None;
        for chunk in chunks {
            match state.objects.get_mut(chunk) {
                Some(stored) => stored.is_synced = true,
                None => absent = absent.or(Some(*chunk)),
            }
        }
        absent.map_or(Ok(()), |chunk| Err(self.absent(chunk)))
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.lock();
        let chunks = state.objects.range((from, Bound::Unbounded));
        let chunks = chunks.map(|(chunk, _)| *chunk).take(limit).collect();
        Ok(Listed { chunks, foreign: vec![] })
    }

    async fn space(&self) -> Result<Space, Error> {
        let state = self.lock();
        Ok(Space {
            bytes_total: self.capacity,
            bytes_free: self.capacity - state.bytes,
            unit: 1,
            objects_total: OBJECTS_MAX,
            objects_free: OBJECTS_MAX - state.objects.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, bytes, chunk, trailer};

    #[tokio::test]
    async fn conforms() {
        conformance::check(&MemoryChunks::new(8 << 20)).await;
    }

    #[tokio::test]
    async fn is_full_at_its_capacity_and_has_room_again_after_a_deletion() {
        let store = MemoryChunks::new(10_000);
        let data = bytes(6000, 1);
        store.put(&trailer(chunk(1), &data), data.clone()).await.unwrap();
        let second = store.put(&trailer(chunk(2), &data), data.clone()).await;
        assert!(matches!(second, Err(Error::Full { .. })));
        store.put(&trailer(chunk(1), &data), data.clone()).await.unwrap();
        store.delete(chunk(1)).await.unwrap();
        store.put(&trailer(chunk(2), &data), data).await.unwrap();
        assert_eq!(store.space().await.unwrap().bytes_free, 4000);
    }

    #[tokio::test]
    async fn power_loss_takes_what_was_not_synced() {
        let store = MemoryChunks::new(10_000);
        for serial in [1, 2] {
            let data = bytes(10, serial as u8);
            store.put(&trailer(chunk(serial), &data), data).await.unwrap();
        }
        store.sync(&[chunk(2)]).await.unwrap();
        store.lose_power();
        assert_eq!(store.list(None, 10).await.unwrap().chunks, [chunk(2)]);
    }
}
