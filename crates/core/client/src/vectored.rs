//! Reads of many ranges in one: what a program wants of a column of events, say.
//!
//! Ranges in one block, or in neighbouring ones, are read as one run; all runs are planned
//! under one look at the file, so that their bytes are of one time, and are on their way before
//! any is waited for: however many there are, that is one round trip. The foresight sees them
//! as one list, in order: what was read after them before is fetched, too
//! ([`tieline_foresight::past`]); whether the handle is read sequentially, or in equal leaps, a
//! list does not say.

use crate::door::Giving;
use crate::handles::FileHandle;
use crate::reader::{Basis, DAMAGED_MAX, TRIES_MAX};
use crate::shared::{Shared, lock};
use crate::{Error, HandleId, Result};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_files::check_ranges;
use tieline_foresight::ahead::Width;
use tieline_foresight::mode::ReadMode;
use tieline_foresight::past::Step;
use tieline_ranges::merged::Merged;
use tieline_servers::turns::Reader;
use tieline_telemetry::metrics::METRICS;
use tieline_types::ErrorKind;
use tieline_types::checksum::BLOCK;
use tokio::task::JoinSet;

/// Pages of extents that are asked for at once.
const PAGES_MAX: usize = 16;
/// Times that this is done: what is missing then is asked for as it is met.
const ROUNDS_MAX: usize = 64;

impl Shared {
    pub(crate) async fn read_ranges(
        self: &Arc<Self>,
        handle: HandleId,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Vec<Bytes>>> {
        check_ranges(ranges)?;
        let open = self.handles.usable(handle)?;
        if !open.access.read {
            return Err(Error::local(ErrorKind::BadHandle, "handle is not open for reading"));
        }
        if !open.access.unnoted {
            self.accessed(&open.caller, open.file.id, true);
        }
        let runs = runs_of(ranges);
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok(vec![Vec::new(); ranges.len()]);
        };
        let giving = Giving::new(&open.file, first.start..last.end);
        self.come_to_bytes(&open.caller, &open.file).await;
        let mut tries = 0;
        loop {
            let (read, basis) = self.read_runs(&open, handle, &runs).await?;
            tries += 1;
            if self.give(&giving, basis, tries == TRIES_MAX).await {
                let cut = |range: &Range<u64>| cut(&runs, &read, range);
                let all: Vec<Vec<Bytes>> = ranges.iter().map(cut).collect();
                let total: usize = all.iter().flatten().map(Bytes::len).sum();
                METRICS.client_read_bytes.inc_by(total as u64);
                return Ok(all);
            }
        }
    }

    async fn read_runs(
        self: &Arc<Self>,
        open: &Arc<FileHandle>,
        handle: HandleId,
        runs: &[Range<u64>],
    ) -> Result<(Vec<Vec<Bytes>>, Basis)> {
        self.look_at(open, runs).await?;
        self.expect_after(open, runs);
        let how = (Width::Exact, Reader::Handle(handle));
        let mut read = self.read_all_on(&open.caller, &open.file, runs, how).await;
        for _ in 0..DAMAGED_MAX {
            // What is damaged may lie beside what is asked for, on its way for others.
            if !read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
                break;
            }
            read = self.read_all_on(&open.caller, &open.file, runs, how).await;
        }
        read
    }

    /// Makes sure that the extents of all runs are known: a page tells how far pages reach here,
    /// and so which others will be wanted; those are asked for at once.
    async fn look_at(self: &Arc<Self>, open: &Arc<FileHandle>, runs: &[Range<u64>]) -> Result<()> {
        let file = &open.file;
        self.view_committed(&open.caller, file, &runs[..runs.len().min(1)]).await?;
        for _ in 0..ROUNDS_MAX {
            let (missing, reach) = file.with(|state| {
                let unknown = |run: &Range<u64>| {
                    let end = run.end.min(state.size);
                    state.extents.unknown(run.start.min(end)..end)
                };
                let missing: Vec<u64> = runs.iter().filter_map(unknown).collect();
                // As many bytes as the first page told of.
                (missing, state.extents.unknown(0..state.size).unwrap_or(0))
            });
            let mut pages = JoinSet::new();
            for offset in apart(&missing, reach) {
                let (shared, open) = (self.clone(), open.clone());
                pages.spawn(async move {
                    shared.fetch_extents(&open.caller, &open.file, offset).await.map(drop)
                });
            }
            if pages.is_empty() {
                break;
            }
            while let Some(ended) = pages.join_next().await {
                let internal = |error: tokio::task::JoinError| error.to_string();
                ended.map_err(|error| Error::local(ErrorKind::Internal, internal(error)))??;
            }
        }
        Ok(())
    }

    /// Fetches what was read after these runs before, if it was.
    fn expect_after(self: &Arc<Self>, open: &Arc<FileHandle>, runs: &[Range<u64>]) {
        if open.access.write || lock(&open.pattern).mode != ReadMode::Auto {
            return;
        }
        let (version, size) = open.file.with(|state| (state.version, state.size));
        let within = |run: &Range<u64>| run.start..run.end.min(size);
        let runs: Vec<_> = runs.iter().map(within).filter(|run| !run.is_empty()).collect();
        let (file, directory, piece) = (open.file.id, open.directory, None);
        let (range, window) = (0..0, self.frame(&open.file).window_max / 2);
        let step = Step { file, version, directory, range, piece, window };
        let foretold = lock(&self.past).note_list(&step, &runs);
        let mut known = Merged::default();
        runs.into_iter().for_each(|run| known.add(run));
        for new in foretold.ranges.into_iter().flat_map(|range| known.gaps(range)) {
            self.read_ahead(open, new, (Width::Guess, Reader::File(file)));
        }
    }
}

