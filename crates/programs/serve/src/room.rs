//! The disks that an MDT's store is written to: how much room they have, for the MDT and `/health`.
//!
//! Invariant: the MDT hears that room is short long before its store meets the end of its disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tieline_kv::Store;
use tieline_meta::{Mdt, StoreRoom};
use tieline_telemetry::health::Health;
use tieline_types::ByteSize;

/// A disk is not filled in much less.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The part of the reserve at which even what frees room is refused: that is written first, too.
const LAST_PART: u64 = 8;

/// Where a store is, and how much must stay free there.
#[derive(Clone, Debug)]
pub struct Disks {
    pub directories: Vec<PathBuf>,
    pub reserve: u64,
}

impl Disks {
    /// Blocks for as long as the file systems need. `reusable`: what the store has of them and will
    /// use again before it takes more, which is asked where less than the reserve is free.
    pub fn look(&self, reusable: impl FnOnce() -> u64) -> StoreRoom {
        let mut fullest: Option<(u64, &PathBuf)> = None;
        for path in &self.directories {
            // One that cannot be asked is not full.
            let Ok(disk) = rustix::fs::statvfs(path) else { continue };
            let free = free_bytes(&disk);
            if fullest.is_none_or(|(least, _)| free < least) {
                fullest = Some((free, path));
            }
        }
        let Some((free, path)) = fullest else { return StoreRoom::Enough };
        if free >= self.reserve {
            return StoreRoom::Enough;
        }
        let reusable = reusable();
        let room = free.saturating_add(reusable);
        if room >= self.reserve {
            return StoreRoom::Enough;
        }
        let (path, left, reserve) = (path.display(), ByteSize(free), ByteSize(self.reserve));
        let inside = match reusable {
            0 => String::new(),
            reusable => format!(" and {} in the store itself", ByteSize(reusable)),
        };
        let reason = format!(
            "{left} free in {path}{inside}, less than mdt.reserve = \"{reserve}\": make room \
             there, or move the store to a larger disk (mdt.store)"
        );
        match room < self.reserve / LAST_PART {
            true => StoreRoom::None(reason),
            false => StoreRoom::Short(reason),
        }
    }
}

/// What is free there for who is not root.
pub fn free_bytes(disk: &rustix::fs::StatVfs) -> u64 {
    disk.f_bavail.saturating_mul(disk.f_frsize.max(1))
}

/// What a file system holds at most.
pub(crate) fn size_bytes(disk: &rustix::fs::StatVfs) -> u64 {
    disk.f_blocks.saturating_mul(disk.f_frsize.max(1))
}

/// How they are. If the look ends in another way than by an answer, the next one is as good.
pub async fn look(disks: &Disks, store: &Arc<dyn Store>) -> Option<StoreRoom> {
    let (disks, store) = (disks.clone(), store.clone());
    tokio::task::spawn_blocking(move || disks.look(|| store.reusable())).await.ok()
}

/// Tells the MDT how its disks are, for as long as it serves.
pub async fn watch((disks, store): (Disks, Arc<dyn Store>), mdt: Arc<Mdt>, health: Health) {
    let mut was_short = false;
    loop {
        if let Some(room) = look(&disks, &store).await {
            let is_short = room != StoreRoom::Enough;
            match &room {
                StoreRoom::Enough => health.recover("store"),
                StoreRoom::Short(reason) | StoreRoom::None(reason) => {
                    health.degrade("store", reason);
                    if !was_short {
                        tracing::warn!(reason, "the metadata store is short of room");
                    }
                }
            }
            if was_short && !is_short {
                tracing::info!("the metadata store has room again");
            }
            was_short = is_short;
            mdt.set_room(room).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_judged_by_the_fullest_disk() {
        let folder = tempfile::tempdir().unwrap();
        let look = |reserve| {
            let directories = vec![folder.path().to_owned(), "/nowhere/at/all".into()];
            Disks { directories, reserve }.look(|| 1)
        };
        assert_eq!(look(0), StoreRoom::Enough);
        let StoreRoom::None(reason) = look(u64::MAX) else { panic!("so much is nowhere free") };
        assert!(reason.contains("mdt.reserve"), "{reason}");
        let disk = rustix::fs::statvfs(folder.path()).unwrap();
        let free = disk.f_bavail * disk.f_frsize;
        assert!(matches!(look(free * 2), StoreRoom::Short(_)));
        let disks = Disks { directories: vec![folder.path().to_owned()], reserve: free * 4 };
        assert_eq!(disks.look(|| free * 4), StoreRoom::Enough, "what the store has is room");
    }
}
