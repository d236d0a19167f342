//! Tells how a handle is read, and says what to fetch beyond what is asked.
//!
//! A handle may carry several sequential streams at once: each is recognised by where it would go
//! on. Requests of a stream may overtake each other in the kernel, and one long read comes as
//! several requests at once: only what is asked after an earlier request was answered shows that a
//! reader goes on. The window ahead of it is twice what it has read, within what the way to the
//! servers needs: so little is fetched for nothing by those who stop early.
//!
//! Leaps from place to place are not for here: they are told to [`crate::past`], which knows what
//! was read through other handles too.
//!
//! [`Mode`]s other than [`Mode::Auto`] are what somebody asked for, as RFIO named them.
//!
//! Knows no file, no chunk and no clock.

use crate::mode::ReadMode as Mode;
use crate::past::PAGE;
use std::iter;
use std::ops::Range;

/// Sequential readers fetch pieces of this size, aligned in the chunk: several are on their way at
/// once.
pub const PIECE: u64 = 1 << 20;
/// A first read of so much, at the start, is the beginning of a sequential one.
const BOLD_FROM: u64 = 64 << 10;
/// Whoever reads more without a pause goes on.
const ONE_READ_MAX: u64 = 8 << 20;
/// How far out of order a request may come.
const SLACK: u64 = 1 << 20;
/// Streams told apart on one handle.
const STREAMS_MAX: usize = 8;

/// How much to fetch around what is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    Exact,
    Pieces,
    /// Pieces that nobody waits for yet.
    Ahead,
    /// Exactly what somebody is expected to want, and nobody waits for yet.
    Guess,
}

/// What distance makes useful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    pub window_first: u64,
    pub window_max: u64,
    /// The file is read in runs of up to so many bytes; 0: that is not known.
    pub run: u64,
}

/// How one handle is read.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    pub mode: Mode,
    streams: Vec<Stream>,
    clock: u64,
    /// Where the first reads began, while none was answered.
    lowest: Option<u64>,
    has_answered: bool,
    /// Bytes that were asked for.
    asked: u64,
    /// It reads one piece of many, past the kernel's cache.
    is_piece: bool,
    /// What will be read from end to end, and nothing beyond it.
    announced: Option<Range<u64>>,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    /// Where it goes on.
    next: u64,
    /// Read before anything of it was answered, and since.
    burst: u64,
    later: u64,
    /// Bytes between its requests that nobody has asked for.
    skipped: u64,
    /// Requests that are not answered.
    pending: u32,
    window: u64,
    /// Fetched or being fetched up to here.
    ahead: u64,
    is_bold: bool,
    used: u64,
}

/// What to do for one read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    pub width: Width,
    /// To be fetched beyond the read; may be empty.
    pub ahead: Vec<Range<u64>>,
    /// Not where any stream went on.
    pub is_leap: bool,
    /// Bytes that the program has asked for before.
    pub before: u64,
    /// It was announced: what lies beside it nobody wants.
    pub is_announced: bool,
}

impl Pattern {
    pub fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// The same for a file that is opened anew for each piece, past the kernel's cache.
    pub fn of_piece(self) -> Self {
        Self { is_piece: true, ..self }
    }

    /// All of `range` will be read, in order; nothing beyond is fetched for that.
    pub fn announce(&mut self, range: Range<u64>) {
        self.announced = Some(range).filter(|range| !range.is_empty());
    }

    /// Where the piece began that `range` goes on with, if such are read. A kernel that caches
    /// after all, for it could not map such files, asks for whole pages.
    pub fn piece(&self, range: &Range<u64>) -> Option<u64> {
        let goes_on = |stream: &&Stream| stream.length() > 0 && stream.next == range.start;
        let before = self.streams.iter().find(goes_on).map_or(0, Stream::length);
        let start = range.start.checked_sub(before)?;
        (self.is_piece && !start.is_multiple_of(PAGE)).then_some(start)
    }

    /// A read of `range` came; [`Pattern::answered`] follows.
    pub fn observe(&mut self, range: Range<u64>, frame: Frame) -> Advice {
        let index = self.find(&range);
        let is_leap = index.is_none();
        let index = index.unwrap_or_else(|| self.begin(&range));
        if let Some(stream) = self.streams.get_mut(index) {
            stream.note(&range);
        }
        self.merge(index);
        self.clock += 1;
        let before = self.before(&range);
        let (mode, clock) = (self.mode, self.clock);
        let announced = self.announced_with(&range);
        let Some(stream) = self.streams.get_mut(index) else {
            let (width, ahead) = (Width::Exact, Vec::new());
            return Advice { width, ahead, is_leap, before, is_announced: false };
        };
        stream.used = clock;
        if let Some(announced) = announced {
            stream.window = frame.window_max;
            let ahead = stream.advance(range.end, announced.end);
            return Advice { width: Width::Exact, ahead, is_leap, before, is_announced: true };
        }
        let (width, ahead) = match mode {
            Mode::Normal => (Width::Exact, Vec::new()),
            Mode::ReadBuffer(size) => (Width::Exact, buffer_around(&range, size.max(1))),
            Mode::Auto if !stream.goes_on(frame.run) => (Width::Exact, Vec::new()),
            Mode::Auto | Mode::ReadAhead => {
                stream.widen(frame);
                (Width::Pieces, stream.advance(range.end, u64::MAX))
            }
            Mode::Stream => {
                stream.window = frame.window_max;
                (Width::Pieces, stream.advance(range.end, u64::MAX))
            }
        };
        Advice { width, ahead, is_leap, before, is_announced: false }
    }

