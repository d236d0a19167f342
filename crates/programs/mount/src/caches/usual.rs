//! The node's cache that a mount has without being told: below the usual place, in a directory of
//! the mount's own.
//!
//! It keeps what comes from far away, and is made when the first such bytes come: a mount near its
//! data servers leaves nothing on the disk.
//!
//! Invariant: what such caches take is bounded: each by a share of what is free on its disk, and
//! those of mounts that are no more by their age.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_cache::{NodeCache, NodeSettings, forget_unused};
use tieline_world::World;

/// So much of what is free, and no more than this.
const SHARE: u64 = 10;
const BYTES_MAX: u64 = 50 << 30;
/// With less there is no cache.
const BYTES_MIN: u64 = 64 << 20;
/// How long the cache of a mount is kept that is not mounted any more.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// File systems in memory, as statfs(2) names them.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Where the caches of this user's mounts are, unless `cache=` says otherwise.
pub fn place() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/cache/tieline");
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("tieline")
}

/// How much a cache may take there; `None`: its disk has no room, or is memory.
pub fn room(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|path| path.is_dir())?;
    let disk = rustix::fs::statfs(there).ok()?;
    let free = disk.f_bavail.saturating_mul(u64::try_from(disk.f_bsize).ok()?);
    let room = (free / SHARE).min(BYTES_MAX);
    (!IN_MEMORY.contains(&disk.f_type) && room >= BYTES_MIN).then_some(room)
}

/// Opens it, and removes its neighbours that nobody uses any more. Blocks.
pub fn open(settings: &NodeSettings, world: &World) -> Result<NodeCache, tieline_cache::Error> {
    let cache = NodeCache::open(settings.clone(), world.clock.clone())?;
    if let Some(place) = settings.path.parent() {
        forget_unused(place, KEPT);
    }
    Ok(cache)
}
