//! The overlay against a plain vector of what was written.

use super::*;
use proptest::prelude::*;
use tieline_types::{ChunkRef, GrantedId, MdtIndex};

const SPACE: usize = 256;

fn chunk(serial: u64, length: usize) -> Content {
    Content::Chunk(ChunkRef {
        chunk: GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial }.into(),
        length: length as u64,
        skip: 0,
        places: Vec::new(),
        digest: None,
        adler32: None,
        checks: None,
    })
}

fn contents(overlay: &Overlay) -> Vec<Option<u8>> {
    let mut all = vec![None; SPACE];
    for (offset, bytes) in overlay.read(0..SPACE as u64) {
        for (index, &byte) in bytes.iter().enumerate() {
            all[offset as usize + index] = Some(byte);
        }
    }
    all
}

#[test]
fn small_writes_grow_one_piece() {
    let mut overlay = Overlay::default();
    for index in 0..10_000u64 {
        overlay.write(index, Bytes::from(vec![index as u8]));
    }
    assert_eq!(overlay.fresh().first(), Some(&(0..10_000)));
    assert_eq!(overlay.read(0..10_000).len(), 1);
    assert_eq!(overlay.bytes(), 10_000);
}

#[test]
fn large_writes_stay_where_they_came_and_commit_as_one_extent() {
    let mut overlay = Overlay::default();
    let part = |byte| Bytes::from(vec![byte; WRITE_SMALL_MAX + BLOCK]);
    let length = part(0).len() as u64;
    let parts: Vec<Bytes> = (0..4).map(part).collect();
    for (index, part) in parts.iter().enumerate() {
        overlay.write(index as u64 * length, part.clone());
    }
    let sealed = overlay.seal(0..4 * length);
    let places = |parts: &[Bytes]| parts.iter().map(|part| part.as_ptr()).collect::<Vec<_>>();
    assert_eq!(places(sealed.run.parts()), places(&parts), "not copied");
    overlay.arrived(sealed.id, chunk(1, sealed.run.length()));
    let extents = overlay.arrivals(10, overlay.last_seal());
    let ranges: Vec<_> = extents.iter().map(|(_, extent)| (extent.offset, extent.length)).collect();
    assert_eq!(ranges, [(0, 4 * length)], "one extent, however many pieces");
    overlay.committed(sealed.id, 0..4 * length);
    assert!(overlay.is_empty() && overlay.bytes() == 0);
}

#[test]
fn what_is_no_whole_blocks_is_joined() {
    let odd = Bytes::from(vec![1; BLOCK + 1]);
    let run = Run::of(vec![odd.clone(), odd.clone()]);
    assert_eq!((run.parts().len(), run.length()), (1, 2 * odd.len()));
    let run = Run::of(vec![Bytes::from(vec![1; BLOCK]), odd.clone()]);
    assert_eq!(
        (run.parts().len(), run.length()),
        (2, BLOCK + odd.len()),
        "only the last may be odd"
    );
}

#[test]
fn what_is_overwritten_is_not_committed() {
    let mut overlay = Overlay::default();
    overlay.write(0, Bytes::from_static(b"abcdefgh"));
    let sealed = overlay.seal(0..8);
    overlay.write(2, Bytes::from_static(b"XY"));
    overlay.arrived(sealed.id, chunk(1, 8));
    let extents = overlay.arrivals(10, overlay.last_seal());
    let ranges: Vec<_> = extents.iter().map(|(_, extent)| (extent.offset, extent.length)).collect();
    assert_eq!(ranges, [(0, 2), (4, 4)]);
    let Content::Chunk(tail) = &extents[1].1.content else { panic!("a chunk") };
    assert_eq!(tail.skip, 4);
    for (id, extent) in &extents {
        overlay.committed(*id, extent.offset..extent.end());
    }
    assert_eq!(overlay.read(0..8), [(2, Bytes::from_static(b"XY"))]);
    assert_eq!(overlay.bytes(), 2);
}

