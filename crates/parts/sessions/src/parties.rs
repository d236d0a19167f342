//! What one party has of an MDT's sessions, and of the answers that are stored for them.
//!
//! A party is a principal, or the host that somebody comes from who proved nothing. A farm may come
//! as one, so its bounds are wide; but it never has all there is.
//!
//! Invariants: no more sessions are opened than `OF_ONE_MAX` and `OF_ALL_MAX` say, of before a
//! start included; nothing is kept of a party without sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Twice those of 4,096 nodes: they may all start anew while their old sessions are still kept.
const OF_ONE_MAX: usize = 8192;
const OF_ALL_MAX: usize = 32_768;
/// Bytes of answers after which only those sessions of a party go on that keep little themselves.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// No place is left: who has so many.
#[derive(Debug)]
pub struct NoPlace {
    pub whose: String,
    pub most: usize,
}

pub struct Parties {
    places: Arc<Semaphore>,
    known: Mutex<BTreeMap<Arc<str>, Weak<Party>>>,
}

pub struct Party {
    name: Arc<str>,
    places: Arc<Semaphore>,
    answer_bytes: AtomicU64,
}

/// A place of a session among those of its party, and among all.
pub struct Place {
    pub party: Arc<Party>,
    _places: [Option<OwnedSemaphorePermit>; 2],
}

impl Default for Parties {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(OF_ALL_MAX)), known: Mutex::default() }
    }
}

impl Parties {
    /// For one session more.
    pub fn place(&self, name: &str) -> Result<Place, NoPlace> {
        let full = |whose: &str, most| NoPlace { whose: whose.to_owned(), most };
        let party = self.of(name);
        let of_one = party.places.clone().try_acquire_owned();
        let of_one = of_one.map_err(|_| full(name, OF_ONE_MAX))?;
        let of_all = self.places.clone().try_acquire_owned();
        let of_all = of_all.map_err(|_| full("everybody together", OF_ALL_MAX))?;
        Ok(Place { party, _places: [Some(of_one), Some(of_all)] })
    }

    /// For a session of before the start, which has one in any case.
    pub fn old_place(&self, name: &str) -> Place {
        let party = self.of(name);
        let of_one = party.places.clone().try_acquire_owned().ok();
        let of_all = self.places.clone().try_acquire_owned().ok();
        Place { party, _places: [of_one, of_all] }
    }

    fn of(&self, name: &str) -> Arc<Party> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(party) = known.get(name).and_then(Weak::upgrade) {
            return party;
        }
        known.retain(|_, party| party.strong_count() > 0);
        let party = Arc::new(Party {
            name: name.into(),
            places: Arc::new(Semaphore::new(OF_ONE_MAX)),
            answer_bytes: AtomicU64::new(0),
        });
        known.insert(party.name.clone(), Arc::downgrade(&party));
        party
    }
}

impl Party {
    /// May it have one session more?
    pub fn has_place(&self) -> bool {
        self.places.available_permits() > 0
    }

    pub fn answers_came(&self, bytes: u64) {
        self.answer_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn answers_went(&self, bytes: u64) {
        self.answer_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Is it to confirm some, before it stores more?
    pub fn is_full_of_answers(&self) -> bool {
        self.answer_bytes.load(Ordering::Relaxed) >= ANSWER_BYTES_MAX
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_places_and_they_come_back() {
        let parties = Parties::default();
        let held: Vec<Place> = (0..OF_ONE_MAX).map(|_| parties.place("ann@X").unwrap()).collect();
        let refused = parties.place("ann@X").map(drop).unwrap_err();
        assert_eq!((refused.whose.as_str(), refused.most), ("ann@X", OF_ONE_MAX));
        assert!(!held[0].party.has_place());
        assert!(parties.place("bob@X").is_ok());
        drop(held);
        assert!(parties.place("ann@X").is_ok());
    }

    #[test]
    fn who_has_no_session_is_forgotten() {
        let parties = Parties::default();
        for at in 0..100 {
            parties.place(&format!("host{at}")).unwrap();
        }
        assert_eq!(parties.known.lock().unwrap().len(), 1);
    }

    #[test]
    fn sessions_of_before_count_and_are_never_refused() {
        let parties = Parties::default();
        let old: Vec<Place> = (0..OF_ONE_MAX + 3).map(|_| parties.old_place("ann@X")).collect();
        assert!(parties.place("ann@X").is_err());
        drop(old);
        assert!(parties.place("ann@X").is_ok());
    }
}
