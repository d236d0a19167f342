//! Answers as bytes.

use crate::refusal::Refusal;
use crate::wire::{ANSWER_BYTES, SERVER_FLAGS, Status, Stream, VERSION, code};
use bytes::{BufMut, Bytes, BytesMut};
use tieline_types::checksum::crc32c;

/// Of an error's text: clients show it on a line.
const TEXT_MAX: usize = 2000;
/// What follows the head of pages, before the pages.
const PAGES_HEAD: usize = 24;
/// An answer that comes unasked.
const ASYNC_ANSWER: u32 = 5008;

/// The head of an answer, with room for more behind it.
fn head(stream: Stream, status: Status, length: usize, more: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(ANSWER_BYTES + more);
    bytes.put_slice(&stream);
    bytes.put_u16(status as u16);
    // No answer is as large as that: frames are cut long before.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    bytes
}

/// The answer to a handshake: which protocol this is, and that there are data here.
pub fn handshake() -> Bytes {
    let mut bytes = head([0, 0], Status::Done, 8, 8);
    bytes.put_u32(VERSION);
    bytes.put_u32(1);
    bytes.freeze()
}

pub fn protocol(stream: Stream) -> Bytes {
    let mut bytes = head(stream, Status::Done, 8, 8);
    bytes.put_u32(VERSION);
    bytes.put_u32(SERVER_FLAGS);
    bytes.freeze()
}

/// All of an answer, or a piece of it.
pub fn whole(stream: Stream, status: Status, payload: &[u8]) -> Bytes {
    let mut bytes = head(stream, status, payload.len(), payload.len());
    bytes.put_slice(payload);
    bytes.freeze()
}

/// The head of an answer whose payload comes in pieces.
pub fn begun(stream: Stream, status: Status, length: usize) -> Bytes {
    head(stream, status, length, 0).freeze()
}

pub fn error(stream: Stream, refusal: &Refusal) -> Bytes {
    let text = shown(&refusal.text);
    let mut bytes = head(stream, Status::Error, 4 + text.len() + 1, 5 + text.len());
    bytes.put_u32(refusal.code as u32);
    bytes.put_slice(text.as_bytes());
    bytes.put_u8(0);
    bytes.freeze()
}

/// One line without zero bytes, and not endless.
fn shown(text: &str) -> String {
    let plain = text.chars().map(|one| if one.is_control() { ' ' } else { one });
    let mut line = String::new();
    for one in plain {
        if line.len() + one.len_utf8() > TEXT_MAX {
            break;
        }
        line.push(one);
    }
    line
}

/// Asks for patience, in seconds.
pub fn wait(stream: Stream, status: Status, seconds: u32, why: &str) -> Bytes {
    let mut bytes = head(stream, status, 4 + why.len() + 1, 5 + why.len());
    bytes.put_u32(seconds);
    bytes.put_slice(why.as_bytes());
    bytes.put_u8(0);
    bytes.freeze()
}

/// Another answer, for who was told that it comes unasked.
pub fn unasked(answer: &[u8]) -> Bytes {
    let mut bytes = head([0, 0], Status::Attention, 8 + answer.len(), 8 + answer.len());
    bytes.put_u32(ASYNC_ANSWER);
    bytes.put_u32(0);
    bytes.put_slice(answer);
    bytes.freeze()
}

/// The head of pages from an offset: the length of what follows it stands in it twice, once for
/// who knows no pages.
pub fn pages(stream: Stream, offset: u64, length: usize, is_last: bool) -> Bytes {
    let mut rest = [0_u8; PAGES_HEAD - 4];
    let mut left = &mut rest[..];
    left.put_slice(&stream);
    left.put_u8((code::PGREAD - code::AUTH) as u8);
    left.put_u8(u8::from(!is_last));
    left.put_u32(0);
    left.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    left.put_u64(offset);
    let mut bytes = head(stream, Status::Pages, PAGES_HEAD, PAGES_HEAD);
    bytes.put_u32(crc32c(&rest));
    bytes.put_slice(&rest);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Code;

    #[test]
    fn a_handshake_is_answered_as_stock_servers_do() {
        let expected = [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 5, 0x11, 0, 0, 0, 1];
        assert_eq!(&handshake()[..], expected);
    }

    #[test]
    fn pages_have_their_own_head() {
        let bytes = pages([1, 2], 0x10_0000, 4100, false);
        assert_eq!(bytes[..8], [1, 2, 0x0f, 0xa7, 0, 0, 0, 24]);
        assert_eq!(bytes[8..12], crc32c(&bytes[12..32]).to_be_bytes());
        assert_eq!(bytes[12..16], [1, 2, 30, 1]);
        assert_eq!(bytes[20..24], 4100_u32.to_be_bytes());
        assert_eq!(bytes[24..32], 0x10_0000_u64.to_be_bytes());
        assert_eq!(pages([1, 2], 0, 0, true)[15], 0);
    }

    #[test]
    fn a_text_is_one_line_that_ends() {
        let long = Refusal::new(Code::NotFound, "a\nb\0c".to_owned() + &"é".repeat(4000));
        let bytes = error([0, 7], &long);
        let length = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), 8 + length);
        assert_eq!(bytes[8..12], 3011_u32.to_be_bytes());
        assert!(bytes[12..].starts_with(b"a b c") && bytes.ends_with(b"\0"));
        assert!(bytes.len() < TEXT_MAX + 20);
    }
}
