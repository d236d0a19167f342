//! One way through a file, and what it says of the next.

use super::{PAGE, RUNS_MAX, TRUST};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// A run is gone on with only if it is among the last so many.
const OPEN_RUNS: usize = 16;
/// So many runs may be read side by side before the rest of one counts as left out.
const SIDE_BY_SIDE: usize = 2;

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
        // Requests overtake each other: one may close the gap between two runs.
        let (mut joined, mut at) = (range.clone(), None);
        for index in (open..self.runs.len()).rev() {
            let Some(run) = self.runs.get(index) else { continue };
            if joined.start <= run.end && joined.end >= run.start {
                self.bytes -= run.end - run.start;
                joined = joined.start.min(run.start)..joined.end.max(run.end);
                if let Some(later) = at.replace(index) {
                    self.runs.remove(later);
                }
            }
        }
        if let Some(run) = at.and_then(|at| self.runs.get_mut(at)) {
            self.bytes += joined.end - joined.start;
            *run = joined;
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
    marks: Vec<Mark>,
    /// Runs that were begun last.
    begun: VecDeque<usize>,
    /// Bytes that were read as told, and others.
    right: u64,
    wrong: u64,
    /// It is of another file: the beginning alone proves nothing.
    is_doubted: bool,
}

/// What became of a run.
#[derive(Clone, Debug)]
struct Mark {
    /// It was foretold or read.
    is_done: bool,
    /// How far it was read, and how much of it was left out.
    reached: u64,
    left_out: u64,
}

impl Mark {
    /// Something of the run is read. Says whether that begins it, how much of what was left out
    /// came after all, and how much is left out now.
    fn read(&mut self, run: &Range<u64>, range: &Range<u64>) -> (bool, u64, u64) {
        let is_begun = self.reached == run.start;
        let came = (range.end - range.start).min(self.left_out);
        let gap = range.start.saturating_sub(self.reached);
        self.is_done = true;
        self.left_out = self.left_out - came + gap;
        self.reached = self.reached.max(range.end.min(run.end));
        (is_begun, came, gap)
    }

    /// Others are read: the rest is left out.
    fn leave(&mut self, run: &Range<u64>) -> u64 {
        let rest = run.end - self.reached;
        self.left_out += rest;
        self.reached = run.end;
        rest
    }
}

impl Told {
    pub(super) fn own(walk: Walk) -> Self {
        let starts = walk.runs.iter().enumerate().map(|(index, run)| (run.start, index)).collect();
        let mark = |run: &Range<u64>| Mark { is_done: false, reached: run.start, left_out: 0 };
        let marks = walk.runs.iter().map(mark).collect();
        let (begun, right, wrong, is_doubted) = (VecDeque::new(), 0, 0, false);
        Self { walk, starts, marks, begun, right, wrong, is_doubted }
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
        self.note_left(index, &run, range);
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
            let rest = range.end..run.end.min(range.end.saturating_add(budget));
            budget -= rest.end - rest.start;
            foretold.push(rest);
        }
        let later = self.walk.runs.iter().zip(&mut self.marks).skip(index + 1);
        for (run, mark) in later {
            let length = run.end - run.start;
            if length > budget {
                break;
            }
            budget -= length;
            if !std::mem::replace(&mut mark.is_done, true) {
                foretold.push(run.clone());
            }
        }
        foretold
    }

    /// What is left out of runs was told wrongly: gaps, and the ends of those that others were
    /// begun after. If it is read after all it was not.
    fn note_left(&mut self, index: usize, run: &Range<u64>, range: &Range<u64>) {
        let Some(mark) = self.marks.get_mut(index) else { return };
        let (is_begun, came, gap) = mark.read(run, range);
        self.wrong = self.wrong.saturating_sub(came) + gap;
        if is_begun {
            self.begun.push_back(index);
        }
        if self.begun.len() > SIDE_BY_SIDE
            && let Some(before) = self.begun.pop_front()
            && let (Some(mark), Some(run)) =
                (self.marks.get_mut(before), self.walk.runs.get(before))
        {
            self.wrong += mark.leave(run);
        }
    }
}
