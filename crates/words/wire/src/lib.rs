//! The Tieline protocol in bytes: frames, the handshake, and the messages of every call.
//!
//! docs/protocol.md is the normative text. A connection carries *frames* ([`frame`]): a fixed
//! header of 32 bytes, a CBOR body (RFC 8949, arrays with explicit indices), and bulk bytes beside
//! it that are never copied into the body. Every call of the protocol stands once in the table of
//! [`call`]; its messages are in [`meta`], [`locks`], [`ranges`], [`mirrors`], [`ledger`],
//! [`identity`], [`trees`], [`data`], [`capability`], [`chores`], [`exposed`] and [`federation`].
//!
//! Knows no socket, no clock, no runtime. Decoding outside bytes never panics, never allocates more
//! than the bytes it was given allow, and refuses what it does not know.
//!
//! Invariants: numbers of frames, calls, fields and variants are explicit and never reused; a field
//! added later is optional, and readers skip trailing fields that they do not know.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

pub mod bounds;
pub mod call;
pub mod capability;
pub mod chores;
pub mod clock;
pub mod data;
pub mod exposed;
pub mod federation;
pub mod frame;
pub mod handshake;
pub mod identity;
pub mod ledger;
pub mod locks;
pub mod meta;
pub mod mirrors;
pub mod notice;
pub mod quotas;
pub mod ranges;
pub mod rests;
mod said;
pub mod tape;
pub mod touch;
pub mod trees;

pub use call::{Answerer, Call, Envelope, Op, Request, TreeReply};
pub use clock::ServerTime;
pub use frame::{FrameError, FrameHeader, FrameKind};
pub use handshake::{CredentialKind, Flavor, Hello, Offer, PeerRole, Refusal, Welcome};
pub use notice::{Notice, NoticeAnswer};

use minicbor::{Decode, Encode};
use tieline_types::{ErrorKind, Shown};

/// The answer to a request that failed.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, thiserror::Error)]
#[error("{kind}: {}", Shown(detail.as_bytes()))]
pub struct Failure {
    #[n(0)]
    pub kind: ErrorKind,
    /// One lower-case clause for people: what, where, and what to do. Programs look at `kind` only.
    #[n(1)]
    pub detail: String,
}

impl Failure {
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// A body that is not what its frame says.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("malformed body")]
    Malformed(#[from] minicbor::decode::Error),
    #[error("call number {0} is not known to this version")]
    UnknownCall(u16),
    #[error("packed bytes cannot be unpacked")]
    Packed,
    #[error("{0} bytes follow the body")]
    Trailing(usize),
}

/// Most messages are not longer.
const USUAL: usize = 256;

/// Encodes a message. Writing into memory cannot fail.
pub fn encode<T: Encode<()>>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL);
    encode_onto(&mut bytes, message);
    bytes
}

/// The same, behind what is there.
pub(crate) fn encode_onto<T: Encode<()>>(bytes: &mut Vec<u8>, message: &T) {
    let result = minicbor::encode(message, bytes);
    debug_assert!(result.is_ok(), "encoding into memory failed");
}

/// Decodes a message that fills `bytes` exactly.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, BodyError> {
    let mut decoder = minicbor::Decoder::new(bytes);
    let message = decoder.decode()?;
    match bytes.len().saturating_sub(decoder.position()) {
        0 => Ok(message),
        extra => Err(BodyError::Trailing(extra)),
    }
}
