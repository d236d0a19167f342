//! Which chunks of an OST are not durable yet, and which were lost on the way there.
//!
//! A chunk is noted when its put is about to be answered and settled only after a sync, so a second
//! sync of its file that comes meanwhile waits for the same. A chunk whose sync failed stays lost
//! until it is deleted: every sync of its file fails, since a second try would find nothing left to
//! write and seem to succeed.
//!
//! Invariants: `by_chunk`, `by_file` and `by_age` name the same chunks; none of them is in `lost`.

use std::collections::{BTreeMap, BTreeSet};
use tieline_types::{FileId, GrantedId};

/// A chunk that is not durable, as it was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub chunk: GrantedId,
    age: u64,
}

#[derive(Default)]
pub(crate) struct Volatile {
    by_chunk: BTreeMap<GrantedId, (FileId, u64)>,
    by_file: BTreeSet<(FileId, GrantedId)>,
    by_age: BTreeMap<u64, GrantedId>,
    /// Counts notes: a lower one is older.
    next: u64,
    lost: BTreeMap<GrantedId, FileId>,
}

impl Volatile {
    pub fn len(&self) -> usize {
        self.by_chunk.len()
    }

    pub fn note(&mut self, file: FileId, chunk: GrantedId) {
        if self.lost.contains_key(&chunk) {
            return;
        }
        self.remove(chunk);
        self.next += 1;
        self.by_chunk.insert(chunk, (file, self.next));
        self.by_file.insert((file, chunk));
        self.by_age.insert(self.next, chunk);
    }

    pub fn of_file(&self, file: FileId) -> Vec<Note> {
        let first = GrantedId { mdt: Default::default(), grant: Default::default(), serial: 0 };
        let chunks = self.by_file.range((file, first)..).take_while(|(owner, _)| *owner == file);
        let note = |chunk: GrantedId| Some(Note { chunk, age: self.by_chunk.get(&chunk)?.1 });
        chunks.filter_map(|(_, chunk)| note(*chunk)).collect()
    }

    /// The `count` that were noted first.
    pub fn oldest(&self, count: usize) -> Vec<Note> {
        self.by_age.iter().map(|(&age, &chunk)| Note { chunk, age }).take(count).collect()
    }

    /// These are durable now, unless they were noted again since.
    pub fn settle(&mut self, notes: &[Note]) {
        for note in notes {
            if self.by_chunk.get(&note.chunk).is_some_and(|(_, age)| *age == note.age) {
                self.remove(note.chunk);
            }
        }
    }

    /// These will never be durable. Says how many of them anybody still cares for.
    pub fn lose(&mut self, chunks: &[GrantedId]) -> usize {
        let before = self.lost.len();
        for &chunk in chunks {
            if let Some((file, _)) = self.remove(chunk) {
                self.lost.insert(chunk, file);
            }
        }
        self.lost.len() - before
    }

    /// The chunk is deleted: nobody asks for it any more.
    pub fn forget(&mut self, chunk: GrantedId) {
        self.remove(chunk);
        self.lost.remove(&chunk);
    }

    pub fn is_lost(&self, chunk: GrantedId) -> bool {
        self.lost.contains_key(&chunk)
    }

    pub fn lost_count(&self) -> usize {
        self.lost.len()
    }

    pub fn lost_of_file(&self, file: FileId) -> Option<GrantedId> {
        self.lost.iter().find(|(_, owner)| **owner == file).map(|(chunk, _)| *chunk)
    }

    fn remove(&mut self, chunk: GrantedId) -> Option<(FileId, u64)> {
        let (file, age) = self.by_chunk.remove(&chunk)?;
        self.by_file.remove(&(file, chunk));
        self.by_age.remove(&age);
        Some((file, age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Grant, MdtIndex};

    fn chunk(serial: u64) -> GrantedId {
        GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial }
    }

    fn chunks(notes: &[Note]) -> Vec<u64> {
        notes.iter().map(|note| note.chunk.serial).collect()
    }

    #[test]
    fn files_and_ages_name_the_same_chunks() {
        let mut volatile = Volatile::default();
        for (file, serial) in [(1, 9), (2, 3), (1, 4), (2, 9)] {
            volatile.note(FileId(file), chunk(serial));
        }
        assert_eq!(chunks(&volatile.of_file(FileId(1))), [4]);
        assert_eq!(chunks(&volatile.of_file(FileId(2))), [3, 9]);
        assert_eq!(chunks(&volatile.oldest(2)), [3, 4]);
        volatile.settle(&volatile.of_file(FileId(2)));
        assert_eq!(chunks(&volatile.oldest(9)), [4]);
    }

    #[test]
    fn what_was_noted_again_is_not_settled_by_an_older_sync() {
        let mut volatile = Volatile::default();
        volatile.note(FileId(1), chunk(1));
        let before = volatile.oldest(9);
        volatile.note(FileId(1), chunk(1));
        volatile.settle(&before);
        assert_eq!(volatile.len(), 1);
    }

    #[test]
    fn lost_chunks_stay_lost_until_they_are_deleted() {
        let mut volatile = Volatile::default();
        volatile.note(FileId(1), chunk(1));
        assert_eq!(volatile.lose(&[chunk(1), chunk(2)]), 1);
        volatile.note(FileId(1), chunk(1));
        assert_eq!((volatile.len(), volatile.lost_count()), (0, 1));
        assert_eq!(volatile.lost_of_file(FileId(1)), Some(chunk(1)));
        volatile.forget(chunk(1));
        assert_eq!(volatile.lost_of_file(FileId(1)), None);
    }
}
