//! Fetches ranges of chunks from OSSs, verified, from whichever place has them.
//!
//! Invariant: bytes that do not match their checks are never handed on; they are counted, named in
//! the log, and the next place is asked.

use crate::chunks::{Fault, Outcome, Segment, Task};
use crate::volume::Shared;
use crate::{Error, Result};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::checksum::{BLOCK, crc32c, first_mismatch};
use tieline_types::{ChunkRef, ErrorKind, OstIndex, Place};
use tieline_wire::data::ReadObject;

/// Sequential readers fetch pieces of this size, aligned in the chunk: several are on their way at
/// once.
pub(crate) const PIECE: u64 = 1 << 20;
/// One request for an exact range; larger ranges are several.
const REQUEST_MAX: u64 = 4 << 20;
/// How long one of several places may take before the next is asked.
const PLACE_PATIENCE: Duration = Duration::from_secs(10);
/// An OST that failed is asked last for so long.
pub(crate) const TROUBLE_KEPT: Duration = Duration::from_secs(30);

/// How much to fetch around what is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    Exact,
    Pieces,
}

impl Shared {
    /// The ranges to be fetched start now; their bytes are waited for later.
    pub(crate) fn start_chunk(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        range: Range<u64>,
        width: Width,
    ) -> Vec<Segment> {
        let length = chunk.length;
        let widen = |missing: Range<u64>| match width {
            Width::Exact => steps(missing),
            Width::Pieces => pieces(missing, length),
        };
        let (segments, tasks) = self.chunks.find(chunk.chunk, range, widen);
        for task in tasks {
            let (shared, chunk) = (self.clone(), chunk.clone());
            tokio::spawn(async move {
                let outcome = shared.fetch(&chunk, task.range.clone()).await;
                shared.land(&chunk, task, outcome);
            });
        }
        segments
    }

    fn land(&self, chunk: &ChunkRef, task: Task, outcome: Outcome) {
        if let Ok((_, bytes)) = &outcome {
            METRICS.client_fetched_bytes.inc_by(bytes.len() as u64);
        }
        self.chunks.land(chunk.chunk, task, outcome);
    }

    /// Asks the places of a chunk in turn.
    async fn fetch(&self, chunk: &ChunkRef, range: Range<u64>) -> Outcome {
        let places = self.places_in_order(chunk);
        let mut worst: Option<Fault> = None;
        for (index, place) in places.iter().enumerate() {
            let is_last = index + 1 == places.len();
            let wait = self.settings.wait;
            let patience = if is_last { wait } else { wait.min(PLACE_PATIENCE) };
            match self.fetch_from(chunk, place, range.clone(), patience).await {
                Ok(found) => return Ok(found),
                Err(error) => {
                    let fault = self.place_failed(chunk, place, &error);
                    // A freed chunk and a bad one say more than a server that is away.
                    let rank = |kind| match kind {
                        ErrorKind::Corrupt => 2,
                        ErrorKind::Gone => 1,
                        _ => 0,
                    };
                    if worst.as_ref().is_none_or(|known| rank(fault.kind) >= rank(known.kind)) {
                        worst = Some(fault);
                    }
                }
            }
        }
        let nowhere = || Fault { kind: ErrorKind::Gone, what: format!("chunk {}", chunk.chunk) };
        Err(worst.unwrap_or_else(nowhere))
    }

    /// Places that are up to date, those in trouble last.
    fn places_in_order(&self, chunk: &ChunkRef) -> Vec<Place> {
        let mut places: Vec<_> =
            chunk.places.iter().filter(|place| !place.is_stale).cloned().collect();
        places.sort_by_key(|place| self.is_in_trouble(place.ost));
        places
    }

    fn place_failed(&self, chunk: &ChunkRef, place: &Place, error: &Error) -> Fault {
        let (kind, ost, id) = (error.kind(), place.ost.label(), chunk.chunk);
        if kind == ErrorKind::Corrupt {
            tracing::warn!(%ost, chunk = %id, "chunk does not match its checksum");
        } else if kind != ErrorKind::Gone {
            tracing::info!(%ost, chunk = %id, %error, "chunk cannot be read here");
            self.mark_trouble(place.ost);
        }
        Fault { kind, what: format!("chunk {id} at {ost} ({error})") }
    }

