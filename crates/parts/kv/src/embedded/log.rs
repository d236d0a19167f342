//! The write-ahead log of a store: groups of commits one after the other, each durable by one
//! write and one sync. The engine's own file follows later.
//!
//! ```text
//!   ├─ header ─┼─ segment 0: frame, frame, … ─────┼─ segment 1: frame, frame, … ─────┤
//! ```
//!
//! Frames fill one segment while the engine takes up what lies in the other; then it is the
//! other's turn ([`Log::turn`]). Segments are written over in place, so that a sync has neither a
//! length nor blocks to note: only the first round makes the file longer, some zeros at a time.
//!
//! A frame is a group: its writes, its version, and the version it follows. Versions are never used
//! again, so they alone say which frames count: those above what the engine holds, whole, and each
//! where the one before it ends. What lies there from earlier rounds is below; what a power failure
//! left of an unfinished frame is not whole; and a frame that is missing between others is damage,
//! which is said and never passed over.
//!
//! Every frame bears the log's id, which is drawn when a log is made and noted in the store: a log
//! of another store has no frames, nor do bytes that somebody made look like one.
//!
//! Knows nothing of the engine, and nothing of who waits for whom.
//!
//! Invariants: a segment is written over only after what was in it is durable elsewhere (the caller
//! sees to it); a frame is synced before the next is written; nothing in a log makes it panic.

use crate::overlay::{Batch, Writes};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tieline_types::Version;
use tieline_types::checksum::crc32c;

/// What the header begins with; the last two bytes are the layout's number.
const MAGIC: [u8; 8] = *b"TLNWAL\x01\x00";
/// So that segments begin on a page.
const HEADER_BYTES: u64 = 4096;
/// Frames begin at multiples of this, for disks write at least so much.
const SECTOR: usize = 512;
/// Id, version before, version, length of the writes, CRC32C.
const FRAME_HEADER: usize = 8 + 8 + 8 + 4 + 4;
/// Where the CRC32C of a frame's header and writes lies.
const FRAME_CHECK: usize = 28;
/// Lengths of a key and a value.
const WRITE_HEADER: usize = 2 + 4;
/// The length of a value that is none: the write deletes.
const DELETED: u32 = u32::MAX;
/// How much is written beyond a frame when the file grows: some hundred frames, in a millisecond.
const GROWTH: u64 = 256 << 10;

/// By what a store knows its log; 0 is none.
pub(super) type LogId = u64;

/// Where the log of a store lies.
pub(super) trait Place: Send + Sync {
    /// The log that is there.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// Makes one that begins with `header`, durably, in the place of what may be there.
    fn make(&self, header: &[u8]) -> io::Result<Box<dyn StorageBackend>>;

    fn remove(&self) -> io::Result<()>;
}

/// Why a log is not taken for a store's.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error(
        "its write-ahead log (the file of the same name with `-wal`) is missing, and has what was \
         written last: put it back, or bring the store back with `tieline mdt restore`"
    )]
    Missing,
    #[error(
        "the write-ahead log beside it (`-wal`) is not this store's: put its own there, or bring \
         the store back with `tieline mdt restore`"
    )]
    Another,
    #[error(
        "its write-ahead log (`-wal`) does not go on at {store}, where the store ends: one of the \
         two files is damaged or an older copy; bring the store back with `tieline mdt restore`"
    )]
    Gap { store: Version },
}

/// A log, for the one who writes to it.
pub(super) struct Log {
    storage: Box<dyn StorageBackend>,
    id: LogId,
    segment_bytes: u64,
    /// 0 or 1: which is being filled.
    segment: usize,
    /// How much of it frames take.
    used: u64,
    /// How far each segment was written since the log was opened.
    written: [u64; 2],
    /// Of the newest group.
    version: Version,
}

