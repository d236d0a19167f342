//! Ranges of every kind, with their proofs and with others.

use super::*;
use proptest::prelude::*;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn part(bytes: &[u8], range: Range<u64>) -> &[u8] {
    &bytes[range.start as usize..range.end as usize]
}

fn check(bytes: &[u8], range: Range<u64>) {
    let (root, length) = (*blake3::hash(bytes).as_bytes(), bytes.len() as u64);
    let proof = proof_of(bytes, &range).unwrap();
    assert!(proof.len() <= PROOF_MAX);
    let own = part(bytes, range.clone());
    assert!(is_proven(&root, length, (range.start, own), &proof), "{range:?} of {length}");
    let mut other = own.to_vec();
    other[range.end as usize % own.len()] ^= 1;
    assert!(!is_proven(&root, length, (range.start, &other), &proof), "{range:?} of {length}");
}

#[test]
fn ranges_of_every_length_around_borders_are_proven_and_others_are_not() {
    let borders = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17].map(|groups| groups * GROUP);
    let blocks = [1, 2, 3, 5].map(|blocks| blocks * BLOCK as u64);
    for border in borders.into_iter().chain(blocks) {
        for length in [border - 1025, border - 1, border, border + 1, border + 1024, border + 5000]
        {
            let bytes = bytes(length as usize);
            let all: Vec<u64> = (0..length).step_by(BLOCK).chain([length]).collect();
            // All of a small one; of a larger one those that begin or end beside a border.
            let step = all.len().div_ceil(12);
            for (at, start) in all.iter().enumerate().step_by(step) {
                for end in all[at + 1..].iter().rev().step_by(step) {
                    check(&bytes, *start..*end);
                }
            }
        }
    }
}

#[test]
fn values_are_kept_and_made_piece_by_piece() {
    for length in [0, 1, GROUP, GROUP + 1, 5 * GROUP, 100_000] {
        let bytes = bytes(length as usize);
        let tree = Tree::of(&bytes);
        let kept = tree.to_values();
        assert_eq!(Tree::from_values(length, &kept).as_ref(), Some(&tree));
        assert_eq!(Tree::from_values(length + GROUP, &kept), None);
        let more = Values([&kept.0[..], &[0]].concat().into());
        assert_eq!(Tree::from_values(length, &more), None);
        let pieces = bytes.chunks(2 * GROUP as usize).zip((0..).step_by(2 * GROUP as usize));
        let pieces = pieces.flat_map(|(piece, at)| groups(at, piece)).collect();
        assert_eq!(Tree::new(length, pieces), tree);
    }
}

#[test]
fn what_is_no_range_of_blocks_is_not_proven() {
    let bytes = bytes(50_000);
    let (tree, root) = (Tree::of(&bytes), *blake3::hash(&bytes).as_bytes());
    for range in [0..0, 1..4096, 0..4097, 49_152..50_001, 4096..4096] {
        assert!(tree.proof(&range, [&[], &[]]).is_none());
    }
    assert!(!is_proven(&root, 50_000, (0, &[]), &[]));
    assert!(!is_proven(&root, 50_000, (u64::MAX, &bytes), &[]));
    assert!(is_proven(&root, 50_000, (0, &bytes), &[]));
    assert!(!is_proven(&root, 50_001, (0, &bytes), &[]), "of another length");
    assert!(!is_proven(&root, 50_000, (0, &bytes), &[0; VALUE]), "more than is needed");
    let proof = proof_of(&bytes, &(4096..8192)).unwrap();
    assert!(!is_proven(&root, 50_000, (8192, &bytes[4096..8192]), &proof), "of another place");
    assert!(!is_proven(&root, 50_000, (4096, &bytes[4096..8192]), &proof[1..]));
    assert!(!is_proven(&root, 50_000, (4096, &bytes[4096..8192]), &proof[VALUE..]));
}

/// Readers of few bytes pay for few.
#[test]
fn proofs_are_short() {
    let bytes = bytes(4 << 20);
    assert_eq!(Tree::of(&bytes).to_values().weight(), (4 << 20) / 512);
    let proof = proof_of(&bytes, &(1_003_520..1_015_808)).unwrap();
    assert!(proof.len() <= 18 * VALUE, "{}", proof.len());
}

proptest! {
    #[test]
    fn any_range_is_proven(length in 1usize..400_000, from in 0usize..100, to in 0usize..100) {
        let bytes = bytes(length);
        let blocks = length.div_ceil(BLOCK);
        let (from, to) = (from % blocks, to % blocks);
        let (start, end) = (from.min(to) * BLOCK, (from.max(to) + 1) * BLOCK);
        check(&bytes, start as u64..end.min(length) as u64);
    }

    #[test]
    fn invented_proofs_show_nothing(
        length in 0u64..1 << 40,
        offset in 0u64..1 << 40,
        bytes in prop::collection::vec(any::<u8>(), 0..9000),
        proof in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        prop_assert!(!is_proven(&[7; VALUE], length, (offset, &bytes), &proof));
        prop_assert!(!is_proven(&[7; VALUE], length, (offset / 4096 * 4096, &bytes), &proof));
    }
}
