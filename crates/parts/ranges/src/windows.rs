//! Extents as they are rewritten: which go together, and where chunks of a layout cut them.

use std::collections::VecDeque;
use tieline_types::{Content, Extent, Layout};

/// A group ends where a chunk of the layout does, or when it has so many bytes or extents. One
/// exchange takes at most 1024 of those: as many as these make, cut into the smallest chunks.
const GROUP_BYTES: u64 = 32 << 20;
const GROUP_EXTENTS: usize = 500;
/// Small extents that make a window worth it.
const WINDOW_FROM: usize = 8;
/// Extents of one window.
const WINDOW_MAX: usize = 1000;

/// Extents that are moved together, in order: whole, and if it can be whole chunks of the layout.
pub fn groups(layout: &Layout, width: usize, extents: Vec<Extent>) -> VecDeque<Vec<Extent>> {
    let mut all: VecDeque<Vec<Extent>> = VecDeque::new();
    let (mut end, mut bytes) = (0, 0);
    for extent in extents {
        let is_full = all.back().is_none_or(|group| group.len() >= GROUP_EXTENTS)
            || bytes + extent.length > GROUP_BYTES;
        if is_full || extent.offset >= end {
            all.push_back(Vec::new());
            bytes = 0;
        }
        bytes += extent.length;
        end = layout.cut_end(extent.end().saturating_sub(1), width);
        if let Some(group) = all.back_mut() {
            group.push(extent);
        }
    }
    all
}

/// Offset and length of the pieces that each chunk of the layout has.
pub fn pieces(layout: &Layout, width: usize, group: &[Extent]) -> Vec<Vec<(u64, u64)>> {
    let mut all: Vec<Vec<(u64, u64)>> = Vec::new();
    let mut end = 0;
    for (mut offset, length) in runs(group) {
        let last = offset + length;
        while offset < last {
            if offset >= end {
                end = layout.cut_end(offset, width);
                all.push(Vec::new());
            }
            let until = end.min(last);
            if let Some(window) = all.last_mut() {
                window.push((offset, until - offset));
            }
            offset = until;
        }
    }
    all
}

/// Cuts extents into windows, in order; the last may go on.
pub fn windows(layout: &Layout, width: usize, extents: Vec<Extent>) -> Vec<Vec<Extent>> {
    let mut all: Vec<Vec<Extent>> = Vec::new();
    let mut end = 0;
    for extent in extents {
        let is_full = all.last().is_none_or(|window| window.len() >= WINDOW_MAX);
        if is_full || extent.end() > end {
            end = layout.cut_end(extent.offset, width);
            all.push(Vec::new());
        }
        if let Some(window) = all.last_mut() {
            window.push(extent);
        }
    }
    all
}

/// Offset and length of what extents cover together without a gap.
pub fn runs(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        match runs.last_mut() {
            Some((offset, length)) if *offset + *length == extent.offset => {
                *length += extent.length;
            }
            _ => runs.push((extent.offset, extent.length)),
        }
    }
    runs
}

/// Is it worth it to make one chunk of a window, where extents below so many bytes are small?
pub fn is_worn(window: &[Extent], small_below: u64) -> bool {
    let small = window.iter().filter(|extent| extent.length < small_below).count();
    small >= WINDOW_FROM && (runs(window).len() * 2 <= window.len() || holds_inline(window))
}

/// Bytes in the metadata that a chunk could hold as well.
fn holds_inline(window: &[Extent]) -> bool {
    let inline = window.iter().filter(|extent| matches!(extent.content, Content::Inline(_)));
    inline.count() >= WINDOW_FROM
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn extents(lengths: &[(u64, u64)]) -> Vec<Extent> {
        let extent = |&(offset, length)| Extent { offset, length, content: Content::Hole };
        lengths.iter().map(extent).collect()
    }

    fn layout() -> Layout {
        Layout { chunk_size: 1 << 20, stripe_size: 2 << 20, ..Layout::default() }
    }

    #[test]
    fn groups_end_where_chunks_do() {
        let cut = |lengths: &[(u64, u64)]| -> Vec<u64> {
            groups(&layout(), 2, extents(lengths))
                .iter()
                .map(|group| group.iter().map(|extent| extent.length).sum())
                .collect()
        };
        assert_eq!(cut(&[(0, 4 * MIB), (4 * MIB, MIB), (5 * MIB, 10)]), [4 * MIB, MIB, 10]);
        assert_eq!(cut(&[(0, MIB + 1), (MIB + 1, MIB - 1), (2 * MIB, 1)]), [2 * MIB, 1]);
        // A gap that a chunk's end lies in.
        assert_eq!(cut(&[(0, 10), (20, 10), (MIB, 5)]), [20, 5]);
        let odd: Vec<(u64, u64)> = (0..20).map(|n| (n * (3 * MIB + 1), 3 * MIB + 1)).collect();
        assert!(cut(&odd).iter().all(|&bytes| bytes <= GROUP_BYTES));
        assert_eq!(cut(&[(0, 64 * MIB)]), [64 * MIB], "an extent is never cut");
    }

    #[test]
    fn pieces_are_what_chunks_hold() {
        let cut = |lengths: &[(u64, u64)]| pieces(&layout(), 2, &extents(lengths));
        assert_eq!(cut(&[(0, MIB + 1)]), [vec![(0, MIB)], vec![(MIB, 1)]]);
        assert_eq!(cut(&[(0, 10), (10, 5), (20, 10)]), [vec![(0, 15), (20, 10)]]);
        assert_eq!(cut(&[(10, MIB)]), [vec![(10, MIB - 10)], vec![(MIB, 10)]]);
    }
}
