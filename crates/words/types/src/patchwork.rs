//! A range of a chunk, put together from copies that are damaged in different blocks.
//!
//! Knows no places: whoever reads the copies adds what he got of each.
//!
//! Invariants: no block is taken that does not match the check that came with it; copies that tell
//! different checks of one block are not of one chunk, and nothing is made of them.

use crate::checksum::{BLOCK, crc32c};
use std::ops::Range;

/// The blocks that hold a range, as far as they are good in any copy.
#[derive(Debug)]
pub struct Patchwork {
    /// Where in the chunk the first block begins.
    offset: u64,
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    are_at_odds: bool,
}

#[derive(Clone, Default, Debug)]
struct Block {
    /// As the copies tell it.
    check: Option<u32>,
    is_good: bool,
}

impl Patchwork {
    /// Of a chunk of `length` bytes.
    pub fn new(range: &Range<u64>, length: u64) -> Self {
        let block = BLOCK as u64;
        let offset = range.start / block * block;
        let end = range.end.next_multiple_of(block).min(length);
        let bytes = vec![0; end.saturating_sub(offset) as usize];
        let blocks = vec![Block::default(); bytes.len().div_ceil(BLOCK)];
        Self { offset, bytes, blocks, are_at_odds: false }
    }

    /// Takes what is good of the blocks of a copy, which begin at `offset` of the chunk.
    pub fn add(&mut self, offset: u64, bytes: &[u8], checks: &[u32]) {
        if !offset.is_multiple_of(BLOCK as u64) {
            return;
        }
        for ((found, &check), at) in bytes.chunks(BLOCK).zip(checks).zip((offset..).step_by(BLOCK))
        {
            let Some(from) = at.checked_sub(self.offset).map(|from| from as usize) else {
                continue;
            };
            let Some(block) = self.blocks.get_mut(from / BLOCK) else { return };
            self.are_at_odds |= block.check.is_some_and(|known| known != check);
            block.check = Some(check);
            let own = self.bytes.get_mut(from..).unwrap_or_default();
            let own = own.chunks_mut(BLOCK).next().unwrap_or_default();
            if !block.is_good && own.len() == found.len() && crc32c(found) == check {
                own.copy_from_slice(found);
                block.is_good = true;
            }
        }
    }

    /// Is there nothing left to look for?
    pub fn is_whole(&self) -> bool {
        self.blocks.iter().all(|block| block.is_good)
    }

    /// The blocks, and where in the chunk they begin; `None` unless each is good in some copy.
    pub fn finish(self) -> Option<(u64, Vec<u8>)> {
        (self.is_whole() && !self.are_at_odds).then_some((self.offset, self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::block_checks;

    const LENGTH: usize = 3 * BLOCK + 100;

    fn whole() -> Vec<u8> {
        (0..LENGTH).map(|at| (at / 7) as u8).collect()
    }

    fn damaged(at: usize) -> Vec<u8> {
        let mut bytes = whole();
        bytes[at] ^= 1;
        bytes
    }

    #[test]
    fn copies_that_are_damaged_in_different_blocks_make_one_that_is_whole() {
        let checks = block_checks(&whole());
        let mut patchwork = Patchwork::new(&(0..LENGTH as u64), LENGTH as u64);
        patchwork.add(0, &damaged(BLOCK), &checks);
        assert!(!patchwork.is_whole());
        patchwork.add(0, &damaged(LENGTH - 1), &checks);
        assert_eq!(patchwork.finish(), Some((0, whole())));
    }

    #[test]
    fn what_is_damaged_in_every_copy_is_not_to_be_had() {
        let checks = block_checks(&whole());
        let mut patchwork = Patchwork::new(&(0..LENGTH as u64), LENGTH as u64);
        patchwork.add(0, &damaged(BLOCK), &checks);
        patchwork.add(0, &damaged(BLOCK + 9), &checks);
        assert_eq!(patchwork.finish(), None);
    }

    #[test]
    fn a_range_is_widened_to_its_blocks_and_may_come_in_parts() {
        let (bytes, checks) = (whole(), block_checks(&whole()));
        let range = BLOCK as u64 + 5..LENGTH as u64 - 5;
        let mut patchwork = Patchwork::new(&range, LENGTH as u64);
        // More than was asked, and the rest from a copy that was cut.
        patchwork.add(0, &bytes[..2 * BLOCK], &checks[..2]);
        patchwork.add(2 * BLOCK as u64, &bytes[2 * BLOCK..LENGTH - 1], &checks[2..]);
        assert!(!patchwork.is_whole());
        patchwork.add(3 * BLOCK as u64, &bytes[3 * BLOCK..], &checks[3..]);
        assert_eq!(patchwork.finish(), Some((BLOCK as u64, bytes[BLOCK..].to_vec())));
    }

    #[test]
    fn nothing_is_made_of_copies_of_different_chunks() {
        let other: Vec<u8> = whole().iter().map(|byte| byte ^ 7).collect();
        let mut patchwork = Patchwork::new(&(0..LENGTH as u64), LENGTH as u64);
        patchwork.add(0, &damaged(BLOCK), &block_checks(&whole()));
        patchwork.add(0, &other, &block_checks(&other));
        assert_eq!(patchwork.finish(), None);
    }
}
