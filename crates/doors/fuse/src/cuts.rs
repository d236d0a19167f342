//! Files that the kernel is told to forget while it waits for bytes of them.
//!
//! A kernel that gets fewer bytes than it asked for takes that for the file's end, unless it was
//! told to forget the file meanwhile (`fuse_read_update_size` in Linux' fs/fuse/file.c): then it
//! fills the page up to the end that it knew, and shows zeroes that nobody wrote. So such an answer
//! is refused, once: the kernel asks for the page again that somebody waits for, and takes the next
//! one as it is. What lacks less than a page is no such answer: each read of a file's end is, and
//! whoever had his pages asked for one by one would see a mixture of what was written meanwhile.
//!
//! Only of handles that the kernel reads through its cache: others get the refusal itself.
//!
//! Invariant: at most [`TOLD_MAX`] files and [`REFUSED_MAX`] answers are remembered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_client::HandleId;
use tieline_types::FileId;
use tokio::time::Instant;

/// Far longer than a kernel takes to ask once more.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
const TOLD_MAX: usize = 4096;
const REFUSED_MAX: usize = 64;

#[derive(Default)]
pub struct Cuts(Mutex<State>);

#[derive(Default)]
struct State {
    /// Handles that are read through the kernel's cache.
    cached: BTreeSet<HandleId>,
    /// When the kernel was last told to forget a file.
    told: BTreeMap<FileId, Instant>,
    refused: VecDeque<(HandleId, u64, Instant)>,
}

impl Cuts {
    pub fn opened(&self, handle: HandleId) {
        self.lock().cached.insert(handle);
    }

    pub fn closed(&self, handle: HandleId) {
        self.lock().cached.remove(&handle);
    }

    /// The kernel is told to forget these.
    pub fn told(&self, files: &[FileId]) {
        let now = Instant::now();
        let mut state = self.lock();
        state.told.extend(files.iter().map(|&file| (file, now)));
        while state.told.len() > TOLD_MAX {
            let oldest = state.told.iter().min_by_key(|(_, at)| **at).map(|(&file, _)| file);
            oldest.map(|file| state.told.remove(&file));
        }
    }

    /// Is too short an answer to a read that began then to be refused?
    pub fn refuses(&self, (handle, file): (HandleId, FileId), offset: u64, begun: Instant) -> bool {
        let mut state = self.lock();
        let is_doubtful = state.told.get(&file).is_some_and(|&at| at >= begun);
        if !is_doubtful || !state.cached.contains(&handle) {
            return false;
        }
        state.refused.retain(|(.., at)| at.elapsed() < ASKED_AGAIN);
        let is_same = |(by, at, _): &(HandleId, u64, Instant)| (*by, *at) == (handle, offset);
        if let Some(before) = state.refused.iter().position(is_same) {
            state.refused.remove(before);
            return false;
        }
        if state.refused.len() >= REFUSED_MAX {
            state.refused.pop_front();
        }
        state.refused.push_back((handle, offset, Instant::now()));
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_refused_once_where_the_kernel_forgot_meanwhile() {
        let (cuts, file) = (Cuts::default(), FileId(7));
        let (cached, direct) = (HandleId(1), HandleId(2));
        cuts.opened(cached);
        let begun = Instant::now();
        assert!(!cuts.refuses((cached, file), 0, begun), "nothing was told");
        cuts.told(&[file]);
        assert!(!cuts.refuses((direct, file), 0, begun));
        assert!(cuts.refuses((cached, file), 0, begun));
        assert!(cuts.refuses((cached, file), 4096, begun));
        assert!(!cuts.refuses((cached, file), 0, begun), "asked once more");
        tokio::time::advance(ASKED_AGAIN).await;
        assert!(!cuts.refuses((cached, file), 0, Instant::now()), "it began afterwards");
        cuts.closed(cached);
        assert!(!cuts.refuses((cached, file), 0, begun));
        cuts.told(&(0..2 * TOLD_MAX as u64).map(FileId).collect::<Vec<_>>());
        assert_eq!(cuts.lock().told.len(), TOLD_MAX);
    }
}
