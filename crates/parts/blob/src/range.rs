//! Ranges of objects, widened to whole blocks, so that what is read can be verified.
//!
//! Invariants: a range starts on a block; it ends on one or at the object's end.

use std::ops::Range;
use tieline_types::checksum::BLOCK;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// The most blocks that a `u32` counts the bytes of.
const LENGTH_MAX: u64 = (u32::MAX as u64 / BLOCK_BYTES - 1) * BLOCK_BYTES;

/// Whole blocks of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    pub offset: u64,
    pub length: u32,
}

impl BlockRange {
    /// What of an object of `object_length` bytes holds the `length` bytes at `offset`.
    pub fn widen(offset: u64, length: u32, object_length: u64) -> Self {
        let start = offset.min(object_length) / BLOCK_BYTES * BLOCK_BYTES;
        if offset >= object_length || length == 0 {
            return Self { offset: start, length: 0 };
        }
        let wanted = offset.saturating_add(u64::from(length));
        let end = wanted.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES).min(object_length);
        Self { offset: start, length: (end - start).min(LENGTH_MAX) as u32 }
    }

    /// Which of the object's blocks these are.
    pub fn blocks(self) -> Range<usize> {
        let first = (self.offset / BLOCK_BYTES) as usize;
        first..first + (self.length as usize).div_ceil(BLOCK)
    }

    /// The checks of these blocks, out of those of the whole object.
    pub fn checks(self, of_object: &[u32]) -> Vec<u32> {
        of_object.get(self.blocks()).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_widen_to_blocks_and_end_with_the_object() {
        let widen = |offset, length| {
            let range = BlockRange::widen(offset, length, 10_000);
            (range.offset, range.length, range.blocks())
        };
        assert_eq!(widen(0, 1), (0, 4096, 0..1));
        assert_eq!(widen(4095, 2), (0, 8192, 0..2));
        assert_eq!(widen(8192, 4096), (8192, 1808, 2..3));
        assert_eq!(widen(9999, u32::MAX), (8192, 1808, 2..3));
        assert_eq!(widen(10_000, 5), (8192, 0, 2..2));
        assert_eq!(widen(u64::MAX, u32::MAX), (8192, 0, 2..2));
        assert_eq!(widen(5000, 0), (4096, 0, 1..1));
    }

    #[test]
    fn a_range_never_outgrows_its_length() {
        let range = BlockRange::widen(1, u32::MAX, u64::MAX);
        assert_eq!(u64::from(range.length), LENGTH_MAX);
    }
}
