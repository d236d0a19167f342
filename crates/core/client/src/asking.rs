//! Reads that wait for what an MDS says, while the door has their pages locked.
//!
//! Such an answer may wait for another client, whose change waits for ours to a recall; and that
//! waits for the door to forget pages. So the recall does not wait for the pages of a read that has
//! asked for longer than an answer takes: what it gets is younger than the recall. All other pages
//! of the file are forgotten around them.

use crate::Invalidation;
use crate::file::File;
use crate::shared::Shared;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{Extent, FileId};
use tokio::time::{Instant, sleep, timeout};

/// What an MDS takes for an answer, beside its way.
const ANSWER: Duration = Duration::from_millis(20);

/// Of a file: what is asked for, and since when.
#[derive(Default)]
pub(crate) struct Asked(Vec<(Range<u64>, Instant)>);

impl Asked {
    /// Everything but what has been asked for since then; nothing if nothing has.
    fn around(&self, since: Instant) -> Vec<Range<u64>> {
        let mut asked: Vec<_> = self.0.iter().filter(|(_, at)| *at <= since).collect();
        asked.sort_by_key(|(range, _)| range.start);
        let (mut parts, mut end) = (Vec::new(), 0);
        for (range, _) in &asked {
            parts.push(end..range.start);
            end = end.max(range.end);
        }
        parts.push(end..Extent::FILE_SIZE_MAX);
        parts.retain(|part| part.start < part.end && !asked.is_empty());
        parts
    }
}

/// A read that asks, until this is dropped.
pub(crate) struct Asking<'a> {
    file: &'a File,
    range: Range<u64>,
}

impl<'a> Asking<'a> {
    pub fn new(file: &'a File, range: Range<u64>) -> Self {
        file.with(|state| state.asked.0.push((range.clone(), Instant::now())));
        Self { file, range }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.file.with(|state| {
            let asked = &mut state.asked.0;
            if let Some(at) = asked.iter().position(|(range, _)| *range == self.range) {
                asked.remove(at);
            }
        });
    }
}

impl Shared {
    /// Makes the door forget these files' bytes but for what reads ask for, as soon as some have
    /// for long, and waits until it has.
    pub(crate) async fn forget_around_reads(self: &Arc<Self>, files: &[FileId]) {
        let known: Vec<Arc<File>> = files.iter().filter_map(|&id| self.file_known(id)).collect();
        let Some(first) = known.first() else { return std::future::pending().await };
        let mds = self.servers.mds(first.id.mdt()).ok();
        let patience = ANSWER + mds.and_then(|mds| mds.ways.round_trip()).unwrap_or_default();
        loop {
            sleep(ANSWER / 4).await;
            let Some(since) = Instant::now().checked_sub(patience) else { continue };
            let around = |file: &Arc<File>| {
                let (id, parts) = (file.id, file.with(|state| state.asked.around(since)));
                parts.into_iter().map(move |part| (id, part))
            };
            let mut parts: Vec<_> = known.iter().flat_map(around).collect();
            if parts.is_empty() {
                continue;
            }
            let is_whole = |id: &&FileId| !parts.iter().any(|(of, _)| of == *id);
            let whole: Vec<_> = files.iter().filter(is_whole).copied().collect();
            parts.extend(whole.into_iter().map(|id| (id, 0..Extent::FILE_SIZE_MAX)));
            let told = self.tell(Invalidation { parts, ..Invalidation::default() });
            // Another read may have come to lock pages among them.
            if let Some(forgotten) = told
                && timeout(patience, forgotten).await.is_ok()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_lies_around_what_has_been_asked_for_long() {
        let (file, end) = (Asked::default(), Extent::FILE_SIZE_MAX);
        assert_eq!(file.around(Instant::now()), []);
        let then = Instant::now();
        let asked = Asked(vec![(20..30, then), (0..10, then), (25..40, then)]);
        assert_eq!(asked.around(then), [10..20, 40..end]);
        let later = then + ANSWER;
        let asked = Asked(vec![(20..30, then), (40..50, later)]);
        assert_eq!(asked.around(then), [0..20, 30..end]);
        assert_eq!(Asked(vec![(20..30, later)]).around(then), []);
    }
}
