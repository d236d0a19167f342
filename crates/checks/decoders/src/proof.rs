//! Proofs of ranges, as data servers send them: exactly one is taken, and none for other bytes.
//!
//! Of an input the first bytes say which range of how many bytes; the rest is the proof, or what
//! the right one is changed by.

use tieline_types::checksum::BLOCK;
use tieline_types::tree::{VALUE, is_proven, proof_of};
use tieline_types::{Algorithm, Digest, Encoding};

/// Some levels of groups, and quick to hash.
const LENGTH_MAX: usize = 150_000;

pub fn feed(input: &[u8]) {
    let Some((head, rest)) = input.split_first_chunk::<8>() else { return };
    let [l0, l1, l2, from, to, is_change, claimed, other] = *head;
    let length = usize::from(l0) | usize::from(l1) << 8 | usize::from(l2) << 16;
    let bytes: Vec<u8> =
        (0..length % LENGTH_MAX + 1).map(|at| (at * 31 + at / 251) as u8).collect();
    let digest = Digest::compute(Algorithm::Blake3, Encoding::Plain, &bytes);
    let Some(root) = digest.as_blake3() else { return };
    let (start, end) = (usize::from(from) * BLOCK, (usize::from(to) + 1) * BLOCK);
    let range = start as u64..end.min(bytes.len()) as u64;
    let Some(right) = proof_of(&bytes, &range) else { return };
    let mut proof = rest.to_vec();
    if is_change & 1 == 1 {
        proof.resize(right.len() + rest.len() % 2 * VALUE, 0);
        proof.iter_mut().zip(&right).for_each(|(byte, right)| *byte ^= right);
    }
    let length = bytes.len() as u64;
    let mut own = bytes[range.start as usize..range.end as usize].to_vec();
    let is_taken = is_proven(root, length, (range.start, &own), &proof);
    assert_eq!(is_taken, proof == right, "{range:?} of {length}");
    let at = usize::from(other) * own.len() / 256;
    own[at] ^= 1;
    assert!(!is_proven(root, length, (range.start, &own), &proof));
    own[at] ^= 1;
    // Elsewhere, or of more or fewer bytes, it is nothing.
    let elsewhere = range.start + u64::from(claimed) * BLOCK as u64;
    let is_taken = is_proven(root, length, (elsewhere, &own), &right);
    assert!(!is_taken || claimed == 0);
}
