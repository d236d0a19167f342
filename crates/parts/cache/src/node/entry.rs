//! One chunk's file in a node's cache: blocks as they came, each with its check.
//!
//! ```text
//! ├─ header (4 KiB) ─┼─ table: 8 bytes per block, up to a whole 4 KiB ─┼─ the chunk's bytes ─┤
//! ```
//!
//! A line of the table is the CRC32C of its block, and a mark: the CRC32C of chunk id, block number
//! and that check. Zeroes say that the block is not there. Bytes are written before their line.
//!
//! Invariant: a block is handed on only if line, mark and bytes agree. Two who write the same block
//! write the same bytes.

use crate::Known;
use crate::lock;
use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use tieline_types::checksum::{BLOCK, block_count, crc32c};
use tieline_types::{Algorithm, ChunkId, Digest, Encoding, Grant, GrantedId, MdtIndex};

const MAGIC: [u8; 6] = *b"TLNCCH";
/// Of a granted chunk. 1 was of those whose ranges data servers had not proven.
const VERSION: u16 = 3;
/// Of one that is named by its content.
const VERSION_CONTENT: u16 = 2;
pub const HEADER: u64 = BLOCK as u64;
/// Bytes of the header that mean something; the rest are zeroes.
pub const HEADER_USED: usize = 72;
pub const LINE: u64 = 8;

/// Bytes of a chunk, and where they begin in it.
pub(crate) type Run = (u64, Bytes);

pub(crate) struct Entry {
    file: File,
    known: Known,
    table: Mutex<Table>,
}

/// Checks of the blocks that are there.
struct Table {
    checks: Vec<Option<u32>>,
    present: u64,
}

impl Entry {
    pub fn create(path: &Path, known: &Known) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let blocks = block_count(known.length) as usize;
        let begun = file
            .write_all_at(&header(known), 0)
            .and_then(|()| file.set_len(data_start(known.length) + known.length));
        if let Err(error) = begun {
            // A full disk: no half of one stays.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        let table = Table { checks: vec![None; blocks], present: 0 };
        Ok(Self { file, known: *known, table: Mutex::new(table) })
    }

    /// Opens the file of a chunk; `InvalidData` if it is another's or damaged.
    pub fn open(path: &Path, known: &Known) -> io::Result<Self> {
        let mut entry = Self::open_as_found(path, known.chunk)?;
        if entry.known.length != known.length {
            return Err(damage("it is of another length"));
        }
        // Whoever made it may not have known.
        entry.known.digest = known.digest.or(entry.known.digest);
        Ok(entry)
    }

