//! Dumps and change logs of an MDT's store: a stream of frames, each with its length and checksum.

pub mod v1;

pub use v1::*;
