//! Bytes that were lost after their write had returned: told when a file is closed or synced.
//!
//! A descriptor may be closed that its program does not know of, such as the copy that a fork took
//! along to the next execve: what a close was told is therefore told again, by the next close and
//! by the next sync. A sync tells a handle of each loss once. Where no room was left a write tells
//! it, too: whoever fills a pool would go on for ever.
//!
//! The log has a line of a file's lost bytes at most each [`SAY_EVERY`], and the rest at a close.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tieline_types::{ErrorKind, FileId};
use tokio::time::Instant;

/// A job that fills a pool loses thousands of chunks.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Why bytes were lost.
pub type Loss = (ErrorKind, String);

/// A file's losses.
#[derive(Default)]
pub struct Late {
    last: Option<Loss>,
    /// Losses so far.
    count: u64,
    /// Of those, somebody was told.
    told: u64,
    /// Bytes that the log does not have yet, of which the spool has so many, and when it had the
    /// last.
    unsaid: u64,
    unsaid_kept: u64,
    said: Option<Instant>,
}

/// The losses that a handle was told of by a sync, or that were known before it was opened.
#[derive(Default)]
pub struct Seen {
    told: AtomicU64,
    /// Those that a write told of.
    at_write: AtomicU64,
}

impl Late {
    pub fn lose(&mut self, kind: ErrorKind, detail: String) {
        self.count += 1;
        self.last = Some((kind, detail));
    }

    /// The same of so many written bytes, which the spool has or not: the log has them too, now or
    /// with what follows.
    pub fn lose_bytes(&mut self, file: FileId, length: u64, (kind, detail): Loss, is_kept: bool) {
        self.lose(kind, detail);
        self.unsaid += length;
        self.unsaid_kept += if is_kept { length } else { 0 };
        if self.said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            self.say(file);
        }
    }

    /// Has the log say what it does not have yet.
    pub fn say(&mut self, file: FileId) {
        let length = std::mem::take(&mut self.unsaid);
        let spooled = std::mem::take(&mut self.unsaid_kept);
        let Some((_, error)) = self.last.as_ref().filter(|_| length > 0) else { return };
        self.said = Some(Instant::now());
        if spooled < length {
            tracing::error!(%file, length, spooled, %error, "written bytes are lost");
        } else {
            tracing::error!(%file, length, %error, "written bytes cannot be stored: spooled");
        }
    }

    /// Of a handle that is opened now: what nobody was told is news to it.
    pub fn seen(&self) -> Seen {
        Seen { told: AtomicU64::new(self.told), at_write: AtomicU64::new(self.count) }
    }

    /// Of the last losses since a write or a sync told of some, if they were for want of room.
    pub fn at_write(&self, seen: &Seen) -> Option<Loss> {
        let (kind, detail) = self.last.as_ref()?;
        let is_full = matches!(kind, ErrorKind::NoSpace | ErrorKind::QuotaExceeded);
        let told = seen.told.load(Ordering::Relaxed).max(seen.at_write.load(Ordering::Relaxed));
        if !is_full || told >= self.count {
            return None;
        }
        seen.at_write.store(self.count, Ordering::Relaxed);
        Some((*kind, detail.clone()))
    }

    pub fn at_close(&mut self, seen: &Seen) -> Option<Loss> {
        if seen.told.load(Ordering::Relaxed) >= self.count {
            return None;
        }
        self.told = self.count;
        self.last.clone()
    }

    pub fn at_sync(&mut self, seen: &Seen) -> Option<Loss> {
        let news = self.at_close(seen);
        seen.told.store(self.count, Ordering::Relaxed);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_does_not_take_what_a_sync_must_tell() {
        let mut late = Late::default();
        let writer = late.seen();
        assert!(late.at_close(&writer).is_none());
        late.lose(ErrorKind::NoSpace, "full".to_owned());
        assert!(late.at_close(&writer).is_some(), "a copy of the descriptor");
        assert!(late.at_sync(&writer).is_some());
        assert!(late.at_sync(&writer).is_none() && late.at_close(&writer).is_none());
        late.lose(ErrorKind::NoSpace, "full".to_owned());
        assert!(late.at_sync(&writer).is_some(), "another loss");
    }

    #[test]
    fn a_write_tells_each_loss_for_want_of_room_once_and_leaves_it_to_the_close() {
        let mut late = Late::default();
        let (writer, beside) = (late.seen(), late.seen());
        late.lose(ErrorKind::NoSpace, "full".to_owned());
        assert!(late.at_write(&writer).is_some() && late.at_write(&writer).is_none());
        assert!(late.at_sync(&beside).is_some() && late.at_write(&beside).is_none());
        assert!(late.at_close(&writer).is_some() && late.at_sync(&writer).is_some());
        late.lose(ErrorKind::PermissionDenied, "not any more".to_owned());
        assert!(late.at_write(&writer).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_fills_a_pool_does_not_fill_the_log() {
        let (file, mut late) = (FileId(7), Late::default());
        let full = || (ErrorKind::NoSpace, "full".to_owned());
        for _ in 0..10 {
            late.lose_bytes(file, 4, full(), false);
        }
        assert_eq!(late.unsaid, 36, "the first is said at once");
        tokio::time::advance(SAY_EVERY).await;
        late.lose_bytes(file, 4, full(), false);
        assert_eq!(late.unsaid, 0, "said with their sum");
        late.lose_bytes(file, 4, full(), false);
        late.say(file);
        assert_eq!(late.unsaid, 0, "the rest is said at a close");
    }

    #[test]
    fn what_nobody_was_told_is_told_to_whoever_opens_next() {
        let mut late = Late::default();
        late.lose(ErrorKind::NoSpace, "full".to_owned());
        let (next, beside) = (late.seen(), late.seen());
        assert!(late.at_sync(&next).is_some() && late.at_sync(&beside).is_some());
        let later = late.seen();
        assert!(late.at_sync(&later).is_none());
    }
}
