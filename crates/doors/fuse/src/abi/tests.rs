//! Any bytes are read without a panic, and what is written has the protocol's own sizes.

use super::incoming::*;
use super::opcode::Opcode;
use super::outgoing::{self, NodeNumber, Validity, Writer};
use super::*;
use proptest::prelude::*;
use std::time::Duration;
use tieline_types::{Attributes, FileId, FileKind, Gid, Mode, Time, Uid, Version};

fn attributes() -> Attributes {
    let id = FileId(0x0001_0000_0000_0007);
    let time = Time { seconds: -5, nanos: 9 };
    Attributes {
        uid: Uid(1),
        gid: Gid(2),
        size: 513,
        stored: 513,
        version: Version(1),
        ..Attributes::new(id, FileKind::Regular, Mode::new(0o644), time)
    }
}

fn header_bytes(len: u32, extension_words: u16) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(len).u32(1).u64(2).u64(1).u32(0).u32(0).u32(7).u16(extension_words).u16(0);
    out.finish()
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok((header, arguments, extensions)) = split(&bytes) {
            prop_assert_eq!(header.len as usize, bytes.len());
            prop_assert!(arguments.len() + extensions.len() + IN_HEADER_BYTES == bytes.len());
        }
        let _ = extension_groups(&bytes);
        let _ = GetattrIn::read(&mut Reader::new(&bytes));
        let _ = SetattrIn::read(&mut Reader::new(&bytes));
        let _ = CopyFileRangeIn::read(&mut Reader::new(&bytes));
        let _ = crate::init::Offer::read(&bytes);
        let mut text = Reader::new(&bytes);
        while text.text().is_ok() {}
        let _ = Opcode::from_number(bytes.len() as u32).label();
    }

    #[test]
    fn a_length_that_lies_is_refused(len in any::<u32>(), words in any::<u16>()) {
        let bytes = header_bytes(len, words);
        prop_assert_eq!(split(&bytes).is_ok(), len == 40 && words == 0);
    }
}

#[test]
fn groups_are_found_among_extensions() {
    let mut body = Writer::default();
    // One that nobody knows here, then two groups.
    body.u32(16).u32(5).u64(0);
    body.u32(24).u32(bits::EXTENSION_GROUPS).u32(2).u32(100).u32(200).u32(0);
    let body = body.finish();
    assert_eq!(extension_groups(&body), Ok(vec![100, 200]));
    let mut whole = header_bytes(40 + 3 + 40, 5);
    whole.extend_from_slice(b"ab\0");
    whole.extend_from_slice(&body);
    let (_, arguments, extensions) = split(&whole).unwrap();
    assert_eq!((arguments, extensions), (&b"ab\0"[..], &body[..]));
    // More groups claimed than there are.
    let lie = Writer::default().u32(12).u32(bits::EXTENSION_GROUPS).u32(u32::MAX).finish();
    assert_eq!(extension_groups(&lie), Err(Malformed));
}

#[test]
fn replies_have_the_sizes_of_the_protocol() {
    let (hour, file) = (Duration::from_secs(3600), attributes());
    let mut entry = Writer::default();
    let valid = Validity { entry: hour, attributes: hour };
    outgoing::entry_write(&mut entry, NodeNumber { node: 7, shown: 7 }, &file, valid);
    let space = outgoing::Space { bytes_total: 0, bytes_free: 0, inodes_total: 0, inodes_free: 0 };
    let sizes = [
        entry.0.len(),
        outgoing::entry_absent(hour).len(),
        outgoing::attr(&file, 7, hour).len(),
        outgoing::open(1, 0).len(),
        outgoing::count(1).len(),
        outgoing::statfs(space).len(),
        outgoing::inval_inode(1, Some((0, 0))).len(),
        outgoing::inval_entry(1, b"abc", true).len(),
        outgoing::direntplus_bytes(b"abc"),
    ];
    assert_eq!(sizes, [128, 128, 104, 16, 8, 80, 24, 20, 160]);
}

#[test]
fn fields_are_where_the_kernel_looks() {
    let bytes = outgoing::attr(&attributes(), 0x0001_0000_0000_0007, Duration::from_millis(1500));
    let mut from = Reader::new(&bytes);
    assert_eq!((from.u64(), from.u32(), from.u32()), (Ok(1), Ok(500_000_000), Ok(0)));
    assert_eq!(from.u64(), Ok(0x0001_0000_0000_0007));
    assert_eq!((from.u64(), from.u64()), (Ok(513), Ok(2)), "size and blocks of 512");
    assert_eq!(from.u64(), Ok(-5i64 as u64), "before 1970");
    from.take(16 + 12).unwrap();
    assert_eq!(from.u32(), Ok(0o100_644));
    let header = outgoing::header(8, -2, 77);
    let mut from = Reader::new(&header);
    assert_eq!((from.u32(), from.u32(), from.u64()), (Ok(24), Ok(-2i32 as u32), Ok(77)));
}

/// Blocks, free ones and their size; inodes and free ones.
fn statfs(space: outgoing::Space) -> ((u64, u64, u64), (u64, u64)) {
    let bytes = outgoing::statfs(space);
    let mut from = Reader::new(&bytes);
    let (blocks, free, available) = (from.u64().unwrap(), from.u64().unwrap(), from.u64().unwrap());
    let inodes = (from.u64().unwrap(), from.u64().unwrap());
    let (unit, _, fragment) = (from.u32().unwrap(), from.u32().unwrap(), from.u32().unwrap());
    assert_eq!((free, unit), (available, fragment));
    ((blocks, free, unit.into()), inodes)
}

/// Promise 95: Counts of blocks and inodes fit into 32 bits, and df is right.
#[test]
fn counts_fit_into_32_bits_and_sizes_stay_right() {
    let told = |bytes_total, inodes_used: u64, inodes_free| {
        let inodes_total = inodes_used + inodes_free;
        let bytes_free = bytes_total / 3;
        statfs(outgoing::Space { bytes_total, bytes_free, inodes_total, inodes_free })
    };
    for exponent in 12..63 {
        for bytes in
            [1 << exponent, (1 << exponent) - 4096, (1 << exponent) + (3 << (exponent - 2))]
        {
            let ((blocks, free, unit), _) = told(bytes, 7, 1 << 31);
            assert!(blocks <= u32::MAX.into() && free <= u32::MAX.into(), "{bytes:#x}");
            assert!(bytes - blocks * unit < unit && bytes / 3 - free * unit < unit, "{bytes:#x}");
            assert!(unit == 4096 || blocks >= 1 << 31, "{bytes:#x} in units of {unit}");
        }
    }
    let inodes = |used, free| told(1 << 40, used, free).1;
    assert_eq!(inodes(1, 1 << 31), ((1 << 31) + 1, 1 << 31));
    assert_eq!(inodes(900, 100), (1000, 100));
    for used in [1_u64 << 30, 1 << 31, 3 << 30, 1 << 32, 1 << 40] {
        let (total, free) = inodes(used, 1 << 31);
        assert!(total < (1 << 32) - 1 && free >= 1 << 30, "{used:#x}: {total:#x}, {free:#x}");
        assert!(used >= 1 << 31 || total - free == used, "{used:#x}: {total:#x}, {free:#x}");
    }
    // A quota's own numbers.
    assert_eq!(inodes(1 << 33, 5), ((1 << 31) - 1 + 5, 5));
}
