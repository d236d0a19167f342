//! Frames over a stream, bulk beside them.
//!
//! [`FrameReader`] reads one frame after the other. It keeps what came of an unfinished frame, so
//! its future may be dropped at any time and no byte is lost. Small frames are cut from a buffer
//! that one read fills; large bulk is read straight to where it stays, without being zeroed first.
//! [`FrameWriter`] gathers small frames into one write and sends bulk from memory or, by the
//! kernel, from a file.
//!
//! Once a connection has keys, [`FrameReader::protect`] and [`FrameWriter::protect`] put the
//! protection of [`sealed`] around every frame.
//!
//! Invariants: lengths are checked, and header and body verified, before room for bulk is taken;
//! all bulk that waits for its requests fits into a [`Budget`], and so do long bodies, with what is
//! made of them; a peer that stops in the middle of a frame, or stops reading, or does either so
//! slowly that it may as well have stopped, is given up after [`STALL_MAX`].

use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tieline_auth::seal::{Broken, Opener, Sealer};
use tieline_types::RequestNumber;
use tieline_wire::{FrameError, FrameHeader, FrameKind, Op};
use tieline_world::{Bulk, FileRange, StreamWriter};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

mod budget;
mod sealed;

pub use budget::{Budget, Held};

/// A peer that sends nothing in the middle of a frame, or reads nothing of ours, for this long is
/// gone.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// Nothing is what is less than so much, or than the rest: what a frame takes of a server's memory
/// is not held by a byte now and then. Modems were faster.
const STEP_MIN: usize = 64 << 10;
/// What one read asks for while frames are small, and how much of small frames one write takes.
const GATHER: usize = 64 << 10;
/// What one step of sending a file takes: a peer that reads anything reads this much within the
/// stall.
const FILE_STEP: u32 = 1 << 20;
/// Bulk of so much begins on a page.
const ALIGNED_FROM: usize = 64 << 10;
const PAGE: usize = 4096;
/// What one vectored write takes: the kernel's limit is 1024.
const SLICES_MAX: usize = 512;
/// How long a frame waits for room in memory: its bulk is skipped then, and a long body ends the
/// connection. Whoever sent it asks again.
const BULK_PATIENCE: Duration = Duration::from_secs(10);
const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// Bodies of so much are bounded by how many requests there may be; longer ones take room.
pub const BODY_FREE: u32 = 4 << 10;
/// What a body takes beside its own bytes: they are copied as it is decoded, and the elements of
/// its arrays, of which there are bounded many, are several times what they were on the wire.
const BODY_WEIGHT: u32 = 8;

/// A frame that came.
#[derive(Debug)]
pub struct Frame {
    pub header: FrameHeader,
    pub body: Bytes,
    pub bulk: InBulk,
    /// What the body takes.
    pub room: Held,
}

/// The bulk of a frame that came.
#[derive(Debug)]
pub enum InBulk {
    Here(Bytes, Held),
    /// There was no room for it in time, or its call takes none: it was read and forgotten.
    Skipped,
}

/// A frame on its way out.
#[derive(Clone, Debug)]
pub struct OutFrame {
    header: FrameHeader,
    body: Vec<u8>,
    pub bulk: Bulk,
}

