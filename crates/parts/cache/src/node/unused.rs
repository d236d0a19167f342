//! Caches of nodes that no mount uses any more.

use super::LOCK;
use crate::{Kind, marker};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Removes those caches below `place` that no mount opened for so long, and none has open.
pub fn forget_unused(place: &Path, kept: Duration) {
    let folders =
        std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    for cache in folders.filter(|path| matches!(marker::kind(path), Ok(Kind::Node))) {
        let Some(locks) = locks_if_unused(&cache, kept) else { continue };
        let shown = cache.display();
        match std::fs::remove_dir_all(&cache) {
            Ok(()) => tracing::info!("no mount used the cache {shown} for long: it is removed"),
            Err(error) => tracing::debug!(%error, "the cache {shown} cannot be removed"),
        }
        drop(locks);
    }
}

/// All locks of a cache, taken.
fn locks_if_unused(cache: &Path, kept: Duration) -> Option<Vec<File>> {
    let folders = std::fs::read_dir(cache).ok()?.flatten();
    let locks: Vec<PathBuf> = folders.map(|entry| entry.path().join(LOCK)).collect();
    let locks = locks.into_iter().filter(|lock| lock.is_file()).map(|lock| {
        let lock = File::open(lock).ok()?;
        let used = lock.metadata().and_then(|lock| lock.modified()).ok()?;
        let is_old = SystemTime::now().duration_since(used).is_ok_and(|age| age >= kept);
        let is_free = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        (is_old && is_free).then_some(lock)
    });
    locks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeCache, NodeSettings};
    use tieline_world::World;

    const LONG: Duration = Duration::from_secs(1000);

    fn open(path: &Path) -> NodeCache {
        let (path, scope) = (path.to_owned(), "extenci".to_owned());
        let settings = NodeSettings { path, bytes_max: 1 << 20, scope };
        NodeCache::open(settings, World::real().clock).unwrap()
    }

    #[tokio::test]
    async fn what_no_mount_used_for_long_goes_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let in_use = open(&at("in-use"));
        drop(open(&at("recent")));
        drop(open(&at("old")));
        std::fs::create_dir(at("none-of-ours")).unwrap();
        for name in ["in-use", "old"] {
            let lock = File::options().write(true).open(at(name).join("extenci").join(LOCK));
            lock.unwrap().set_modified(SystemTime::now() - LONG * 2).unwrap();
        }
        // A cache is open until its thread has looked through it.
        std::thread::sleep(Duration::from_millis(200));
        forget_unused(place.path(), LONG);
        let mut left: Vec<_> = std::fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["in-use", "none-of-ours", "recent"]);
        drop(in_use);
    }
}
