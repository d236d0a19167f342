//! Ranges of chunks in memory, and ranges that are on their way.
//!
//! A chunk never changes, so what is here is good for ever; only its room is bounded. A range that
//! is asked for while it is on its way is not asked again: both readers wait for one [`Flight`].
//! Flights run in tasks of their own, so that a reader that goes away takes nothing from the other.
//!
//! What was read to its end is *spent*: whoever reads through the kernel's cache has it there, and
//! will not ask again. Little of it is kept, and it goes first, so that memory is used again while
//! the processor's caches know it. What nobody asked for in [`IDLE`] goes too ([`sweep`]).
//!
//! Invariants: only verified bytes get in; spent and other bytes together are bounded.

use crate::Error;
use crate::volume::lock;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkId, Content, ErrorKind, Extent};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// What lies here for so long without being asked for is dropped.
const IDLE: Duration = Duration::from_secs(4);

/// The same of small files that were fetched before somebody opened them.
pub(crate) const IDLE_SMALL: Duration = Duration::from_secs(60);
const LINGERING_MAX: usize = 64 << 10;

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
    /// Somebody waits for bytes of it.
    is_wanted: Arc<AtomicBool>,
    /// Somebody waits for its last byte.
    is_read: AtomicBool,
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

pub(crate) fn lost() -> Fault {
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

impl Task {
    /// Is set when somebody waits for bytes of it.
    pub fn is_wanted(&self) -> &Arc<AtomicBool> {
        &self.landing.is_wanted
    }
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
    used_at: Instant,
    is_spent: bool,
    /// Nobody has asked for any of it, nor was it written here.
    is_unasked: bool,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, BTreeMap<u64, Kept>>,
    /// Where pieces are that nobody has read to their end, by last use.
    unread: BTreeMap<u64, (ChunkId, u64)>,
    /// The others.
    spent: BTreeMap<u64, (ChunkId, u64)>,
    clock: u64,
    bytes: usize,
    spent_bytes: usize,
    /// Chunks of small files, fetched for whoever opens them.
    lingering: BTreeSet<ChunkId>,
    flights: BTreeMap<ChunkId, Vec<Flight>>,
    flying: usize,
}

/// How much may be kept.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub bytes_max: usize,
    pub spent_max: usize,
}

pub(crate) struct Chunks {
    state: Mutex<State>,
    room: Room,
    /// Something is kept.
    stirred: Arc<Notify>,
}

