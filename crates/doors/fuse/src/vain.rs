//! Lookups that nobody answered in time, a moment ago.
//!
//! A kernel that looks whether a name is still what it was, and gets an error, drops the name and
//! asks once more at once. Whoever waited once does not wait twice.
//!
//! Invariant: at most [`NAMES_MAX`] are remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tieline_types::{FileId, Name};
use tokio::time::Instant;

/// Far longer than a kernel takes to ask once more.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
const NAMES_MAX: usize = 64;

#[derive(Default)]
pub struct InVain(Mutex<VecDeque<Lookup>>);

struct Lookup {
    at: Instant,
    process: u32,
    parent: FileId,
    name: Name,
}

impl InVain {
    /// The process waited for this name, and gets an error now.
    pub fn note(&self, process: u32, parent: FileId, name: Name) {
        let mut lookups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lookups.len() >= NAMES_MAX {
            lookups.pop_front();
        }
        lookups.push_back(Lookup { at: Instant::now(), process, parent, name });
    }

    /// Is this the same question once more? The next one is another.
    pub fn was(&self, process: u32, parent: FileId, name: &Name) -> bool {
        let mut lookups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lookups.retain(|lookup| lookup.at.elapsed() < ASKED_AGAIN);
        let is_it =
            |one: &Lookup| (one.process, one.parent) == (process, parent) && one.name == *name;
        let found = lookups.iter().position(is_it);
        found.and_then(|at| lookups.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_is_the_same_once_and_for_a_moment() {
        let (vain, name, parent) = (InVain::default(), Name::new("f").unwrap(), FileId(7));
        vain.note(1, parent, name.clone());
        assert!(!vain.was(2, parent, &name) && !vain.was(1, FileId(8), &name));
        assert!(vain.was(1, parent, &name) && !vain.was(1, parent, &name));
        vain.note(1, parent, name.clone());
        tokio::time::advance(ASKED_AGAIN).await;
        assert!(!vain.was(1, parent, &name));
        (0..=NAMES_MAX as u32).for_each(|process| vain.note(process, parent, name.clone()));
        assert!(!vain.was(0, parent, &name) && vain.was(1, parent, &name));
    }
}
