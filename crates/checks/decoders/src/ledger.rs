//! A frame of a dump or a change log. Its checksum is repaired, so that damage reaches what lies
//! behind it.

use tieline_format::ledger::{FRAME_HEADER, FrameStart, check_preamble};
use tieline_types::checksum;

pub fn feed(bytes: &[u8]) {
    if let Some((preamble, _)) = bytes.split_first_chunk() {
        let _ = check_preamble(*preamble);
    }
    let Some((start, cbor)) = bytes.split_first_chunk::<FRAME_HEADER>() else { return };
    if let Ok(start) = FrameStart::decode(*start) {
        let _ = start.frame(cbor);
    }
    let length = (cbor.len() as u32).to_le_bytes();
    let check = checksum::crc32c(&[&length[..], cbor].concat()).to_le_bytes();
    let repaired: [u8; FRAME_HEADER] = [length, check].concat().try_into().unwrap();
    let Ok(start) = FrameStart::decode(repaired) else { return };
    if let Ok(frame) = start.frame(cbor) {
        let again = frame.to_bytes();
        let (start, cbor) = again.split_first_chunk().unwrap();
        assert_eq!(FrameStart::decode(*start).unwrap().frame(cbor).unwrap(), frame);
        let _ = frame.pairs();
    }
}