    pub fn open_as_found(path: &Path, chunk: ChunkId) -> io::Result<Self> {
        // No link is followed, and nobody waited for.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(damage("it is no regular file"));
        }
        let mut bytes = [0; HEADER_USED];
        read_exact(&file, &mut bytes, 0)?;
        let known = parse(&bytes).ok_or_else(|| damage("its header is damaged"))?;
        if known.chunk != chunk {
            return Err(damage("it is another chunk's"));
        }
        let length = file.metadata()?.len();
        let expected = data_start(known.length).checked_add(known.length);
        if Some(length) != expected {
            return Err(damage("its file has the wrong length"));
        }
        let blocks = block_count(known.length);
        let mut lines = vec![0; (blocks * LINE) as usize];
        read_exact(&file, &mut lines, HEADER)?;
        let mut table = Table { checks: Vec::with_capacity(blocks as usize), present: 0 };
        for (line, block) in lines.chunks_exact(LINE as usize).zip(0..) {
            let (check, mark) = split_line(line);
            let is_there = mark != 0 && mark == mark_of(chunk, block, check);
            table.present += u64::from(is_there);
            table.checks.push(is_there.then_some(check));
        }
        Ok(Self { file, known, table: Mutex::new(table) })
    }

    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Room that an empty one takes.
    pub fn space_at_least(&self) -> u64 {
        let present = lock(&self.table).present;
        data_start(self.known.length) + present * BLOCK as u64
    }

    /// Are all blocks there?
    pub fn is_whole(&self) -> bool {
        lock(&self.table).present == block_count(self.known.length)
    }

    /// Has it a name still?
    pub fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|stat| stat.nlink() > 0)
    }

    pub fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::futimens(&self.file, &times)?)
    }

    /// What is there of a range, verified; `InvalidData` if a block does not match its check.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<Run>> {
        let block = BLOCK as u64;
        let end = range.end.min(self.known.length);
        let blocks = range.start / block..end.div_ceil(block);
        let checks: Vec<Option<u32>> = {
            let table = lock(&self.table);
            let wanted = blocks.start as usize..blocks.end as usize;
            table.checks.get(wanted).unwrap_or_default().to_vec()
        };
        let mut found = Vec::new();
        let mut at = 0;
        while at < checks.len() {
            let there: Vec<u32> = checks.iter().skip(at).map_while(|check| *check).collect();
            if there.is_empty() {
                at += 1;
                continue;
            }
            let first = blocks.start + at as u64;
            let bytes = self.read_blocks(first, &there)?;
            let offset = first * block;
            let from = range.start.max(offset);
            let to = end.min(offset + bytes.len() as u64);
            found.push((from, bytes.slice((from - offset) as usize..(to - offset) as usize)));
            at += there.len();
        }
        Ok(found)
    }

    fn read_blocks(&self, first: u64, checks: &[u32]) -> io::Result<Bytes> {
        let offset = first * BLOCK as u64;
        let length = (checks.len() as u64 * BLOCK as u64).min(self.known.length - offset);
        let bytes = read_new(&self.file, length, data_start(self.known.length) + offset)?;
        let mut blocks = bytes.chunks(BLOCK).zip(checks);
        if blocks.any(|(bytes, check)| crc32c(bytes) != *check) {
            return Err(damage("a block does not match its check"));
        }
        Ok(bytes.into())
    }

    /// Keeps the whole blocks of `bytes`, which lie at `offset`, as far as they are not there.
    /// Says how many bytes of room that took.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        let block = BLOCK as u64;
        let length = self.known.length;
        let end = (offset + bytes.len() as u64).min(length);
        let first = offset.div_ceil(block);
        // The chunk's last block may be shorter.
        let last = if end == length { end.div_ceil(block) } else { end / block };
        let mut written = 0;
        let mut at = first;
        while at < last {
            let missing: Vec<u64> = {
                let table = lock(&self.table);
                let is_missing =
                    |block: &u64| table.checks.get(*block as usize).is_some_and(Option::is_none);
                (at..last).skip_while(|block| !is_missing(block)).take_while(is_missing).collect()
            };
            let (Some(&from), Some(&to)) = (missing.first(), missing.last()) else { break };
            let slice =
                (from * block - offset) as usize..(((to + 1) * block).min(end) - offset) as usize;
            let run = bytes.get(slice).ok_or_else(|| damage("a run is outside its bytes"))?;
            self.write_blocks(from, run)?;
            written += run.len() as u64;
            at = to + 1;
        }
        Ok(written)
    }

    fn write_blocks(&self, first: u64, run: &[u8]) -> io::Result<()> {
        let start = data_start(self.known.length) + first * BLOCK as u64;
        self.file.write_all_at(run, start)?;
        let checks: Vec<u32> = run.chunks(BLOCK).map(crc32c).collect();
        let mut lines = Vec::with_capacity(checks.len() * LINE as usize);
        for (&check, block) in checks.iter().zip(first..) {
            lines.extend(check.to_le_bytes());
            lines.extend(mark_of(self.known.chunk, block, check).to_le_bytes());
        }
        self.file.write_all_at(&lines, HEADER + first * LINE)?;
        let mut table = lock(&self.table);
        let mut news = 0;
        for (check, block) in checks.into_iter().zip(first..) {
            if let Some(known) = table.checks.get_mut(block as usize) {
                news += u64::from(known.is_none());
                *known = Some(check);
            }
        }
        table.present += news;
        Ok(())
    }
}

/// Where a chunk's bytes begin in its file.
pub(crate) fn data_start(length: u64) -> u64 {
    HEADER + (block_count(length) * LINE).next_multiple_of(BLOCK as u64)
}

pub(crate) fn mark_of(chunk: ChunkId, block: u64, check: u32) -> u32 {
    let mut bytes = id_bytes(chunk).to_vec();
    bytes.extend(block.to_le_bytes());
    bytes.extend(check.to_le_bytes());
    // Zero says that nothing is there.
    crc32c(&bytes).max(1)
}

