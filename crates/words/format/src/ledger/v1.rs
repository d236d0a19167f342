//! Dumps and change logs, version 1.
//!
//! ```text
//! stream: ├─ "TLNMDT" version u16 ─┼─ frame ─┼─ frame ─┼ …
//!
//! frame:  ├─ length u32 ─┼─ CRC32C u32 ─┼─ CBOR of Frame (length bytes) ─┤
//! ```
//!
//! Numbers are little-endian; the CRC32C covers the length and the CBOR. A full dump is a head,
//! pairs in the order of their keys, and an end. A segment of a change log is a head and groups of
//! commits; it may stop anywhere. Segments that are copied are several heads with their groups, and
//! an end.

use minicbor::{Decode, Encode};
use tieline_types::{FsName, MdtIndex, Time, Version, checksum};

const MAGIC: [u8; 6] = *b"TLNMDT";
const FORMAT: u16 = 1;

/// What a stream begins with.
pub const PREAMBLE: usize = 8;
/// What stands before each frame's CBOR.
pub const FRAME_HEADER: usize = 8;
/// A group of commits is at most what a store takes at once, far below this.
pub const FRAME_MAX: u32 = 512 << 20;

/// One part of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Frame {
    #[n(1)]
    Head(#[n(0)] Head),
    /// Pairs of a full dump.
    #[n(2)]
    Pairs(#[n(0)] Vec<Write>),
    #[n(3)]
    Group(#[n(0)] Group),
    #[n(4)]
    End(#[n(0)] End),
}

/// What follows: a full dump, or a segment of a change log.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Head {
    #[n(0)]
    pub fs: FsName,
    #[n(1)]
    pub mdt: MdtIndex,
    #[n(2)]
    pub kind: HeadKind,
    /// Counts segments and dumps of one log, so that they have an order.
    #[n(3)]
    pub sequence: u64,
    /// Of a segment: what the store held when it was begun. What earlier segments have beyond it
    /// never happened. 0 in a dump.
    #[n(4)]
    pub after: Version,
    /// Of a dump: the state it holds. Of a segment: its first group comes after this.
    #[n(5)]
    pub version: Version,
    #[n(6)]
    pub time: Time,
    /// Feature bits of the store, without which it must not be used.
    #[n(7)]
    pub features: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum HeadKind {
    #[n(1)]
    Dump,
    #[n(2)]
    Segment,
}

/// Commits that became durable together.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Group {
    /// The version before it.
    #[n(0)]
    pub after: Version,
    #[n(1)]
    pub version: Version,
    #[n(2)]
    pub writes: Vec<Write>,
}

/// A key and its value; none deletes it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Write {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub key: Vec<u8>,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Option<Vec<u8>>,
}

/// Nothing is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct End {
    /// Frames before this one.
    #[n(0)]
    pub frames: u64,
    /// Pairs in all of them, deletions included.
    #[n(1)]
    pub pairs: u64,
    /// [`Sum`] of the frames before this one.
    #[n(2)]
    pub sum: u32,
}

/// Bytes that are no stream, or not one that this build reads.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("neither a dump nor a change log of an MDT")]
    NoStream,
    #[error("stream has version {0}, this build knows 1: use a newer build")]
    Version(u16),
    #[error("frame claims {0} bytes, more than any has")]
    Length(u32),
    #[error("frame is damaged: its checksum does not match")]
    Damaged,
    #[error("frame is malformed")]
    Malformed(#[from] minicbor::decode::Error),
    #[error("frame is malformed: {0} bytes follow its content")]
    Trailing(usize),
}

/// The bytes that every stream begins with.
pub fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    let [low, high] = FORMAT.to_le_bytes();
    let all = MAGIC.into_iter().chain([low, high]);
    bytes.iter_mut().zip(all).for_each(|(byte, value)| *byte = value);
    bytes
}

/// Is it a stream that this build reads?
pub fn check_preamble(bytes: [u8; PREAMBLE]) -> Result<(), LedgerError> {
    let [m0, m1, m2, m3, m4, m5, low, high] = bytes;
    if [m0, m1, m2, m3, m4, m5] != MAGIC {
        return Err(LedgerError::NoStream);
    }
    match u16::from_le_bytes([low, high]) {
        FORMAT => Ok(()),
        other => Err(LedgerError::Version(other)),
    }
}

