//! Records that outlive their process: what was put is found, what was torn is not.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const SIZE: usize = 32 << 20;

/// A record's kind, key and bytes.
type Told = (u16, u64, Vec<u8>);

/// What the next process would find.
fn reopened(keep: &Keep) -> (Keep, Vec<Told>, Vec<Record>) {
    let file = keep.file().unwrap().try_clone_to_owned().unwrap();
    let (next, records) = Keep::open(file).unwrap();
    let told = records.iter().map(|record| (record.kind.0, record.key, record.bytes())).collect();
    (next, told, records)
}

#[test]
fn what_was_kept_is_found_in_its_order() {
    let keep = Keep::create(SIZE).unwrap();
    let large = vec![7u8; 1 << 20];
    let first = keep.put(Kind(1), 10, &[b"a", b"bc"]).unwrap();
    let second = keep.put(Kind(2), 11, &[&large]).unwrap();
    let third = keep.put(Kind(3), 12, &[]).unwrap();
    drop(second);
    let (_, told, records) = reopened(&keep);
    assert_eq!(told, [(1, 10, b"abc".to_vec()), (3, 12, vec![])]);
    // What the next one frees is gone for the one after it.
    records.into_iter().for_each(drop);
    assert!(reopened(&keep).1.is_empty());
    std::mem::forget((first, third));
}

