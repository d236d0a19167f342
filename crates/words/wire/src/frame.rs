//! The frame: 32 bytes of header, then the body, then the bulk bytes.
//!
//! ```text
//!  0               4       5       6       8              12
//!  ├───────────────┼───────┼───────┼───────┼───────────────┤
//!  │ magic "TLN1"  │ kind  │ flags │  op   │  body length  │
//!  ├───────────────┼───────┴───────┴───────┼───────────────┤
//!  │  bulk length  │     request number (8 bytes)          │
//!  ├───────────────┼───────────────┬───────────────────────┘
//!  │  deadline ms  │    CRC32C     │
//!  └───────────────┴───────────────┘
//! 12              16 … 24         28              32
//! ```
//!
//! All numbers are little-endian. The CRC32C covers bytes 0 to 27 and the body; bulk bytes are
//! covered by the block checks that the body carries. A deadline is how long the sender still
//! waits, counted from sending: clocks of two machines are never compared.

use tieline_types::{RequestNumber, checksum};

/// What a frame is for. Numbers are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// Client to server, first on a connection: [`crate::Hello`].
    Hello,
    /// The server's answer: [`crate::Welcome`].
    Welcome,
    /// The server's other answer: [`crate::Refusal`]; the connection ends.
    Refused,
    /// Client to server: an [`crate::Envelope`], then the call's message.
    Request,
    /// Server to client: the call's reply, or a [`crate::Failure`] when the flag says so.
    Reply,
    /// Server to client: [`crate::Notice`], numbered by the server.
    Notice,
    /// Client to server: [`crate::NoticeAnswer`] with the notice's number.
    NoticeAnswer,
    /// Client to server: nobody waits for that request any more. No body, no answer of its own.
    Cancel,
    /// Either way, no body: are you there? Renews the leases of the session.
    Ping,
    /// The answer to a ping: from a server that keeps metadata a [`crate::ServerTime`].
    Pong,
    /// Client to server, no body: the session ends and everything it held is given back.
    Goodbye,
    /// Either way during the handshake: one token of an authentication mechanism, as bulk.
    Token,
}

impl FrameKind {
    pub const ALL: [Self; 12] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Request,
        Self::Reply,
        Self::Notice,
        Self::NoticeAnswer,
        Self::Cancel,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
        Self::Token,
    ];

    pub fn number(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Refused => 3,
            Self::Request => 4,
            Self::Reply => 5,
            Self::Notice => 6,
            Self::NoticeAnswer => 7,
            Self::Cancel => 8,
            Self::Ping => 9,
            Self::Pong => 10,
            Self::Goodbye => 11,
            Self::Token => 12,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// A frame without its body and bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub flags: u8,
    /// Number of the call, for requests and replies; else 0.
    pub op: u16,
    pub body_length: u32,
    pub bulk_length: u32,
    pub number: RequestNumber,
    /// How long the sender still waits, in milliseconds; 0 for as long as the connection lives.
    pub deadline_ms: u32,
}

/// Bytes that are not a frame. The connection they came on is of no further use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the peer does not speak Tieline (magic {0:#010x})")]
    Magic(u32),
    #[error("frame kind {0} is not known")]
    Kind(u8),
    #[error("flags {0:#04x} are not known")]
    Flags(u8),
    #[error("body of {length} bytes exceeds {limit}")]
    BodyTooLong { length: u32, limit: u32 },
    #[error("bulk of {length} bytes exceeds {limit}")]
    BulkTooLong { length: u32, limit: u32 },
    #[error("header or body checksum does not match")]
    Checksum,
}

impl FrameHeader {
    pub const LENGTH: usize = 32;
    /// "TLN1" read as a little-endian number.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"TLN1");
    /// A reply that carries a [`crate::Failure`].
    pub const FLAG_FAILED: u8 = 1;
    /// Room for a page of 16,000 directory entries, far above any other body.
    pub const BODY_MAX: u32 = 8 << 20;
    /// A chunk of the largest size, and the block before and after it.
    pub const BULK_MAX: u32 = (64 << 20) + 8192;

    const CHECKED: usize = 28;