/// What is to be read for all ranges: in order, no two in one block or in neighbouring ones.
fn runs_of(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let block = BLOCK as u64;
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    sorted.sort_by_key(|range| range.start);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match runs.last_mut() {
            Some(run) if range.start / block <= run.end.saturating_sub(1) / block + 1 => {
                run.end = run.end.max(range.end);
            }
            _ => runs.push(range),
        }
    }
    runs
}

/// Those of ordered offsets that lie at least so far apart, as many as are asked for at once.
fn apart(offsets: &[u64], distance: u64) -> Vec<u64> {
    let mut chosen: Vec<u64> = Vec::new();
    for &offset in offsets {
        if chosen.last().is_none_or(|last| offset - last >= distance) && chosen.len() < PAGES_MAX {
            chosen.push(offset);
        }
    }
    chosen
}

/// The bytes of a range out of those of its run.
fn cut(runs: &[Range<u64>], read: &[Vec<Bytes>], range: &Range<u64>) -> Vec<Bytes> {
    let place = runs.partition_point(|run| run.end <= range.start);
    let (Some(run), Some(pieces)) = (runs.get(place), read.get(place)) else { return Vec::new() };
    let (mut at, mut found) = (run.start, Vec::new());
    for piece in pieces {
        let end = at + piece.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            found.push(piece.slice((from - at) as usize..(to - at) as usize));
        }
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_neighbouring_blocks_are_one_run() {
        let runs = runs_of(&[9000..9010, 5..5, 0..10, 20_000..30_000, 20..30, 8..4096, 4096..5000]);
        assert_eq!(runs, [0..9010, 20_000..30_000]);
        assert!(runs_of(&[7..7, 9..9]).is_empty());
    }

    #[test]
    fn pages_are_asked_for_as_far_apart_as_they_reach() {
        assert_eq!(apart(&[5, 10, 14, 15, 40], 10), [5, 15, 40]);
        assert_eq!(apart(&[5, 6], 0), [5, 6]);
        let many: Vec<u64> = (0..100).collect();
        assert_eq!(apart(&many, 1).len(), PAGES_MAX);
    }

    #[test]
    fn each_range_gets_its_own_bytes() {
        let runs = [10..20, 50..60];
        let piece = |bytes: &'static [u8]| Bytes::from_static(bytes);
        let read = [vec![piece(b"0123"), piece(b"456789")], vec![piece(b"ab")]];
        let got = |range| cut(&runs, &read, &range).concat();
        assert_eq!(got(12..16), b"2345");
        assert_eq!(got(10..20), b"0123456789");
        assert_eq!(got(51..60), b"b", "the file ends there");
        assert_eq!(got(55..60), b"");
        assert_eq!(got(15..15), b"");
    }
}
