//! The federation map: who serves what, signed and versioned, a copy on every server and client.

pub mod v1;

pub use v1::*;