/// A stream that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("peer closed the connection")]
    Closed,
    #[error("peer closed the connection in the middle of a frame")]
    Torn,
    #[error("peer stopped in the middle of a frame for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("no memory for so long a request within {} s", BODY_PATIENCE.as_secs())]
    NoRoom,
    #[error("malformed frame")]
    Malformed(#[from] FrameError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("connection failed")]
    Io(#[from] io::Error),
}

impl OutFrame {
    pub fn new(kind: FrameKind, number: RequestNumber, body: Vec<u8>, bulk: Bulk) -> Self {
        let mut header = FrameHeader::new(kind);
        header.number = number;
        header.body_length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        header.bulk_length = u32::try_from(bulk.len()).unwrap_or(u32::MAX);
        Self { header, body, bulk }
    }

    /// A frame that only says its kind.
    pub fn bare(kind: FrameKind, number: RequestNumber) -> Self {
        Self::new(kind, number, Vec::new(), Bulk::Empty)
    }

    /// Sets what lengths do not decide: flags, call and deadline.
    pub fn with(mut self, set: impl FnOnce(&mut FrameHeader)) -> Self {
        set(&mut self.header);
        self
    }

    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Would the other end read it?
    pub fn is_sendable(&self) -> bool {
        self.header.body_length <= FrameHeader::BODY_MAX
            && self.header.bulk_length <= FrameHeader::BULK_MAX
    }
}

/// Reads frames. [`FrameReader::next`] may be dropped and called again.
pub struct FrameReader {
    stream: Watched,
    /// For bulk.
    budget: Budget,
    bodies: Budget,
    /// What came and is not yet part of a frame.
    buffer: BytesMut,
    /// For the body of the head that comes, if it is long and sealed.
    head_room: Option<Held>,
    begun: Option<Begun>,
    received: u64,
    opener: Option<Opener>,
    body_max: u32,
    bulk_max: u32,
}

/// A frame of which the header is here.
struct Begun {
    header: FrameHeader,
    raw: [u8; FrameHeader::LENGTH],
    body: Option<Bytes>,
    body_room: Option<Held>,
    room: Option<Room>,
    bulk: BytesMut,
    /// Bytes on the wire, of bulk that is not kept.
    skipped: usize,
    is_bulk_sealed: bool,
    /// Bytes of sealed bulk that were opened.
    opened: usize,
}

enum Room {
    Held(Held),
    None,
}

impl FrameReader {
    pub fn new(stream: Box<dyn AsyncRead + Send + Unpin>, budget: Budget) -> Self {
        Self {
            stream: Watched { stream, progress: Progress::new() },
            budget,
            bodies: Budget::unlimited(),
            buffer: BytesMut::new(),
            head_room: None,
            begun: None,
            received: 0,
            opener: None,
            body_max: FrameHeader::BODY_MAX,
            bulk_max: FrameHeader::BULK_MAX,
        }
    }

    /// Takes no longer bodies and no more bulk: for a peer that nobody knows yet.
    pub fn limit(&mut self, body_max: u32, bulk_max: u32) {
        (self.body_max, self.bulk_max) = (body_max, bulk_max);
    }

    /// The peer is known: what any frame may be, this one may, within what the peer has of memory.
    pub fn unlimit(&mut self, bodies: Budget, bulk: Budget) {
        (self.bodies, self.budget) = (bodies, bulk);
        self.limit(FrameHeader::BODY_MAX, FrameHeader::BULK_MAX);
    }

    /// Bytes received so far: a sign of life while a large frame is under way.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next frame.
    pub async fn next(&mut self) -> Result<Frame, ReadError> {
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None if self.is_next_sealed() => self.sealed_head().await?,
            None => Begun::new(self.header().await?, self.body_max, self.bulk_max)?,
        };
        // Kept in `self` whenever this future waits, so that dropping it loses nothing.
        loop {
            if begun.is_complete() {
                self.stream.progress = Progress::new();
                return Ok(begun.finish());
            }
            let at = self.begun.insert(begun);
            let source = Source { stream: &mut self.stream, buffer: &mut self.buffer };
            let budgets = (&self.bodies, &self.budget);
            let step = at.advance(source, budgets, self.opener.as_mut()).await;
            let Some(kept) = self.begun.take() else { return Err(ReadError::Torn) };
            begun = kept;
            match step {
                Ok(read) => self.received += read as u64,
                Err(error) => return Err(error),
            }
        }
    }

    async fn header(&mut self) -> Result<[u8; FrameHeader::LENGTH], ReadError> {
        self.fill(FrameHeader::LENGTH).await?;
        let raw = self.buffer.first_chunk::<{ FrameHeader::LENGTH }>().copied();
        let raw = raw.ok_or(ReadError::Torn)?;
        self.buffer.advance(FrameHeader::LENGTH);
        Ok(raw)
    }

    /// Reads until the buffer has so many bytes.
    async fn fill(&mut self, length: usize) -> Result<(), ReadError> {
        loop {
            let missing = length.saturating_sub(self.buffer.len());
            if missing == 0 {
                return Ok(());
            }
            let is_idle = self.buffer.is_empty();
            self.buffer.reserve(missing.max(GATHER));
            let read = match is_idle {
                true => self.stream.stream.read_buf(&mut self.buffer).await?,
                false => self.stream.read(&mut self.buffer, usize::MAX).await?,
            };
            match (read, is_idle) {
                (0, true) => return Err(ReadError::Closed),
                (0, false) => return Err(ReadError::Torn),
                (read, _) => self.received += read as u64,
            }
        }
    }
}

