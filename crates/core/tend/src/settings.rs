//! What an operator says about the background work of one MDT.

use std::time::Duration;

/// The tended MDT's settings, as far as they matter here.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A session that is silent this long is ended.
    pub session_keep: Duration,
    /// How long freed chunks stay readable, and deleted files can be brought back.
    pub freed_keep: Duration,
    /// Deletions of files and chunks, per second; 0 for no bound.
    pub collect_rate: u64,
    /// How long an object that no commit names is kept after the session that wrote it ended.
    pub stray_keep: Duration,
}

impl Settings {
    /// Between two looks at what may be over.
    pub(crate) fn pause(&self) -> Duration {
        let keep = self.freed_keep.min(self.session_keep) / 4;
        keep.clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}
