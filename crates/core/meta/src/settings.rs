//! What an operator says about one MDT.

use std::time::Duration;
use tieline_types::MdtIndex;

/// What an operator says.
#[derive(Clone, Debug)]
pub struct Settings {
    pub mdt: MdtIndex,
    pub lease: Duration,
    /// A session that is silent this long is ended when its leases are in somebody's way, or after
    /// ten times as long.
    pub session_keep: Duration,
    /// How long freed chunks stay readable, and deleted files can be brought back.
    pub freed_keep: Duration,
    /// Are deleted files kept so at all?
    pub keeps_deleted: bool,
    /// Deletions of files and chunks in the background, per second; 0 for no bound.
    pub collect_rate: u64,
    /// How long an object that no commit names is kept after the session that wrote it ended.
    pub stray_keep: Duration,
    /// How long a capability holds, 5 minutes at most.
    pub capability_life: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mdt: MdtIndex(0),
            lease: Duration::from_secs(20),
            session_keep: Duration::from_secs(60),
            freed_keep: Duration::from_secs(60),
            keeps_deleted: true,
            collect_rate: 2000,
            stray_keep: Duration::from_secs(3600),
            capability_life: Duration::from_secs(300),
        }
    }
}
