//! Ranges of chunks in memory, and ranges that are on their way.
//!
//! A chunk never changes, so what is here is good for ever; only its room is bounded. A range that
//! is asked for while it is on its way is not asked again: both readers wait for one [`Flight`].
//! Flights run in tasks of their own, so that a reader that goes away takes nothing from the other.
//!
//! What was read to its end is *spent*: whoever reads through the kernel's cache has it there, and
//! will not ask again. Little of it is kept, and it goes first, so that memory is used again while
//! the processor's caches know it. What nobody asked for in [`IDLE`] goes too, and what was fetched
//! ahead in [`IDLE_UNASKED`] ([`sweep`]).
//!
//! Small chunks from afar *linger*: kernels give up single pages of files that rest for seconds,
//! and to ask for one again costs as much as the whole chunk did. They have room of their own when
//! they are spent, and go after [`IDLE_SMALL`].
//!
//! Invariants: only verified bytes get in; spent and other bytes together are bounded.

use crate::lock;
use crate::source::{Fault, Outcome, lost};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tieline_foresight::walks::AHEAD_KEPT;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkId, Content, Extent};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// What lies here for so long without being asked for is dropped.
const IDLE: Duration = Duration::from_secs(4);

/// The same of what was fetched ahead: whoever works on what he has read comes for it later, and it
/// would be fetched again.
const IDLE_UNASKED: Duration = Duration::from_secs(30);

/// The same of what lingers.
const IDLE_SMALL: Duration = AHEAD_KEPT;
const LINGERING_MAX: usize = 64 << 10;

/// A range on its way.
#[derive(Clone)]
pub struct Flight {
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

/// Where the next bytes of a range come from.
pub enum Segment {
    Here(Bytes),
    Coming(Flight, Range<u64>),
}

/// A flight that somebody has to carry out.
pub struct Task {
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
    lingers: bool,
    /// Nobody has asked for any of it, nor was it written here.
    is_unasked: bool,
}

/// Pieces that go for the same reason, by last use.
#[derive(Default)]
struct Line {
    pieces: BTreeMap<u64, (ChunkId, u64)>,
    bytes: usize,
}

/// The lines in which pieces wait to go.
#[derive(Clone, Copy)]
enum Stand {
    /// Nobody has read it to its end.
    Unread,
    Spent,
    /// Spent, and lingers.
    Lingering,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, BTreeMap<u64, Kept>>,
    lines: [Line; 3],
    clock: u64,
    /// Memory that linger.
    lingering: BTreeSet<ChunkId>,
    flights: BTreeMap<ChunkId, Vec<Flight>>,
    flying: usize,
}

/// How much may be kept.
#[derive(Clone, Copy)]
pub struct Room {
    pub bytes_max: usize,
    pub spent_max: usize,
    /// Spent bytes that linger.
    pub lingering_max: usize,
}

pub struct Memory {
    state: Mutex<State>,
    room: Room,
    /// Something is kept.
    stirred: Arc<Notify>,
}

/// Drops what lies idle, until there are no chunks to be had any more.
pub async fn sweep(chunks: Weak<Memory>) {
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

impl Drop for Memory {
    fn drop(&mut self) {
        // Whoever sweeps waits without holding us.
        self.stirred.notify_one();
    }
}

impl Memory {
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
        let length = kept.bytes.len();
        self.lines[kept.stand() as usize].leave(kept.used, length);
        self.clock += 1;
        (kept.used, kept.used_at) = (self.clock, Instant::now());
        kept.is_spent |= end >= offset + length as u64;
        kept.is_unasked = false;
        self.lines[kept.stand() as usize].join(kept.used, (chunk, offset), length);
    }

    fn line(&self, stand: Stand) -> &Line {
        &self.lines[stand as usize]
    }

    fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.bytes).sum()
    }

    /// Spent bytes go when they are too many, and before others.
    fn make_room(&mut self, room: Room) {
        let mut over = |stand: Stand, is_over: &dyn Fn(&Self) -> bool| {
            while is_over(self)
                && let Some((_, &(chunk, offset))) = self.line(stand).pieces.first_key_value()
            {
                self.remove(chunk, offset);
            }
        };
        over(Stand::Spent, &|state| state.line(Stand::Spent).bytes > room.spent_max);
        over(Stand::Lingering, &|state| state.line(Stand::Lingering).bytes > room.lingering_max);
        for stand in [Stand::Spent, Stand::Lingering, Stand::Unread] {
            over(stand, &|state| state.bytes() > room.bytes_max);
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
        self.lines[kept.stand() as usize].leave(kept.used, kept.bytes.len());
    }

    /// A piece that nobody has asked for in a while.
    fn idlest(&self) -> Option<(ChunkId, u64)> {
        let is_idle = |&(chunk, offset): &(ChunkId, u64)| {
            let kept = self.chunks.get(&chunk).and_then(|pieces| pieces.get(&offset));
            kept.is_none_or(|kept| {
                let limit = match kept {
                    Kept { lingers: true, .. } => IDLE_SMALL,
                    Kept { is_unasked: true, .. } => IDLE_UNASKED,
                    _ => IDLE,
                };
                kept.used_at.elapsed() >= limit
            })
        };
        let spent = [Stand::Spent, Stand::Lingering].into_iter();
        let mut first = spent.filter_map(|stand| self.line(stand).pieces.values().next().copied());
        // What waits there has limits of each kind.
        let mut unread = self.line(Stand::Unread).pieces.values().copied();
        first.find(is_idle).or_else(|| unread.find(is_idle))
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
        let lingers = self.lingering.contains(&chunk);
        let kept = Kept { used: self.clock, lingers, ..kept };
        self.lines[kept.stand() as usize].join(kept.used, (chunk, offset), length);
        self.chunks.entry(chunk).or_default().insert(offset, kept);
        self.make_room(room);
    }
}

