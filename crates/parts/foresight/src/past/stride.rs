//! Runs that lie equally far from each other.
//!
//! Several such rows may be read side by side (a program that reads with several threads), so a run
//! may go on with one that was begun a few before it. Two pairs of large runs that are equally far
//! apart say as much as three in a row. Kernels round to pages: the distance is only
//! as exact as that, and is taken over the whole row.

use super::PAGE;
use super::walk::Walk;
use std::collections::BTreeSet;
use std::ops::Range;

/// Rows that may be read side by side.
const GAP_MAX: usize = 6;
/// How far a row is followed back.
const FOLLOW_MAX: u64 = 16;
/// So many equal distances are no accident of rounding.
const SURE_FROM: u64 = 6;
/// Beginnings that are remembered as foretold.
const FORETOLD_MAX: usize = 4096;
/// Smaller runs must show the distance once more, and so must those with others between them: they
/// lie equally far apart by chance.
const SMALL_RUN: u64 = 64 << 10;
/// Two pairs of such lie equally far apart by chance only where readers do not take turns.
const LARGE_RUN: u64 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Stride {
    /// Beginnings that were foretold.
    foretold: BTreeSet<u64>,
    /// Bytes of runs that began so.
    right: u64,
}

/// Runs in a row, each as far from the one before.
struct Row {
    first: u64,
    last: u64,
    /// Distances between first and last.
    count: u64,
    is_exact: bool,
    /// Nothing else was read between them.
    is_plain: bool,
    /// Of one run, and of all.
    length: u64,
    bytes: u64,
}

impl Stride {
    /// A run was begun: those that follow in its row.
    pub(super) fn next(&mut self, walk: &Walk, window: u64) -> Vec<Range<u64>> {
        if let Some(row) = row(walk.runs()).filter(Row::is_telling) {
            return self.beyond(&row, window);
        }
        let twins = twins(walk.runs()).into_iter().flatten();
        twins.flat_map(|row| self.beyond(&row, window / 2)).collect()
    }

    /// The runs that follow a row.
    fn beyond(&mut self, row: &Row, window: u64) -> Vec<Range<u64>> {
        if self.is_foretold(row.last, 2 * PAGE) {
            self.right += row.length;
        }
        let step = (row.last - row.first) as f64 / row.count as f64;
        let mut budget = (2 * row.bytes.max(self.right)).min(window);
        let mut foretold = Vec::new();
        let slack = match *row {
            Row { is_exact: true, count: SURE_FROM.., .. } => 0,
            Row { is_exact: true, .. } => PAGE,
            _ => 2 * PAGE,
        };
        // A distance that is known to a page over the whole row is off by the slack so far on.
        let sure = if row.is_exact { u32::MAX } else { 2 * row.count as u32 };
        for index in 1..=sure {
            if budget < row.length {
                break;
            }
            budget -= row.length;
            let at = row.last + (step * f64::from(index)) as u64;
            let start = at.saturating_sub(slack) / PAGE * PAGE;
            if self.is_foretold(start, slack) {
                continue;
            }
            self.foretold.insert(start);
            if self.foretold.len() > FORETOLD_MAX {
                self.foretold.pop_first();
            }
            foretold.push(start..at + row.length + slack);
        }
        foretold
    }

    fn is_foretold(&self, start: u64, slack: u64) -> bool {
        let around = start.saturating_sub(slack + PAGE)..=start + slack + PAGE;
        self.foretold.range(around).next().is_some()
    }
}

impl Row {
    /// Is it long enough to be no chance?
    fn is_telling(&self) -> bool {
        self.count >= 2 + u64::from(self.length < SMALL_RUN) + u64::from(!self.is_plain)
    }

    /// Two runs.
    fn pair(first: &Range<u64>, last: &Range<u64>) -> Self {
        let length = first.end - first.start;
        let (first, last) = (first.start, last.start);
        let (count, is_exact, is_plain) = (1, false, false);
        Self { first, last, count, is_exact, is_plain, length, bytes: 2 * length }
    }
}

/// The last two runs, of two readers who take turns, each with the one before it of his own.
fn twins(runs: &[Range<u64>]) -> Option<[Row; 2]> {
    let last = runs.len().checked_sub(1)?;
    let pair = |first: usize, last: usize| {
        let (first, last) = (runs.get(first)?, runs.get(last)?);
        let length = first.end - first.start;
        let step = last.start.checked_sub(first.start)?;
        (length >= LARGE_RUN && step >= 2 * length).then_some((first, last, step))
    };
    (2..=GAP_MAX).find_map(|gap| {
        let before = last.checked_sub(gap)?;
        let (first, newest, step) = pair(before, last)?;
        let mut others = [before.checked_sub(1), Some(before + 1)].into_iter().flatten();
        others.find_map(|other| {
            let (begun, other, apart) = pair(other, last - 1).filter(|_| other < last - 1)?;
            let are_alike = is_alike(begun, first) && is_alike(other, first);
            let are_twins = are_alike && apart.abs_diff(step) <= PAGE;
            are_twins.then(|| [Row::pair(first, newest), Row::pair(begun, other)])
        })
    })
}

/// The row that ends with the last run.
fn row(runs: &[Range<u64>]) -> Option<Row> {
    let gaps = 1..=GAP_MAX.min(runs.len().saturating_sub(1));
    gaps.into_iter().find_map(|gap| follow(runs, gap))
}

/// The row whose last two runs were begun `gap` apart, if there is a third.
fn follow(runs: &[Range<u64>], gap: usize) -> Option<Row> {
    let mut at = runs.len().checked_sub(1 + gap)?;
    let (newest, previous) = (runs.last()?, runs.get(at)?);
    let step = newest.start.checked_sub(previous.start)?;
    let length = previous.end - previous.start;
    if step < 2 * length {
        return None;
    }
    let (mut first, mut count, mut is_exact, mut is_plain) = (previous, 1, true, gap == 1);
    let mut bytes = length;
    while count < FOLLOW_MAX {
        let expected = first.start.checked_sub(step);
        // Threads take turns, if not strictly.
        let steps = gap.saturating_sub(1).max(1)..=gap + 1;
        let is_next = |&(_, run): &(usize, &Range<u64>)| {
            expected.is_some_and(|expected| run.start.abs_diff(expected) <= PAGE)
                && is_alike(run, previous)
        };
        let near = steps.filter_map(|step| Some((step, runs.get(at.checked_sub(step)?)?)));
        let Some((step_back, next)) = near.into_iter().find(is_next) else { break };
        is_exact &= expected == Some(next.start);
        is_plain &= step_back == 1;
        bytes += next.end - next.start;
        (first, count, at) = (next, count + 1, at - step_back);
    }
    let (first, last) = (first.start, newest.start);
    (count >= 2).then_some(Row { first, last, count, is_exact, is_plain, length, bytes })
}

/// Runs of a row are about equally long. The kernel adds to what is at a file's start.
fn is_alike(run: &Range<u64>, other: &Range<u64>) -> bool {
    let (run_length, other_length) = (run.end - run.start, other.end - other.start);
    run.start == 0 || (run_length <= 2 * other_length && other_length <= 2 * run_length)
}
