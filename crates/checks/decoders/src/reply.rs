//! The call's number (2 bytes), then a reply's body.

use tieline_wire::Op;

pub fn feed(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk() else { return };
    if let Some(op) = Op::from_number(u16::from_le_bytes(*number)) {
        let _ = op.check_reply(body);
    }
}
