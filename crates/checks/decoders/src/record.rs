//! A kind of record (1 byte), then a value of an MDT's store; and the same bytes as a key.

use tieline_format::Record;
use tieline_format::mdt::{self, key};

pub fn feed(bytes: &[u8]) {
    let Some((kind, record)) = bytes.split_first() else { return };
    match kind % 21 {
        0 => decode::<mdt::Superblock>(record),
        1 => decode::<mdt::Inode>(record),
        2 => decode::<mdt::Entry>(record),
        3 => decode::<mdt::StoredExtent>(record),
        4 => decode::<mdt::Chunk>(record),
        5 => decode::<mdt::Freed>(record),
        6 => decode::<mdt::XattrValue>(record),
        7 => decode::<mdt::Session>(record),
        8 => decode::<mdt::Answer>(record),
        9 => decode::<mdt::Orphan>(record),
        10 => decode::<mdt::Deleted>(record),
        11 => decode::<mdt::DeletedAt>(record),
        12 => decode::<mdt::LostName>(record),
        13 => decode::<mdt::ExposeNote>(record),
        14 => decode::<mdt::Exposed>(record),
        15 => decode::<mdt::ExposedEntry>(record),
        16 => decode::<mdt::ExposedPool>(record),
        17 => decode::<mdt::ExposeSteps>(record),
        18 => decode::<mdt::Archived>(record),
        19 => decode::<mdt::Wished>(record),
        _ => decode::<mdt::TapeRemoval>(record),
    }
    let _ = key::entry_name(bytes);
    let _ = key::xattr_name(bytes);
    let _ = key::extent_offset(bytes);
    let _ = key::session_id(bytes);
    let _ = key::orphan_parts(bytes);
    let _ = key::freed_parts(bytes);
    let _ = key::deleted_parts(bytes);
    let _ = key::deletion_parts(bytes);
    let _ = key::lost_name_parts(bytes);
    let _ = key::file_id(bytes);
    let _ = key::chunk_id(bytes);
    let _ = key::exposed_pool_name(bytes);
    let _ = key::exposed_file(bytes);
    let _ = key::tape_file(bytes);
    assert!(key::after(bytes).as_slice() > bytes);
}

fn decode<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(record) = R::from_bytes(bytes) {
        assert_eq!(R::from_bytes(&record.to_bytes()).unwrap(), record);
    }
}