/// Where bytes come from: what is here already, then the stream.
struct Source<'a> {
    stream: &'a mut Watched,
    buffer: &'a mut BytesMut,
}

impl Begun {
    fn new(
        raw: [u8; FrameHeader::LENGTH],
        body_max: u32,
        bulk_max: u32,
    ) -> Result<Self, FrameError> {
        let header = FrameHeader::decode(&raw)?;
        if header.body_length > body_max {
            return Err(FrameError::BodyTooLong { length: header.body_length, limit: body_max });
        }
        if header.bulk_length > bulk_max {
            return Err(FrameError::BulkTooLong { length: header.bulk_length, limit: bulk_max });
        }
        Ok(Self {
            header,
            raw,
            body: None,
            body_room: None,
            room: None,
            bulk: BytesMut::new(),
            skipped: 0,
            is_bulk_sealed: false,
            opened: 0,
        })
    }

    fn bulk_left(&self) -> usize {
        let length = self.header.bulk_length as usize;
        match (self.is_bulk_sealed, &self.room) {
            (true, Some(Room::None)) => {
                (length + sealed::tags(self.header.bulk_length)).saturating_sub(self.skipped)
            }
            (true, _) => length.saturating_sub(self.opened),
            (false, _) => length.saturating_sub(self.bulk.len() + self.skipped),
        }
    }

    /// Bytes beside a request that takes none are not kept.
    fn takes_bulk(&self) -> bool {
        let header = &self.header;
        header.bulk_length == 0
            || header.kind != FrameKind::Request
            || Op::from_number(header.op).is_some_and(Op::takes_bulk)
    }

    fn is_complete(&self) -> bool {
        self.body.is_some() && self.room.is_some() && self.bulk_left() == 0
    }

    fn finish(self) -> Frame {
        let bulk = match self.room {
            Some(Room::Held(held)) => InBulk::Here(self.bulk.freeze(), held),
            Some(Room::None) | None => InBulk::Skipped,
        };
        let room = self.body_room.unwrap_or_default();
        Frame { header: self.header, body: self.body.unwrap_or_default(), bulk, room }
    }

    /// One step towards the whole frame. Returns how many bytes it read from the stream.
    async fn advance(
        &mut self,
        source: Source<'_>,
        (bodies, budget): (&Budget, &Budget),
        opener: Option<&mut Opener>,
    ) -> Result<usize, ReadError> {
        let body_length = self.header.body_length as usize;
        let Source { stream, buffer } = source;
        if self.body_room.is_none() {
            self.body_room = Some(room_for_body(bodies, self.header.body_length).await?);
        }
        if self.body.is_none() {
            if buffer.len() < body_length {
                buffer.reserve((body_length - buffer.len()).max(GATHER));
                return some(stream.read(buffer, usize::MAX).await?);
            }
            let body = buffer.split_to(body_length).freeze();
            FrameHeader::verify(&self.raw, &body)?;
            self.body = Some(body);
        }
        let room = match &self.room {
            Some(room) => room,
            None => {
                let held = match self.takes_bulk() {
                    true => budget.hold(self.header.bulk_length, BULK_PATIENCE).await,
                    false => None,
                };
                self.room.insert(held.map_or(Room::None, Room::Held))
            }
        };
        match (room, opener.filter(|_| self.is_bulk_sealed)) {
            (Room::None, opener) => self.skip(Source { stream, buffer }, opener).await,
            (Room::Held(_), Some(opener)) => {
                self.take_sealed(Source { stream, buffer }, opener).await
            }
            (Room::Held(_), None) => self.take(Source { stream, buffer }).await,
        }
    }

