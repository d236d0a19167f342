//! Files that are cut elsewhere while the kernel waits for bytes of them.
//!
//! A kernel that gets fewer bytes than it asked for takes that for the file's end, unless it was
//! told meanwhile not to believe the size (`fuse_read_update_size` in Linux' fs/fuse/file.c): then
//! it fills the page up to the end that it knew, and shows zeroes that nobody wrote. Such an answer
//! is refused, once: the kernel, whose read ahead that was, asks again for the page that somebody
//! waits for, and takes the next answer as it is.
//!
//! Not where each read is a program's own: it would get the refusal itself, and knows the end by
//! what it is given.
//!
//! Invariant: at most [`REFUSED_MAX`] answers are remembered.

use crate::nodes::Told;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::HandleId;
use tokio::time::Instant;

/// Far longer than a kernel takes to ask once more.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
const REFUSED_MAX: usize = 64;

#[derive(Default)]
pub struct Cuts(Mutex<State>);

#[derive(Default)]
struct State {
    /// Open handles that are read through the kernel's cache.
    cached: BTreeSet<HandleId>,
    refused: VecDeque<(HandleId, u64, Instant)>,
}

/// A read, what the kernel was told of the file before it and after it, and how much there is.
pub struct Answered {
    pub handle: HandleId,
    pub asked: Range<u64>,
    pub length: u64,
    pub before: Option<Told>,
    pub after: Option<Told>,
}

impl Answered {
    /// Would the kernel fill up what it gets?
    fn is_cut(&self) -> bool {
        let Some(after) = self.after else { return false };
        let is_doubted = self.before.is_none_or(|before| before.doubts != after.doubts);
        // An answer that tells a size is believed.
        let size = self.before.map_or(after.size, |before| before.size.min(after.size));
        is_doubted && self.asked.start + self.length < self.asked.end.min(size)
    }
}

impl Cuts {
    pub fn opened_cached(&self, handle: HandleId) {
        self.lock().cached.insert(handle);
    }

    pub fn is_cached(&self, handle: HandleId) -> bool {
        self.lock().cached.contains(&handle)
    }

    pub fn closed(&self, handle: HandleId) {
        self.lock().cached.remove(&handle);
    }

    /// Is the answer to be refused?
    pub fn refuses(&self, answered: &Answered) -> bool {
        if !answered.is_cut() {
            return false;
        }
        let place = (answered.handle, answered.asked.start);
        let mut state = self.lock();
        if !state.cached.contains(&answered.handle) {
            return false;
        }
        state.refused.retain(|(.., at)| at.elapsed() < ASKED_AGAIN);
        if let Some(before) = state.refused.iter().position(|(by, at, _)| (*by, *at) == place) {
            state.refused.remove(before);
            return false;
        }
        if state.refused.len() >= REFUSED_MAX {
            state.refused.pop_front();
        }
        state.refused.push_back((place.0, place.1, Instant::now()));
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(handle: u64, asked: Range<u64>, length: u64) -> Answered {
        let told = |doubts| Some(Told { size: 10_000, doubts });
        Answered { handle: HandleId(handle), asked, length, before: told(1), after: told(2) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_refused_once_where_the_kernel_would_fill_it_up() {
        let cuts = Cuts::default();
        cuts.opened_cached(HandleId(1));
        assert!(!cuts.refuses(&answered(2, 0..4096, 0)));
        assert!(cuts.refuses(&answered(1, 0..4096, 0)));
        assert!(cuts.refuses(&answered(1, 4096..8192, 4000)));
        assert!(!cuts.refuses(&answered(1, 0..4096, 0)), "asked once more");
        assert!(cuts.refuses(&answered(1, 0..4096, 0)));
        tokio::time::advance(ASKED_AGAIN).await;
        assert!(cuts.refuses(&answered(1, 0..4096, 0)), "another read");
        for place in 1..2 * REFUSED_MAX as u64 {
            assert!(cuts.refuses(&answered(1, place..place + 10, 1)));
        }
        assert_eq!(cuts.lock().refused.len(), REFUSED_MAX);
        cuts.closed(HandleId(1));
        assert!(!cuts.refuses(&answered(1, 5..4096, 0)));
    }

    #[test]
    fn the_end_of_a_file_is_no_cut() {
        assert!(!answered(1, 8192..12288, 10_000 - 8192).is_cut());
        assert!(answered(1, 8192..12288, 10_000 - 8193).is_cut());
        assert!(!answered(1, 12288..16384, 0).is_cut());
        let short = || answered(1, 0..4096, 100);
        let told = |size, doubts| Some(Told { size, doubts });
        assert!(!Answered { before: told(10_000, 2), ..short() }.is_cut(), "nothing was doubted");
        assert!(!Answered { after: told(100, 2), ..short() }.is_cut(), "the new size was told");
        assert!(!Answered { before: None, after: None, ..short() }.is_cut());
    }
}