/// What stands before a frame's CBOR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameStart {
    pub length: u32,
    pub check: u32,
}

impl FrameStart {
    pub fn decode(bytes: [u8; FRAME_HEADER]) -> Result<Self, LedgerError> {
        let [l0, l1, l2, l3, c0, c1, c2, c3] = bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let check = u32::from_le_bytes([c0, c1, c2, c3]);
        if length > FRAME_MAX {
            Err(LedgerError::Length(length))
        } else {
            Ok(Self { length, check })
        }
    }

    /// The frame whose CBOR this stood before.
    pub fn frame(self, cbor: &[u8]) -> Result<Frame, LedgerError> {
        if cbor.len() as u64 != u64::from(self.length) || check_of(cbor) != self.check {
            return Err(LedgerError::Damaged);
        }
        let mut decoder = minicbor::Decoder::new(cbor);
        let frame = decoder.decode()?;
        match cbor.len().saturating_sub(decoder.position()) {
            0 => Ok(frame),
            extra => Err(LedgerError::Trailing(extra)),
        }
    }
}

impl Frame {
    /// The whole frame in bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut cbor = Vec::new();
        let result = minicbor::encode(self, &mut cbor);
        debug_assert!(result.is_ok(), "encoding into memory failed");
        let mut bytes = Vec::with_capacity(FRAME_HEADER + cbor.len());
        bytes.extend((cbor.len() as u32).to_le_bytes());
        bytes.extend(check_of(&cbor).to_le_bytes());
        bytes.extend(cbor);
        bytes
    }

    /// Pairs in it.
    pub fn pairs(&self) -> u64 {
        match self {
            Self::Pairs(pairs) => pairs.len() as u64,
            Self::Group(group) => group.writes.len() as u64,
            Self::Head(_) | Self::End(_) => 0,
        }
    }
}

fn check_of(cbor: &[u8]) -> u32 {
    checksum::crc32c(&[&(cbor.len() as u32).to_le_bytes(), cbor].concat())
}

/// Counts what went through a stream: what its end must say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    frames: u64,
    pairs: u64,
    sum: u32,
}

impl Sum {
    /// Takes a frame into account, which has this checksum.
    pub fn add(&mut self, frame: &Frame, check: u32) {
        self.frames += 1;
        self.pairs += frame.pairs();
        let both = [self.sum.to_le_bytes(), check.to_le_bytes()].concat();
        self.sum = checksum::crc32c(&both);
    }

    /// Takes a frame's bytes into account.
    pub fn add_bytes(&mut self, frame: &Frame, bytes: &[u8]) {
        let header = bytes.first_chunk().and_then(|start| FrameStart::decode(*start).ok());
        self.add(frame, header.map_or(0, |start| start.check));
    }

    pub fn end(self) -> End {
        End { frames: self.frames, pairs: self.pairs, sum: self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back_and_damage_is_seen() {
        let write = |value: Option<&[u8]>| Write { key: vec![1], value: value.map(<[u8]>::to_vec) };
        let writes = vec![write(Some(b"")), write(None), write(Some(b"x"))];
        let group = Frame::Group(Group { after: Version(3), version: Version(5), writes });
        let bytes = group.to_bytes();
        let (start, cbor) = bytes.split_first_chunk().unwrap();
        let start = FrameStart::decode(*start).unwrap();
        assert_eq!(start.frame(cbor).unwrap(), group);
        assert_eq!(group.pairs(), 3);
        let mut damaged = cbor.to_vec();
        damaged[2] ^= 1;
        assert!(matches!(start.frame(&damaged), Err(LedgerError::Damaged)));
        assert!(check_preamble(preamble()).is_ok());
        assert!(matches!(check_preamble(*b"TLNMDT\x02\0"), Err(LedgerError::Version(2))));
        assert!(matches!(check_preamble(*b"notadump"), Err(LedgerError::NoStream)));
    }
}
