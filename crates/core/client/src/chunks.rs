//! Ranges of chunks in memory, and ranges that are on their way.
//!
//! A chunk never changes, so what is here is good for ever; only its room is bounded. A range that
//! is asked for while it is on its way is not asked again: both readers wait for one [`Flight`].
//! Flights run in tasks of their own, so that a reader that goes away takes nothing from the other.
//!
//! Invariant: only verified bytes get in.

use crate::Error;
use crate::volume::lock;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tieline_types::{ChunkId, ErrorKind};
use tokio::sync::Notify;

/// Why bytes did not come: what all who wait for them are told.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub kind: ErrorKind,
    pub what: String,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            ErrorKind::Corrupt => Self::Corrupt { what: fault.what },
            kind => Self::local(kind, fault.what),
        }
    }
}

/// Bytes of a chunk from an offset, at least those that were asked.
pub(crate) type Outcome = Result<(u64, Bytes), Fault>;

/// A range on its way.
#[derive(Clone)]
pub(crate) struct Flight {
    pub range: Range<u64>,
    landing: Arc<Landing>,
}

/// Where those meet who wait for a flight. Woken in the order in which they came, so that simulated
/// worlds replay.
#[derive(Default)]
struct Landing {
    outcome: Mutex<Option<Outcome>>,
    landed: Notify,
}

impl Flight {
    /// The part `range` of what arrives.
    pub async fn bytes(&self, range: Range<u64>) -> Result<Bytes, Fault> {
        let (offset, bytes) = self.landing.wait().await?;
        part(offset, &bytes, range).ok_or_else(lost)
    }
}

impl Landing {
    async fn wait(&self) -> Outcome {
        loop {
            let landed = self.landed.notified();
            tokio::pin!(landed);
            landed.as_mut().enable();
            if let Some(outcome) = lock(&self.outcome).clone() {
                return outcome;
            }
            landed.await;
        }
    }

    fn land(&self, outcome: Outcome) {
        lock(&self.outcome).get_or_insert(outcome);
        self.landed.notify_waiters();
    }
}

fn lost() -> Fault {
    Fault { kind: ErrorKind::Cancelled, what: "fetch of a chunk".to_owned() }
}

/// Where the next bytes of a range come from.
pub(crate) enum Segment {
    Here(Bytes),
    Coming(Flight, Range<u64>),
}

/// A flight that somebody has to carry out.
pub(crate) struct Task {
    pub range: Range<u64>,
    landing: Arc<Landing>,
}

impl Drop for Task {
    /// Nobody waits for a task that is gone.
    fn drop(&mut self) {
        self.landing.land(Err(lost()));
    }
}

struct Kept {
    bytes: Bytes,
    used: u64,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, BTreeMap<u64, Kept>>,
    /// By last use.
    order: BTreeMap<u64, (ChunkId, u64)>,
    clock: u64,
    bytes: usize,
    flights: BTreeMap<ChunkId, Vec<Flight>>,
    flying: usize,
}

pub(crate) struct Chunks {
    state: Mutex<State>,
    bytes_max: usize,
}

