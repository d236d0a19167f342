//! Identifiers. Each has its own type, so that a chunk is never mistaken for a file.
//!
//! Invariants: a [`FileId`] and a [`GrantedId`] are never used again once given out.

use crate::Digest;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default,
            Encode, Decode, Serialize, Deserialize,
        )]
        #[cbor(transparent)]
        #[serde(transparent)]
        pub struct $name(#[n(0)] pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id! {
    /// Which metadata target, as `MDT0001` in messages. At most 65,535 in a federation.
    MdtIndex(u16)
}
number_id! {
    /// Which object storage target, as `OST0003` in messages.
    OstIndex(u16)
}
number_id! {
    /// A client's session with one MDS, given by the MDS and never used again.
    SessionId(u64)
}
number_id! {
    /// The right of one session to name chunks: the middle part of a chunk id (48 bits are used).
    Grant(u64)
}
number_id! {
    /// A request within its session, counted from 1 by the client. The same number is the same
    /// request.
    RequestNumber(u64)
}
number_id! {
    /// A commit number of one MDT. A file's version is the number of the commit that last changed
    /// it.
    Version(u64)
}

impl MdtIndex {
    /// As Lustre writes it: `MDT0000`.
    pub fn label(self) -> String {
        format!("MDT{:04x}", self.0)
    }
}

impl OstIndex {
    /// As Lustre writes it: `OST0000`.
    pub fn label(self) -> String {
        format!("OST{:04x}", self.0)
    }
}

/// A file of any kind, for ever and on every client: also its inode number.
///
/// The MDT is in the high 16 bits, a serial that is never used again in the low 48.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Encode,
    Decode,
    Serialize,
    Deserialize,
)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct FileId(#[n(0)] pub u64);

impl FileId {
    const SERIAL_BITS: u32 = 48;
    const SERIAL_MASK: u64 = (1 << Self::SERIAL_BITS) - 1;
    /// Serial of an MDT's own root directory. So MDT 0's root is inode 1, as FUSE wants its root.
    pub const ROOT_SERIAL: u64 = 1;

    /// Serials above 48 bits would spill into the MDT: the caller's counter must not reach them.
    pub fn new(mdt: MdtIndex, serial: u64) -> Self {
        assert!(serial <= Self::SERIAL_MASK, "file serial {serial:#x} exceeds 48 bits");
        Self((u64::from(mdt.0) << Self::SERIAL_BITS) | serial)
    }

    pub fn root_of(mdt: MdtIndex) -> Self {
        Self::new(mdt, Self::ROOT_SERIAL)
    }

    pub fn mdt(self) -> MdtIndex {
        MdtIndex((self.0 >> Self::SERIAL_BITS) as u16)
    }

    pub fn serial(self) -> u64 {
        self.0 & Self::SERIAL_MASK
    }

    pub fn is_root(self) -> bool {
        self.serial() == Self::ROOT_SERIAL
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileId({:#x})", self.0)
    }
}

/// A chunk that a session named by its grant. Only the MDT in its id may delete it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct GrantedId {
    #[n(0)]
    pub mdt: MdtIndex,
    #[n(1)]
    pub grant: Grant,
    #[n(2)]
    pub serial: u64,
}

/// Text that is not the id of a granted chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not such a chunk's id (expected MDT-GRANT-SERIAL in hexadecimal)")]
pub struct GrantedIdError(String);

impl fmt::Display for GrantedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}-{:012x}-{:08x}", self.mdt.0, self.grant.0, self.serial)
    }
}

impl fmt::Debug for GrantedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantedId({self})")
    }
}

impl FromStr for GrantedId {
    type Err = GrantedIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || GrantedIdError(text.to_owned());
        let mut parts = text.split('-');
        let (Some(mdt), Some(grant), Some(serial), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let id = Self {
            mdt: MdtIndex(u16::from_str_radix(mdt, 16).map_err(|_| wrong())?),
            grant: Grant(u64::from_str_radix(grant, 16).map_err(|_| wrong())?),
            serial: u64::from_str_radix(serial, 16).map_err(|_| wrong())?,
        };
        // Only the spelling that `Display` writes names the chunk: one object, one name.
        if id.to_string() == text { Ok(id) } else { Err(wrong()) }
    }
}

/// A chunk: written once, never changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkId {
    /// As an MDT let its writer name it.
    Granted(GrantedId),
    /// By what is in it, as repositories do.
    Content(Digest),
}

impl ChunkId {
    pub fn granted(self) -> Option<GrantedId> {
        match self {
            Self::Granted(id) => Some(id),
            Self::Content(_) => None,
        }
    }

    /// The same for the same chunk: for who spreads chunks over folders or turns.
    pub fn spread(self) -> u64 {
        match self {
            Self::Granted(id) => id.serial,
            Self::Content(digest) => {
                digest.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
        }
    }
}

impl From<GrantedId> for ChunkId {
    fn from(id: GrantedId) -> Self {
        Self::Granted(id)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(id) => id.fmt(f),
            Self::Content(digest) => digest.fmt(f),
        }
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({self})")
    }
}

/// Text that is not a chunk id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a chunk id (expected MDT-GRANT-SERIAL in hexadecimal, or a digest)")]
pub struct ChunkIdError(String);

impl FromStr for ChunkId {
    type Err = ChunkIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let granted = text.parse().map(Self::Granted);
        let by_content = |_| text.parse().map(Self::Content);
        granted.or_else(by_content).map_err(|_| ChunkIdError(text.to_owned()))
    }
}

/// A granted one is the three numbers of its [`GrantedId`]; by content it is a list of one digest.
impl<C> Encode<C> for ChunkId {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        match self {
            Self::Granted(id) => id.encode(e, ctx),
            Self::Content(digest) => e.array(1)?.encode_with(digest, ctx)?.ok(),
        }
    }
}

impl<'b, C> Decode<'b, C> for ChunkId {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        if d.probe().array()? != Some(1) {
            return d.decode_with(ctx).map(Self::Granted);
        }
        d.array()?;
        d.decode_with(ctx).map(Self::Content)
    }
}

/// A client for as long as it runs: 128 random bits it chose itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct ClientId(
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub [u8; 16],
);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

/// A server, as one client counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServerNumber(pub u64);

/// An open file or directory, as one client counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_id_splits_into_mdt_and_serial() {
        let id = FileId::new(MdtIndex(3), 77);
        assert_eq!((id.mdt(), id.serial()), (MdtIndex(3), 77));
        assert_eq!(FileId::root_of(MdtIndex(0)).0, 1);
        assert!(FileId::root_of(MdtIndex(9)).is_root());
    }

    #[test]
    fn chunk_id_has_one_spelling() {
        let id = GrantedId { mdt: MdtIndex(1), grant: Grant(0xabc), serial: 5 };
        assert_eq!(id.to_string().parse::<GrantedId>(), Ok(id));
        for wrong in
            ["", "1-abc-5", "0001-000000000ABC-00000005", "a-b", "0001-000000000abc-00000005-0"]
        {
            assert!(wrong.parse::<GrantedId>().is_err(), "{wrong}");
        }
    }
}
