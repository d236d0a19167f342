//! The call's number (2 bytes), then a request's body. What decodes is judged and encoded again.

use tieline_wire::Request;

pub fn feed(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk() else { return };
    let number = u16::from_le_bytes(*number);
    let Ok((envelope, request)) = Request::decode(number, body) else { return };
    if let Request::Commit(commit) = &request {
        for extent in &commit.extents {
            if extent.validate().is_ok() {
                assert!(extent.end() > extent.offset);
            }
        }
    }
    let again = request.encode(&envelope);
    assert_eq!(Request::decode(number, &again).unwrap(), (envelope, request));
}