    /// Reads and forgets.
    async fn skip(
        &mut self,
        Source { stream, buffer }: Source<'_>,
        opener: Option<&mut Opener>,
    ) -> Result<usize, ReadError> {
        let here = self.bulk_left().min(buffer.len());
        buffer.advance(here);
        self.skipped += here;
        if self.bulk_left() > 0 {
            buffer.reserve(GATHER);
            return some(stream.read(buffer, usize::MAX).await?);
        }
        if let Some(opener) = opener {
            opener.skip(sealed::segments(self.header.bulk_length));
        }
        Ok(0)
    }

    async fn take(&mut self, Source { stream, buffer }: Source<'_>) -> Result<usize, ReadError> {
        let here = self.bulk_left().min(buffer.len());
        let (here, left) = (buffer.split_to(here), self.bulk_left() - here);
        // Copied also when it is all here: bulk is kept in caches, and must not keep the buffer.
        if self.bulk.capacity() == 0 {
            self.bulk = room_for(self.header.bulk_length as usize);
        }
        self.bulk.extend_from_slice(&here);
        if left == 0 {
            return Ok(0);
        }
        // Never beyond the bulk's end: what follows belongs to the next frame.
        some(stream.read(&mut self.bulk, left).await?)
    }

    /// The same for a segment and its tag, which is opened once it is whole.
    async fn take_sealed(
        &mut self,
        Source { stream, buffer }: Source<'_>,
        opener: &mut Opener,
    ) -> Result<usize, ReadError> {
        sealed::reserve(&mut self.bulk, self.header.bulk_length);
        let here = self.segment_left().min(buffer.len());
        self.bulk.extend_from_slice(&buffer.split_to(here));
        let left = self.segment_left();
        if left > 0 {
            let read = some(stream.read(&mut self.bulk, left).await?)?;
            if self.segment_left() > 0 {
                return Ok(read);
            }
            self.open_segment(opener)?;
            return Ok(read);
        }
        if self.bulk_left() > 0 {
            self.open_segment(opener)?;
        }
        Ok(0)
    }
}

/// Room for a long body, and for what is made of it.
async fn room_for_body(bodies: &Budget, length: u32) -> Result<Held, ReadError> {
    if length <= BODY_FREE {
        return Ok(Held::default());
    }
    let room = bodies.hold(length.saturating_mul(BODY_WEIGHT), BODY_PATIENCE).await;
    room.ok_or(ReadError::NoRoom)
}

/// Empty, with room for `length` bytes; where they are many, they begin on a page, so that a store
/// may have its disk take them from where they are.
fn room_for(length: usize) -> BytesMut {
    if length < ALIGNED_FROM {
        return BytesMut::with_capacity(length);
    }
    let mut room = BytesMut::with_capacity(length + PAGE);
    let before = room.as_ptr().align_offset(PAGE).min(PAGE);
    room.resize(before, 0);
    room.split_off(before)
}

/// A stream that may neither end nor stop in the middle of a frame.
struct Watched {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    progress: Progress,
}

impl Watched {
    async fn read(&mut self, into: &mut BytesMut, at_most: usize) -> Result<usize, ReadError> {
        let mut stream = (&mut self.stream).take(at_most as u64);
        let read = self.progress.step(stream.read_buf(into)).await;
        read.ok_or(ReadError::Stalled)?.map_err(ReadError::Io)
    }
}

/// How long the peer may still take to the next [`STEP_MIN`]. Only what is waited for it counts.
struct Progress {
    left: Duration,
    moved: usize,
}

impl Progress {
    fn new() -> Self {
        Self { left: STALL_MAX, moved: 0 }
    }

    /// `None`: it took too long.
    async fn step(
        &mut self,
        step: impl Future<Output = io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        let begun = Instant::now();
        let done = timeout(self.left, step).await.ok()?;
        self.left = self.left.saturating_sub(begun.elapsed());
        self.moved += done.as_ref().unwrap_or(&0);
        if self.moved >= STEP_MIN {
            *self = Self::new();
        }
        Some(done)
    }
}

fn some(read: usize) -> Result<usize, ReadError> {
    if read == 0 { Err(ReadError::Torn) } else { Ok(read) }
}

