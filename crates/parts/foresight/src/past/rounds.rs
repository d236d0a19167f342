//! Rounds: each goes on, place by place and in the same order, where the one before has stopped.
//!
//! So columns are read of a file that holds them cluster by cluster: the first column's part of
//! each cluster, then the second's, which lies right behind it. After a few places of a round
//! the rest of it is foretold, and once two whole ones came true, those that follow, too.
//!
//! Invariant: at most [`PLACES_MAX`] places are remembered.

use super::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;

/// Fewer places are those of readers who take turns: each goes on as it is.
const PLACES_MIN: usize = 16;
/// A file of more places is not followed.
const PLACES_MAX: usize = 1024;
/// So many places in a row that were gone on with, in their order, are no chance.
const SURE_FROM: usize = 3;
/// How many rounds are foretold at most.
const ROUNDS_MAX: usize = 4;
/// How many pieces are.
const PIECES_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    /// What was read last of each place, in the order in which a round comes to them.
    places: Vec<Range<u64>>,
    /// Which they are, by where that begins.
    by_start: BTreeMap<u64, usize>,
    /// The one that was read last.
    at: usize,
    /// Places that were gone on with since the order was last broken, and their bytes.
    row: usize,
    right: u64,
}

impl Rounds {
    /// Takes note of a read; says what follows if it goes on with a round.
    pub(super) fn note(&mut self, range: &Range<u64>, window: u64) -> Vec<Range<u64>> {
        match self.find(range.start) {
            // The rest of the piece.
            Some(index) if index == self.at => self.extend(index, range.end),
            // Nothing new: what is read again says nothing.
            Some(index) if range.end <= self.places[index].end => return Vec::new(),
            Some(index) => self.go_on(index, range),
            None => self.begin(range),
        }
        let is_sure = self.row >= SURE_FROM && self.places.len() >= PLACES_MIN;
        if is_sure { self.following(window.min(self.right)) } else { Vec::new() }
    }

    /// The place whose last piece a read begins in, or right behind.
    fn find(&self, start: u64) -> Option<usize> {
        let (_, &index) = self.by_start.range(..=start).next_back()?;
        (start <= self.places.get(index)?.end + PAGE).then_some(index)
    }

    fn extend(&mut self, index: usize, end: u64) {
        let Some(place) = self.places.get_mut(index) else { return };
        let more = end.saturating_sub(place.end);
        place.end += more;
        if self.row > 0 {
            self.right += more;
        }
    }

    fn go_on(&mut self, index: usize, range: &Range<u64>) {
        // What a kernel has it does not ask for: places may be left out, but not gone back to.
        let count = self.places.len();
        if (index + count - self.at) % count > count / 2 {
            (self.row, self.right) = (0, 0);
        }
        let Some(place) = self.places.get_mut(index) else { return };
        self.by_start.remove(&place.start);
        *place = place.end.min(range.start)..range.end;
        self.by_start.insert(place.start, index);
        self.at = index;
        self.row += 1;
        self.right += range.end - range.start;
    }

    /// A place that nobody came to before stands behind all others.
    fn begin(&mut self, range: &Range<u64>) {
        if self.places.len() >= PLACES_MAX {
            *self = Self::default();
        }
        (self.row, self.right) = (0, 0);
        self.at = self.places.len();
        self.by_start.insert(range.start, self.at);
        self.places.push(range.clone());
    }

    /// What comes next: of this round, and once two whole ones came true, of those after it.
    fn following(&self, mut budget: u64) -> Vec<Range<u64>> {
        let Some(last) = self.places.get(self.at) else { return Vec::new() };
        let length = last.end - last.start;
        let (passed, coming) = self.places.split_at(self.at + 1);
        let came_true = self.row / self.places.len();
        let rounds = came_true.saturating_sub(1).min(ROUNDS_MAX);
        let this = coming.iter().map(|place| (place, 0));
        let next = (0..rounds).flat_map(|round| {
            let passed = passed.iter().map(move |place| (place, round));
            passed.chain(coming.iter().map(move |place| (place, round + 1)))
        });
        let mut foretold = Vec::new();
        for (place, round) in this.chain(next).take(PIECES_MAX) {
            if budget < length {
                break;
            }
            budget -= length;
            let start = place.end + round as u64 * length;
            foretold.push(start..start + length);
        }
        foretold
    }
}
