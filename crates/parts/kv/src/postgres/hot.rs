//! Pairs, and absences, that were read or written lately.
//!
//! Only the owner of the store writes, so what was read stays true until it writes itself. Two
//! generations stand in for an order of use: what is used moves to the young one; when that has
//! half the room, the old one goes.
//!
//! A reader fills in what it was told after a group may have been written meanwhile: what it was
//! told may be older. So a fill never replaces what is there, and is dropped when a generation
//! ended since the question was asked, for then the newer pair may have gone.
//!
//! Invariant: what is found is what the database holds.

use crate::overlay::Writes;
use crate::{Key, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a pair costs beside its bytes.
const PAIR_COST: usize = 96;

type Found = Option<Arc<Value>>;

pub struct Hot {
    young: BTreeMap<Key, Found>,
    old: BTreeMap<Key, Found>,
    young_bytes: usize,
    bytes_max: usize,
    turns: u64,
}

/// When a question was asked.
#[derive(Clone, Copy)]
pub struct Asked(u64);

impl Hot {
    pub fn new(bytes_max: usize) -> Self {
        let (young, old) = (BTreeMap::new(), BTreeMap::new());
        Self { young, old, young_bytes: 0, bytes_max, turns: 0 }
    }

    pub fn asked(&self) -> Asked {
        Asked(self.turns)
    }

    /// `Some(None)`: it is known that there is no such pair.
    pub fn get(&mut self, key: &Key) -> Option<Found> {
        if let Some(found) = self.young.get(key) {
            return Some(found.clone());
        }
        let found = self.old.remove(key)?;
        self.insert(key.clone(), found.clone());
        Some(found)
    }

    /// What the database said.
    pub fn fill(&mut self, asked: Asked, key: &Key, value: Found) {
        if asked.0 == self.turns && !self.young.contains_key(key) && !self.old.contains_key(key) {
            self.insert(key.clone(), value);
        }
    }

    /// What the database has taken.
    pub fn written(&mut self, writes: &Writes) {
        for (key, value) in writes {
            self.old.remove(key.as_ref());
            self.insert(key.as_ref().clone(), value.clone());
        }
    }

    fn insert(&mut self, key: Key, value: Found) {
        let cost = cost(&key, &value);
        let key_length = key.len();
        if let Some(before) = self.young.insert(key, value) {
            let value_length = before.map_or(0, |value| value.len());
            self.young_bytes -= PAIR_COST + key_length + value_length;
        }
        self.young_bytes += cost;
        if self.young_bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
            self.turns += 1;
        }
    }
}

fn cost(key: &Key, value: &Found) -> usize {
    PAIR_COST + key.len() + value.as_ref().map_or(0, |value| value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Found {
        Some(Arc::new(text.into()))
    }

    fn writes(key: &str, found: Found) -> Writes {
        Writes::from([(Arc::new(key.into()), found)])
    }

    #[test]
    fn a_late_answer_does_not_replace_what_was_written() {
        let mut hot = Hot::new(1 << 20);
        let asked = hot.asked();
        hot.written(&writes("a", value("new")));
        hot.fill(asked, &b"a".to_vec(), value("old"));
        assert_eq!(hot.get(&b"a".to_vec()), Some(value("new")));
        hot.fill(asked, &b"b".to_vec(), None);
        assert_eq!(hot.get(&b"b".to_vec()), Some(None), "an absence is known too");
        assert_eq!(hot.get(&b"c".to_vec()), None);
    }

    #[test]
    fn an_answer_from_before_a_turn_is_dropped() {
        let mut hot = Hot::new(1000);
        let asked = hot.asked();
        hot.written(&writes("a", value("new")));
        for number in 0..20 {
            hot.written(&writes(&number.to_string(), value("x")));
        }
        assert_eq!(hot.get(&b"a".to_vec()), None, "it had to go");
        hot.fill(asked, &b"a".to_vec(), value("old"));
        assert_eq!(hot.get(&b"a".to_vec()), None);
    }

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let mut hot = Hot::new(10_000);
        hot.written(&writes("used", value("x")));
        for number in 0..1000 {
            assert_eq!(hot.get(&b"used".to_vec()), Some(value("x")));
            hot.fill(hot.asked(), &number.to_string().into_bytes(), value("y"));
        }
        assert!(hot.young.len() + hot.old.len() <= 10_000 / PAIR_COST);
    }
}
