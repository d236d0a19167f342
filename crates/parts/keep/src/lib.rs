//! Records in shared memory that outlive the process that made them.
//!
//! A process that may be killed at any instruction puts down here what it owes others; the next
//! one opens the same memory and finds all of it. The memory belongs to a third process, the
//! holder, which does nothing but live.
//!
//! [`Keep::put`] copies bytes into a slot of a size class and marks it valid last; dropping the
//! [`Kept`] clears the mark. What was marked when the process died is found again by
//! [`Keep::open`], in the order in which it was put. A [`Room`] counts from its beginning, and is
//! filled where it lies: for bytes that a kernel hands over. A [`Keep::none`] keeps nothing and
//! costs nothing: for processes that nobody holds.
//!
//! * [`heap`]: slots, and how they are found again. * [`memory`]: the mapping.
//!
//! Does not know what records mean: their kinds are numbers of whoever puts them.
//!
//! Invariants: a record counts from the store of its mark on, whole, or not at all; no bytes in a
//! record's body can be taken for a record; memory is bounded, and given back when it is not used.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod heap;
mod memory;
#[cfg(test)]
mod tests;

use heap::{Heap, Slot};

/// What a record is: a number of whoever puts it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Kind(pub u16);

/// Why shared memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("shared memory cannot be made or mapped")]
    Memory(#[from] io::Error),
    #[error("shared memory is not laid out as this program does it (version {found})")]
    Layout { found: u64 },
}

/// A way to the memory; cloned freely.
#[derive(Clone, Default)]
pub struct Keep(Option<Arc<Heap>>);

/// How the life of the processes that use the memory stands, as the holder sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// None was ready yet: if it ends, the start has failed.
    Starting,
    /// If it ends now, another one goes on in its place.
    Serving,
    /// It ended in good order: nothing is to go on.
    Over,
}

impl Keep {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// New memory for `bytes` of records at most. Takes up what is used of it.
    pub fn create(bytes: usize) -> Result<Self, Error> {
        Ok(Self(Some(Arc::new(Heap::create(bytes)?))))
    }

    /// Takes over what an earlier process left, and says what that is, oldest first. From now on
    /// it is another generation.
    pub fn open(file: OwnedFd) -> Result<(Self, Vec<Record>), Error> {
        let heap = Arc::new(Heap::open(file)?);
        let found = heap.scan();
        let record = |found: heap::Found| Record {
            kind: Kind(found.kind),
            key: found.key,
            sequence: found.sequence,
            is_aside: found.is_aside,
            kept: Kept(Some((heap.clone(), found.slot))),
        };
        let records = found.into_iter().map(record).collect();
        Ok((Self(Some(heap)), records))
    }

    /// Maps the memory beside whoever uses it: to watch, not to put anything.
    pub fn watch(file: OwnedFd) -> Result<Self, Error> {
        Ok(Self(Some(Arc::new(Heap::map(file)?))))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The memory as a file, to be handed to another process.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|heap| heap.file().as_fd())
    }

    /// Puts a record down: its bytes are the parts, one after the other. `None` if there is no
    /// room, or nothing is kept.
    pub fn put(&self, kind: Kind, key: u64, parts: &[&[u8]]) -> Option<Kept> {
        let heap = self.0.as_ref()?;
        let slot = heap.put(kind.0, key, parts)?;
        Some(Kept(Some((heap.clone(), slot))))
    }

    /// Room for bytes that change while it stands: whatever is in it when this process dies is
    /// found. `None` if there is none, or nothing is kept.
    pub fn room(&self, kind: Kind, key: u64, bytes: usize) -> Option<Room> {
        let heap = self.0.as_ref()?;
        let slot = heap.room(kind.0, key, bytes)?;
        Some(Room(heap.clone(), slot))
    }

    /// Counts the processes that opened the memory: numbers that begin with it are new.
    pub fn generation(&self) -> u64 {
        self.0.as_ref().map_or(0, |heap| heap.generation())
    }

    /// The process lives.
    pub fn beat(&self) {
        if let Some(heap) = &self.0 {
            heap.beat();
        }
    }

    /// How often it said so.
    pub fn beats(&self) -> u64 {
        self.0.as_ref().map_or(0, |heap| heap.beats())
    }

    pub fn stage(&self) -> Stage {
        self.0.as_ref().map_or(Stage::Starting, |heap| heap.stage())
    }

    pub fn set_stage(&self, stage: Stage) {
        if let Some(heap) = &self.0 {
            heap.set_stage(stage);
        }
    }

    /// Said by who watches, before the next process opens the memory: the last one has crashed, and
    /// was not killed from outside.
    pub fn set_crashed(&self, has_crashed: bool) {
        if let Some(heap) = &self.0 {
            heap.set_crashed(has_crashed);
        }
    }

    /// Gives memory back that was not used since the last call.
    pub fn trim(&self) {
        if let Some(heap) = &self.0 {
            heap.trim();
        }
    }
}

/// A record that is kept until this is dropped.
pub struct Kept(Option<(Arc<Heap>, Slot)>);

impl Kept {
    /// Until what is returned is dropped, a crash of this process is the record's fault.
    pub fn in_hand(&self) -> InHand {
        let held = self.0.clone();
        if let Some((heap, slot)) = &held {
            heap.take_in_hand(slot, true);
        }
        InHand(held)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.as_ref().map_or_else(Vec::new, |(heap, slot)| heap.bytes(slot))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((heap, slot)) = self.0.take() {
            heap.free(slot);
        }
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

/// A record that is written where it stands; gone when dropped. It begins with zeros.
pub struct Room(Arc<Heap>, Slot);

impl Room {
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the slot belongs to this value, which is borrowed for as long.
        unsafe { self.0.room_bytes(&self.1) }
    }

    /// Zeros the first eight bytes, at once.
    pub fn clear(&mut self) {
        self.0.room_word(&self.1).store(0, Ordering::Release);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.free(self.1);
    }
}

/// A record that is being worked with.
pub struct InHand(Option<(Arc<Heap>, Slot)>);

impl Drop for InHand {
    fn drop(&mut self) {
        // A panic is how a crash begins.
        if let Some((heap, slot)) = self.0.take().filter(|_| !std::thread::panicking()) {
            heap.take_in_hand(&slot, false);
        }
    }
}

/// A record that an earlier process left. Dropped, it is gone.
#[derive(Debug)]
pub struct Record {
    pub kind: Kind,
    pub key: u64,
    /// Of two records, the one that was put later has the larger one.
    pub sequence: u64,
    /// Processes have crashed with it in hand, again and again: not to be touched.
    pub is_aside: bool,
    pub kept: Kept,
}

impl Record {
    pub fn bytes(&self) -> Vec<u8> {
        self.kept.bytes()
    }
}
