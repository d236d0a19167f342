//! What a crashed daemon left: a kind of record and a key (1 byte each), then its bytes; or changes
//! (offset of 3 bytes, value of 1) of the memory that such records lie in.

use rustix::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tieline_keep::{Keep, Kind};
use tieline_owed::records::Left;

/// Kinds above those of records change memory.
const CHANGES: u8 = 16;
/// Where the memory's words and the first records are.
const CHANGED: u64 = 64 << 10;

pub fn feed(bytes: &[u8]) {
    let Some(([kind, key], rest)) = bytes.split_first_chunk() else { return };
    let Ok(keep) = Keep::create(4 << 20) else { return };
    // A process that dies gives nothing back: these live until what it left was read.
    let put = |kind: u8| keep.put(Kind(kind.into()), u64::from(*key), &[rest]);
    let kinds = if *kind < CHANGES { *kind..*kind + 1 } else { 1..13 };
    let _dying: Vec<_> = kinds.map(put).collect();
    let Some(file) = keep.file().and_then(|file| file.try_clone_to_owned().ok()) else { return };
    if *kind >= CHANGES {
        change(&file, rest);
    }
    drop(keep);
    let Ok((keep, records)) = Keep::open(file) else { return };
    let left = Left::read(records);
    for writes in left.writes.values() {
        let bytes: usize = writes.pieces().iter().map(|piece| piece.bytes.len()).sum();
        assert!(bytes <= writes.writes.iter().map(|write| write.bytes.len()).sum());
    }
    // It is gone on with.
    drop(keep.put(Kind(5), 7, &[b"more"]));
}

fn change(memory: &OwnedFd, changes: &[u8]) {
    let Ok(file) = memory.try_clone().map(std::fs::File::from) else { return };
    for change in changes.chunks_exact(4) {
        let &[low, middle, high, value] = change else { continue };
        let at = u64::from(u32::from_le_bytes([low, middle, high, 0])) % CHANGED;
        // What cannot be changed stays.
        let _ = file.write_all_at(&[value], at);
    }
}
