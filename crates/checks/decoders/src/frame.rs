//! A frame's header, then its body: what a server reads before it knows anybody.

use tieline_wire::{
    Failure, FrameHeader, FrameKind, Hello, Notice, NoticeAnswer, Refusal, ServerTime, Welcome,
    decode,
};

pub fn feed(bytes: &[u8]) {
    let Some((header_bytes, body)) = bytes.split_first_chunk() else { return };
    let Ok(header) = FrameHeader::decode(header_bytes) else { return };
    assert!(header.body_length <= FrameHeader::BODY_MAX);
    assert!(header.bulk_length <= FrameHeader::BULK_MAX);
    // The checksum would stop nearly all inventions: it is computed, and not believed.
    let _ = FrameHeader::verify(header_bytes, body);
    match header.kind {
        FrameKind::Hello => drop(decode::<Hello>(body)),
        FrameKind::Welcome => drop(decode::<Welcome>(body)),
        FrameKind::Refused => drop(decode::<Refusal>(body)),
        FrameKind::Reply => drop(decode::<Failure>(body)),
        FrameKind::Notice => drop(decode::<Notice>(body)),
        FrameKind::NoticeAnswer => drop(decode::<NoticeAnswer>(body)),
        FrameKind::Pong => drop(decode::<ServerTime>(body)),
        FrameKind::Request
        | FrameKind::Cancel
        | FrameKind::Ping
        | FrameKind::Goodbye
        | FrameKind::Token => {}
    }
}