impl Log {
    /// Makes an empty log; `id` is not 0.
    pub fn make(place: &dyn Place, id: LogId) -> io::Result<Self> {
        let mut header = [&MAGIC[..], &id.to_le_bytes()].concat();
        header.extend(crc32c(&header).to_le_bytes());
        Ok(Self::new(place.make(&header)?, id))
    }

    /// The log of the store that notes `id`; `None` if there is another's or none.
    pub fn open(place: &dyn Place, id: LogId) -> io::Result<Result<Self, Mismatch>> {
        let storage = match place.open() {
            Ok(storage) => storage,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(Mismatch::Missing));
            }
            Err(error) => return Err(error),
        };
        match read_id(&*storage)? {
            Some(found) if found == id => Ok(Ok(Self::new(storage, id))),
            _ => Ok(Err(Mismatch::Another)),
        }
    }

    fn new(storage: Box<dyn StorageBackend>, id: LogId) -> Self {
        let (segment_bytes, version) = (0, Version(0));
        Self { storage, id, segment_bytes, segment: 0, used: 0, written: [0, 0], version }
    }

    pub fn id(&self) -> LogId {
        self.id
    }

    /// The groups above `version`, where the engine ends, as one; its version is theirs.
    pub fn replay(&self, version: Version) -> io::Result<Result<Batch, Mismatch>> {
        let mut bytes = vec![0; usize::try_from(self.storage.len()?).unwrap_or(usize::MAX)];
        self.storage.read(0, &mut bytes)?;
        let mut frames = BTreeMap::new();
        for start in (HEADER_BYTES as usize..bytes.len()).step_by(SECTOR) {
            let found = Frame::read(&bytes[start..], self.id);
            if let Some(frame) = found.filter(|frame| frame.version > version) {
                frames.insert(frame.version, frame);
            }
        }
        let mut batch = Batch { version, ..Batch::default() };
        for (at, frame) in frames {
            if frame.follows != batch.version || frame.enter(&mut batch.writes).is_none() {
                return Ok(Err(Mismatch::Gap { store: batch.version }));
            }
            batch.version = at;
        }
        Ok(Ok(batch))
    }

    /// Begins to be filled, after `version`: nothing that it holds counts any more.
    pub fn start(&mut self, version: Version, segment_bytes: u64) {
        (self.version, self.segment_bytes) = (version, segment_bytes);
    }

    /// A group went past the log.
    pub fn go_on_after(&mut self, version: Version) {
        self.version = version;
    }

    /// Of the newest group that is in the log, or went past it.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How much of the segment that is being filled frames take.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// A group as the log holds it.
    pub fn frame(&self, batch: &Batch) -> Vec<u8> {
        let writes = batch.writes.iter().map(|(key, value)| {
            WRITE_HEADER + key.len() + value.as_ref().map_or(0, |value| value.len())
        });
        let length = FRAME_HEADER + writes.sum::<usize>();
        let mut frame = Vec::with_capacity(length.next_multiple_of(SECTOR));
        frame.resize(FRAME_HEADER, 0);
        for (key, value) in &batch.writes {
            let length = value.as_ref().map_or(DELETED, |value| value.len() as u32);
            frame.extend_from_slice(&(key.len() as u16).to_le_bytes());
            frame.extend_from_slice(&length.to_le_bytes());
            frame.extend_from_slice(key);
            frame.extend_from_slice(value.as_deref().map_or(&[], Vec::as_slice));
        }
        let length = (frame.len() - FRAME_HEADER) as u32;
        frame[..8].copy_from_slice(&self.id.to_le_bytes());
        frame[8..16].copy_from_slice(&self.version.0.to_le_bytes());
        frame[16..24].copy_from_slice(&batch.version.0.to_le_bytes());
        frame[24..FRAME_CHECK].copy_from_slice(&length.to_le_bytes());
        let check = frame_check(&frame);
        frame[FRAME_CHECK..FRAME_HEADER].copy_from_slice(&check.to_le_bytes());
        frame.resize(frame.len().next_multiple_of(SECTOR), 0);
        frame
    }

    /// Does it fit into any segment?
    pub fn can_hold(&self, frame: &[u8]) -> bool {
        frame.len() as u64 <= self.segment_bytes
    }

    /// Does it fit into what is left of this one?
    pub fn has_room(&self, frame: &[u8]) -> bool {
        self.used + frame.len() as u64 <= self.segment_bytes
    }

    /// Writes a frame, durably. After an error the log is not written again.
    pub fn append(&mut self, mut frame: Vec<u8>, version: Version) -> io::Result<()> {
        assert!(self.has_room(&frame), "a frame beyond its segment");
        assert!(version > self.version, "groups out of order");
        let end = self.used + frame.len() as u64;
        let written = &mut self.written[self.segment];
        if end > *written {
            *written = end.next_multiple_of(GROWTH).min(self.segment_bytes);
            frame.resize((*written - self.used) as usize, 0);
        }
        let start = HEADER_BYTES + self.segment as u64 * self.segment_bytes + self.used;
        self.storage.write(start, &frame)?;
        self.storage.sync_data()?;
        (self.used, self.version) = (end, version);
        Ok(())
    }

    /// Goes over to the other segment, of which nothing counts any more.
    pub fn turn(&mut self) {
        (self.segment, self.used) = (1 - self.segment, 0);
    }

    /// Removes the log, if it still lies where it was.
    pub fn remove(&self, place: &dyn Place) -> io::Result<()> {
        match read_id(&*place.open()?)? {
            Some(id) if id == self.id => place.remove(),
            _ => Ok(()),
        }
    }
}

