//! Objects, version 1.

use minicbor::{Decode, Encode};
use tieline_types::tree::Values;
use tieline_types::{FileId, GrantedId, Version, checksum};

/// What an object remembers of its chunk.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ObjectTrailer {
    #[n(0)]
    pub chunk: GrantedId,
    #[n(1)]
    pub file: FileId,
    /// Offset in the file of the chunk's first byte.
    #[n(2)]
    pub offset: u64,
    /// The file's version that the writer started from.
    #[n(3)]
    pub version: Version,
    /// Last known path within the file system.
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// CRC32C per 4 KiB block of the data.
    #[n(5)]
    pub checks: Vec<u32>,
    /// What proofs of ranges are made from. Objects of before there were proofs have none.
    #[n(6)]
    pub tree: Option<Values>,
}

/// The last bytes of an object: enough to find the trailer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectFooter {
    pub data_length: u64,
    pub trailer_length: u32,
    check: u32,
}

/// Bytes that are not an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("no object footer: the object was not written to its end")]
    NotSealed,
    #[error("object has version {0}, this build knows 1: use a newer build")]
    Version(u16),
    #[error("object is {actual} bytes long, its footer says {expected}")]
    Length { expected: u64, actual: u64 },
    #[error("object trailer is damaged")]
    Damaged,
    #[error("object trailer is malformed")]
    Malformed(#[from] minicbor::decode::Error),
}

const MAGIC: [u8; 6] = *b"TLNOBJ";
const FORMAT: u16 = 1;

impl ObjectFooter {
    pub const LENGTH: usize = 24;

    /// Reads the footer of an object of `object_length` bytes.
    pub fn decode(bytes: &[u8; Self::LENGTH], object_length: u64) -> Result<Self, ObjectError> {
        let (data_length, rest) = split::<8>(bytes);
        let (trailer_length, rest) = split::<4>(rest);
        let (check, rest) = split::<4>(rest);
        let (magic, rest) = split::<6>(rest);
        let (format, _) = split::<2>(rest);
        if magic != MAGIC {
            return Err(ObjectError::NotSealed);
        }
        let format = u16::from_le_bytes(format);
        if format != FORMAT {
            return Err(ObjectError::Version(format));
        }
        let footer = Self {
            data_length: u64::from_le_bytes(data_length),
            trailer_length: u32::from_le_bytes(trailer_length),
            check: u32::from_le_bytes(check),
        };
        let tail = u64::from(footer.trailer_length) + Self::LENGTH as u64;
        let expected = footer.data_length.saturating_add(tail);
        if expected != object_length {
            return Err(ObjectError::Length { expected, actual: object_length });
        }
        Ok(footer)
    }

    /// Reads the trailer that this footer belongs to.
    pub fn trailer(&self, cbor: &[u8]) -> Result<ObjectTrailer, ObjectError> {
        if tail_check(cbor, self.data_length, self.trailer_length) != self.check {
            return Err(ObjectError::Damaged);
        }
        let trailer: ObjectTrailer = minicbor::decode(cbor)?;
        if trailer.checks.len() as u64 != checksum::block_count(self.data_length) {
            return Err(ObjectError::Damaged);
        }
        Ok(trailer)
    }
}

impl ObjectTrailer {
    /// The bytes that follow `data_length` bytes of data: trailer and footer.
    pub fn to_tail(&self, data_length: u64) -> Vec<u8> {
        let mut tail = Vec::new();
        let result = minicbor::encode(self, &mut tail);
        debug_assert!(result.is_ok(), "encoding into memory failed");
        let trailer_length = tail.len() as u32;
        let check = tail_check(&tail, data_length, trailer_length);
        tail.extend(data_length.to_le_bytes());
        tail.extend(trailer_length.to_le_bytes());
        tail.extend(check.to_le_bytes());
        tail.extend(MAGIC);
        tail.extend(FORMAT.to_le_bytes());
        tail
    }
}

fn tail_check(cbor: &[u8], data_length: u64, trailer_length: u32) -> u32 {
    let lengths = [&data_length.to_le_bytes()[..], &trailer_length.to_le_bytes()].concat();
    checksum::crc32c(&[cbor, &lengths].concat())
}

/// The first `N` bytes and the rest; zeroes where there are none, which fixed lengths exclude.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    match bytes.split_first_chunk::<N>() {
        Some((head, rest)) => (*head, rest),
        None => ([0; N], &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Grant, MdtIndex};

    #[test]
    fn a_tail_is_read_back_and_damage_is_seen() {
        let trailer = ObjectTrailer {
            chunk: GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 2 },
            file: FileId(3),
            offset: 0,
            version: Version(4),
            path: b"data/run7.root".to_vec(),
            checks: checksum::block_checks(&[5; 5000]),
            tree: None,
        };
        let tail = trailer.to_tail(5000);
        let (cbor, footer) = tail.split_at(tail.len() - ObjectFooter::LENGTH);
        let total = 5000 + tail.len() as u64;
        let footer = ObjectFooter::decode(footer.try_into().unwrap(), total).unwrap();
        assert_eq!(footer.trailer(cbor).unwrap(), trailer);
        let mut damaged = cbor.to_vec();
        damaged[3] ^= 1;
        assert!(matches!(footer.trailer(&damaged), Err(ObjectError::Damaged)));
    }
}
