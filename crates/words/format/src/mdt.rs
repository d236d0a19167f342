//! What the store of an MDT holds.

pub mod key;
pub mod v1;

pub use v1::*;
