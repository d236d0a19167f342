//! One way through a file, and what it says of the next.

use super::{PAGE, RUNS_MAX, TRUST};
use std::collections::BTreeMap;
use std::ops::Range;

/// A run is gone on with only if it is among the last so many.
const OPEN_RUNS: usize = 16;

/// Runs of bytes in the order in which they were begun.
#[derive(Clone, Debug, Default)]
pub(super) struct Walk {
    runs: Vec<Range<u64>>,
    bytes: u64,
    is_cut: bool,
    /// How often the file was opened for it.
    opened: u32,
    /// The longest that was read on end past the kernel's cache.
    piece: u64,
}

impl Walk {
    /// Takes note of a read; says whether it begins a run.
    pub(super) fn note(&mut self, range: &Range<u64>) -> bool {
        let open = self.runs.len().saturating_sub(OPEN_RUNS);
        let touches = |run: &&mut Range<u64>| range.start <= run.end && range.end >= run.start;
        if let Some(run) = self.runs.iter_mut().skip(open).rev().find(touches) {
            let before = run.end - run.start;
            *run = run.start.min(range.start)..run.end.max(range.end);
            self.bytes += run.end - run.start - before;
            return false;
        }
        if self.runs.len() >= RUNS_MAX {
            self.is_cut = true;
            return true;
        }
        self.bytes += range.end - range.start;
        self.runs.push(range.clone());
        true
    }

    pub(super) fn note_open(&mut self) {
        self.opened += 1;
    }

    pub(super) fn note_piece(&mut self, piece: &Range<u64>) {
        self.piece = self.piece.max(piece.end - piece.start);
    }

    pub(super) fn opened(&self) -> u32 {
        self.opened
    }

    pub(super) fn piece(&self) -> u64 {
        self.piece
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// The longest of the last runs but the one that a read belongs to, if there are some.
    pub(super) fn longest_but(&self, range: &Range<u64>) -> u64 {
        let open = self.runs.len().saturating_sub(OPEN_RUNS);
        let is_other = |run: &&Range<u64>| range.start >= run.end || range.end <= run.start;
        let others = || self.runs.iter().skip(open).filter(is_other);
        if others().count() < 2 {
            return 0;
        }
        others().map(|run| run.end - run.start).max().unwrap_or(0)
    }

    /// Does it say anything that a reader from front to back would not?
    pub(super) fn is_telling(&self) -> bool {
        self.runs.len() >= 3 && !self.is_cut
    }
}

/// A walk of before, as it is followed.
#[derive(Clone, Debug)]
pub(super) struct Told {
    walk: Walk,
    /// By where runs begin: which they are.
    starts: BTreeMap<u64, usize>,
    /// Runs that were foretold or read.
    done: Vec<bool>,
    /// Bytes that were read as told, and others.
    right: u64,
    wrong: u64,
    /// It is of another file: the beginning alone proves nothing.
    is_doubted: bool,
}

impl Told {
    pub(super) fn own(walk: Walk) -> Self {
        let starts = walk.runs.iter().enumerate().map(|(index, run)| (run.start, index)).collect();
        let done = vec![false; walk.runs.len()];
        Self { walk, starts, done, right: 0, wrong: 0, is_doubted: false }
    }

    pub(super) fn of_kin(walk: Walk) -> Self {
        Self { is_doubted: true, ..Self::own(walk) }
    }

    pub(super) fn walk(&self) -> &Walk {
        &self.walk
    }

    /// Is it how the file is read this time, as far as can be seen?
    pub(super) fn is_right(&self) -> bool {
        !self.is_doubted && self.wrong <= self.right + TRUST
    }

    pub(super) fn into_walk(self) -> Walk {
        self.walk
    }

    /// A read came: what was read after it, then.
    pub(super) fn next(&mut self, range: &Range<u64>, window: u64) -> Vec<Range<u64>> {
        let near = self.starts.range(..=range.start).next_back();
        let run = |&index: &usize| self.walk.runs.get(index).cloned().map(|run| (index, run));
        let found = near.and_then(|(_, index)| run(index)).filter(|(_, run)| range.start < run.end);
        let length = range.end - range.start;
        let Some((index, run)) = found else {
            self.wrong += length;
            return Vec::new();
        };
        self.right += length;
        // Past the kernel's cache reads do not begin with a page.
        if range.start - run.start < PAGE && run.start > 0 {
            self.is_doubted = false;
        }
        if !self.is_right() {
            return Vec::new();
        }
        // What was told has come true but for an eighth: it is worth more than a beginning.
        let proven = if self.wrong * 8 <= self.right { 8 } else { 2 };
        let mut budget = (TRUST + proven * self.right).min(window);
        let mut foretold = Vec::new();
        // The rest of this run first, then those that were begun after it.
        if run.end > range.end {
            foretold.push(range.end..run.end);
        }
        for at in index..self.walk.runs.len() {
            let (Some(run), Some(done)) = (self.walk.runs.get(at), self.done.get_mut(at)) else {
                break;
            };
            let length = run.end - run.start;
            if at > index && length > budget {
                break;
            }
            budget = budget.saturating_sub(length);
            if !std::mem::replace(done, true) && at > index {
                foretold.push(run.clone());
            }
        }
        foretold
    }
}
