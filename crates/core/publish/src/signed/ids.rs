//! Which file has which id: the first 48 bits of the hash of its path, so that it is the same in
//! each revision, on each client, and after a restart.
//!
//! Two paths that begin alike are told apart here: the later one gets the next number that is free.
//!
//! Invariant: bounded: what was not asked for in a long time is forgotten, and found again by its
//! hash.

use crate::hash::PathHash;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory as it was met.
#[derive(PartialEq, Eq, Debug)]
pub struct Folder {
    pub path: Vec<u8>,
    /// The serial of its id.
    pub serial: u64,
}

/// Where a file was met.
#[derive(Clone)]
pub struct Spot {
    pub path: PathHash,
    /// In which directory its row is.
    pub within: Arc<Folder>,
    /// What it is itself, if it is a directory.
    pub folder: Option<Arc<Folder>>,
}

/// So many are remembered, and as many that are older.
const SPOTS_MAX: usize = 500_000;
/// Paths that begin alike.
const ALIKE_MAX: u64 = 16;
const SERIAL_BITS: u32 = 48;
/// Those below are no file's, or the root's.
const FIRST: u64 = 2;

#[derive(Default)]
pub struct Ids(Mutex<Spots>);

#[derive(Default)]
struct Spots {
    young: HashMap<u64, Spot>,
    old: HashMap<u64, Spot>,
}

impl Ids {
    pub fn get(&self, serial: u64) -> Option<Spot> {
        let mut spots = self.lock();
        if let Some(spot) = spots.young.get(&serial) {
            return Some(spot.clone());
        }
        let spot = spots.old.remove(&serial)?;
        spots.put(serial, spot.clone());
        Some(spot)
    }

    /// The serial of a file that was met. `path`: of a directory.
    pub fn meet(&self, hash: PathHash, within: &Arc<Folder>, path: Option<Vec<u8>>) -> u64 {
        let mut spots = self.lock();
        let first = serial(hash);
        let is_free = |serial: &u64| {
            let known = spots.young.get(serial).or_else(|| spots.old.get(serial));
            known.is_none_or(|known| known.path == hash)
        };
        let serial = (first..first + ALIKE_MAX).find(is_free).unwrap_or(first);
        let known = spots.young.get(&serial);
        let is_same = |known: &Spot| {
            let same_path = known.folder.as_ref().map(|folder| &folder.path) == path.as_ref();
            Arc::ptr_eq(&known.within, within) && same_path
        };
        if !known.is_some_and(is_same) {
            let folder = path.map(|path| Arc::new(Folder { path, serial }));
            spots.old.remove(&serial);
            spots.put(serial, Spot { path: hash, within: within.clone(), folder });
        }
        serial
    }

    fn lock(&self) -> MutexGuard<'_, Spots> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spots {
    fn put(&mut self, serial: u64, spot: Spot) {
        if self.young.len() >= SPOTS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(serial, spot);
    }
}

/// The one that a path has, unless another has it.
fn serial((first, _): PathHash) -> u64 {
    // The last ones are left to those that begin alike.
    (first as u64 >> (u64::BITS - SERIAL_BITS)).clamp(FIRST, (1 << SERIAL_BITS) - 1 - ALIKE_MAX)
}

/// The hashes that begin as a serial.
pub fn hashes(serial: u64) -> (i64, i64) {
    let low = serial << (u64::BITS - SERIAL_BITS);
    let rest = (1_u64 << (u64::BITS - SERIAL_BITS)) - 1;
    (low as i64, (low | rest) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_of_paths_and_never_of_two() {
        let ids = Ids::default();
        let root = Arc::new(Folder { path: Vec::new(), serial: 1 });
        let one = (0x1234_5678_9abc_0001, 7);
        let serial = ids.meet(one, &root, None);
        assert_eq!(serial, 0x1234_5678_9abc);
        assert_eq!(ids.meet(one, &root, None), serial);
        let alike = (0x1234_5678_9abc_ffff, 8);
        assert_eq!(ids.meet(alike, &root, Some(b"/d".to_vec())), serial + 1);
        assert_eq!(ids.get(serial).unwrap().path, one);
        assert_eq!(ids.get(serial + 1).unwrap().folder.unwrap().path, b"/d");
        let (low, high) = hashes(serial);
        assert!((low..=high).contains(&one.0) && (low..=high).contains(&alike.0));
        let (low, high) = hashes(super::serial((-1, 0)));
        assert!(low < high && high < 0);
    }
}
