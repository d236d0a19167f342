//! Room on the disks that commits are written to, looked for before each commit and each group of
//! them, and before redb takes up many.
//!
//! An engine that meets the end of its disk is not used again. So what would not find room is not
//! decided at all ([`Room::is_there`]). Others fill the disk meanwhile: a group that was decided
//! waits until there is room, and is durable once somebody made some. At an opening and at a close
//! nobody waits: what is in the log is taken up if the disk takes it.
//!
//! What redb has in its file and does not use is room, too ([`Room::reuse`]), but the log needs
//! some of the disk itself.

use crate::overlay::{Batch, Writes};
use rustix::fs::statvfs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What a group takes beside its pairs: pages above them, and the allocator's state.
const GROUP_BYTES: u64 = 4 << 20;
/// What must be free on the disk itself: the log grows by parts of it.
const DISK_BYTES: u64 = 1 << 20;
/// A pair's page and those above it, each written anew.
const PAIR_BYTES: u64 = 16 << 10;
/// Where many are written at once they share the pages above; a page may become two.
const SHARED_PAIR_BYTES: u64 = 8 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How much room something takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// On the disk, or in the store's file.
    pub bytes: u64,
    /// Of that, on the disk.
    pub on_disk: u64,
}

impl Need {
    /// What a group needs.
    pub fn of_group(batch: &Batch) -> Self {
        let (pairs, bytes) = size_of(&batch.writes);
        let all = GROUP_BYTES + PAIR_BYTES * pairs + 2 * bytes;
        Self { bytes: all, on_disk: DISK_BYTES + bytes }
    }

    /// What must be there for a commit: room for its group, whatever else is in it.
    pub fn of_commit(writes: &Writes) -> Self {
        let (pairs, bytes) = size_of(writes);
        let all = 2 * GROUP_BYTES + PAIR_BYTES * pairs + 2 * bytes;
        Self { bytes: all, on_disk: 2 * DISK_BYTES + bytes }
    }

    /// What redb needs to take up a table of many groups.
    pub fn of_checkpoint(batch: &Batch) -> Self {
        let (pairs, bytes) = size_of(&batch.writes);
        Self::of_filled(pairs, bytes)
    }

    /// The same for a table of so many pairs whose frames take so many bytes.
    pub fn of_filled(pairs: u64, bytes: u64) -> Self {
        let bytes = GROUP_BYTES + SHARED_PAIR_BYTES * pairs + 2 * bytes;
        Self { bytes, on_disk: DISK_BYTES }
    }

    pub fn times(self, count: u64) -> Self {
        Self { bytes: self.bytes * count, on_disk: self.on_disk * count }
    }
}

/// The disks of a store.
#[derive(Default)]
pub(super) struct Room {
    directories: Vec<PathBuf>,
    is_closing: AtomicBool,
    /// Bytes of the store's file that are used again before it grows, at least.
    reusable: AtomicU64,
}

impl Room {
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, ..Self::default() }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// The store's file has so much that is not in use.
    pub fn reuse(&self, bytes: u64) {
        self.reusable.store(bytes, Ordering::Relaxed);
    }

    /// Something was written to the store's file: nobody knows where, before it is looked at again.
    pub fn take(&self, need: Need) {
        let less = |reusable: u64| Some(reusable.saturating_sub(need.bytes));
        let _ = self.reusable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Have all disks room for so much?
    pub fn is_there(&self, need: Need) -> bool {
        self.short(need).is_none()
    }

    /// Waits (blocking) until they have. `false`: they had not until the store was closed.
    pub fn wait(&self, need: Need) -> bool {
        let mut has_told = false;
        while let Some(short) = self.short(need) {
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
    fn short(&self, need: Need) -> Option<&PathBuf> {
        let reusable = self.reusable.load(Ordering::Relaxed);
        let has_less = |path: &&PathBuf| {
            statvfs(path.as_path()).is_ok_and(|disk| {
                let free = disk.f_bavail.saturating_mul(disk.f_frsize.max(1));
                free < need.on_disk || free.saturating_add(reusable) < need.bytes
            })
        };
        self.directories.iter().find(has_less)
    }
}

/// Pairs, and their bytes.
fn size_of(writes: &Writes) -> (u64, u64) {
    let bytes = writes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |v| v.len()));
    (writes.len() as u64, bytes.sum::<usize>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_room_until_the_store_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(vec![folder.path().to_owned(), "/nowhere/at/all".into()]);
        assert!(room.wait(Need::of_group(&Batch::default())));
        let all = Need { bytes: u64::MAX, on_disk: 0 };
        assert_eq!(room.short(all), Some(&folder.path().to_owned()));
        room.close();
        assert!(!room.wait(all) && room.wait(Need::of_group(&Batch::default())));
    }

    #[test]
    fn what_the_file_has_is_room_but_the_log_needs_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(vec![folder.path().to_owned()]);
        let disk = statvfs(folder.path()).unwrap();
        let free = disk.f_bavail * disk.f_frsize;
        let more = Need { bytes: 2 * free, on_disk: 0 };
        assert!(!room.is_there(more));
        room.reuse(2 * free);
        assert!(room.is_there(more) && !room.is_there(Need { on_disk: 2 * free, ..more }));
        room.take(Need { bytes: 2 * free, on_disk: 0 });
        assert!(!room.is_there(more));
    }
}
