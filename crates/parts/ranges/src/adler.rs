//! Adler-32 of ranges in a row, from theirs.
//!
//! With `A` the sum of bytes plus one and `B` the sum of all `A`s (RFC 1950), both modulo 65,521,
//! the checksum of two pieces in a row follows from theirs and the second's length: `A = A1 + A2 -
//! 1`, and every byte of the second piece saw `A1 - 1` more, so `B = B1 + B2 + length2 * (A1 - 1)`.

const MODULUS: u64 = 65_521;

/// Adler-32 of `length` zero bytes: `A` stays 1, so `B` is the length.
pub fn zeroes(length: u64) -> u32 {
    ((length % MODULUS) as u32) << 16 | 1
}

/// Adler-32 of two pieces in a row, the second of `length` bytes.
pub fn combine(first: u32, second: u32, length: u64) -> u32 {
    let halves = |sum: u32| (u64::from(sum & 0xffff), u64::from(sum >> 16));
    let ((a1, b1), (a2, b2)) = (halves(first), halves(second));
    let a = (a1 + a2 + MODULUS - 1) % MODULUS;
    let b = (b1 + b2 + (length % MODULUS) * (a1 + MODULUS - 1)) % MODULUS;
    (b as u32) << 16 | a as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_bytes_need_no_reading() {
        for length in [0usize, 1, 5, 65_520, 65_521, 200_000] {
            let known = simd_adler32::adler32(&vec![0u8; length].as_slice());
            assert_eq!(zeroes(length as u64), known, "{length}");
        }
    }

    proptest! {
        #[test]
        fn pieces_combine_to_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..70_000),
            cut in any::<prop::sample::Index>(),
        ) {
            let (one, two) = bytes.split_at(cut.index(bytes.len() + 1));
            let sum = |bytes: &[u8]| simd_adler32::adler32(&bytes);
            prop_assert_eq!(combine(sum(one), sum(two), two.len() as u64), sum(&bytes));
        }
    }
}
