//! Tells sequential readers from others, and says how far ahead of one to fetch.
//!
//! One pattern per handle. Requests of a sequential reader may overtake each other in the kernel:
//! an offset near the expected one counts as next. The window doubles while the reader goes on, and
//! is gone when it jumps.

use crate::fetch::{PIECE, Width};
use std::ops::Range;

const WINDOW_FIRST: u64 = 512 << 10;
/// A first read of so much, at the start, is the beginning of a sequential one.
const BOLD_FROM: u64 = 64 << 10;
/// How far out of order a request may come.
const SLACK: u64 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pattern {
    /// Where the reader goes on if it is sequential.
    next: u64,
    streak: u32,
    window: u64,
    /// Fetched or being fetched up to here.
    ahead: u64,
}

/// What to do for one read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Advice {
    pub width: Width,
    /// To be fetched beyond the read; may be empty.
    pub ahead: Range<u64>,
}

impl Pattern {
    /// A read of `range` came. `window_max` is the most to be fetched ahead.
    pub fn observe(&mut self, range: Range<u64>, window_max: u64) -> Advice {
        let slack = SLACK.min(self.window);
        let is_next = range.start <= self.next + slack && range.start + slack >= self.next;
        if !is_next {
            *self = Self { next: range.end, ..Self::default() };
            return Advice { width: Width::Exact, ahead: range.end..range.end };
        }
        self.streak += 1;
        self.next = self.next.max(range.end);
        // Whoever begins with much at the file's start wants the rest of it too.
        let is_bold = range.start == 0 && range.end >= BOLD_FROM;
        if self.streak < 2 && !is_bold {
            return Advice { width: Width::Exact, ahead: range.end..range.end };
        }
        self.window = (self.window * 2).max(WINDOW_FIRST).min(window_max);
        let from = self.ahead.max(range.end);
        let to = self.next + self.window;
        // Small steps are not worth a request.
        let step = (self.window / 4).min(PIECE);
        if to < from + step {
            return Advice { width: Width::Pieces, ahead: from..from };
        }
        self.ahead = to;
        Advice { width: Width::Pieces, ahead: from..to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;

    #[test]
    fn the_window_doubles_up_to_its_limit() {
        let mut pattern = Pattern::default();
        let step = 128 << 10;
        let mut reached = 0;
        for index in 0..200u64 {
            let range = index * step..(index + 1) * step;
            let advice = pattern.observe(range.clone(), MAX);
            assert!(advice.ahead.start >= reached, "nothing is fetched twice");
            assert!(advice.ahead.end <= range.end + MAX);
            reached = reached.max(advice.ahead.end);
        }
        assert_eq!(pattern.window, MAX);
        assert!(reached >= 200 * step + MAX - PIECE);
    }

    #[test]
    fn a_jump_ends_it() {
        let mut pattern = Pattern::default();
        for index in 0..4u64 {
            pattern.observe(index << 17..(index + 1) << 17, MAX);
        }
        let advice = pattern.observe(1 << 30..(1 << 30) + 4096, MAX);
        assert_eq!(advice.width, Width::Exact);
        assert!(advice.ahead.is_empty());
    }

    #[test]
    fn requests_may_overtake_each_other() {
        let mut pattern = Pattern::default();
        for index in [0u64, 1, 2, 4, 3, 5] {
            let advice = pattern.observe(index << 17..(index + 1) << 17, MAX);
            if index > 2 {
                assert_eq!(advice.width, Width::Pieces);
            }
        }
    }

    #[test]
    fn much_at_the_start_is_the_beginning_of_all() {
        let advice = Pattern::default().observe(0..BOLD_FROM, MAX);
        assert_eq!(advice.width, Width::Pieces);
        assert!(!advice.ahead.is_empty());
        let header = Pattern::default().observe(0..4096, MAX);
        assert!(header.ahead.is_empty() && header.width == Width::Exact);
    }

    #[test]
    fn random_reads_are_exact() {
        let mut pattern = Pattern::default();
        for offset in [900u64 << 20, 5 << 20, 700 << 20, 30 << 20] {
            let advice = pattern.observe(offset..offset + 4096, MAX);
            assert_eq!(advice, Advice { width: Width::Exact, ahead: offset + 4096..offset + 4096 });
        }
    }
}
