//! CRC32C of 4 KiB blocks: travels with every range, so that an exact read is a verified read.
//!
//! Blocks are counted from the start of the object; only an object's last block may be shorter.
//! CRC32C (Castagnoli, RFC 3720 appendix B.4) finds accidents, not forgery: that is what digests
//! are for.

/// Bytes per checked block.
pub const BLOCK: usize = 4096;

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms of the library return their value in the low half.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// One CRC32C per block of `bytes`, which start on a block.
pub fn block_checks(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK).map(crc32c).collect()
}

/// One CRC32C per block of a file, of bytes that begin at `offset` and come in pieces: where they
/// begin or end within a block, of what is there of it.
pub fn page_checks<'p>(offset: u64, pieces: impl IntoIterator<Item = &'p [u8]>) -> Vec<u32> {
    let begin = || crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let (mut checks, mut digest) = (Vec::new(), begin());
    let mut left = BLOCK - (offset % BLOCK as u64) as usize;
    let mut is_begun = false;
    for mut piece in pieces {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(left.min(piece.len()));
            digest.update(now);
            (piece, left, is_begun) = (later, left - now.len(), true);
            if left == 0 {
                checks.push(std::mem::replace(&mut digest, begin()).finalize() as u32);
                (left, is_begun) = (BLOCK, false);
            }
        }
    }
    if is_begun {
        checks.push(digest.finalize() as u32);
    }
    checks
}

/// How many blocks `length` bytes take.
pub fn block_count(length: u64) -> u64 {
    length.div_ceil(BLOCK as u64)
}

/// The first block of `bytes` that does not match, if any. A wrong number of checks is a mismatch
/// too.
pub fn first_mismatch(bytes: &[u8], checks: &[u32]) -> Option<usize> {
    let blocks = bytes.chunks(BLOCK);
    if blocks.len() != checks.len() {
        return Some(blocks.len().min(checks.len()));
    }
    blocks.zip(checks).position(|(block, &check)| crc32c(block) != check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_castagnoli_polynomial() {
        // RFC 3720 appendix B.4: 32 bytes of zeroes.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pages_are_of_the_file_whatever_the_pieces() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 100).map(|at| (at * 7 % 251) as u8).collect();
        for (from, to) in [(0, bytes.len()), (5, 6), (4095, 4097), (4096, 8192), (100, 9000)] {
            let part = &bytes[from..to];
            let mut expected = Vec::new();
            let mut at = from;
            while at < to {
                let end = ((at / BLOCK + 1) * BLOCK).min(to);
                expected.push(crc32c(&bytes[at..end]));
                at = end;
            }
            for size in [1, 1000, 4096, 100_000] {
                assert_eq!(page_checks(from as u64, part.chunks(size)), expected, "{from} {size}");
            }
        }
        assert!(page_checks(7, [&b""[..]]).is_empty());
    }

    #[test]
    fn a_flipped_bit_is_found_in_its_block() {
        let mut bytes = vec![7; 2 * BLOCK + 10];
        let checks = block_checks(&bytes);
        assert_eq!(checks.len() as u64, block_count(bytes.len() as u64));
        assert_eq!(first_mismatch(&bytes, &checks), None);
        bytes[BLOCK + 1] ^= 4;
        assert_eq!(first_mismatch(&bytes, &checks), Some(1));
        assert_eq!(first_mismatch(&bytes[..BLOCK], &checks), Some(1));
    }
}
