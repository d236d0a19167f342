//! Lock sets against a byte-by-byte model.

use super::*;
use proptest::prelude::*;

const SPACE: u64 = 24;

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

#[test]
fn neighbours_of_one_mode_become_one() {
    let mut set = LockSet::default();
    set.set(1, range(0, 4), Some(LockMode::Shared));
    set.set(1, range(8, 12), Some(LockMode::Shared));
    set.set(1, range(4, 8), Some(LockMode::Shared));
    assert_eq!(set.len(), 1);
    assert!(set.covers(1, range(2, 11), LockMode::Shared));
    assert!(!set.covers(1, range(2, 11), LockMode::Exclusive));
    set.set(1, range(5, 6), Some(LockMode::Exclusive));
    assert_eq!(set.len(), 3);
    assert!(!set.covers(1, range(4, 6), LockMode::Exclusive));
}

#[test]
fn only_others_are_in_the_way() {
    let mut set = LockSet::default();
    set.set(1, range(0, 10), Some(LockMode::Shared));
    set.set(2, range(5, 10), Some(LockMode::Shared));
    assert_eq!(set.conflicts(1, range(0, 10), LockMode::Shared).count(), 0);
    let found: Vec<_> = set.conflicts(1, range(0, 10), LockMode::Exclusive).collect();
    assert_eq!(found, [Held { owner: 2, range: range(5, 10), mode: LockMode::Shared }]);
    assert_eq!(set.conflicts(3, range(10, 11), LockMode::Exclusive).count(), 0);
    assert!(set.drop_owners(|owner| owner == 2) && !set.has(2) && set.has(1));
}

/// A set of one owner, from its bytes.
fn set_of(bytes: &[u8]) -> LockSet<u8> {
    let mut set = LockSet::default();
    for (at, &byte) in (0..).zip(bytes) {
        set.set(0, range(at, at + 1), mode(byte));
    }
    set
}

fn mode(byte: u8) -> Option<LockMode> {
    [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][byte as usize]
}

proptest! {
    #[test]
    fn what_is_beyond_another_set_makes_it_that(
        here in prop::collection::vec(0u8..3, 12),
        there in prop::collection::vec(0u8..3, 12),
        place in (0usize..12, 1usize..13),
    ) {
        let (mut set, other) = (set_of(&here), set_of(&there));
        let (start, end) = (place.0, (place.0 + place.1).min(12));
        let wanted = range(start as u64, end as u64);
        for strength in [1, 2] {
            let is_enough = here[start..end].iter().all(|&byte| byte >= strength);
            let mode = mode(strength).unwrap();
            prop_assert_eq!(set.suffices(0, wanted, mode), is_enough);
        }
        for one in set.beyond(&other) {
            prop_assert!(set.suffices(0, one.held.range, one.held.mode));
            set.set(0, one.held.range, one.rest);
        }
        // Where it had less, it still has.
        let less: Vec<u8> = here.iter().zip(&there).map(|(&one, &two)| one.min(two)).collect();
        prop_assert_eq!(set, set_of(&less));
    }

    #[test]
    fn a_set_is_what_was_set(
        steps in prop::collection::vec((0u8..3, 0..SPACE, 1..SPACE, 0u8..3), 1..60)
    ) {
        let mut set = LockSet::default();
        let mut model = [[None; SPACE as usize]; 3];
        for (owner, start, length, mode) in steps {
            let end = (start + length).min(SPACE);
            let mode = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][mode as usize];
            set.set(owner, range(start, end), mode);
            model[owner as usize][start as usize..end as usize].fill(mode);
            for owner in 0..3u8 {
                let mut seen = [None; SPACE as usize];
                let mut last: Option<Held<u8>> = None;
                for held in set.of(owner, LockRange::WHOLE) {
                    let place = held.range.start as usize..held.range.end as usize;
                    prop_assert!(!held.range.is_empty());
                    prop_assert!(seen[place.clone()].iter().all(Option::is_none), "overlap");
                    if let Some(last) = last {
                        let touches = last.range.end == held.range.start;
                        prop_assert!(!touches || last.mode != held.mode);
                    }
                    seen[place].fill(Some(held.mode));
                    last = Some(held);
                }
                prop_assert_eq!(seen, model[owner as usize]);
            }
        }
    }
}
