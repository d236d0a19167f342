//! The committed extents of a file, as far as they were fetched.
//!
//! Invariants: extents do not overlap; what is covered and in no extent is a hole; nothing is said
//! of what is not covered.

use crate::merged::Merged;
use crate::runs::{self, Stretch};
use std::collections::BTreeMap;
use std::ops::Range;
use tieline_types::{ChunkRef, Content, Extent};

#[derive(Clone, Default, Debug)]
pub struct Extents {
    map: BTreeMap<u64, Extent>,
    covered: Merged,
}

/// Where a piece of a file comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    pub range: Range<u64>,
    /// `None` for a hole. The extent begins and ends with the range.
    pub extent: Option<Extent>,
}

impl Extents {
    /// Takes extents that are all there are from `offset` to `covered`.
    pub fn learn(&mut self, offset: u64, extents: &[Extent], covered: u64) {
        for extent in extents {
            if extent.validate().is_ok() && extent.content != Content::Hole {
                self.put(extent.clone());
                self.covered.add(extent.offset..extent.end());
            }
        }
        self.covered.add(offset..covered.max(offset));
    }

    /// An extent was committed.
    pub fn commit(&mut self, extent: &Extent) {
        self.covered.add(extent.offset..extent.end());
        match extent.content {
            Content::Hole => self.cut(extent.offset..extent.end()),
            Content::Inline(_) | Content::Chunk(_) => self.put(extent.clone()),
        }
    }

    /// The file was cut or extended to `size`: beyond it there is nothing.
    pub fn truncate(&mut self, size: u64) {
        self.cut(size..u64::MAX);
        self.covered.add(size..u64::MAX);
    }

    fn put(&mut self, extent: Extent) {
        self.cut(extent.offset..extent.end());
        self.map.insert(extent.offset, extent);
    }

    fn cut(&mut self, range: Range<u64>) {
        runs::clear(&mut self.map, &range);
    }

    /// Where the known extent ends that holds `offset`.
    pub fn end_around(&self, offset: u64) -> Option<u64> {
        let (_, extent) = self.map.range(..=offset).next_back()?;
        Some(extent.end()).filter(|&end| end > offset)
    }

    /// Where the first known extent from `offset` on begins.
    pub fn next_from(&self, offset: u64) -> Option<u64> {
        self.map.range(offset..).next().map(|(&next, _)| next)
    }

    /// The first offset of `range` that nothing is known of.
    pub fn unknown(&self, range: Range<u64>) -> Option<u64> {
        self.covered.first_gap(range)
    }

    /// What `range` is made of, in order. All of it must be covered.
    pub fn plan(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let before = self.map.range(..=range.start).next_back();
        let after = self.map.range(range.start.saturating_add(1)..range.end.max(range.start + 1));
        for (_, extent) in before.into_iter().chain(after) {
            let Some(part) = slice(extent, at..range.end) else { continue };
            if part.offset > at {
                pieces.push(Piece { range: at..part.offset, extent: None });
            }
            at = part.end();
            pieces.push(Piece { range: part.offset..part.end(), extent: Some(part) });
        }
        if at < range.end {
            pieces.push(Piece { range: at..range.end, extent: None });
        }
        pieces
    }

    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// Bytes that extents cover, if all up to `size` are known.
    pub fn stored(&self, size: u64) -> Option<u64> {
        let is_known = self.unknown(0..size).is_none();
        is_known.then(|| self.map.values().map(|extent| extent.length).sum())
    }

    /// All of them, if they are known up to `size` and not more than `max`.
    pub fn whole(&self, size: u64, max: usize) -> Option<Vec<Extent>> {
        Some(self.all(size, max)?.cloned().collect())
    }

    /// The same, to look at.
    pub fn all(&self, size: u64, max: usize) -> Option<impl Iterator<Item = &Extent>> {
        let is_known = self.map.len() <= max && self.unknown(0..size).is_none();
        is_known.then(|| self.map.values())
    }

    /// Does any known extent lie in a chunk?
    pub fn has_chunks(&self) -> bool {
        self.map.values().any(|extent| matches!(extent.content, Content::Chunk(_)))
    }

    /// The chunks that known extents lie in.
    pub fn chunks(&self) -> impl Iterator<Item = &ChunkRef> {
        self.map.values().filter_map(|extent| match &extent.content {
            Content::Chunk(chunk) => Some(chunk),
            Content::Inline(_) | Content::Hole => None,
        })
    }
}

impl Stretch for Extent {
    fn length(&self) -> u64 {
        self.length
    }

    fn part(&self, range: Range<u64>) -> Self {
        let part = slice(self, self.offset + range.start..self.offset + range.end);
        part.unwrap_or_else(|| self.clone())
    }
}

/// The part of an extent that lies in `range`.
pub fn slice(extent: &Extent, range: Range<u64>) -> Option<Extent> {
    extent.within(range.start, range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inline(offset: u64, bytes: &[u8]) -> Extent {
        let content = Content::Inline(bytes.to_vec());
        Extent { offset, length: bytes.len() as u64, content }
    }

    #[test]
    fn pages_say_where_holes_are() {
        let mut extents = Extents::default();
        assert_eq!(extents.unknown(0..10), Some(0));
        extents.learn(2, &[inline(4, b"abc")], 9);
        assert_eq!(extents.unknown(2..9), None);
        assert_eq!(extents.unknown(2..10), Some(9));
        let plan = extents.plan(3..9);
        let ranges: Vec<_> = plan.iter().map(|piece| piece.range.clone()).collect();
        assert_eq!(ranges, [3..4, 4..7, 7..9]);
    }

    proptest! {
        /// Commits and cuts against a plain vector.
        #[test]
        fn commits_replace_what_they_cover(
            steps in prop::collection::vec((0u64..60, 1u64..20, 0u8..4), 1..40)
        ) {
            let mut extents = Extents::default();
            extents.truncate(0);
            let mut model = vec![0u8; 128];
            for (number, (offset, length, kind)) in steps.into_iter().enumerate() {
                let fill = number as u8 + 1;
                let range = offset as usize..(offset + length) as usize;
                match kind {
                    0 => {
                        let hole = Extent { offset, length, content: Content::Hole };
                        extents.commit(&hole);
                        model[range].fill(0);
                    }
                    1 => {
                        extents.truncate(offset);
                        model[offset as usize..].fill(0);
                    }
                    _ => {
                        extents.commit(&inline(offset, &vec![fill; length as usize]));
                        model[range].fill(fill);
                    }
                }
                let mut read = Vec::new();
                for piece in extents.plan(0..128) {
                    prop_assert_eq!(piece.range.start as usize, read.len());
                    match piece.extent.map(|extent| extent.content) {
                        Some(Content::Inline(bytes)) => read.extend(bytes),
                        _ => read.resize(piece.range.end as usize, 0),
                    }
                }
                prop_assert_eq!(&read, &model);
            }
        }
    }
}
