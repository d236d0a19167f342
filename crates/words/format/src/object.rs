//! What an object on a directory backend looks like: the chunk's bytes, then a trailer about them.
//!
//! ```text
//! ├─ data (length bytes) ─┼─ CBOR of ObjectTrailer ─┼─ footer (24 bytes) ─┤
//!
//! footer: ├─ data length u64 ─┼─ trailer length u32 ─┼─ CRC32C u32 ─┼─ "TLNOBJ" version u16 ─┤
//! ```
//!
//! Numbers are little-endian; the CRC32C covers the trailer's CBOR and the footer's first 12 bytes.
//! Data comes first, so that a range of it can be sent from the file as it is, and so that other
//! programs can read it.

pub mod v1;

pub use v1::*;
