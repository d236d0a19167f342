//! What a client is told, and what it is plugged into.

use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{MapCell, Rule};
use tieline_bytes::Near;
use tieline_foresight::mode::ReadMode;
use tieline_net::Dialer;
use tieline_owed::spool::Spool;
use tieline_types::FileId;
use tieline_world::World;

/// What an operator says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest wait for a server that does not answer; past it an errno.
    pub wait: Duration,
    /// Bytes taken from programs and not yet at an OSS; writers wait beyond.
    pub dirty_bytes_max: usize,
    /// Bytes read ahead and kept for readers.
    pub read_bytes_max: usize,
    /// Of these, what was read already. Little, where readers have the kernel's cache.
    pub spent_bytes_max: usize,
    /// The same of small chunks from afar.
    pub lingering_bytes_max: usize,
    /// The most that is fetched ahead of one sequential reader.
    pub window_max: u64,
    /// Connect to data servers before anything is asked of them: for clients that stay.
    pub warms: bool,
    /// How files are read that say nothing else themselves.
    pub read_mode: ReadMode,
    /// Files remembered, beyond those that are open or known to the kernel.
    pub inodes_max: usize,
    /// What is answered of what is known, while a server is out of reach for longer than a lease.
    pub offline: Offline,
    /// Decide names, attributes and small writes here where a directory is held alone, and send
    /// them within a second.
    pub journal: bool,
    /// Positions in listings have 31 bits, for programs that have no more.
    pub short_positions: bool,
    /// What reading does to a file's time of access.
    pub access_times: AccessTimes,
    /// For servers' logs: `mount /extenci on wn17`.
    pub description: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(15 * 60),
            dirty_bytes_max: 128 << 20,
            read_bytes_max: 256 << 20,
            spent_bytes_max: 16 << 20,
            lingering_bytes_max: 32 << 20,
            window_max: 64 << 20,
            warms: false,
            read_mode: ReadMode::Auto,
            inodes_max: 300_000,
            offline: Offline::Error,
            journal: false,
            short_positions: false,
            access_times: AccessTimes::Never,
            description: String::new(),
        }
    }
}

/// What counts while a server is out of reach and its leases have run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offline {
    /// Nothing: calls wait, and end with an error.
    Error,
    /// What was known last, for reading; changes wait.
    Stale,
}

/// Which reads are noted in files' times of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessTimes {
    /// None: reading costs no change.
    Never,
    /// The first after a change, and one a day: as `relatime` means.
    Relative,
}

/// What a client is plugged into.
pub struct Parts {
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    /// The directory that is the root here: an MDT's root, or one below it.
    pub root: FileId,
    pub rule: Rule,
    /// Caches and storage that are nearer than OSSs.
    pub near: Near,
    /// Where bytes go that were answered for and cannot be stored.
    pub spool: Option<Arc<dyn Spool>>,
}