/// What a chunk's blocks are marked with.
fn id_bytes(chunk: ChunkId) -> [u8; 18] {
    match chunk {
        ChunkId::Granted(id) => granted_bytes(id),
        ChunkId::Content(digest) => {
            let mut bytes = [0; 18];
            bytes.iter_mut().zip(digest.as_bytes()).for_each(|(byte, of)| *byte = *of);
            bytes
        }
    }
}

fn granted_bytes(chunk: GrantedId) -> [u8; 18] {
    let mut bytes = [0; 18];
    let (mdt, rest) = bytes.split_at_mut(2);
    let (grant, serial) = rest.split_at_mut(8);
    mdt.copy_from_slice(&chunk.mdt.0.to_le_bytes());
    grant.copy_from_slice(&chunk.grant.0.to_le_bytes());
    serial.copy_from_slice(&chunk.serial.to_le_bytes());
    bytes
}

fn split_line(line: &[u8]) -> (u32, u32) {
    let number = |bytes: Option<&[u8]>| {
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
        u32::from_le_bytes(bytes)
    };
    (number(line.get(..4)), number(line.get(4..8)))
}

/// Magic, version, length, chunk id, digest or zeroes, and the CRC32C of all that. If the chunk is
/// named by its content, in place of the id stands which digest that is: algorithm and encoding.
pub(crate) fn header(known: &Known) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER as usize);
    bytes.extend(MAGIC);
    let (version, id, digest) = match known.chunk {
        ChunkId::Granted(id) => {
            let digest = known.digest.as_ref().and_then(Digest::as_blake3).copied();
            (VERSION, granted_bytes(id), digest)
        }
        ChunkId::Content(digest) => {
            let (mut id, mut value) = ([0; 18], [0; 32]);
            let which = [digest.algorithm().number(), digest.covers().number()];
            id.iter_mut().zip(which).for_each(|(byte, of)| *byte = of);
            value.iter_mut().zip(digest.as_bytes()).for_each(|(byte, of)| *byte = *of);
            (VERSION_CONTENT, id, Some(value))
        }
    };
    bytes.extend(version.to_le_bytes());
    bytes.extend(known.length.to_le_bytes());
    bytes.extend(id);
    bytes.extend([u8::from(digest.is_some()), 0]);
    bytes.extend(digest.unwrap_or_default());
    let check = crc32c(&bytes);
    bytes.extend(check.to_le_bytes());
    debug_assert_eq!(bytes.len(), HEADER_USED);
    bytes.resize(HEADER as usize, 0);
    bytes
}

pub(crate) fn parse(bytes: &[u8; HEADER_USED]) -> Option<Known> {
    let (summed, check) = bytes.split_last_chunk::<4>()?;
    let (magic, rest) = summed.split_first_chunk::<6>()?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (mdt, rest) = rest.split_first_chunk::<2>()?;
    let (grant, rest) = rest.split_first_chunk::<8>()?;
    let (serial, rest) = rest.split_first_chunk::<8>()?;
    let ([has_digest, _], digest) = rest.split_first_chunk::<2>()?;
    if *magic != MAGIC || crc32c(summed) != u32::from_le_bytes(*check) {
        return None;
    }
    let length = u64::from_le_bytes(*length);
    let digest: Option<[u8; 32]> = (*has_digest == 1).then(|| digest.try_into().ok()).flatten();
    match u16::from_le_bytes(*version) {
        VERSION => {
            let id = GrantedId {
                mdt: MdtIndex(u16::from_le_bytes(*mdt)),
                grant: Grant(u64::from_le_bytes(*grant)),
                serial: u64::from_le_bytes(*serial),
            };
            Some(Known { chunk: id.into(), length, digest: digest.map(Digest::blake3) })
        }
        VERSION_CONTENT => {
            let [algorithm, covers] = *mdt;
            let algorithm = Algorithm::numbered(algorithm)?;
            let value = digest.as_ref()?.get(..algorithm.length())?;
            let digest = Digest::new(algorithm, Encoding::numbered(covers)?, value)?;
            Some(Known::new(ChunkId::Content(digest), length, None))
        }
        _ => None,
    }
}

fn read_exact(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damage("its file is too short"),
        _ => error,
    })
}

/// The same, of so many bytes, into room that is not zeroed first.
fn read_new(file: &File, length: u64, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let at = offset + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(damage("its file is too short")),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // The heap may have given more room than was asked for.
    bytes.truncate(length as usize);
    Ok(bytes)
}

fn damage(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