impl Chunks {
    pub fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), bytes_max }
    }

    /// Where the bytes of `range` come from, in order; and the flights that have to be started for
    /// it, which are wider than what is missing if `grain` says so.
    pub fn find(
        &self,
        chunk: ChunkId,
        range: Range<u64>,
        widen: impl Fn(Range<u64>) -> Vec<Range<u64>>,
    ) -> (Vec<Segment>, Vec<Task>) {
        let mut state = self.lock();
        let (mut segments, mut tasks) = (Vec::new(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            if let Some(bytes) = state.kept(chunk, at..range.end) {
                at += bytes.len() as u64;
                segments.push(Segment::Here(bytes));
                continue;
            }
            if let Some(flight) = state.flight(chunk, at) {
                let end = flight.range.end.min(range.end);
                segments.push(Segment::Coming(flight, at..end));
                at = end;
                continue;
            }
            let missing = at..state.next(chunk, at).min(range.end);
            for wide in widen(missing) {
                tasks.push(state.start(chunk, wide));
            }
            if state.flight(chunk, at).is_none() {
                debug_assert!(false, "a widened range holds what is missing");
                break;
            }
        }
        (segments, tasks)
    }

    /// Bytes on their way.
    pub fn flying(&self) -> usize {
        self.lock().flying
    }

    /// A flight has ended.
    pub fn land(&self, chunk: ChunkId, task: Task, outcome: Outcome) {
        {
            let mut state = self.lock();
            if let Ok((offset, bytes)) = &outcome {
                state.keep(chunk, *offset, bytes.clone(), self.bytes_max);
            }
            if let Some(flights) = state.flights.get_mut(&chunk) {
                flights.retain(|flight| flight.range != task.range);
                if flights.is_empty() {
                    state.flights.remove(&chunk);
                }
            }
            state.flying -= (task.range.end - task.range.start) as usize;
        }
        task.landing.land(outcome);
    }

    /// Takes bytes that are known to be right.
    pub fn keep(&self, chunk: ChunkId, offset: u64, bytes: Bytes) {
        self.lock().keep(chunk, offset, bytes, self.bytes_max);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Bytes from the start of `range`, as far as one kept piece goes.
    fn kept(&mut self, chunk: ChunkId, range: Range<u64>) -> Option<Bytes> {
        let pieces = self.chunks.get_mut(&chunk)?;
        // Exact and widened fetches may overlap: the nearest piece need not be the one that reaches
        // far enough.
        let near = pieces.range_mut(..=range.start).rev().take(4);
        let (offset, kept) = near
            .map(|(&offset, kept)| (offset, kept))
            .find(|(offset, kept)| offset + kept.bytes.len() as u64 > range.start)?;
        let end = (offset + kept.bytes.len() as u64).min(range.end);
        let bytes = part(offset, &kept.bytes, range.start..end)?;
        self.clock += 1;
        self.order.remove(&kept.used);
        kept.used = self.clock;
        self.order.insert(self.clock, (chunk, offset));
        Some(bytes)
    }

    fn flight(&self, chunk: ChunkId, offset: u64) -> Option<Flight> {
        let flights = self.flights.get(&chunk)?;
        flights.iter().find(|flight| flight.range.contains(&offset)).cloned()
    }

    /// Where after `at` the next kept or coming range of the chunk begins.
    fn next(&self, chunk: ChunkId, at: u64) -> u64 {
        let pieces = self.chunks.get(&chunk);
        let kept = pieces.and_then(|pieces| pieces.range(at + 1..).next()).map(|(&next, _)| next);
        let flights = self.flights.get(&chunk).into_iter().flatten();
        let coming = flights.map(|flight| flight.range.start).filter(|&start| start > at).min();
        kept.unwrap_or(u64::MAX).min(coming.unwrap_or(u64::MAX))
    }

    fn start(&mut self, chunk: ChunkId, range: Range<u64>) -> Task {
        let landing = Arc::new(Landing::default());
        self.flying += (range.end - range.start) as usize;
        let flight = Flight { range: range.clone(), landing: landing.clone() };
        self.flights.entry(chunk).or_default().push(flight);
        Task { range, landing }
    }

    fn keep(&mut self, chunk: ChunkId, offset: u64, bytes: Bytes, bytes_max: usize) {
        if bytes.len() > bytes_max || bytes.is_empty() {
            return;
        }
        self.clock += 1;
        let pieces = self.chunks.entry(chunk).or_default();
        if pieces.get(&offset).is_some_and(|kept| kept.bytes.len() >= bytes.len()) {
            return;
        }
        self.bytes += bytes.len();
        if let Some(old) = pieces.insert(offset, Kept { bytes, used: self.clock }) {
            self.bytes -= old.bytes.len();
            self.order.remove(&old.used);
        }
        self.order.insert(self.clock, (chunk, offset));
        while self.bytes > bytes_max {
            let Some((_, (chunk, offset))) = self.order.pop_first() else { break };
            let Some(pieces) = self.chunks.get_mut(&chunk) else { continue };
            if let Some(old) = pieces.remove(&offset) {
                self.bytes -= old.bytes.len();
            }
            if pieces.is_empty() {
                self.chunks.remove(&chunk);
            }
        }
    }
}

/// The part `range` of bytes that start at `offset`, if they hold all of it.
fn part(offset: u64, bytes: &Bytes, range: Range<u64>) -> Option<Bytes> {
    let from = range.start.checked_sub(offset)?;
    let to = range.end.checked_sub(offset)?;
    (from <= to && to <= bytes.len() as u64).then(|| bytes.slice(from as usize..to as usize))
}
