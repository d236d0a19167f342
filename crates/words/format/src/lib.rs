//! Records on disk: what an MDT's store holds, its dumps and change logs, what an object remembers,
//! and the federation map.
//!
//! docs/formats.md is the normative text. Each kind of record has one key shape ([`mdt::key`]);
//! each format version is a complete module (`v1`), and the current one is re-exported. Values are
//! two bytes of header, then CBOR with explicit indices ([`record`]).
//!
//! Knows no store and no I/O. Decoding never panics: a store or an object may be damaged.
//!
//! Invariants: keys sort as their meaning does; numbers are never reused; a reader that meets a
//! version or feature it does not know refuses the record and leaves it untouched.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

pub mod ledger;
pub mod map;
pub mod mdt;
pub mod object;
pub mod record;

pub use record::{Record, RecordError};
