//! Written bytes in records: put, cut where they were committed, laid again in their order.

use super::*;
use crate::records::Left;
use proptest::prelude::*;

const FILE: FileId = FileId(7);

/// What the next process finds, as (space, offset, bytes).
fn left(keep: &Keep) -> Vec<Laid> {
    let file = keep.file().unwrap().try_clone_to_owned().unwrap();
    let (_, records) = Keep::open(file).unwrap();
    let mut left = Left::read(records);
    let mut writes = Writes::default();
    let laid = left.writes.remove(&FILE).map(|left| writes.restore(FILE, left));
    // Its records stay for the next look.
    std::mem::forget(writes);
    laid.unwrap_or_default()
}

fn add(writes: &mut Writes, keep: &Keep, place: Option<u64>, bytes: &[u8]) {
    let caller = Caller::root();
    let writer = Writer { caller: &caller, mtime: Time::default(), clears_setid: false };
    assert!(writes.add(keep, FILE, place, &Bytes::copy_from_slice(bytes), &writer));
}

fn cut(space: Space, range: Range<u64>, upto: u64) -> Cut {
    Cut { file: FILE, space, start: range.start, end: range.end, upto }
}

#[test]
fn a_part_that_was_committed_does_not_come_back() {
    let keep = Keep::create(8 << 20).unwrap();
    let mut writes = Writes::default();
    add(&mut writes, &keep, Some(0), b"aaaaaaaaaa");
    add(&mut writes, &keep, Some(4), b"bb");
    // What was sealed then is committed; meanwhile it was written over.
    let upto = writes.last;
    add(&mut writes, &keep, Some(5), b"cc");
    writes.cut(&keep, &[cut(Space::Placed, 2..6, upto)]);
    let laid: Vec<_> = left(&keep).into_iter().map(|one| (one.start, one.bytes)).collect();
    let piece = |start, bytes: &'static [u8]| (start, Bytes::from_static(bytes));
    assert_eq!(laid, [piece(0, b"aa"), piece(5, b"cc"), piece(7, b"aaa")]);
    writes.clear();
    assert!(left(&keep).is_empty());
}

#[test]
fn what_is_written_over_takes_no_memory() {
    let keep = Keep::create(8 << 20).unwrap();
    let mut writes = Writes::default();
    add(&mut writes, &keep, Some(8), b"across");
    for _ in 0..1000 {
        add(&mut writes, &keep, Some(10), &[1; 100]);
        add(&mut writes, &keep, Some(20), &[2; 5]);
    }
    assert_eq!(writes.writes.len(), 3);
    let laid: Vec<_> = left(&keep).into_iter().map(|one| (one.start, one.bytes.len())).collect();
    assert_eq!(laid, [(8, 2), (10, 10), (20, 5), (25, 85)]);
}

#[test]
fn appended_bytes_go_on_where_the_commit_ended() {
    let keep = Keep::create(8 << 20).unwrap();
    let mut writes = Writes::default();
    add(&mut writes, &keep, None, b"one");
    add(&mut writes, &keep, None, b"two");
    writes.cut(&keep, &[cut(Space::Appended, 0..4, u64::MAX)]);
    let laid = left(&keep);
    assert_eq!(laid, [Laid { space: Space::Appended, start: 4, bytes: Bytes::from("wo") }]);
    assert_eq!(writes.appended, 6);
}

#[test]
fn no_room_is_said() {
    let keep = Keep::create(4 << 20).unwrap();
    let mut writes = Writes::default();
    let caller = Caller::root();
    let writer = Writer { caller: &caller, mtime: Time::default(), clears_setid: false };
    let bytes = Bytes::from(vec![0; 3 << 20]);
    assert!(writes.add(&keep, FILE, Some(0), &bytes, &writer));
    assert!(!writes.add(&keep, FILE, Some(1 << 30), &bytes, &writer));
    assert!(Writes::default().add(&Keep::none(), FILE, None, &bytes, &writer));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Writes and cuts against an array of what is dirty.
    #[test]
    fn what_is_left_is_what_was_held(
        steps in prop::collection::vec((0u8..4, 0usize..40, 1usize..20), 1..40)
    ) {
        let keep = Keep::create(8 << 20).unwrap();
        let mut writes = Writes::default();
        let mut model: Vec<Option<(u8, u64)>> = vec![None; 64];
        for (step, (kind, offset, length)) in steps.into_iter().enumerate() {
            let range = offset..offset + length;
            if kind == 0 {
                let upto = writes.last.saturating_sub(length as u64 % 3);
                let (start, end) = (range.start as u64, range.end as u64);
                writes.cut(&keep, &[cut(Space::Placed, start..end, upto)]);
                for byte in &mut model[range] {
                    *byte = byte.filter(|(_, number)| *number > upto);
                }
            } else {
                let fill = step as u8 + 1;
                add(&mut writes, &keep, Some(offset as u64), &vec![fill; length]);
                model[range].fill(Some((fill, writes.last)));
            }
            let mut found: Vec<Option<u8>> = vec![None; 64];
            for one in left(&keep) {
                for (index, byte) in one.bytes.iter().enumerate() {
                    found[one.start as usize + index] = Some(*byte);
                }
            }
            let expected: Vec<Option<u8>> =
                model.iter().map(|byte| byte.map(|(fill, _)| fill)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