fn read_id(storage: &dyn StorageBackend) -> io::Result<Option<LogId>> {
    let mut header = [0; 20];
    if storage.len()? < header.len() as u64 {
        return Ok(None);
    }
    storage.read(0, &mut header)?;
    let check = crc32c(&header[..16]).to_le_bytes();
    let is_one = header[..8] == MAGIC && header[16..] == check;
    Ok(number(&header, 8).filter(|_| is_one))
}

/// A group that was read.
struct Frame<'a> {
    follows: Version,
    version: Version,
    writes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The whole frame of log `id` that `bytes` begin with, if they do.
    fn read(bytes: &'a [u8], id: LogId) -> Option<Self> {
        if number(bytes, 0)? != id {
            return None;
        }
        let length = u32::from_le_bytes(*bytes.get(24..)?.first_chunk()?);
        let check = u32::from_le_bytes(*bytes.get(FRAME_CHECK..)?.first_chunk()?);
        let whole = bytes.get(..FRAME_HEADER.checked_add(usize::try_from(length).ok()?)?)?;
        let frame = Self {
            follows: Version(number(bytes, 8)?),
            version: Version(number(bytes, 16)?),
            writes: &whole[FRAME_HEADER..],
        };
        (frame_check(whole) == check).then_some(frame)
    }

    /// Adds what it writes; `None` if that cannot be understood.
    fn enter(&self, writes: &mut Writes) -> Option<()> {
        let mut rest = self.writes;
        while !rest.is_empty() {
            let (key_length, after) = rest.split_first_chunk()?;
            let (value_length, after) = after.split_first_chunk()?;
            let value_length = u32::from_le_bytes(*value_length);
            let (key, after) = after.split_at_checked(u16::from_le_bytes(*key_length).into())?;
            let value = match value_length {
                DELETED => None,
                length => Some(after.get(..usize::try_from(length).ok()?)?),
            };
            rest = &after[value.map_or(0, <[u8]>::len)..];
            writes.insert(Arc::new(key.to_vec()), value.map(|value| Arc::new(value.to_vec())));
        }
        Some(())
    }
}

/// Of all of a frame but where it lies itself.
fn frame_check(frame: &[u8]) -> u32 {
    let header = crc32c(&frame[..FRAME_CHECK]).to_le_bytes();
    let writes = crc32c(&frame[FRAME_HEADER..]).to_le_bytes();
    crc32c(&[header, writes].concat())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