/// Writes frames.
pub struct FrameWriter {
    stream: Box<dyn StreamWriter>,
    gathered: Vec<u8>,
    progress: Arc<AtomicU64>,
    sealer: Option<Sealer>,
    /// Where sealed bulk is made; kept from one frame to the next.
    run: Vec<u8>,
}

impl FrameWriter {
    pub fn new(stream: Box<dyn StreamWriter>) -> Self {
        Self {
            stream,
            gathered: Vec::new(),
            progress: Arc::default(),
            sealer: None,
            run: Vec::new(),
        }
    }

    /// Counts the bytes that the stream took: a sign of life while a large frame is under way.
    pub fn progress(&self) -> Arc<AtomicU64> {
        self.progress.clone()
    }

    /// Is so much gathered that it should be flushed?
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= GATHER
    }

    /// Takes a frame. Small ones are gathered until [`FrameWriter::flush`]; large bulk is sent
    /// before this returns.
    pub async fn write(&mut self, frame: &OutFrame) -> io::Result<()> {
        if let Some(mut sealer) = self.sealer.take_if(|sealer| sealer.is_sealed()) {
            let written = self.write_sealed(frame, &mut sealer).await;
            self.sealer = Some(sealer);
            return written;
        }
        self.gathered.extend_from_slice(&frame.header.encode(&frame.body));
        self.gathered.extend_from_slice(&frame.body);
        self.write_bulk(&frame.bulk).await
    }

    async fn write_bulk(&mut self, bulk: &Bulk) -> io::Result<()> {
        match bulk {
            Bulk::Empty => Ok(()),
            Bulk::Bytes(bytes) if bytes.len() < GATHER => {
                self.gathered.extend_from_slice(bytes);
                Ok(())
            }
            // With what was gathered before, in as few system calls as the stream takes it in.
            Bulk::Bytes(bytes) => self.send_behind(&[bytes]).await,
            Bulk::Pieces(pieces) => {
                let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
                self.send_behind(&pieces).await
            }
            Bulk::File(range) => {
                self.flush().await?;
                self.send_file(range).await
            }
        }
    }

    pub async fn flush(&mut self) -> io::Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        self.send(&mut [IoSlice::new(&gathered)]).await?;
        self.keep_gathered(gathered);
        timeout(STALL_MAX, self.stream.flush()).await.map_err(|_| stalled())?
    }

    /// Tells the peer that nothing more comes.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await
    }

    /// Sends what was gathered, and `bulk` behind it.
    async fn send_behind(&mut self, bulk: &[&[u8]]) -> io::Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        for (at, some) in bulk.chunks(SLICES_MAX - 1).enumerate() {
            let head = (at == 0).then_some(gathered.as_slice());
            let mut slices: Vec<IoSlice<'_>> =
                head.iter().chain(some).map(|slice| IoSlice::new(slice)).collect();
            self.send(&mut slices).await?;
        }
        self.keep_gathered(gathered);
        Ok(())
    }

    async fn send(&mut self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let (mut rest, mut progress) = (slices, Progress::new());
        // Empty ones at the front go.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let written = progress.step(self.stream.write_vectored(rest)).await;
            let written = written.ok_or_else(stalled)??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.progress.fetch_add(written as u64, Ordering::Relaxed);
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    /// The buffer is used again, unless it grew large.
    fn keep_gathered(&mut self, mut gathered: Vec<u8>) {
        gathered.clear();
        if gathered.capacity() <= 2 * GATHER {
            self.gathered = gathered;
        }
    }

    async fn send_file(&mut self, range: &FileRange) -> io::Result<()> {
        let mut sent = 0;
        while sent < range.length {
            let step = range.part(sent, (range.length - sent).min(FILE_STEP));
            let outcome = timeout(STALL_MAX, self.stream.send_file(&step)).await;
            outcome.map_err(|_| stalled())?.inspect_err(|error| range.judge(error))?;
            sent += step.length;
            self.progress.fetch_add(u64::from(step.length), Ordering::Relaxed);
        }
        Ok(())
    }
}

fn stalled() -> io::Error {
    let text = format!("peer read next to nothing for {} s", STALL_MAX.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests;