#[test]
fn what_is_overwritten_while_it_is_committed_is_committed_as_it_was() {
    let mut overlay = Overlay::default();
    let write = |overlay: &mut Overlay| {
        overlay.write(0, Bytes::from_static(b"abcdefgh"));
        let sealed = overlay.seal(0..8);
        overlay.settle(Some(overlay.last_seal()));
        overlay.write(2, Bytes::from_static(b"XY"));
        overlay.write(2, Bytes::from_static(b"Z"));
        sealed
    };
    let sealed = write(&mut overlay);
    overlay.arrived(sealed.id, chunk(1, 8));
    // What is sealed since is not of this commit.
    overlay.seal(2..4);
    let extents = overlay.arrivals(10, sealed.id);
    let ranges: Vec<_> = extents.iter().map(|(_, extent)| (extent.offset, extent.length)).collect();
    assert_eq!(ranges, [(0, 4), (4, 4)]);
    extents.iter().for_each(|(id, extent)| overlay.committed(*id, extent.offset..extent.end()));
    let left = vec![(2, Bytes::from_static(b"ZY"))];
    assert_eq!((overlay.read(0..8), overlay.bytes()), (left, 2));
    assert!(!overlay.has_sealed(sealed.id));
    // What comes to nothing, is cut off, or was not sent leaves nothing behind.
    for end in 0..3 {
        let mut overlay = Overlay::default();
        let sealed = write(&mut overlay);
        assert_eq!(overlay.bytes(), 10);
        match end {
            0 => overlay.settle(None),
            1 => overlay.cut(0..3),
            _ => overlay.unseal(sealed.id),
        }
        overlay.arrived(sealed.id, chunk(1, 8));
        let extents = overlay.arrivals(10, sealed.id);
        let first = extents.first().map(|(_, extent)| extent.offset);
        let (offset, bytes) = [(Some(0), 8), (Some(3), 6), (None, 8)][end];
        assert_eq!((first, overlay.bytes()), (offset, bytes), "{end}");
        assert!(
            end == 1 || extents.iter().all(|(_, extent)| extent.end() <= 2 || extent.offset >= 4)
        );
    }
}

#[test]
fn chunks_of_a_lost_grant_are_sent_again() {
    let mut overlay = Overlay::default();
    overlay.write(0, Bytes::from_static(b"abcd"));
    let sealed = overlay.seal(0..4);
    overlay.arrived(sealed.id, chunk(1, 4));
    assert!(overlay.disown(Some(Grant(1))).is_empty());
    assert_eq!(overlay.disown(Some(Grant(2))).len(), 1);
    assert!(overlay.arrivals(10, overlay.last_seal()).is_empty());
    assert!(overlay.is_sending(overlay.last_seal()));
}

#[test]
fn what_was_appended_moves_with_its_seals() {
    let mut overlay = Overlay::default();
    overlay.write(2, Bytes::from_static(b"placed"));
    overlay.write(100, Bytes::from_static(b"first "));
    let sealed = overlay.seal(100..106);
    overlay.write(106, Bytes::from_static(b"second"));
    overlay.shift(100, 150);
    overlay.arrived(sealed.id, chunk(1, 6));
    let arrivals = overlay.arrivals(10, overlay.last_seal());
    assert_eq!((arrivals.len(), arrivals[0].1.offset), (1, 150));
    assert_eq!(
        overlay.read(0..200),
        [
            (2, Bytes::from_static(b"placed")),
            (150, Bytes::from_static(b"first ")),
            (156, Bytes::from_static(b"second")),
        ]
    );
    overlay.shift(150, 20);
    assert_eq!(overlay.remove(sealed.id), Some(20..26));
    overlay.shift(26, 20);
    assert_eq!((overlay.end(), overlay.fresh()), (26, vec![2..8, 20..26]));
    assert_eq!(overlay.bytes(), 12);
}

#[test]
fn counts_of_seals_are_kept() {
    let mut overlay = Overlay::default();
    for index in 0..100u64 {
        overlay.write(index * 10, Bytes::from_static(b"12345"));
    }
    let inline = |overlay: &mut Overlay, run| {
        let sealed = overlay.seal(run);
        overlay.arrived(sealed.id, Content::Inline(Vec::new()));
    };
    overlay.fresh().into_iter().for_each(|run| inline(&mut overlay, run));
    assert!(!overlay.has_chunks());
    assert_eq!((overlay.arrived_bytes(), overlay.bytes()), (500, 500));
    overlay.write(0, Bytes::from_static(b"1234567890abcde"));
    assert_eq!(overlay.arrived_bytes(), 490);
    let sealed = overlay.seal(0..15);
    assert!(overlay.has_chunks() && overlay.is_sending(sealed.id));
    overlay.cut(0..u64::MAX);
    assert_eq!((overlay.arrived_bytes(), overlay.bytes()), (0, 0));
    overlay.arrived(sealed.id, chunk(1, 15));
    assert!(!overlay.has_chunks() && !overlay.has_sealed(sealed.id));
}