/// Drops what lies idle, until there are no chunks to be had any more.
pub(crate) async fn sweep(chunks: Weak<Chunks>) {
    let Some(stirred) = chunks.upgrade().map(|chunks| chunks.stirred.clone()) else { return };
    loop {
        stirred.notified().await;
        loop {
            sleep(IDLE / 4).await;
            let Some(chunks) = chunks.upgrade() else { return };
            if chunks.drop_idle() {
                break;
            }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // Whoever sweeps waits without holding us.
        self.stirred.notify_one();
    }
}

impl Chunks {
    pub fn new(room: Room) -> Self {
        Self { state: Mutex::default(), room, stirred: Arc::default() }
    }

    /// Says whether nothing is left.
    fn drop_idle(&self) -> bool {
        let mut state = self.lock();
        while let Some((chunk, offset)) = state.idlest() {
            state.remove(chunk, offset);
        }
        state.chunks.is_empty()
    }

    /// Where the bytes of `range` come from, in order; and the flights that have to be started for
    /// it, which are wider than what is missing if `widen` says so. Only what is read now is spent.
    pub fn find(
        &self,
        chunk: ChunkId,
        range: Range<u64>,
        is_read: bool,
        widen: impl Fn(Range<u64>) -> Vec<Range<u64>>,
    ) -> (Vec<Segment>, Vec<Task>) {
        let mut state = self.lock();
        let (mut segments, mut tasks) = (Vec::new(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            if let Some((offset, bytes)) = state.kept(chunk, at..range.end) {
                at += bytes.len() as u64;
                if is_read {
                    state.touch(chunk, offset, at);
                }
                segments.push(Segment::Here(bytes));
                continue;
            }
            if let Some(flight) = state.flight(chunk, at) {
                let end = flight.range.end.min(range.end);
                if is_read {
                    flight.landing.is_wanted.store(true, Ordering::Relaxed);
                }
                if end == flight.range.end && is_read {
                    flight.landing.is_read.store(true, Ordering::Relaxed);
                }
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

    /// Are the bytes of all these extents here, or on their way?
    pub fn have<'e>(&self, mut extents: impl Iterator<Item = &'e Extent>) -> bool {
        let state = self.lock();
        extents.all(|extent| match &extent.content {
            Content::Inline(_) | Content::Hole => true,
            Content::Chunk(chunk) => {
                let (id, first) = (chunk.chunk, chunk.skip);
                state.kept(id, first..first + 1).is_some() || state.flight(id, first).is_some()
            }
        })
    }

    /// What is fetched of the chunk may wait longer for its reader.
    pub fn linger(&self, chunk: ChunkId) {
        let mut state = self.lock();
        if state.lingering.len() >= LINGERING_MAX {
            state.lingering.clear();
        }
        state.lingering.insert(chunk);
    }

    /// How many bytes more may come for readers. What has waited longest for them goes for it.
    pub fn room_ahead(&self) -> usize {
        (self.room.bytes_max / 2).saturating_sub(self.lock().flying)
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
                let is_spent = task.landing.is_read.load(Ordering::Relaxed);
                let is_unasked = !task.landing.is_wanted.load(Ordering::Relaxed);
                let kept = Kept::new(bytes.clone(), is_spent, is_unasked);
                state.keep(chunk, *offset, kept, self.room);
            }
            if let Some(flights) = state.flights.get_mut(&chunk) {
                flights.retain(|flight| flight.range != task.range);
                if flights.is_empty() {
                    state.flights.remove(&chunk);
                }
            }
            state.flying -= (task.range.end - task.range.start) as usize;
        }
        self.stirred.notify_one();
        task.landing.land(outcome);
    }

    /// Takes bytes that were just written, from the chunk's start on.
    pub fn keep(&self, chunk: ChunkId, parts: &[Bytes]) {
        {
            let mut state = self.lock();
            let mut offset = 0;
            for bytes in parts {
                let kept = Kept::new(bytes.clone(), true, false);
                state.keep(chunk, offset, kept, self.room);
                offset += bytes.len() as u64;
            }
        }
        self.stirred.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Bytes from the start of `range`, as far as one kept piece goes.
    fn kept(&self, chunk: ChunkId, range: Range<u64>) -> Option<(u64, Bytes)> {
        let pieces = self.chunks.get(&chunk)?;
        // Exact and widened fetches may overlap: the nearest piece need not be the one that reaches
        // far enough.
        let near = pieces.range(..=range.start).rev().take(4);
        let (offset, kept) = near
            .map(|(&offset, kept)| (offset, kept))
            .find(|(offset, kept)| offset + kept.bytes.len() as u64 > range.start)?;
        let end = (offset + kept.bytes.len() as u64).min(range.end);
        Some((offset, part(offset, &kept.bytes, range.start..end)?))
    }

    /// A kept piece was read up to `end`.
    fn touch(&mut self, chunk: ChunkId, offset: u64, end: u64) {
        let Some(kept) = self.chunks.get_mut(&chunk).and_then(|pieces| pieces.get_mut(&offset))
        else {
            return;
        };
        let before = kept.place();
        self.clock += 1;
        (kept.used, kept.used_at) = (self.clock, Instant::now());
        let length = kept.bytes.len();
        let is_over = end >= offset + length as u64;
        self.spent_bytes += if is_over && !kept.is_spent { length } else { 0 };
        kept.is_spent |= is_over;
        kept.is_unasked = false;
        let after = kept.place();
        self.order(before.0).remove(&before.1);
        self.order(after.0).insert(after.1, (chunk, offset));
    }

    fn order(&mut self, is_spent: bool) -> &mut BTreeMap<u64, (ChunkId, u64)> {
        if is_spent { &mut self.spent } else { &mut self.unread }
    }

    /// Spent bytes go when they are too many, and before others.
    fn make_room(&mut self, room: Room) {
        while self.spent_bytes > room.spent_max || self.bytes > room.bytes_max {
            let first = self.spent.first_key_value().or(self.unread.first_key_value());
            let Some((_, &(chunk, offset))) = first else { break };
            self.remove(chunk, offset);
        }
    }

    fn remove(&mut self, chunk: ChunkId, offset: u64) {
        let Some(pieces) = self.chunks.get_mut(&chunk) else { return };
        let removed = pieces.remove(&offset);
        if pieces.is_empty() {
            self.chunks.remove(&chunk);
            self.lingering.remove(&chunk);
        }
        let Some(kept) = removed else { return };
        if kept.is_unasked {
            METRICS.client_unread_bytes.inc_by(kept.bytes.len() as u64);
        }
        self.bytes -= kept.bytes.len();
        self.spent_bytes -= if kept.is_spent { kept.bytes.len() } else { 0 };
        let (is_spent, used) = kept.place();
        self.order(is_spent).remove(&used);
    }

    /// A piece that nobody has asked for in a while.
    fn idlest(&self) -> Option<(ChunkId, u64)> {
        let is_idle = |&(chunk, offset): &(ChunkId, u64)| {
            let kept = self.chunks.get(&chunk).and_then(|pieces| pieces.get(&offset));
            let lingers = self.lingering.contains(&chunk);
            let limit = if lingers { IDLE_SMALL } else { IDLE };
            kept.is_none_or(|kept| kept.used_at.elapsed() >= limit)
        };
        let first = self.spent.values().next().copied().filter(is_idle);
        first.or_else(|| self.unread.values().copied().find(is_idle))
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

    fn keep(&mut self, chunk: ChunkId, offset: u64, kept: Kept, room: Room) {
        let length = kept.bytes.len();
        let known = self.chunks.get(&chunk).and_then(|pieces| pieces.get(&offset));
        if length == 0 || known.is_some_and(|known| known.bytes.len() >= length) {
            return;
        }
        self.remove(chunk, offset);
        self.clock += 1;
        let kept = Kept { used: self.clock, ..kept };
        self.bytes += length;
        self.spent_bytes += if kept.is_spent { length } else { 0 };
        let (is_spent, used) = kept.place();
        self.order(is_spent).insert(used, (chunk, offset));
        self.chunks.entry(chunk).or_default().insert(offset, kept);
        self.make_room(room);
    }
}

impl Kept {
    fn new(bytes: Bytes, is_spent: bool, is_unasked: bool) -> Self {
        Self { bytes, used: 0, used_at: Instant::now(), is_spent, is_unasked }
    }

    /// In which order it stands, and where.
    fn place(&self) -> (bool, u64) {
        (self.is_spent, self.used)
    }
}

/// The part `range` of bytes that start at `offset`, if they hold all of it.
fn part(offset: u64, bytes: &Bytes, range: Range<u64>) -> Option<Bytes> {
    let from = range.start.checked_sub(offset)?;
    let to = range.end.checked_sub(offset)?;
    (from <= to && to <= bytes.len() as u64).then(|| bytes.slice(from as usize..to as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Grant, MdtIndex};

    const ROOM: Room = Room { bytes_max: 100, spent_max: 20 };

    fn id(serial: u64) -> ChunkId {
        ChunkId { mdt: MdtIndex(0), grant: Grant(1), serial }
    }

    /// Fetches ten bytes of a chunk for nobody.
    fn fetch(chunks: &Chunks, serial: u64) {
        let (_, tasks) = chunks.find(id(serial), 0..10, false, |missing| vec![missing]);
        for task in tasks {
            chunks.land(id(serial), task, Ok((0, Bytes::from_static(&[7; 10]))));
        }
    }

    /// Reads a range; says whether it was here.
    fn read(chunks: &Chunks, serial: u64, range: Range<u64>) -> bool {
        let (segments, _) = chunks.find(id(serial), range, true, |missing| vec![missing]);
        segments.iter().all(|segment| matches!(segment, Segment::Here(_)))
    }

    #[tokio::test]
    async fn what_was_read_to_its_end_goes_first() {
        let chunks = Chunks::new(ROOM);
        (0..10).for_each(|serial| fetch(&chunks, serial));
        assert_eq!(chunks.lock().bytes, 100, "all that nobody read yet is kept");
        assert!(read(&chunks, 0, 0..5) && chunks.lock().spent.is_empty(), "not to its end");
        (0..4).for_each(|serial| assert!(read(&chunks, serial, 0..10)));
        fetch(&chunks, 10);
        let state = chunks.lock();
        assert!(state.spent_bytes <= ROOM.spent_max && state.bytes <= ROOM.bytes_max);
        assert!(!state.chunks.contains_key(&id(0)) && !state.chunks.contains_key(&id(1)));
        assert!((4..11).all(|serial| state.chunks.contains_key(&id(serial))));
    }

    #[tokio::test]
    async fn a_flight_that_is_waited_for_is_spent_when_it_lands() {
        let chunks = Chunks::new(ROOM);
        let (_, ahead) = chunks.find(id(1), 0..10, false, |missing| vec![missing]);
        assert!(!read(&chunks, 1, 0..10));
        for task in ahead {
            chunks.land(id(1), task, Ok((0, Bytes::from_static(&[7; 10]))));
        }
        assert_eq!(chunks.lock().spent_bytes, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_idle_is_dropped() {
        let chunks = Arc::new(Chunks::new(ROOM));
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&chunks)));
        fetch(&chunks, 1);
        chunks.keep(id(2), &[Bytes::from_static(&[1; 10])]);
        sleep(IDLE * 2).await;
        let bytes = {
            let state = chunks.lock();
            (state.bytes, state.spent_bytes, state.chunks.len())
        };
        assert_eq!(bytes, (0, 0, 0));
        drop(chunks);
        sweeping.await.unwrap();
    }
}