    /// What was announced, if a read is part of it.
    pub fn announced_with(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let is_part = |all: &&Range<u64>| all.start <= range.start && range.end <= all.end;
        self.announced.as_ref().filter(is_part).cloned()
    }

    /// How many bytes a program has asked for before it asks for this: the kernel's requests for
    /// one read of it may overtake each other.
    fn before(&mut self, range: &Range<u64>) -> u64 {
        let asked = self.asked;
        self.asked = asked.saturating_add(range.end - range.start);
        if self.has_answered {
            return asked;
        }
        let lowest = self.lowest.map_or(range.start, |lowest| lowest.min(range.start));
        self.lowest = Some(lowest);
        asked.min(range.start - lowest)
    }

    /// A read of this range was answered.
    pub fn answered(&mut self, range: &Range<u64>) {
        self.has_answered = true;
        let is_of = |stream: &&mut Stream| stream.pending > 0 && stream.holds(range);
        if let Some(stream) = self.streams.iter_mut().find(is_of) {
            stream.pending -= 1;
        }
    }

    /// The stream that the read goes on with.
    fn find(&self, range: &Range<u64>) -> Option<usize> {
        let distance = |stream: &Stream| {
            let slack = SLACK.min(stream.window.max(range.end - range.start));
            let behind = SLACK.min(stream.window.max(stream.burst));
            let is_next = range.start <= stream.next + SLACK.min(stream.window)
                && range.start + behind.max(slack) >= stream.next;
            is_next.then(|| range.start.abs_diff(stream.next))
        };
        let near = self.streams.iter().enumerate();
        let near = near.filter_map(|(index, stream)| Some((distance(stream)?, index)));
        near.min().map(|(_, index)| index)
    }

    fn begin(&mut self, range: &Range<u64>) -> usize {
        // Whoever begins with much at the file's start wants the rest of it too.
        let is_bold = range.start == 0 && range.end >= BOLD_FROM;
        let stream = Stream { next: range.start, is_bold, ..Stream::default() };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let oldest = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.used);
        let index = oldest.map_or(0, |(index, _)| index);
        if let Some(place) = self.streams.get_mut(index) {
            *place = stream;
        }
        index
    }

    /// Requests that overtook each other began two streams that are one.
    fn merge(&mut self, index: usize) {
        let Some(own) = self.streams.get(index).cloned() else { return };
        let is_next = |other: &Stream| {
            other.next > own.next
                && other.next.saturating_sub(other.length()) <= own.next
                && other.pending > 0
        };
        let Some(other) = self.streams.iter().position(is_next).filter(|&other| other != index)
        else {
            return;
        };
        let (next, pending, ahead) = {
            let other = &mut self.streams[other];
            let told = (other.next, other.pending, other.ahead);
            *other = Stream::default();
            told
        };
        if let Some(own) = self.streams.get_mut(index) {
            // What both have read counts once: a stream is never longer than it reaches.
            own.burst += next.saturating_sub(own.next);
            own.next = own.next.max(next);
            own.pending += pending;
            own.ahead = own.ahead.max(ahead);
        }
    }
}

impl Stream {
    fn length(&self) -> u64 {
        self.burst + self.later
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        range.end <= self.next && range.end + self.length().max(SLACK) >= self.next
    }

    fn note(&mut self, range: &Range<u64>) {
        // What is read again is no progress.
        let length = range.end.saturating_sub(self.next.max(range.start));
        // What is asked while nothing was answered is one read of the program, up to a length: the
        // kernel, too, reads ahead, and of a fast reader something is always under way.
        let is_one_read = self.pending > 0 && self.burst < ONE_READ_MAX;
        if self.later == 0 && (is_one_read || self.burst == 0) {
            self.burst += length;
        } else {
            self.later += length;
        }
        self.pending += 1;
        if range.start > self.next {
            self.skipped += range.start - self.next;
        } else {
            let behind = range.end.min(self.next) - range.start;
            self.skipped = self.skipped.saturating_sub(behind);
        }
        self.next = self.next.max(range.end);
    }

    /// Does it look as if more would follow? The few bytes that some programs read after a large
    /// block do not.
    fn goes_on(&self, run: u64) -> bool {
        // Requests overtake each other, but whoever leaves out much goes in leaps.
        if self.skipped > self.length() / 4 {
            return false;
        }
        let is_long = self.later > 0 && self.later >= self.burst / 4;
        // Where a file is read in runs, this one must be longer than those.
        self.is_bold || (is_long && self.length() > run + run / 4)
    }

    fn widen(&mut self, frame: Frame) {
        // One read alone shows little, however the kernel divides it, and it adds to one of its own
        // what comes behind it: both count as the first window.
        let wanted = match self.later {
            0 if self.is_bold => frame.window_first.saturating_sub(self.burst),
            0 => frame.window_first,
            _ => (2 * self.length()).clamp(frame.window_first, frame.window_max),
        };
        self.window = wanted.max(self.window.min(frame.window_max));
    }

    /// What to fetch now so that the window is full, up to where it ends.
    fn advance(&mut self, end: u64, last: u64) -> Vec<Range<u64>> {
        let from = self.ahead.max(end);
        let to = self.next.saturating_add(self.window).min(last);
        // Small steps are not worth a request, but for the last.
        let is_small = to < from + (self.window / 4).min(PIECE) && to < last;
        if to <= from || is_small {
            return Vec::new();
        }
        self.ahead = to;
        iter::once(from..to).collect()
    }
}

/// What a buffer of `size` bytes holds beside the range.
fn buffer_around(range: &Range<u64>, size: u64) -> Vec<Range<u64>> {
    let start = range.start / size * size;
    let end = range.end.div_ceil(size).saturating_mul(size);
    let around = [start..range.start, range.end..end];
    around.into_iter().filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests;
