//! The envelope of every value: version, features, CBOR.
//!
//! ```text
//! ├─ version (1 byte) ─┼─ features (1 byte) ─┼─ CBOR … ─┤
//! ```
//!
//! A set feature bit says that the record must not be understood without it. Version 1 defines
//! none.

use minicbor::{Decode, Encode};

/// Most records are not longer.
const USUAL: usize = 128;

/// A value that is kept on disk.
pub trait Record: Encode<()> + for<'b> Decode<'b, ()> {
    const VERSION: u8;
    /// Feature bits this build understands.
    const FEATURES: u8 = 0;
    /// For messages: `inode`.
    const NAME: &'static str;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(USUAL);
        bytes.extend([Self::VERSION, 0]);
        let result = minicbor::encode(self, &mut bytes);
        debug_assert!(result.is_ok(), "encoding into memory failed");
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let kind = Self::NAME;
        let Some((&[version, features], cbor)) = bytes.split_first_chunk::<2>() else {
            return Err(RecordError::Short { kind });
        };
        if version != Self::VERSION {
            return Err(RecordError::Version { kind, version, known: Self::VERSION });
        }
        if features & !Self::FEATURES != 0 {
            return Err(RecordError::Features { kind, features });
        }
        let mut decoder = minicbor::Decoder::new(cbor);
        let record = decoder.decode().map_err(|source| RecordError::Malformed { kind, source })?;
        match cbor.len().saturating_sub(decoder.position()) {
            0 => Ok(record),
            extra => Err(RecordError::Trailing { kind, extra }),
        }
    }
}

/// Bytes that are not the record they should be.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{kind} record is shorter than its header")]
    Short { kind: &'static str },
    #[error("{kind} record has version {version}, this build knows {known}: use a newer build")]
    Version { kind: &'static str, version: u8, known: u8 },
    #[error(
        "{kind} record needs features {features:#04x} that this build lacks: use a newer build"
    )]
    Features { kind: &'static str, features: u8 },
    #[error("{kind} record is damaged")]
    Malformed { kind: &'static str, source: minicbor::decode::Error },
    #[error("{kind} record is damaged: {extra} bytes follow it")]
    Trailing { kind: &'static str, extra: usize },
}
