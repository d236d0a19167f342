//! The numbers by which programs know files apart: `st_ino` and `d_ino`.
//!
//! A file's number is its id. For programs whose inode numbers have 32 bits it is shorter
//! (`-o ino32`): a display only, requests go by the id. Most ids have a short number of their own,
//! which is the same on every client and in every mount. It is made of the MDT's index plus one in
//! Elias' gamma code, and the serial: MDT 0 has 2³⁰ serials, MDTs 1 and 2 have 2²⁸ each, MDTs 3
//! to 6 have 2²⁶, and so on. What goes beyond lies in the upper half of all numbers, by a hash of
//! its id; where two have the same hash, whichever is shown later takes the next one, and this
//! mount remembers who has which.
//!
//! Invariants: of the files that are remembered no two have one number, so none of one directory,
//! and none with several names that a program could take for another; no number is 0 or the
//! highest; at most [`HELD_MAX`] are remembered, and when there are more all begin anew.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use tieline_types::FileId;

/// Numbers below have a meaning, those from here on are dealt out.
const DEALT: u32 = 1 << 31;
/// Some 70 MB. A table that doubles just before is no larger.
const HELD_MAX: usize = 3_600_000;

/// Which number each file has.
pub struct Numbers(Option<Mutex<Dealt>>);

impl Numbers {
    pub fn new(are_short: bool) -> Self {
        Self(are_short.then(|| Mutex::new(Dealt::new(HELD_MAX))))
    }

    pub fn of(&self, id: FileId) -> u64 {
        let Some(dealt) = &self.0 else { return id.0 };
        match packed(id) {
            Some(number) => number.into(),
            // Nothing panics while the lock is held.
            None => dealt.lock().unwrap_or_else(PoisonError::into_inner).number(id).into(),
        }
    }
}

/// The number that an id has by itself: as many ones as the MDT's index plus one has bits after its
/// first, a zero, those bits, and the serial in what is left of 31 bits.
fn packed(id: FileId) -> Option<u32> {
    let mdt = u32::from(id.mdt().0) + 1;
    let bits = mdt.ilog2();
    let serial_bits = 31_u32.checked_sub(2 * bits + 1)?;
    let serial = u32::try_from(id.serial()).ok().filter(|serial| serial >> serial_bits == 0)?;
    let ones = (1_u32 << bits) - 1;
    let head = ones << (bits + 1) | (mdt & ones);
    Some(head << serial_bits | serial).filter(|&number| number != 0)
}

/// Numbers of those that have none by themselves.
struct Dealt {
    held: HashMap<u32, FileId>,
    held_max: usize,
}

impl Dealt {
    fn new(held_max: usize) -> Self {
        Self { held: HashMap::new(), held_max }
    }

    fn number(&mut self, id: FileId) -> u32 {
        let mut number = hash(id);
        loop {
            let is_full = self.held.len() >= self.held_max;
            match self.held.entry(number) {
                Entry::Occupied(holder) if *holder.get() == id => return number,
                Entry::Occupied(_) => number = next(number),
                Entry::Vacant(_) if is_full => {
                    tracing::warn!(
                        "too many files without a number of their own: two may be shown with one"
                    );
                    self.held.clear();
                    number = hash(id);
                }
                Entry::Vacant(place) => {
                    place.insert(id);
                    return number;
                }
            }
        }
    }
}

/// Neighbours among ids must not be neighbours among numbers: they would push one another along.
fn hash(id: FileId) -> u32 {
    // The last step of MurmurHash3.
    let mut mixed = id.0;
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let number = DEALT | (mixed ^ mixed >> 33) as u32;
    if number == u32::MAX { DEALT } else { number }
}

fn next(number: u32) -> u32 {
    if number >= u32::MAX - 1 { DEALT } else { number + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tieline_types::MdtIndex;

    fn id(mdt: u16, serial: u64) -> FileId {
        FileId::new(MdtIndex(mdt), serial)
    }

    #[test]
    fn ids_are_shown_as_they_are_unless_short_ones_are_wanted() {
        let far = id(3, 77);
        assert_eq!(Numbers::new(false).of(far), far.0);
        assert!(Numbers::new(true).of(far) < DEALT.into());
        assert_eq!(Numbers::new(true).of(FileId(1)), 1);
    }

    #[test]
    fn short_numbers_are_those_of_one_file() {
        let mdts = [0, 1, 2, 3, 6, 7, 14, 15, 62, 255, 16_382, u16::MAX];
        let ends =
            [1, 2, 3, 1 << 16, (1 << 22) - 1, 1 << 22, (1 << 26) - 1, 1 << 26, (1 << 28) - 1];
        let more = [1 << 28, (1 << 30) - 1, 1 << 30, (1 << 31) + 1, 1 << 32, (1 << 32) + 1];
        let serials = || ends.into_iter().chain(more).chain([(1 << 48) - 1]);
        let ids = || mdts.into_iter().flat_map(|mdt| serials().map(move |serial| id(mdt, serial)));
        let (one, other) = (Numbers::new(true), Numbers::new(true));
        let mut seen = HashSet::new();
        for id in ids() {
            let number = one.of(id);
            assert!(number > 0 && number < u32::MAX.into(), "{id:?}: {number:#x}");
            assert!(seen.insert(number), "{id:?}: {number:#x}");
            assert_eq!((number, number), (one.of(id), other.of(id)), "it is the file's");
        }
        // How far they go.
        for (mdt, bits) in [(0, 30), (1, 28), (2, 28), (3, 26), (6, 26), (7, 24), (30, 22)] {
            assert!(packed(id(mdt, (1 << bits) - 1)).is_some(), "{mdt}");
            assert!(packed(id(mdt, 1 << bits)).is_none(), "{mdt}");
        }
    }

    #[test]
    fn whoever_comes_second_to_a_number_takes_the_next() {
        // With so many some have the same hash.
        let (count, beyond) = (300_000, 1 << 32);
        let serials = || (beyond..beyond + count).map(|serial| id(0, serial));
        let hashes: HashSet<u32> = serials().map(hash).collect();
        assert!(hashes.len() < serials().count(), "nothing is tested");
        let mut dealt = Dealt::new(HELD_MAX);
        let numbers: Vec<u32> = serials().map(|id| dealt.number(id)).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        assert!(numbers.iter().all(|number| (DEALT..u32::MAX).contains(number)));
        assert!(serials().zip(&numbers).all(|(id, &number)| dealt.number(id) == number));
        assert_eq!((next(u32::MAX - 1), next(DEALT)), (DEALT, DEALT + 1));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut dealt = Dealt::new(100);
        for serial in 0..1000 {
            dealt.number(id(0, (1 << 40) + serial));
            assert!(dealt.held.len() <= 100);
        }
    }
}
