//! The call's number (2 bytes), then a message alone, as the items of a batch hold them.

use tieline_wire::Request;

pub fn feed(bytes: &[u8]) {
    let Some((number, message)) = bytes.split_first_chunk() else { return };
    let number = u16::from_le_bytes(*number);
    let Ok(request) = Request::decode_message(number, message) else { return };
    let again = request.encode_message();
    assert_eq!(Request::decode_message(number, &again).unwrap(), request);
    let _ = (request.written(), request.sweeps(), request.op().answerer());
}