    pub fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            flags: 0,
            op: 0,
            body_length: 0,
            bulk_length: 0,
            number: RequestNumber(0),
            deadline_ms: 0,
        }
    }

    pub fn is_failure(&self) -> bool {
        self.flags & Self::FLAG_FAILED != 0
    }

    /// The header's bytes for `body`, whose length must be `body_length`.
    pub fn encode(&self, body: &[u8]) -> [u8; Self::LENGTH] {
        debug_assert_eq!(self.body_length as usize, body.len(), "length of the body");
        let mut bytes = [0; Self::LENGTH];
        let fields: [&[u8]; 8] = [
            &Self::MAGIC.to_le_bytes(),
            &[self.kind.number(), self.flags],
            &self.op.to_le_bytes(),
            &self.body_length.to_le_bytes(),
            &self.bulk_length.to_le_bytes(),
            &self.number.0.to_le_bytes(),
            &self.deadline_ms.to_le_bytes(),
            &[],
        ];
        let packed = fields.concat();
        let (checked, sum) = bytes.split_at_mut(Self::CHECKED);
        checked.copy_from_slice(&packed);
        sum.copy_from_slice(&frame_check(&packed, body).to_le_bytes());
        bytes
    }

    /// Reads a header. The body's checksum is verified by [`FrameHeader::verify`] once the body is
    /// here.
    pub fn decode(bytes: &[u8; Self::LENGTH]) -> Result<Self, FrameError> {
        let mut rest = bytes.as_slice();
        let magic = u32::from_le_bytes(take(&mut rest));
        if magic != Self::MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let [kind, flags] = take(&mut rest);
        let header = Self {
            kind: FrameKind::from_number(kind).ok_or(FrameError::Kind(kind))?,
            flags,
            op: u16::from_le_bytes(take(&mut rest)),
            body_length: u32::from_le_bytes(take(&mut rest)),
            bulk_length: u32::from_le_bytes(take(&mut rest)),
            number: RequestNumber(u64::from_le_bytes(take(&mut rest))),
            deadline_ms: u32::from_le_bytes(take(&mut rest)),
        };
        if flags & !Self::FLAG_FAILED != 0 {
            return Err(FrameError::Flags(flags));
        }
        let (length, limit) = (header.body_length, Self::BODY_MAX);
        if length > limit {
            return Err(FrameError::BodyTooLong { length, limit });
        }
        let (length, limit) = (header.bulk_length, Self::BULK_MAX);
        if length > limit {
            return Err(FrameError::BulkTooLong { length, limit });
        }
        Ok(header)
    }

    /// Is `body` what the sender of the header's `bytes` sent?
    pub fn verify(bytes: &[u8; Self::LENGTH], body: &[u8]) -> Result<(), FrameError> {
        let (checked, mut sum) = bytes.split_at(Self::CHECKED);
        if frame_check(checked, body) == u32::from_le_bytes(take(&mut sum)) {
            Ok(())
        } else {
            Err(FrameError::Checksum)
        }
    }
}

fn frame_check(header: &[u8], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    // As `checksum::crc32c`, over two slices: the value is in the low half.
    debug_assert!(
        body.len() > 64 || {
            digest.finalize() as u32 == checksum::crc32c(&[header, body].concat())
        }
    );
    digest.finalize() as u32
}

/// The next `N` bytes; zeroes where there are none, which cannot happen within a header's fixed
/// length.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((head, tail)) => {
            *rest = tail;
            *head
        }
        None => [0; N],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(body: &[u8]) -> FrameHeader {
        FrameHeader {
            op: 14,
            body_length: body.len() as u32,
            bulk_length: 4096,
            number: RequestNumber(0x0102_0304_0506_0708),
            deadline_ms: 30_000,
            ..FrameHeader::new(FrameKind::Request)
        }
    }

    #[test]
    fn header_round_trips() {
        let header = sample(b"body");
        let bytes = header.encode(b"body");
        assert_eq!(FrameHeader::decode(&bytes), Ok(header));
        assert_eq!(FrameHeader::verify(&bytes, b"body"), Ok(()));
        assert_eq!(FrameHeader::verify(&bytes, b"bodY"), Err(FrameError::Checksum));
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_allocated() {
        let mut bytes = sample(b"").encode(b"");
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(FrameHeader::decode(&bytes), Err(FrameError::BodyTooLong { .. })));
        bytes[0..4].copy_from_slice(b"GET ");
        assert!(matches!(FrameHeader::decode(&bytes), Err(FrameError::Magic(_))));
    }
}
