//! Bytes that nobody wrote on purpose: noise, and samples with changes. Decoding ends with a value
//! or an error, never otherwise.

use crate::mutation::mutated;
use crate::samples;
use proptest::collection::vec;
use proptest::prelude::*;
use tieline_format::mdt::{Entry, Inode, key};
use tieline_format::object::ObjectFooter;
use tieline_format::{Record, RecordError};
use tieline_types::{FileId, FileKind};

fn bytes_of(samples: Vec<crate::golden::Sample>) -> Vec<((), Vec<u8>)> {
    samples.into_iter().map(|sample| ((), sample.bytes)).collect()
}

fn read_key(bytes: &[u8]) {
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
    let end = key::after(bytes);
    assert!(end.as_slice() > bytes);
    // No kind of key starts with 0xff.
    if bytes.iter().any(|&byte| byte < 0xff) {
        assert!(!end.starts_with(bytes), "nothing with the prefix is left out");
    }
}

#[test]
fn other_versions_and_features_are_refused() {
    let sample = samples::records().into_iter().find(|sample| sample.name == "inode-v1").unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = sample.bytes.clone();
        bytes[at] = byte;
        Inode::from_bytes(&bytes).unwrap_err()
    };
    assert!(matches!(with(0, 2), RecordError::Version { version: 2, known: 1, .. }));
    assert!(matches!(with(1, 0x80), RecordError::Features { features: 0x80, .. }));
    assert!(matches!(Inode::from_bytes(&[1]), Err(RecordError::Short { .. })));
    let longer = [&sample.bytes[..], &[0, 0]].concat();
    assert!(matches!(Inode::from_bytes(&longer), Err(RecordError::Trailing { extra: 2, .. })));
}

#[test]
fn fields_of_later_builds_are_skipped() {
    let entry = Entry { id: FileId(7), kind: FileKind::Regular };
    assert_eq!(entry.to_bytes(), [1, 0, 0x82, 7, 1]);
    assert_eq!(Entry::from_bytes(&[1, 0, 0x83, 7, 1, 0x81, 0x60]).unwrap(), entry);
    assert!(Entry::from_bytes(&[1, 0, 0x81, 7]).is_err(), "a field that is not optional");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_is_no_record(mut bytes in vec(any::<u8>(), 0..200)) {
        samples::decode_all(&bytes);
        if let Some(head) = bytes.first_chunk_mut::<2>() {
            *head = [1, 0];
        }
        samples::decode_all(&bytes);
    }

    #[test]
    fn changed_records_are_refused_or_other_records(
        (_, bytes) in mutated(bytes_of(samples::records()))
    ) {
        samples::decode_all(&bytes);
    }

    #[test]
    fn keys_of_any_bytes_can_be_asked(noise in vec(any::<u8>(), 0..40)) {
        read_key(&noise);
        read_key(&[&noise[..], &[0xff; 3]].concat());
    }

    #[test]
    fn changed_keys_can_be_asked((_, bytes) in mutated(bytes_of(samples::keys()))) {
        read_key(&bytes);
    }

    #[test]
    fn noise_is_no_object(footer in any::<[u8; ObjectFooter::LENGTH]>(), length in any::<u64>()) {
        let mut footer = footer;
        prop_assert!(ObjectFooter::decode(&footer, length).is_err());
        footer[16..].copy_from_slice(b"TLNOBJ\x01\0");
        if let Ok(footer) = ObjectFooter::decode(&footer, length) {
            prop_assert!(footer.trailer(&[]).is_err());
        }
    }

    #[test]
    fn noise_is_no_frame(noise in vec(any::<u8>(), 0..200)) {
        prop_assert!(samples::decode_frame(&noise).is_err());
    }

    #[test]
    fn a_changed_frame_is_noticed((_, bytes) in mutated(bytes_of(samples::frames()))) {
        if samples::frames().iter().all(|sample| sample.bytes != bytes) {
            prop_assert!(samples::decode_frame(&bytes).is_err());
        }
    }

    #[test]
    fn a_changed_object_is_noticed((_, tail) in mutated(vec![((), samples::object().bytes)])) {
        if tail != samples::object().bytes {
            prop_assert!(samples::decode_tail(&tail).is_err());
        }
    }
}
