//! Directories that are asked for again after others changed them: what is changed all the time is
//! asked for ever more seldom.
//!
//! Invariant: one question about a directory at a time, none sooner than half a second after a
//! recall, and of one that is recalled again and again one per minute in the end.

use std::collections::BTreeMap;
use std::time::Duration;
use tieline_types::FileId;
use tokio::time::Instant;

/// Changes come in swarms.
const FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Who had this many pauses of quiet begins anew.
const QUIET: u32 = 4;

/// When which of these directories were asked for again.
#[derive(Default)]
pub struct Above(BTreeMap<FileId, Again>);

struct Again {
    at: Instant,
    pause: Duration,
    is_due: bool,
}

impl Above {
    /// How long to wait before asking; `None`: somebody does already.
    pub fn recalled(&mut self, directory: FileId) -> Option<Duration> {
        let first = Again { at: Instant::now(), pause: Duration::ZERO, is_due: false };
        let again = self.0.entry(directory).or_insert(first);
        if again.is_due {
            return None;
        }
        let is_quiet = again.at.elapsed() >= again.pause * QUIET;
        again.pause = if is_quiet { FIRST } else { (again.pause * 2).min(PAUSE_MAX) };
        again.is_due = true;
        Some(again.pause)
    }

    pub fn asked(&mut self, directory: FileId) {
        if let Some(again) = self.0.get_mut(&directory) {
            (again.at, again.is_due) = (Instant::now(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_changes_all_the_time_is_asked_for_ever_more_seldom() {
        let mut above = Above::default();
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
