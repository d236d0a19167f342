//! The directories that all sites are reached through: the mounted one, those with junctions in
//! them, and those between.
//!
//! What a server takes back of them, because somebody else changed something there, is asked for
//! again soon: when a line is cut later, a site that stands alone finds the way to its own tree,
//! and `df` and `ls` of the mount tell what was there. What is changed all the time is asked for
//! ever more seldom.
//!
//! Invariant: one question about a directory at a time, none sooner than [`FIRST`] after a recall,
//! and of one that is recalled again and again one per [`PAUSE_MAX`] in the end.

use crate::shared::{Shared, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::{Caller, FileId};
use tokio::time::Instant;

/// Changes come in swarms.
const FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Who had this many pauses of quiet begins anew.
const QUIET: u32 = 4;

/// When which of these directories were asked for again.
#[derive(Default)]
pub(crate) struct Above(Mutex<BTreeMap<FileId, Again>>);

struct Again {
    at: Instant,
    pause: Duration,
    is_due: bool,
}

impl Above {
    /// How long to wait before asking; `None`: somebody does already.
    fn recalled(&self, directory: FileId) -> Option<Duration> {
        let (mut all, now) = (lock(&self.0), Instant::now());
        let first = Again { at: now, pause: Duration::ZERO, is_due: false };
        let again = all.entry(directory).or_insert(first);
        if again.is_due {
            return None;
        }
        let is_quiet = again.at.elapsed() >= again.pause * QUIET;
        again.pause = if is_quiet { FIRST } else { (again.pause * 2).min(PAUSE_MAX) };
        again.is_due = true;
        Some(again.pause)
    }

    fn asked(&self, directory: FileId) {
        if let Some(again) = lock(&self.0).get_mut(&directory) {
            (again.at, again.is_due) = (Instant::now(), false);
        }
    }
}

impl Shared {
    /// Somebody else changed a directory. If sites are reached through it, it is asked for again.
    pub(crate) fn come_back_to(self: &Arc<Self>, directory: FileId) {
        if !self.settings.warms || !self.is_above(directory) {
            return;
        }
        let Some(pause) = self.above.recalled(directory) else { return };
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let Some(shared) = shared.upgrade() else { return };
            // What changes from here on is for the next time.
            shared.above.asked(directory);
            if !shared.cache.lock().is_complete(directory) {
                shared.come_to(&Caller::root(), directory, None).await;
            }
            // The names may be too many.
            if let Err(error) = shared.attributes(&Caller::root(), directory).await {
                tracing::info!(%directory, %error, "what changed above the sites is not known yet");
            }
        });
    }

    fn is_above(&self, directory: FileId) -> bool {
        if directory == self.root {
            return true;
        }
        let believed = self.servers.map.current();
        let tables = self.cache.lock();
        let leads_here = |mut at: FileId| {
            // No deeper than a path may be.
            for _ in 0..64 {
                if at == directory {
                    return true;
                }
                match tables.parent_of(at).filter(|_| !at.is_root()) {
                    Some(parent) => at = parent,
                    None => return false,
                }
            }
            false
        };
        believed.map.junctions.iter().any(|junction| leads_here(junction.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_changes_all_the_time_is_asked_for_ever_more_seldom() {
        let above = Above::default();
        let mut pauses = vec![];
        for _ in 0..10 {
            let pause = above.recalled(FileId(1)).unwrap();
            assert_eq!(above.recalled(FileId(1)), None);
            tokio::time::advance(pause).await;
            above.asked(FileId(1));
            pauses.push(pause);
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!((pauses[0], pauses[9]), (FIRST, PAUSE_MAX));
        tokio::time::advance(PAUSE_MAX * QUIET).await;
        assert_eq!(above.recalled(FileId(1)), Some(FIRST));
    }
}
