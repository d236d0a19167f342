//! Lists of extents under edits, against a plain array of bytes.

use super::*;
use proptest::prelude::*;
use tieline_types::{Grant, MdtIndex};

fn chunk_id(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial }
}

fn inline(offset: u64, bytes: &[u8]) -> Piece {
    let content = Some(StoredContent::Inline(bytes.to_vec()));
    Piece { offset, length: bytes.len() as u64, content }
}

fn chunk(offset: u64, length: u64, serial: u64, skip: u64) -> Piece {
    let content = Some(StoredContent::Chunk { chunk: chunk_id(serial), skip });
    Piece { offset, length, content }
}

/// Does to a map what the edit says is to be done to the store.
fn apply(extents: &mut Extents, edit: &Edit) {
    for at in &edit.removed {
        assert!(extents.remove(at).is_some(), "removed what was not there");
    }
    extents.extend(edit.put.iter().cloned());
}

fn laid(pieces: &[Piece]) -> Extents {
    let mut extents = Extents::new();
    apply(&mut extents, &replace(&Extents::new(), pieces));
    extents
}

#[test]
fn a_write_into_the_middle_of_a_chunk_splits_it() {
    let old = laid(&[chunk(0, 100, 1, 0)]);
    let edit = replace(&old, &[chunk(40, 20, 2, 0)]);
    assert_eq!(edit.references, BTreeMap::from([(chunk_id(1), 1), (chunk_id(2), 1)]));
    assert_eq!(edit.stored, 0);
    let mut new = old;
    apply(&mut new, &edit);
    let skips: Vec<_> = new
        .values()
        .map(|extent| match extent.content {
            StoredContent::Chunk { skip, .. } => (extent.length, skip),
            StoredContent::Inline(_) => unreachable!(),
        })
        .collect();
    assert_eq!(skips, [(40, 0), (20, 0), (40, 60)]);
}

#[test]
fn what_is_covered_whole_is_dropped() {
    let old = laid(&[chunk(0, 100, 1, 0), chunk(100, 100, 2, 0), chunk(200, 100, 3, 0)]);
    let edit = replace(&old, &[chunk(50, 200, 4, 0)]);
    assert_eq!(edit.references, BTreeMap::from([(chunk_id(2), -1), (chunk_id(4), 1)]));
    assert_eq!(edit.removed, [100, 200]);
}

#[test]
fn appended_lines_stay_one_extent_until_it_is_full() {
    let mut extents = Extents::new();
    for line in 0..200 {
        let edit = replace(&extents, &[inline(line * 100, &[line as u8; 100])]);
        apply(&mut extents, &edit);
    }
    assert_eq!(extents.len(), 2);
    assert_eq!(extents.values().map(|extent| extent.length).sum::<u64>(), 20_000);
    assert!(extents.values().all(|extent| extent.length <= u64::from(Layout::INLINE_MAX)));
}

#[test]
fn a_small_file_rewritten_in_the_middle_stays_one_extent() {
    let old = laid(&[inline(0, b"abcdef")]);
    let mut new = old.clone();
    apply(&mut new, &replace(&old, &[inline(2, b"XY")]));
    let content = StoredContent::Inline(b"abXYef".to_vec());
    assert_eq!(new, Extents::from([(0, StoredExtent { length: 6, content })]));
}

const SPAN: u64 = 64;

/// What each byte of the file is: the model that is too simple to be wrong.
type Bytes = Vec<Option<(u64, u64)>>;

fn render(extents: &Extents) -> Bytes {
    let mut bytes = vec![None; SPAN as usize];
    for (at, extent) in extents {
        for i in 0..extent.length {
            let slot = &mut bytes[(at + i) as usize];
            assert_eq!(*slot, None, "extents overlap");
            *slot = Some(match &extent.content {
                // Inline bytes are their own value; chunk bytes are (chunk, position).
                StoredContent::Inline(held) => (0, u64::from(held[i as usize])),
                StoredContent::Chunk { chunk, skip } => (chunk.serial, skip + i),
            });
        }
    }
    bytes
}

fn any_piece() -> impl Strategy<Value = Piece> {
    (0..SPAN, 1..=20u64, 0..3u8, 1..6u64, 0..50u64).prop_map(|(offset, length, kind, n, skip)| {
        let length = length.min(SPAN - offset);
        match kind {
            0 => Piece { offset, length, content: None },
            1 => inline(offset, &(0..length).map(|i| (n * 20 + i) as u8).collect::<Vec<_>>()),
            _ => chunk(offset, length, n, skip),
        }
    })
}

fn references(extents: &Extents) -> BTreeMap<GrantedId, i64> {
    let mut counts = BTreeMap::new();
    for extent in extents.values() {
        if let StoredContent::Chunk { chunk, .. } = extent.content {
            *counts.entry(chunk).or_default() += 1;
        }
    }
    counts
}

proptest! {
    #[test]
    fn edits_do_what_writing_bytes_does(pieces in prop::collection::vec(any_piece(), 1..40)) {
        let mut extents = Extents::new();
        let mut model: Bytes = vec![None; SPAN as usize];
        let mut counts: BTreeMap<GrantedId, i64> = BTreeMap::new();
        let mut stored = 0;
        for piece in pieces {
            let edit = replace(&extents, std::slice::from_ref(&piece));
            apply(&mut extents, &edit);
            for i in 0..piece.length {
                model[(piece.offset + i) as usize] = piece.content.as_ref().map(|c| match c {
                    StoredContent::Inline(held) => (0, u64::from(held[i as usize])),
                    StoredContent::Chunk { chunk, skip } => (chunk.serial, skip + i),
                });
            }
            stored += edit.stored;
            for (chunk, change) in edit.references {
                *counts.entry(chunk).or_default() += change;
            }
            counts.retain(|_, count| *count != 0);
            prop_assert_eq!(render(&extents), model.clone());
            prop_assert_eq!(references(&extents), counts.clone());
            prop_assert_eq!(stored, model.iter().flatten().count() as i64);
        }
    }
}
