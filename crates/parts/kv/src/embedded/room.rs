//! Room on the disks that commits are written to, looked for before each group of them, and before
//! redb takes up many.
//!
//! An engine that meets the end of its disk is not used again. So a group waits until there is
//! room: what it holds was decided and not answered, and is durable once somebody made some. At
//! an opening and at a close nobody waits: what is in the log is taken up if the disk takes it.

use crate::overlay::Batch;
use rustix::fs::statvfs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a group takes beside its pairs: pages above them, and the allocator's state.
const GROUP_BYTES: u64 = 4 << 20;
/// A pair's page and those above it, each written anew.
const PAIR_BYTES: u64 = 16 << 10;
/// Where many are written at once they share the pages above; a page may become two.
const SHARED_PAIR_BYTES: u64 = 8 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The disks of a store.
#[derive(Default)]
pub(super) struct Room {
    directories: Vec<PathBuf>,
    is_closing: AtomicBool,
}

impl Room {
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, is_closing: AtomicBool::default() }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// What a group needs.
    pub fn for_group(batch: &Batch) -> u64 {
        needed(batch, PAIR_BYTES)
    }

    /// What redb needs to take up a table of many groups.
    pub fn for_checkpoint(batch: &Batch) -> u64 {
        needed(batch, SHARED_PAIR_BYTES)
    }

    /// The same for a table of so many pairs whose frames take so many bytes.
    pub fn for_filled(pairs: usize, bytes: u64) -> u64 {
        GROUP_BYTES + SHARED_PAIR_BYTES * pairs as u64 + 2 * bytes
    }

    /// Have all disks room for so much?
    pub fn is_there(&self, needed: u64) -> bool {
        self.short(needed).is_none()
    }

    /// Waits (blocking) until they have. `false`: they had not until the store was closed.
    pub fn wait(&self, needed: u64) -> bool {
        let mut has_told = false;
        while let Some(short) = self.short(needed) {
            if self.is_closing.load(Ordering::Relaxed) {
                return false;
            }
            if !has_told {
                let path = short.display();
                tracing::error!(%path, "disk is full: changes wait until there is room");
                has_told = true;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if has_told {
            tracing::info!("disk has room again: changes go on");
        }
        true
    }

    /// The directory whose disk has not so much room. One that cannot be asked is left to fail.
    fn short(&self, needed: u64) -> Option<&PathBuf> {
        let has_less = |path: &&PathBuf| {
            statvfs(path.as_path())
                .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize.max(1)) < needed)
        };
        self.directories.iter().find(has_less)
    }
}

fn needed(batch: &Batch, pair_bytes: u64) -> u64 {
    let pairs = batch.writes.iter();
    let bytes = pairs.map(|(key, value)| key.len() + value.as_ref().map_or(0, |v| v.len()));
    GROUP_BYTES + bytes.map(|bytes| pair_bytes + 2 * bytes as u64).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_room_until_the_store_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(vec![folder.path().to_owned(), "/nowhere/at/all".into()]);
        assert!(room.wait(Room::for_group(&Batch::default())));
        assert_eq!(room.short(u64::MAX), Some(&folder.path().to_owned()));
        room.close();
        assert!(room.wait(Room::for_group(&Batch::default())));
    }
}