#[test]
fn generations_and_sequences_only_grow() {
    let keep = Keep::create(SIZE).unwrap();
    let first = keep.put(Kind(1), 0, &[b"x"]).unwrap();
    let (next, _, before) = reopened(&keep);
    assert_eq!((next.generation(), keep.generation()), (1, 1));
    let second = next.put(Kind(1), 1, &[b"y"]).unwrap();
    let (last, told, _records) = reopened(&next);
    assert_eq!(told.iter().map(|one| one.1).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(last.generation(), 2);
    std::mem::forget((first, second, before));
}

#[test]
fn memory_is_bounded_and_used_again() {
    let keep = Keep::create(8 << 20).unwrap();
    let piece = vec![1u8; 900_000];
    let all: Vec<Kept> = std::iter::from_fn(|| keep.put(Kind(1), 0, &[&piece])).collect();
    assert_eq!(all.len(), 8);
    assert!(keep.put(Kind(1), 0, &[b"small"]).is_none(), "no slab is left for small ones");
    drop(all);
    let small: Vec<Kept> =
        (0..40_000).map(|key| keep.put(Kind(1), key, &[b"small"]).unwrap()).collect();
    assert_eq!(reopened(&keep).1.len(), 40_000);
    std::mem::forget(small);
    assert!(keep.put(Kind(1), 0, &[&vec![0; 5 << 20]]).is_none(), "larger than any slot");
}

#[test]
fn a_room_is_found_as_it_was_left() {
    let keep = Keep::create(SIZE).unwrap();
    let mut room = keep.room(Kind(5), 3, 1 << 20).unwrap();
    assert_eq!(room.bytes()[..8], [0; 8]);
    room.bytes()[..12].copy_from_slice(b"taken in one");
    let (_, told, records) = reopened(&keep);
    assert_eq!((told[0].0, told[0].1, &told[0].2[..12]), (5, 3, &b"taken in one"[..]));
    assert_eq!(told[0].2.len(), 1 << 20);
    std::mem::forget(records);
    room.clear();
    assert_eq!(&reopened(&keep).1[0].2[..12], b"\0\0\0\0\0\0\0\0 one");
    drop(room);
    let again = keep.room(Kind(5), 3, 1 << 20).unwrap();
    assert_eq!(reopened(&keep).1[0].2[..8], [0; 8], "what was there before is not taken for it");
    drop(again);
}

#[test]
fn bodies_of_before_are_not_taken_for_records() {
    let keep = Keep::create(4 << 20).unwrap();
    // A body that holds a slot as a forger would make it, if the salt were known.
    let inner = keep.put(Kind(9), 9, &[b"inner"]).unwrap();
    let heap = keep.0.as_ref().unwrap();
    let image: Vec<u8> = (0..16)
        .flat_map(|word| {
            let at = 8192 + word * 8;
            heap.word(at).load(Ordering::Relaxed).to_le_bytes()
        })
        .collect();
    drop(inner);
    let body: Vec<u8> = image.iter().copied().cycle().take((1 << 20) - 40).collect();
    drop(keep.put(Kind(1), 1, &[&body]).unwrap());
    // The slab gets small slots where the body was.
    let kept = keep.put(Kind(2), 2, &[b"small"]).unwrap();
    assert_eq!(reopened(&keep).1, [(2, 2, b"small".to_vec())]);
    std::mem::forget(kept);
}

#[test]
fn what_is_idle_is_given_back() {
    let keep = Keep::create(SIZE).unwrap();
    let pages = |keep: &Keep| rustix::fs::fstat(keep.file().unwrap()).unwrap().st_blocks;
    drop(keep.put(Kind(1), 0, &[&vec![5; 3 << 20]]).unwrap());
    assert!(pages(&keep) > 4096);
    keep.trim();
    assert!(pages(&keep) > 4096, "it was just used");
    keep.trim();
    assert!(pages(&keep) < 64);
    let again = keep.put(Kind(1), 0, &[b"x"]).unwrap();
    assert_eq!(reopened(&keep).1.len(), 1);
    std::mem::forget(again);
}

#[test]
fn stages_and_beats_are_seen_by_who_watches() {
    let keep = Keep::create(SIZE).unwrap();
    let file = keep.file().unwrap().try_clone_to_owned().unwrap();
    let watcher = Keep::watch(file).unwrap();
    assert_eq!(watcher.stage(), Stage::Starting);
    keep.set_stage(Stage::Serving);
    keep.beat();
    assert_eq!((watcher.stage(), watcher.beats()), (Stage::Serving, 1));
    let none = Keep::none();
    none.beat();
    assert!(none.put(Kind(1), 0, &[b"x"]).is_none() && !none.is_on());
}

#[test]
fn what_is_no_memory_of_ours_is_refused() {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(matches!(Keep::open(file.try_clone().unwrap()), Err(Error::Memory(_))));
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    assert!(matches!(Keep::open(file), Err(Error::Layout { found: 0 })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Puts and frees against a plain map; then any words are overwritten, as a stray write would:
    /// what is found was put, or nothing is.
    #[test]
    fn any_state_is_read(
        steps in prop::collection::vec((0u8..3, 0usize..3000, 0usize..40), 1..60),
        damage in prop::collection::vec((0usize..(8 << 20) / 8, any::<u64>()), 0..30),
        is_damaged in any::<bool>(),
    ) {
        let keep = Keep::create(8 << 20).unwrap();
        let mut kept = std::collections::BTreeMap::new();
        for (number, (what, length, which)) in steps.into_iter().enumerate() {
            if what == 0 {
                let key = kept.keys().nth(which).copied();
                drop(key.and_then(|key| kept.remove(&key)));
            } else {
                let bytes = vec![number as u8; length];
                if let Some(record) = keep.put(Kind(1), number as u64, &[&bytes]) {
                    kept.insert(number as u64, (record, bytes));
                }
            }
        }
        let expected: Vec<_> =
            kept.iter().map(|(key, (_, bytes))| (1u16, *key, bytes.clone())).collect();
        if is_damaged {
            let heap = keep.0.as_ref().unwrap();
            // Not the header: that is judged by itself.
            for (word, value) in damage {
                heap.word(4096 + word * 8).store(value, Ordering::Relaxed);
            }
        }
        let (next, told, records) = reopened(&keep);
        if is_damaged {
            prop_assert!(told.iter().all(|one| expected.contains(one)));
        } else {
            prop_assert_eq!(&told, &expected);
        }
        let more = next.put(Kind(2), 1, &[b"more"]);
        std::mem::forget((kept, records, more));
    }
}
