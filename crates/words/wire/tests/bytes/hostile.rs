//! Bytes that nobody sent on purpose: noise, and samples with changes. Decoding ends with a value
//! or an error, never otherwise.

use crate::mutation::mutated;
use crate::samples;
use proptest::collection::vec;
use proptest::prelude::*;
use tieline_types::{Content, Extent, FileId};
use tieline_wire::meta::Unlink;
use tieline_wire::{
    Envelope, Failure, FrameHeader, Hello, Notice, NoticeAnswer, Op, Refusal, Request, ServerTime,
    Welcome,
};

/// If it decodes, what it decodes to survives the wire.
fn decode_request(op: u16, body: &[u8]) {
    if let Ok((envelope, request)) = Request::decode(op, body) {
        let again = request.encode(&envelope);
        assert_eq!(Request::decode(op, &again).unwrap(), (envelope, request));
    }
}

fn decode_others(body: &[u8]) {
    let _ = tieline_wire::decode::<Hello>(body);
    let _ = tieline_wire::decode::<Welcome>(body);
    let _ = tieline_wire::decode::<Refusal>(body);
    let _ = tieline_wire::decode::<Failure>(body);
    let _ = tieline_wire::decode::<Notice>(body);
    let _ = tieline_wire::decode::<NoticeAnswer>(body);
    let _ = tieline_wire::decode::<ServerTime>(body);
}

#[test]
fn fields_of_later_versions_are_skipped_and_absent_ones_are_null() {
    let envelope = [0x82, 0x83, 0, 0, 0x80, 1];
    let body = |message: &[u8]| [&envelope[..], message].concat();
    let decode = |message: &[u8]| Request::decode(Op::Unlink.number(), &body(message));
    let expected = Unlink { parent: FileId(7), name: "a".parse().unwrap(), keep: None };
    let expected = Request::from(expected);
    for message in [&[0x82, 7, 0x41, b'a'][..], &[0x84, 7, 0x41, b'a', 0xf6, 0x81, 0x60]] {
        assert_eq!(decode(message).unwrap().1, expected);
    }
    assert_eq!(expected.encode(&Envelope::default()).len(), 6 + 4, "null is not sent at the end");
    assert!(decode(&[0x81, 7]).is_err(), "a field that is not optional");
    assert!(decode(&[0x82, 7, 0x41, b'/']).is_err(), "a name that is none");
    assert!(decode(&[0x82, 7, 0x41, b'a', 0]).is_err(), "something follows");
}

/// Extents as a decoder may give them: any numbers.
fn extent(numbers: [u64; 4], content: u8, inline: Vec<u8>) -> Extent {
    let [offset, length, chunk_length, skip] = numbers;
    let mut extents = samples::extents();
    let mut extent = extents.swap_remove(usize::from(content % 3));
    (extent.offset, extent.length) = (offset, length);
    match &mut extent.content {
        Content::Inline(bytes) => *bytes = inline,
        Content::Chunk(chunk) => {
            (chunk.length, chunk.skip) = (chunk_length, skip);
            chunk.places.iter_mut().for_each(|place| place.length = Some(chunk_length));
        }
        Content::Hole => {}
    }
    extent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_is_no_frame(bytes in any::<[u8; 32]>(), body in vec(any::<u8>(), 0..100)) {
        let _ = FrameHeader::decode(&bytes);
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(b"TLN1");
        bytes[4] %= 14;
        bytes[5] %= 3;
        if let Ok(header) = FrameHeader::decode(&bytes) {
            prop_assert!(header.body_length <= FrameHeader::BODY_MAX);
            prop_assert!(header.bulk_length <= FrameHeader::BULK_MAX);
        }
        let _ = FrameHeader::verify(&bytes, &body);
    }

    #[test]
    fn noise_is_no_message(body in vec(any::<u8>(), 0..200)) {
        for &op in Op::ALL {
            decode_request(op.number(), &body);
            let _ = op.check_reply(&body);
        }
        decode_others(&body);
    }

    #[test]
    fn changed_requests_are_refused_or_other_requests(
        (op, body) in mutated(samples::requests())
    ) {
        decode_request(op, &body);
    }

    #[test]
    fn changed_replies_are_refused_or_other_replies((op, body) in mutated(samples::replies())) {
        let op = Op::from_number(op).unwrap();
        let _ = op.check_reply(&body);
    }

    #[test]
    fn changed_handshakes_and_notices_are_refused_or_others(
        (_, body) in mutated(samples::others().into_iter().map(|s| (s.name, s.bytes)).collect())
    ) {
        decode_others(&body);
    }

    #[test]
    fn extents_from_outside_are_judged_without_overflow(
        numbers in prop::array::uniform4(prop_oneof![
            any::<u64>(), 0..70_000u64, (u64::MAX - 5000)..=u64::MAX, (1u64 << 63) - 5000..1 << 63,
        ]),
        content in any::<u8>(),
        inline in vec(any::<u8>(), 0..20),
    ) {
        let extent = extent(numbers, content, inline);
        if extent.validate().is_ok() {
            prop_assert!(extent.end() <= Extent::FILE_SIZE_MAX);
        }
    }
}
