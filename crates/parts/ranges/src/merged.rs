//! Ranges of numbers, merged where they touch.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Default, Debug)]
pub struct Merged(BTreeMap<u64, u64>);

impl Merged {
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    pub fn first_gap(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        if at >= range.end {
            return None;
        }
        if let Some((_, &to)) = self.0.range(..=at).next_back() {
            at = at.max(to);
        }
        (at < range.end).then_some(at)
    }

    /// The parts of a range that are not in here, in order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut rest = range;
        while let Some(from) = self.first_gap(rest.clone()) {
            let next = self.0.range(from..).next().map_or(u64::MAX, |(&next, _)| next);
            gaps.push(from..next.min(rest.end));
            rest.start = next.min(rest.end);
        }
        gaps
    }

    /// How many ranges there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_was_not_added() {
        let mut merged = Merged::default();
        assert_eq!(merged.gaps(3..9).first(), Some(&(3..9)));
        [0..2, 4..6, 5..7, 8..8, 12..20].into_iter().for_each(|range| merged.add(range));
        assert_eq!(merged.count(), 3);
        assert_eq!(merged.gaps(1..14), [2..4, 7..12]);
        assert!(merged.gaps(5..7).is_empty() && merged.gaps(9..9).is_empty());
    }
}
