//! What lies in a cache's directory, as it is found there: for who tries what reads it. Others than
//! we may write there.

use crate::Kind;
use crate::node::entry::{Entry, HEADER_USED, parse};
use crate::pins::Pin;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tieline_types::checksum::crc32c;

/// The text of a marker.
pub fn marker(text: &str) -> Result<Kind, String> {
    crate::marker::read(text)
}

/// The bytes of a pin, and the names of its chunks.
pub fn pin(bytes: &[u8]) -> Option<(Pin, Vec<&str>)> {
    crate::pins::read(std::str::from_utf8(bytes).ok()?)
}

/// Opens the file of a chunk as whatever its header says, and reads all that it has. How many bytes
/// that is.
pub fn entry(path: &Path) -> io::Result<u64> {
    let mut header = [0; HEADER_USED];
    File::open(path)?.read_exact_at(&mut header, 0)?;
    let known = parse(&header).ok_or(io::ErrorKind::InvalidData)?;
    let entry = Entry::open_as_found(path, known.chunk)?;
    let runs = entry.read(0..known.length)?;
    Ok(runs.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

/// Makes the checksum of a header right.
pub fn repair(header: &mut [u8; HEADER_USED]) {
    if let Some((summed, check)) = header.split_last_chunk_mut::<4>() {
        *check = crc32c(summed).to_le_bytes();
    }
}
