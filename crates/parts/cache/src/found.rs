//! What lies in a cache's directory, as it is found there: for who tries what reads it. Others than
//! we may write there.

use crate::node::entry::{Entry, HEADER, HEADER_USED, LINE, data_start, header, mark_of, parse};
use crate::pins::Pin;
use crate::{Kind, Known};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tieline_types::checksum::{block_count, crc32c};

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

/// The file of a chunk of which little is said: the used bytes of its header, lines of its table,
/// then bytes of the chunk; the header's checksum is made right. `None`: no header, or a chunk of
/// more than `length_max`.
pub fn entry_of(said: &[u8], length_max: u64) -> Option<Vec<u8>> {
    let (header, rest) = said.split_first_chunk::<HEADER_USED>()?;
    let mut header = *header;
    let (summed, check) = header.split_last_chunk_mut::<4>()?;
    *check = crc32c(summed).to_le_bytes();
    let length = parse(&header)?.length;
    if length > length_max {
        return None;
    }
    let start = data_start(length) as usize;
    let mut file = vec![0; start + length as usize];
    file.get_mut(..HEADER_USED)?.copy_from_slice(&header);
    let (lines, bytes) =
        rest.split_at(rest.len().min(block_count(length) as usize * LINE as usize));
    file.get_mut(HEADER as usize..)?.get_mut(..lines.len())?.copy_from_slice(lines);
    let bytes = bytes.get(..bytes.len().min(length as usize))?;
    file.get_mut(start..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(file)
}

/// What [`entry_of`] makes the file of a chunk of, whose first block is there.
pub fn sample(known: &Known, bytes: &[u8]) -> Vec<u8> {
    let check = crc32c(bytes);
    let mut said = header(known);
    said.truncate(HEADER_USED);
    said.extend(check.to_le_bytes());
    said.extend(mark_of(known.chunk, 0, check).to_le_bytes());
    said.resize(HEADER_USED + block_count(known.length) as usize * LINE as usize, 0);
    said.extend(bytes);
    said
}