    async fn fetch_from(
        &self,
        chunk: &ChunkRef,
        place: &Place,
        range: Range<u64>,
        patience: Duration,
    ) -> Result<(u64, Bytes)> {
        let message = ReadObject {
            ost: place.ost,
            object: place.object.clone(),
            offset: place.offset + range.start,
            length: u32::try_from(range.end - range.start).unwrap_or(u32::MAX),
            capability: None,
        };
        let asked = self.servers.ask_oss(place.ost, message, Bytes::new(), patience).await?;
        let (reply, bulk) = asked;
        let is_aligned = reply.offset.is_multiple_of(BLOCK as u64);
        if !is_aligned || first_mismatch(&bulk, &reply.checks).is_some() {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            return Err(corrupt(chunk, place.ost));
        }
        let own = place.offset..place.offset + chunk.length;
        let found = (reply.offset..reply.offset + bulk.len() as u64, &bulk);
        let (offset, bytes) = clip(found, &own).ok_or_else(|| corrupt(chunk, place.ost))?;
        let holds_all = offset <= range.start && offset + bytes.len() as u64 >= range.end;
        if !holds_all || !matches_own_checks(chunk, offset, &bytes) {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            return Err(corrupt(chunk, place.ost));
        }
        Ok((offset, bytes))
    }

    pub(crate) fn is_in_trouble(&self, ost: OstIndex) -> bool {
        let troubles = crate::volume::lock(&self.troubles);
        troubles.get(&ost).is_some_and(|since| since.elapsed() < TROUBLE_KEPT)
    }

    pub(crate) fn mark_trouble(&self, ost: OstIndex) {
        crate::volume::lock(&self.troubles).insert(ost, tokio::time::Instant::now());
    }
}

fn corrupt(chunk: &ChunkRef, ost: OstIndex) -> Error {
    Error::Corrupt { what: format!("chunk {} at {}", chunk.chunk, ost.label()) }
}

/// `missing` in aligned pieces that cover it, within a chunk of `length` bytes.
///
/// Only the ends are widened; a neighbour that is here already may be fetched twice, never thrice.
fn pieces(missing: Range<u64>, length: u64) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    let mut at = missing.start / PIECE * PIECE;
    while at < missing.end {
        all.push(at..(at + PIECE).min(length.max(missing.end)));
        at += PIECE;
    }
    all
}

/// `missing` in requests that no OSS refuses for their size.
fn steps(missing: Range<u64>) -> Vec<Range<u64>> {
    let starts = (missing.start..missing.end).step_by(REQUEST_MAX as usize);
    starts.map(|at| at..(at + REQUEST_MAX).min(missing.end)).collect()
}

/// The part of found bytes that lies in `own`, counted from its start.
fn clip((found, bytes): (Range<u64>, &Bytes), own: &Range<u64>) -> Option<(u64, Bytes)> {
    let (from, to) = (found.start.max(own.start), found.end.min(own.end));
    let slice = from.checked_sub(found.start)? as usize..to.checked_sub(found.start)? as usize;
    (slice.start <= slice.end).then(|| (from - own.start, bytes.slice(slice)))
}

/// Checks that the MDS keeps, for objects that do not carry their own.
fn matches_own_checks(chunk: &ChunkRef, offset: u64, bytes: &Bytes) -> bool {
    let Some(checks) = &chunk.checks else { return true };
    let block = BLOCK as u64;
    let mut at = offset.div_ceil(block) * block;
    while at < offset + bytes.len() as u64 {
        let from = (at - offset) as usize;
        let to = (from + BLOCK).min(bytes.len());
        let is_whole = to - from == BLOCK || offset + to as u64 == chunk.length;
        let known = checks.get((at / block) as usize);
        if is_whole && known.is_some_and(|&check| crc32c(&bytes[from..to]) != check) {
            return false;
        }
        at += block;
    }
    true
}
