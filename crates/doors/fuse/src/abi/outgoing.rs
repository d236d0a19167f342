//! Replies and notifications, written field by field.

use super::{MAJOR, OUT_HEADER_BYTES, bits};
use std::time::Duration;
use tieline_types::{Attributes, FileKind, Time};

/// `st_blksize`: what tools read and write at a time, and what buffered files of Python read beyond
/// what is asked of them. As much as `cp` and `cat` take of any file system.
pub const BLOCK_BYTES: u32 = 128 << 10;
/// Units of statfs: small, so that `df` loses nothing by rounding, and large enough that a program
/// with counters of 32 bits can be told how many there are. It gets no answer else.
const STATFS_UNIT_LEAST: u64 = 4096;
const STATFS_UNIT_MOST: u64 = 1 << 31;
/// Such a program can be told of so many inodes; of one more it would take the number for none.
const INODES_MOST: u64 = (1 << 32) - 2;
const NAME_BYTES_MAX: u32 = 255;
/// The kernel pads entries of a listing to this.
const ENTRY_ALIGNMENT: usize = 8;

/// A reply's body being written.
#[derive(Debug)]
pub struct Writer(pub Vec<u8>);

impl Default for Writer {
    fn default() -> Self {
        /// The longest of those that are asked for all the time: that of a file that is made.
        const USUAL: usize = 144;
        Self(Vec::with_capacity(USUAL))
    }
}

impl Writer {
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn zeroes(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The header of a reply (`code` is zero or a negative errno) or of a notification (`unique` is
/// zero).
pub fn header(body_bytes: usize, code: i32, unique: u64) -> [u8; OUT_HEADER_BYTES] {
    let total = u32::try_from(body_bytes + OUT_HEADER_BYTES).unwrap_or(u32::MAX);
    let mut out = [0; OUT_HEADER_BYTES];
    let fields = total.to_ne_bytes().into_iter().chain(code.to_ne_bytes());
    for (to, from) in out.iter_mut().zip(fields.chain(unique.to_ne_bytes())) {
        *to = from;
    }
    out
}

/// The answer to INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitOut {
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub max_pages: u16,
}

impl InitOut {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAJOR).u32(self.minor).u32(self.max_readahead);
        out.u32(self.flags as u32).u16(self.max_background).u16(self.congestion_threshold);
        // Times are whole nanoseconds; no mapping alignment.
        out.u32(self.max_write).u32(1).u16(self.max_pages).u16(0);
        out.u32((self.flags >> 32) as u32).zeroes(28);
        out.finish()
    }
}

fn attributes_write(out: &mut Writer, attributes: &Attributes, number: u64) {
    // Times before 1970 are two's complement in the kernel's unsigned fields.
    let seconds = |time: Time| time.seconds as u64;
    let (atime, mtime, ctime) = (attributes.atime, attributes.mtime, attributes.ctime);
    out.u64(number).u64(attributes.size).u64(attributes.stored.div_ceil(512));
    out.u64(seconds(atime)).u64(seconds(mtime)).u64(seconds(ctime));
    out.u32(atime.nanos).u32(mtime.nanos).u32(ctime.nanos);
    out.u32(mode(attributes)).u32(attributes.links);
    out.u32(attributes.uid.0).u32(attributes.gid.0).u32(attributes.device);
    out.u32(BLOCK_BYTES).u32(0);
}

fn mode(attributes: &Attributes) -> u32 {
    attributes.kind.mode_bits() | attributes.mode.bits()
}

/// How long a name and its attributes may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    pub entry: Duration,
    pub attributes: Duration,
}

/// A file's number to the kernel, and to programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeNumber {
    pub node: u64,
    pub shown: u64,
}

/// A name that leads to a file.
pub fn entry_write(out: &mut Writer, number: NodeNumber, attributes: &Attributes, valid: Validity) {
    // Ids are never used again, so one generation is enough.
    out.u64(number.node).u64(0);
    out.u64(valid.entry.as_secs()).u64(valid.attributes.as_secs());
    out.u32(valid.entry.subsec_nanos()).u32(valid.attributes.subsec_nanos());
    attributes_write(out, attributes, number.shown);
}

/// A name that leads nowhere, and may be believed to for a while.
pub fn entry_absent(valid: Duration) -> Vec<u8> {
    let mut out = Writer::default();
    out.zeroes(16).u64(valid.as_secs()).u64(0).u32(valid.subsec_nanos()).u32(0).zeroes(88);
    out.finish()
}

