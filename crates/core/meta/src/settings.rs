//! What an operator says about one MDT.

use std::time::Duration;
use tieline_types::{Gid, MdtIndex, Uid};

/// Who comes back at the end of its wait still has to connect, and to send what it had not.
const RETURN_GRACE: Duration = Duration::from_secs(60);

/// What an operator says.
#[derive(Clone, Debug)]
pub struct Settings {
    pub mdt: MdtIndex,
    pub lease: Duration,
    /// A session that is silent this long is ended: its answers and what it keeps open go.
    pub session_keep: Duration,
    /// One whose client waits longer for us is kept as long as that, and a little more, but so long
    /// at most.
    pub session_keep_max: Duration,
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
    /// Whose the root directory of a new MDT is.
    pub root_owner: (Uid, Gid),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mdt: MdtIndex(0),
            lease: Duration::from_secs(20),
            session_keep: Duration::from_secs(600),
            session_keep_max: Duration::from_secs(3600),
            freed_keep: Duration::from_secs(60),
            keeps_deleted: true,
            collect_rate: 2000,
            stray_keep: Duration::from_secs(3600),
            capability_life: Duration::from_secs(300),
            root_owner: (Uid(0), Gid(0)),
        }
    }
}

impl Settings {
    /// How long a session is kept that is silent, if its client waits so long for an answer.
    pub fn session_keep_for(&self, wait: Option<Duration>) -> Duration {
        let wished = wait.map_or(Duration::ZERO, |wait| wait.saturating_add(RETURN_GRACE));
        self.session_keep.max(wished.min(self.session_keep_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_kept_for_the_wait_within_bounds() {
        let settings = Settings::default();
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let keep = |wait| settings.session_keep_for(wait);
        assert_eq!((keep(None), keep(Some(minutes(1)))), (minutes(10), minutes(10)));
        assert_eq!(
            (keep(Some(minutes(15))), keep(Some(Duration::MAX))),
            (minutes(16), minutes(60))
        );
    }
}
