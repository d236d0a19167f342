//! Bytes that were lost after their write had returned: told when a file is closed or synced.
//!
//! A descriptor may be closed that its program does not know of, such as the copy that a fork took
//! along to the next execve: what a close was told is therefore told again, by the next close and
//! by the next sync. A sync tells a handle of each loss once.

use crate::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_types::ErrorKind;

/// A file's losses.
#[derive(Default)]
pub(crate) struct Late {
    last: Option<(ErrorKind, String)>,
    /// Losses so far.
    count: u64,
    /// Of those, somebody was told.
    told: u64,
}

/// The losses that a handle was told of by a sync, or that were known before it was opened.
#[derive(Default)]
pub(crate) struct Seen(AtomicU64);

impl Late {
    pub fn lose(&mut self, kind: ErrorKind, detail: String) {
        self.count += 1;
        self.last = Some((kind, detail));
    }

    /// Of a handle that is opened now: what nobody was told is news to it.
    pub fn seen(&self) -> Seen {
        Seen(AtomicU64::new(self.told))
    }

    pub fn at_close(&mut self, seen: &Seen) -> Option<Error> {
        if seen.0.load(Ordering::Relaxed) >= self.count {
            return None;
        }
        self.told = self.count;
        let (kind, detail) = self.last.clone()?;
        Some(Error::Late { kind, detail })
    }

    pub fn at_sync(&mut self, seen: &Seen) -> Option<Error> {
        let news = self.at_close(seen);
        seen.0.store(self.count, Ordering::Relaxed);
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
    fn what_nobody_was_told_is_told_to_whoever_opens_next() {
        let mut late = Late::default();
        late.lose(ErrorKind::NoSpace, "full".to_owned());
        let (next, beside) = (late.seen(), late.seen());
        assert!(late.at_sync(&next).is_some() && late.at_sync(&beside).is_some());
        let later = late.seen();
        assert!(late.at_sync(&later).is_none());
    }
}
