//! Bytes with the CRC32C of each 4 KiB page of the file, as some protocols carry them.
//!
//! Pages are counted from the file's start; the first and the last may be shorter. The checks are
//! made of the bytes that are handed on, which were checked themselves on their way here: so
//! nothing between that and the reader goes unseen.

use bytes::Bytes;
use tieline_types::checksum::page_checks;

/// What was read of a file from an offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    pub offset: u64,
    pub pieces: Vec<Bytes>,
    /// One for each page that the bytes lie in.
    pub checks: Vec<u32>,
}

impl Pages {
    pub fn of(offset: u64, pieces: Vec<Bytes>) -> Self {
        let checks = page_checks(offset, pieces.iter().map(Bytes::as_ref));
        Self { offset, pieces, checks }
    }
}
