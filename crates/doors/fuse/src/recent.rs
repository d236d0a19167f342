//! Names that were answered a moment ago.
//!
//! When the kernel asks again for a name it has, it does so without the directory's lock: our
//! answer may be put to use after a notification that was written later. A name that was merely
//! expired would then be believed anew; one that was dropped stays dropped. So names that were
//! answered within the last second are dropped, also where expiring would do. Names of directories,
//! in which somebody may stand, run out again and again instead ([`crate::moves`]).
//!
//! Invariant: at most [`NAMES_MAX`] are remembered; when there were more, every name counts as
//! recent for a second.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{FileId, Name};
use tokio::time::Instant;

/// Far longer than a woken thread takes to use its answer.
const RECENT: Duration = Duration::from_secs(1);
const NAMES_MAX: usize = 4096;

#[derive(Default)]
pub struct Recent(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    at: HashMap<u64, Instant>,
    order: VecDeque<(Instant, u64)>,
    /// When the last answer was that had to be dropped before its time.
    dropped: Option<Instant>,
}

fn key(parent: FileId, name: &Name) -> u64 {
    // Two names with one key are both recent if either is: harmless.
    let mut hasher = DefaultHasher::new();
    (parent, name).hash(&mut hasher);
    hasher.finish()
}

impl Recent {
    /// The name is being answered now.
    pub fn note(&self, parent: FileId, name: &Name) {
        self.note_at(Instant::now(), key(parent, name));
    }

    pub fn has(&self, parent: FileId, name: &Name) -> bool {
        self.has_at(Instant::now(), key(parent, name))
    }

    fn note_at(&self, now: Instant, key: u64) {
        let mut answers = self.lock();
        if answers.order.len() >= NAMES_MAX
            && let Some((at, oldest)) = answers.order.pop_front()
        {
            if answers.at.get(&oldest) == Some(&at) {
                answers.at.remove(&oldest);
            }
            answers.dropped = Some(at);
        }
        answers.at.insert(key, now);
        answers.order.push_back((now, key));
    }

    fn has_at(&self, now: Instant, key: u64) -> bool {
        let answers = self.lock();
        let is_recent = |at: Instant| now.duration_since(at) < RECENT;
        answers.at.get(&key).copied().is_some_and(is_recent)
            || answers.dropped.is_some_and(is_recent)
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_recent_for_a_second() {
        let (recent, now) = (Recent::default(), Instant::now());
        recent.note_at(now, 7);
        assert!(recent.has_at(now + RECENT / 2, 7));
        assert!(!recent.has_at(now + RECENT, 7));
        assert!(!recent.has_at(now, 8));
    }

    #[test]
    fn when_memory_is_short_every_name_is_recent() {
        let (recent, now) = (Recent::default(), Instant::now());
        (0..=NAMES_MAX as u64).for_each(|key| recent.note_at(now, key));
        assert!(recent.has_at(now, 0) && recent.has_at(now, u64::MAX));
        assert!(!recent.has_at(now + RECENT, u64::MAX));
        let answers = recent.lock();
        assert_eq!((answers.at.len(), answers.order.len()), (NAMES_MAX, NAMES_MAX));
    }
}
