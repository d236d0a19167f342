//! What whoever reads a file has of it already.
//!
//! A kernel keeps what it was given, and what was foretold lies here until it is asked for: neither
//! is worth a second fetch, however often it is foretold. What is asked for twice was dropped by
//! who had it. Once that is much, somebody reads anew, and all may be foretold again.
//!
//! Invariant: at most [`RANGES_MAX`] ranges are remembered.

use super::{PAGE, TRUST};
use std::ops::Range;
use tieline_ranges::merged::Merged;

/// Whoever has left so many gaps reads at random: then it is not worth remembering.
const RANGES_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    asked: Merged,
    /// Asked for, or foretold.
    had: Merged,
    /// Bytes that were asked for again.
    again: u64,
}

impl Pass {
    /// Takes note of a read; says whether it begins a new pass.
    pub(super) fn note(&mut self, range: &Range<u64>) -> bool {
        let new: u64 = self.asked.gaps(range.clone()).iter().map(|gap| gap.end - gap.start).sum();
        self.again += range.end - range.start - new;
        let is_anew = self.again > TRUST || self.had.count() >= RANGES_MAX;
        if is_anew {
            *self = Self::default();
        }
        self.asked.add(range.clone());
        self.had.add(range.clone());
        is_anew
    }

    /// Of what is foretold, what nobody has.
    pub(super) fn new_of(&mut self, foretold: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let mut new = Vec::with_capacity(foretold.len());
        for range in foretold {
            let gaps = self.had.gaps(range.clone());
            new.extend(gaps.into_iter().filter(|gap| gap.end - gap.start >= PAGE));
            self.had.add(range);
        }
        new
    }
}
