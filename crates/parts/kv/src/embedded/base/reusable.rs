//! What redb has in its file, does not use, and will use again before the file grows.
//!
//! redb tells how many pages are in use when it has looked at every one, and takes nothing up
//! meanwhile. So it is asked where somebody wants to know, for a small part of the time, and not in
//! a file where that would take long.

use super::{POISONED, RedbBase};
use redb::Database;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// It is looked this often at most, and for this part of the time.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
const LOOK_PART: u32 = 50;
/// In larger files it is not looked at all.
const LENGTH_MAX: u64 = 2 << 30;
/// In these a file's use of its disk is told.
const BLOCK: u64 = 512;

/// What was found.
pub(super) struct Looked {
    at: Instant,
    took: Duration,
    bytes: u64,
}

impl RedbBase {
    /// How many bytes that are, or were a moment ago. Blocks.
    pub fn reusable(&self) -> u64 {
        let Some(file) = &self.file else { return 0 };
        let mut looked = self.looked.lock().expect(POISONED);
        if let Some(last) = &*looked
            && last.at.elapsed() < LOOK_PAUSE.max(last.took * LOOK_PART)
        {
            return last.bytes;
        }
        let began = Instant::now();
        let bytes = look(file, &self.database).unwrap_or(0);
        self.room.reuse(bytes);
        *looked = Some(Looked { at: Instant::now(), took: began.elapsed(), bytes });
        bytes
    }
}

fn look(file: &File, database: &Database) -> Option<u64> {
    let file = file.metadata().ok().filter(|file| file.len() <= LENGTH_MAX)?;
    let transaction = database.begin_write().ok()?;
    let stats = transaction.stats().ok()?;
    let used = stats.allocated_pages().saturating_mul(stats.page_size() as u64);
    transaction.abort().ok()?;
    // Not what was never written: that is free on the disk as well.
    Some((file.blocks() * BLOCK).saturating_sub(used))
}
