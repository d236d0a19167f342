//! Stretches by offset, of which none overlaps another, and the one way to cut them.

use std::collections::BTreeMap;
use std::ops::Range;

/// What lies in a row from an offset on.
pub trait Stretch: Sized {
    fn length(&self) -> u64;

    /// The part at `range`, counted from its start: not empty, and within it.
    fn part(&self, range: Range<u64>) -> Self;
}

/// A stretch that a range met, taken out.
pub struct Cut<R> {
    at: u64,
    pub whole: R,
    /// What of it lies before the range, and behind.
    pub around: Vec<(u64, R)>,
}

impl<R: Stretch> Cut<R> {
    /// What of it lies within the range that cut it. Few ask for it, and a part may be a copy.
    pub fn within(&self, range: &Range<u64>) -> Option<(u64, R)> {
        part(&self.whole, self.at, range.clone())
    }
}

/// Takes out all stretches that lie in a range, or reach into it.
pub fn take<R: Stretch>(runs: &mut BTreeMap<u64, R>, range: &Range<u64>) -> Vec<Cut<R>> {
    if range.is_empty() {
        return Vec::new();
    }
    let before = runs.range(..range.start).next_back();
    let before = before.filter(|(at, run)| *at + run.length() > range.start);
    let met = before.into_iter().chain(runs.range(range.clone()));
    let met: Vec<u64> = met.map(|(&at, _)| at).collect();
    met.into_iter().filter_map(|at| Some(cut(runs.remove(&at)?, at, range))).collect()
}

/// The same, and puts back what lies around the range.
pub fn clear<R: Stretch>(runs: &mut BTreeMap<u64, R>, range: &Range<u64>) {
    for cut in take(runs, range) {
        runs.extend(cut.around);
    }
}

fn cut<R: Stretch>(whole: R, at: u64, range: &Range<u64>) -> Cut<R> {
    let around = [0..range.start, range.end..u64::MAX];
    let around = around.into_iter().filter_map(|side| part(&whole, at, side)).collect();
    Cut { at, around, whole }
}

/// What of a stretch at an offset lies in a range, and where.
fn part<R: Stretch>(whole: &R, at: u64, range: Range<u64>) -> Option<(u64, R)> {
    let (start, end) = (range.start.max(at), range.end.min(at + whole.length()));
    (start < end).then(|| (start, whole.part(start - at..end - at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE: usize = 64;

    impl Stretch for Vec<u8> {
        fn length(&self) -> u64 {
            self.len() as u64
        }

        fn part(&self, range: Range<u64>) -> Self {
            self[range.start as usize..range.end as usize].to_vec()
        }
    }

    fn bytes(runs: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Vec<u8> {
        let mut all = vec![0; SPACE];
        for (at, run) in runs {
            for (index, byte) in run.into_iter().enumerate() {
                assert_eq!(all[at as usize + index], 0, "two runs at {at}");
                all[at as usize + index] = byte;
            }
        }
        all
    }

    proptest! {
        /// What is taken out and what stays are together what was there.
        #[test]
        fn a_range_takes_what_it_meets(
            lengths in prop::collection::vec((0u64..5, 1usize..9), 1..8),
            start in 0u64..60,
            length in 0u64..30,
        ) {
            let (mut runs, mut at) = (BTreeMap::new(), 0);
            for (number, (gap, length)) in lengths.into_iter().enumerate() {
                at += gap;
                if at as usize + length <= SPACE {
                    runs.insert(at, vec![number as u8 + 1; length]);
                    at += length as u64;
                }
            }
            let before = bytes(runs.clone());
            let range = start..(start + length).min(SPACE as u64);
            let mut rest = runs.clone();
            clear(&mut rest, &range);
            let cuts = take(&mut runs, &range);
            let rest = bytes(rest);
            let within = bytes(cuts.iter().filter_map(|cut| cut.within(&range)));
            for (at, &byte) in before.iter().enumerate() {
                let is_within = range.contains(&(at as u64));
                let wanted = if is_within { (byte, 0) } else { (0, byte) };
                prop_assert_eq!((within[at], rest[at]), wanted, "at {}", at);
            }
            // What was not met was not touched.
            let left = bytes(runs);
            for cut in &cuts {
                prop_assert!(cut.within(&range).is_some() || range.is_empty());
            }
            let parts = |cut: &Cut<Vec<u8>>| {
                cut.around.clone().into_iter().chain(cut.within(&range)).collect::<Vec<_>>()
            };
            let met = bytes(cuts.iter().flat_map(parts));
            prop_assert!(before.iter().zip(left.iter().zip(&met)).all(|(b, (l, m))| *b == l + m));
        }
    }
}
