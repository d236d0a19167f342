//! The log by itself: what counts of what lies in it.

use super::*;
use proptest::prelude::*;
use redb::backends::InMemoryBackend;
use std::sync::Mutex;

const ID: LogId = 0x1234_5678_9abc_def0;
const SEGMENT: u64 = 16 << 10;

/// One log, in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Option<Arc<InMemoryBackend>>>>);

#[derive(Debug)]
struct Shared(Arc<InMemoryBackend>);

impl StorageBackend for Shared {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if end > self.0.len()? {
            self.0.set_len(end)?;
        }
        self.0.write(offset, data)
    }
}

impl Place for Memory {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let held = self.0.lock().unwrap().clone();
        Ok(Box::new(Shared(held.ok_or(io::ErrorKind::NotFound)?)))
    }

    fn make(&self, header: &[u8]) -> io::Result<Box<dyn StorageBackend>> {
        let made = Shared(Arc::default());
        made.write(0, header)?;
        *self.0.lock().unwrap() = Some(made.0.clone());
        Ok(Box::new(made))
    }

    fn remove(&self) -> io::Result<()> {
        *self.0.lock().unwrap() = None;
        Ok(())
    }
}

impl Memory {
    /// Turns the bits of one byte.
    fn damage(&self, offset: u64) {
        let storage = self.open().unwrap();
        let mut byte = [0];
        storage.read(offset, &mut byte).unwrap();
        storage.write(offset, &[!byte[0]]).unwrap();
    }

    fn replay(&self, version: u64) -> Result<Batch, Mismatch> {
        Log::open(self, ID).unwrap()?.replay(Version(version)).unwrap()
    }

    /// Up to which version it goes on after `version`.
    fn end(&self, version: u64) -> u64 {
        self.replay(version).unwrap().version.0
    }
}

/// A group of one pair, of `length` bytes.
fn group(version: u64, length: usize) -> Batch {
    let key = Arc::new(version.to_be_bytes().to_vec());
    let writes = [(key, Some(Arc::new(vec![7; length])))].into();
    Batch { writes, version: Version(version) }
}

fn append(log: &mut Log, version: u64, length: usize) {
    let frame = log.frame(&group(version, length));
    log.append(frame, Version(version)).unwrap();
}

/// A log that goes on after version 10.
fn log() -> (Memory, Log) {
    let place = Memory::default();
    let mut log = Log::make(&place, ID).unwrap();
    log.start(Version(10), SEGMENT);
    (place, log)
}

#[test]
fn what_was_appended_is_read_back() {
    let (place, mut log) = log();
    let mut batch = group(12, 3);
    batch.writes.insert(Arc::new(b"gone".to_vec()), None);
    batch.writes.insert(Arc::new(b"empty".to_vec()), Some(Arc::default()));
    let frame = log.frame(&batch);
    assert_eq!(frame.len(), SECTOR);
    log.append(frame, batch.version).unwrap();
    append(&mut log, 20, 2000);
    let replayed = place.replay(10).unwrap();
    batch.writes.extend(group(20, 2000).writes);
    assert!(replayed.writes == batch.writes && replayed.version == Version(20));
    assert!(place.replay(12).unwrap().writes == group(20, 2000).writes, "the rest");
    assert_eq!(place.end(20), 20, "nothing is left");
    assert_eq!(place.end(1 << 30), 1 << 30, "nor is after that");
}

#[test]
fn a_torn_end_is_ignored_and_a_hole_is_not() {
    let (place, mut log) = log();
    for version in 11..=13 {
        append(&mut log, version, 1000);
    }
    // In the second sector of the last frame; each has three.
    place.damage(HEADER_BYTES + 6 * SECTOR as u64 + 600);
    assert_eq!(place.end(10), 12);
    place.damage(HEADER_BYTES + 6 * SECTOR as u64 + 600);
    assert_eq!(place.end(10), 13);
    place.damage(HEADER_BYTES + 3 * SECTOR as u64 + 20);
    let error = place.replay(10).err().unwrap();
    assert!(matches!(error, Mismatch::Gap { store: Version(11) }), "{error}");
    assert_eq!(place.end(12), 13, "it was taken up before");
}

#[test]
fn segments_are_written_over_in_turns() {
    let (place, mut log) = log();
    let mut version = 10;
    for _ in 0..5 {
        let taken_up = version;
        loop {
            let frame = log.frame(&group(version + 1, 700));
            if !log.has_room(&frame) {
                break;
            }
            version += 1;
            log.append(frame, Version(version)).unwrap();
            assert_eq!(place.end(taken_up), version);
        }
        log.turn();
    }
    assert_eq!(log.storage.len().unwrap(), HEADER_BYTES + 2 * SEGMENT);
    let both = version - 2 * (SEGMENT / 1024);
    assert_eq!(place.end(both), version);
    assert!(place.replay(both - 1).is_err(), "the one before was written over");
}

#[test]
fn another_log_is_none() {
    let (place, mut log) = log();
    append(&mut log, 11, 10);
    let open = |id| Log::open(&place, id).unwrap().err();
    assert!(matches!(open(ID + 1), Some(Mismatch::Another)));
    let other = Memory::default();
    let mut other_log = Log::make(&other, ID + 1).unwrap();
    other_log.start(Version(10), SEGMENT);
    log.remove(&other).unwrap();
    assert!(other.open().is_ok(), "not its own");
    // Frames are known by their log, wherever they lie.
    let frame = other_log.frame(&group(11, 10));
    let storage = place.open().unwrap();
    storage.write(HEADER_BYTES, &frame).unwrap();
    assert_eq!(place.end(10), 10);
    place.damage(8);
    assert!(matches!(open(ID), Some(Mismatch::Another)));
    place.remove().unwrap();
    assert!(matches!(open(ID), Some(Mismatch::Missing)));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0..200usize,
    ) {
        let (place, mut log) = log();
        append(&mut log, 11, 50);
        let storage = place.open().unwrap();
        // Where the header says how much follows, and behind it, with a check that matches.
        let mut frame = log.frame(&group(12, 50));
        let length = bytes.len().min(frame.len() - FRAME_HEADER);
        frame[FRAME_HEADER..FRAME_HEADER + length].copy_from_slice(&bytes[..length]);
        frame[24..28].copy_from_slice(&(length as u32).to_le_bytes());
        let check = frame_check(&frame[..FRAME_HEADER + length]);
        frame[FRAME_CHECK..FRAME_HEADER].copy_from_slice(&check.to_le_bytes());
        storage.write(HEADER_BYTES + SECTOR as u64, &frame).unwrap();
        let _ = place.replay(10);
        storage.write(HEADER_BYTES + SECTOR as u64, &bytes).unwrap();
        storage.set_len(HEADER_BYTES + cut as u64).unwrap();
        let _ = place.replay(10);
    }
}