proptest! {
    #[test]
    fn reads_give_the_last_write(
        steps in prop::collection::vec((0u64..200, 1u64..50, 0u8..9), 1..60)
    ) {
        let mut overlay = Overlay::default();
        let mut model = vec![None; SPACE];
        let mut sealed = Vec::new();
        let mut settling = None;
        for (number, (offset, length, kind)) in steps.into_iter().enumerate() {
            let range = offset as usize..(offset + length) as usize;
            match kind {
                0 => {
                    overlay.cut(offset..offset + length);
                    model[range].fill(None);
                }
                1 => {
                    for run in overlay.fresh() {
                        sealed.push(overlay.seal(run));
                    }
                }
                2 => if let Some(seal) = sealed.pop() {
                    overlay.arrived(seal.id, chunk(number as u64, seal.run.length()));
                }
                3 => if let Some(seal) = sealed.pop() {
                    overlay.unseal(seal.id);
                }
                4 => {
                    settling = Some(overlay.last_seal());
                    overlay.settle(settling);
                }
                5 => {
                    settling = None;
                    overlay.settle(None);
                }
                _ => {
                    let fill = number as u8;
                    overlay.write(offset, Bytes::from(vec![fill; length as usize]));
                    model[range].fill(Some(fill));
                }
            }
            prop_assert_eq!(&contents(&overlay), &model);
            let held = model.iter().flatten().count();
            prop_assert!(overlay.bytes() == held || settling.is_some() && overlay.bytes() > held);
            prop_assert_eq!(overlay.is_empty(), held == 0);
        }
        // Everything that arrives is committed, in order, and then nothing is left of it.
        for seal in sealed.drain(..) {
            overlay.arrived(seal.id, chunk(1000, seal.run.length()));
        }
        if let Some(upto) = settling {
            let arrivals = overlay.arrivals(usize::MAX, upto);
            prop_assert!(arrivals.windows(2).all(|two| two[0].1.end() <= two[1].1.offset));
            for (id, extent) in arrivals {
                overlay.committed(id, extent.offset..extent.end());
            }
            prop_assert!(!overlay.has_sealed(upto));
            model = contents(&overlay);
        }
        overlay.settle(None);
        prop_assert_eq!(overlay.bytes(), model.iter().flatten().count());
        let arrivals = overlay.arrivals(usize::MAX, overlay.last_seal());
        prop_assert!(arrivals.windows(2).all(|two| two[0].1.end() <= two[1].1.offset));
        for (id, extent) in arrivals {
            overlay.committed(id, extent.offset..extent.end());
            model[extent.offset as usize..extent.end() as usize].fill(None);
        }
        prop_assert_eq!(&contents(&overlay), &model);
    }
}

/// Who reads what was written last reads what was written before it.
#[test]
fn what_has_arrived_is_committed_in_the_order_in_which_it_was_written() {
    let mut overlay = Overlay::default();
    overlay.write(8, Bytes::from_static(b"first"));
    let first = overlay.seal(8..13);
    overlay.write(20, Bytes::from_static(b"second"));
    let second = overlay.seal(20..26);
    overlay.write(30, Bytes::from_static(b"third"));
    assert!(overlay.is_in_order());
    overlay.arrived(second.id, chunk(2, 6));
    assert!(overlay.arrivals(10, overlay.last_arrived()).is_empty(), "the first is on its way");
    overlay.arrived(first.id, chunk(1, 5));
    assert_eq!(overlay.arrivals(10, overlay.last_arrived()).len(), 2);
    assert_eq!(overlay.arrivals(10, first.id).len(), 1);
    overlay.write(0, Bytes::from_static(b"head"));
    assert!(!overlay.is_in_order(), "it may be older than what is written on");
}