/// `shown` is the file's number to programs.
pub fn attr(attributes: &Attributes, shown: u64, valid: Duration) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
    attributes_write(&mut out, attributes, shown);
    out.finish()
}

/// The answer to GETLK. The last byte is included.
pub fn lock(start: u64, last: u64, kind: u32, process: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(start).u64(last).u32(kind).u32(process);
    out.finish()
}

pub fn open_write(out: &mut Writer, handle: u64, flags: u32) {
    out.u64(handle).u32(flags).u32(0);
}

pub fn open(handle: u64, flags: u32) -> Vec<u8> {
    let mut out = Writer::default();
    open_write(&mut out, handle, flags);
    out.finish()
}

/// WRITE and COPY_FILE_RANGE say how much; the size of an extended attribute looks the same.
pub fn count(bytes: u32) -> Vec<u8> {
    Writer::default().u32(bytes).u32(0).finish()
}

/// LSEEK and the newer COPY_FILE_RANGE.
pub fn position(offset: u64) -> Vec<u8> {
    Writer::default().u64(offset).finish()
}

/// Bytes and inodes of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub bytes_total: u64,
    pub bytes_free: u64,
    pub inodes_total: u64,
    pub inodes_free: u64,
}

pub fn statfs(space: Space) -> Vec<u8> {
    let most = space.bytes_total.max(space.bytes_free);
    let mut unit = STATFS_UNIT_LEAST;
    while most / unit > u32::MAX.into() && unit < STATFS_UNIT_MOST {
        unit *= 2;
    }
    let free = space.bytes_free / unit;
    let (inodes_total, inodes_free) = inodes(space);
    let mut out = Writer::default();
    out.u64(space.bytes_total / unit).u64(free).u64(free);
    out.u64(inodes_total).u64(inodes_free);
    out.u32(unit as u32).u32(NAME_BYTES_MAX).u32(unit as u32).zeroes(28);
    out.finish()
}

/// All inodes and the free ones, in numbers of 32 bits. How many are in use is right up to half of
/// the most: there is less to be free first.
fn inodes(space: Space) -> (u64, u64) {
    let used = space.inodes_total.saturating_sub(space.inodes_free);
    if space.inodes_total <= INODES_MOST {
        return (space.inodes_total, space.inodes_free);
    }
    let used = used.min(INODES_MOST / 2);
    let free = space.inodes_free.min(INODES_MOST - used);
    (used + free, free)
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct Dirent<'a> {
    pub ino: u64,
    /// Where to go on after it.
    pub next: u64,
    pub kind: FileKind,
    pub name: &'a [u8],
}

/// Bytes of an entry of a plain listing.
pub fn dirent_bytes(name: &[u8]) -> usize {
    (24 + name.len()).next_multiple_of(ENTRY_ALIGNMENT)
}

/// Bytes of an entry of a listing with attributes.
pub fn direntplus_bytes(name: &[u8]) -> usize {
    ENTRY_OUT_BYTES + dirent_bytes(name)
}

const ENTRY_OUT_BYTES: usize = 128;

pub fn dirent_write(out: &mut Writer, entry: Dirent<'_>) {
    let length = u32::try_from(entry.name.len()).unwrap_or(0);
    out.u64(entry.ino).u64(entry.next).u32(length).u32(entry.kind.mode_bits() >> 12);
    out.bytes(entry.name).zeroes(dirent_bytes(entry.name) - 24 - entry.name.len());
}

/// Node zero before an entry of a listing: its attributes are not known here.
pub fn entry_unknown_write(out: &mut Writer) {
    out.zeroes(ENTRY_OUT_BYTES);
}

/// Body of a notification: attributes, and bytes from an offset on, if any. A length of 0 is all
/// that follows.
pub fn inval_inode(node: u64, bytes: Option<(u64, u64)>) -> Vec<u8> {
    // A negative offset leaves the pages alone.
    let (offset, length) = bytes.unwrap_or((-1_i64 as u64, 0));
    Writer::default().u64(node).u64(offset).u64(length).finish()
}

/// Body of a notification: bytes of a file at an offset, and before them how long it is at least.
pub fn store(node: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(0);
    Writer::default().u64(node).u64(offset).u32(length).u32(0).bytes(bytes).finish()
}

/// Body of a notification: a name.
pub fn inval_entry(parent: u64, name: &[u8], is_expire_only: bool) -> Vec<u8> {
    let length = u32::try_from(name.len()).unwrap_or(0);
    let flags = if is_expire_only { bits::EXPIRE_ONLY } else { 0 };
    Writer::default().u64(parent).u32(length).u32(flags).bytes(name).zeroes(1).finish()
}
