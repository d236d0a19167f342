//! What a node's cache knows of its chunks without looking at the disk: room and last use of each,
//! and the files that are open.

use super::entry::Entry as File;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tieline_types::ChunkId;

/// Files that stay open.
const OPEN_MAX: usize = 128;
/// Chunks, whatever their size: this table is kept in memory.
const CHUNKS_MAX: usize = 1_000_000;

#[derive(Default)]
pub(super) struct Index {
    chunks: BTreeMap<ChunkId, Place>,
    /// By last use.
    order: BTreeSet<(u64, ChunkId)>,
    open: BTreeMap<ChunkId, (u64, Arc<File>)>,
    bytes: u64,
    clock: u64,
    has_scanned: bool,
}

struct Place {
    space: u64,
    used_ms: u64,
    /// Last use as the disk knows it.
    touched_ms: u64,
}

impl Index {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_too_many(&self) -> bool {
        self.chunks.len() > CHUNKS_MAX
    }

    /// May there be a file of this chunk?
    pub fn has(&self, chunk: ChunkId) -> bool {
        !self.has_scanned || self.chunks.contains_key(&chunk)
    }

    /// What the file of a chunk takes, as far as we know.
    pub fn space(&self, chunk: ChunkId) -> u64 {
        self.chunks.get(&chunk).map_or(0, |place| place.space)
    }

    /// A file that was there before us.
    pub fn learn(&mut self, chunk: ChunkId, space: u64, used_ms: u64) {
        // What is in use already is counted.
        if let Entry::Vacant(vacant) = self.chunks.entry(chunk) {
            vacant.insert(Place { space, used_ms, touched_ms: used_ms });
            self.order.insert((used_ms, chunk));
            self.bytes += space;
        }
    }

    pub fn scanned(&mut self) {
        self.has_scanned = true;
    }

    /// More of a chunk is there.
    pub fn grow(&mut self, chunk: ChunkId, more: u64, now_ms: u64) {
        self.learn(chunk, 0, now_ms);
        if let Some(place) = self.chunks.get_mut(&chunk) {
            place.space += more;
            self.bytes += more;
        }
        self.touch(chunk, now_ms, u64::MAX);
    }

    /// It is in use. Says whether the disk should know, which it does at most every `apart_ms`.
    pub fn touch(&mut self, chunk: ChunkId, now_ms: u64, apart_ms: u64) -> bool {
        let Some(place) = self.chunks.get_mut(&chunk) else { return false };
        self.order.remove(&(place.used_ms, chunk));
        place.used_ms = now_ms.max(place.used_ms);
        self.order.insert((place.used_ms, chunk));
        let is_due = now_ms.saturating_sub(place.touched_ms) >= apart_ms;
        if is_due {
            place.touched_ms = now_ms;
        }
        is_due
    }

    /// Says how much room it took.
    pub fn forget(&mut self, chunk: ChunkId) -> u64 {
        self.open.remove(&chunk);
        let Some(place) = self.chunks.remove(&chunk) else { return 0 };
        self.order.remove(&(place.used_ms, chunk));
        self.bytes -= place.space;
        place.space
    }

    /// What has to go until no more than `goal` bytes are there, the least used first.
    pub fn oldest(&self, goal: u64, is_pinned: impl Fn(ChunkId) -> bool) -> Vec<ChunkId> {
        let mut left = self.bytes;
        let mut count = self.chunks.len();
        let mut victims = Vec::new();
        for &(_, chunk) in &self.order {
            if left <= goal && count <= CHUNKS_MAX {
                break;
            }
            if let Some(place) = self.chunks.get(&chunk).filter(|_| !is_pinned(chunk)) {
                left = left.saturating_sub(place.space);
                count -= 1;
                victims.push(chunk);
            }
        }
        victims
    }

    /// The open file of a chunk.
    pub fn open(&mut self, chunk: ChunkId) -> Option<Arc<File>> {
        self.clock += 1;
        let (used, entry) = self.open.get_mut(&chunk)?;
        *used = self.clock;
        Some(entry.clone())
    }

    /// A file was opened; if another was a moment earlier, that one counts.
    pub fn opened(&mut self, chunk: ChunkId, entry: Arc<File>) -> Arc<File> {
        if let Some(known) = self.open(chunk) {
            return known;
        }
        if self.open.len() >= OPEN_MAX {
            let oldest =
                self.open.iter().min_by_key(|(_, (used, _))| *used).map(|(chunk, _)| *chunk);
            oldest.map(|chunk| self.open.remove(&chunk));
        }
        self.open.insert(chunk, (self.clock, entry.clone()));
        entry
    }
}
