//! Readers who go from a file's end to its beginning, as `tac` does.
//!
//! Each reads blocks, every one right before the one before; a kernel may ask for one in several
//! requests, and in any order. What lies before them is foretold once a few came so, twice as much
//! as was read.

use super::PAGE;
use std::ops::Range;

/// So many steps back in a row are no chance.
const SURE_FROM: u32 = 3;
/// A block may be asked for from somewhere in it: so far down at most.
const BLOCK_MAX: u64 = 8 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Backward {
    /// What is read, from the end down.
    read: Range<u64>,
    /// Bytes of it that were asked for.
    bytes: u64,
    /// How often it went on further down.
    steps: u32,
    /// Foretold from here on.
    edge: Option<u64>,
}

impl Backward {
    /// Takes note of a read; says what comes before it.
    pub(super) fn note(&mut self, range: &Range<u64>, window: u64) -> Option<Range<u64>> {
        let (low, length) = (self.read.start, range.end - range.start);
        let reach = self.bytes.min(BLOCK_MAX).max(length) + PAGE;
        let is_beside = range.end <= low + PAGE && range.start + reach >= low;
        let is_within = range.start >= low && range.start <= self.read.end + PAGE;
        let goes_down = range.start < low && is_beside;
        if !goes_down && !is_within {
            *self = Self { read: range.clone(), bytes: length, ..Self::default() };
            return None;
        }
        self.bytes += length;
        self.read = low.min(range.start)..self.read.end.max(range.end);
        self.steps += u32::from(goes_down);
        // Whoever leaves out much does not want what lies between.
        let is_dense = self.bytes >= (self.read.end - self.read.start) / 3 * 2;
        if !goes_down || !is_dense || self.steps < SURE_FROM {
            return None;
        }
        let window = (2 * self.bytes).min(window);
        let to = self.edge.map_or(range.start, |edge| edge.min(range.start));
        let from = range.start.saturating_sub(window);
        // Small steps are not worth a request.
        let is_worth_it = from < to && (to - from >= window / 4 || from == 0);
        is_worth_it.then(|| {
            self.edge = Some(from);
            from..to
        })
    }
}