impl Kept {
    fn new(bytes: Bytes, is_spent: bool, is_unasked: bool) -> Self {
        Self { bytes, used: 0, used_at: Instant::now(), is_spent, lingers: false, is_unasked }
    }

    fn stand(&self) -> Stand {
        match (self.is_spent, self.lingers) {
            (false, _) => Stand::Unread,
            (true, false) => Stand::Spent,
            (true, true) => Stand::Lingering,
        }
    }
}

impl Line {
    fn join(&mut self, used: u64, piece: (ChunkId, u64), length: usize) {
        self.pieces.insert(used, piece);
        self.bytes += length;
    }

    fn leave(&mut self, used: u64, length: usize) {
        self.pieces.remove(&used);
        self.bytes -= length;
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
    use tieline_types::{Grant, GrantedId, MdtIndex};

    const ROOM: Room = Room { bytes_max: 100, spent_max: 20, lingering_max: 40 };

    fn id(serial: u64) -> ChunkId {
        GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial }.into()
    }

    /// Fetches ten bytes of a chunk for nobody.
    fn fetch(chunks: &Memory, serial: u64) {
        let (_, tasks) = chunks.find(id(serial), 0..10, false, |missing| vec![missing]);
        for task in tasks {
            chunks.land(id(serial), task, Ok((0, Bytes::from_static(&[7; 10]))));
        }
    }

    /// Reads a range; says whether it was here.
    fn read(chunks: &Memory, serial: u64, range: Range<u64>) -> bool {
        let (segments, _) = chunks.find(id(serial), range, true, |missing| vec![missing]);
        segments.iter().all(|segment| matches!(segment, Segment::Here(_)))
    }

    fn spent(chunks: &Memory) -> usize {
        chunks.lock().line(Stand::Spent).bytes
    }

    #[tokio::test(start_paused = true)]
    async fn what_lingers_has_room_of_its_own_for_a_while() {
        let chunks = Arc::new(Memory::new(ROOM));
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&chunks)));
        for serial in 0..6 {
            chunks.linger(id(serial));
            fetch(&chunks, serial);
            assert!(read(&chunks, serial, 0..10));
        }
        for serial in 6..12 {
            fetch(&chunks, serial);
            assert!(read(&chunks, serial, 0..10));
        }
        // Whatever comes makes room.
        fetch(&chunks, 12);
        let held = || chunks.lock().chunks.keys().map(|id| id.spread()).collect::<Vec<_>>();
        assert_eq!((spent(&chunks), chunks.lock().bytes()), (20, 70));
        assert_eq!(held(), [2, 3, 4, 5, 10, 11, 12], "four that linger, two others, the new one");
        sleep(IDLE * 2).await;
        assert_eq!(held(), [2, 3, 4, 5, 12]);
        sleep(IDLE_SMALL).await;
        assert!(held().is_empty() && chunks.lock().bytes() == 0);
        drop(chunks);
        sweeping.await.unwrap();
    }

    #[tokio::test]
    async fn what_was_read_to_its_end_goes_first() {
        let chunks = Memory::new(ROOM);
        (0..10).for_each(|serial| fetch(&chunks, serial));
        assert_eq!(chunks.lock().bytes(), 100, "all that nobody read yet is kept");
        assert!(read(&chunks, 0, 0..5) && spent(&chunks) == 0, "not to its end");
        (0..4).for_each(|serial| assert!(read(&chunks, serial, 0..10)));
        fetch(&chunks, 10);
        let state = chunks.lock();
        assert!(state.line(Stand::Spent).bytes <= ROOM.spent_max);
        assert!(state.bytes() <= ROOM.bytes_max);
        assert!(!state.chunks.contains_key(&id(0)) && !state.chunks.contains_key(&id(1)));
        assert!((4..11).all(|serial| state.chunks.contains_key(&id(serial))));
    }

    #[tokio::test]
    async fn a_flight_that_is_waited_for_is_spent_when_it_lands() {
        let chunks = Memory::new(ROOM);
        let (_, ahead) = chunks.find(id(1), 0..10, false, |missing| vec![missing]);
        assert!(!read(&chunks, 1, 0..10));
        for task in ahead {
            chunks.land(id(1), task, Ok((0, Bytes::from_static(&[7; 10]))));
        }
        assert_eq!(spent(&chunks), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_idle_is_dropped() {
        let chunks = Arc::new(Memory::new(ROOM));
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&chunks)));
        fetch(&chunks, 1);
        chunks.keep(id(2), &[Bytes::from_static(&[1; 10])]);
        sleep(IDLE * 2).await;
        assert_eq!(chunks.lock().bytes(), 10, "what nobody has read yet waits");
        sleep(IDLE_UNASKED).await;
        let bytes = {
            let state = chunks.lock();
            (state.bytes(), state.chunks.len())
        };
        assert_eq!(bytes, (0, 0));
        drop(chunks);
        sweeping.await.unwrap();
    }
}
