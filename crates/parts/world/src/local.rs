//! A world inside one process: streams between names, seeded dice, a clock that follows tokio's
//! timers.
//!
//! Tests listen at any name (`mds`, `oss-fnal`; `HOST:0` gets a free port) and connect to it; each
//! connection is a pair of in-memory pipes that hold [`PIPE`] bytes each way, so a reader that does
//! not read makes its writer wait, as TCP does. Accidents happen on demand: [`LocalTransport::cut`]
//! resets connections and refuses new ones until [`LocalTransport::mend`];
//! [`LocalTransport::freeze`] lets nothing pass and tells nobody; [`LocalTransport::slow`] makes a
//! narrow line.
//!
//! Invariants: nothing depends on real time or real threads; what was written before a cut may be
//! lost, never torn into other bytes.

use crate::{Clock, Connection, Dice, FileRange, Listener, StreamWriter, Transport};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Sleep};

/// Bytes a pipe holds each way: about what a socket does.
const PIPE: usize = 256 << 10;
/// What passes at once on a slow line.
const SLOW_STEP: usize = 8 << 10;
/// Connections that wait to be accepted.
const BACKLOG: usize = 128;

/// Streams between names of one process.
#[derive(Default)]
pub struct LocalTransport {
    inner: Mutex<Inner>,
    /// Somebody began to listen, or a place was mended.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    places: BTreeMap<String, Place>,
    connections: u64,
    port_next: u16,
}

/// An address, listened at or not.
#[derive(Default)]
struct Place {
    listener: Option<mpsc::Sender<Connection>>,
    state: Flow,
    rate: Option<u64>,
    lines: Vec<Arc<Line>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Flow {
    #[default]
    Open,
    Frozen,
    Cut,
}

impl LocalTransport {
    /// Resets all connections to `address` and refuses new ones until [`Self::mend`].
    pub fn cut(&self, address: &str) {
        self.set(address, Flow::Cut);
    }

    /// Lets nothing pass to or from `address`, and new connections wait, until [`Self::mend`] or
    /// [`Self::cut`].
    pub fn freeze(&self, address: &str) {
        self.set(address, Flow::Frozen);
    }

    /// Lets everything pass again that was not cut.
    pub fn mend(&self, address: &str) {
        self.set(address, Flow::Open);
    }

    /// Lets at most so many bytes per second pass each way, on each connection to `address`; `None`
    /// for as many as will.
    pub fn slow(&self, address: &str, bytes_per_second: Option<u64>) {
        let mut inner = self.lock();
        let place = inner.places.entry(address.to_owned()).or_default();
        place.rate = bytes_per_second;
        place.lines.iter().for_each(|line| line.lock().rate = bytes_per_second);
    }

    /// Resets all connections to `address`; new ones are welcome.
    pub fn reset(&self, address: &str) {
        self.cut(address);
        self.mend(address);
    }

    /// How many connections were ever made.
    pub fn connections(&self) -> u64 {
        self.lock().connections
    }

    fn set(&self, address: &str, state: Flow) {
        let mut inner = self.lock();
        let place = inner.places.entry(address.to_owned()).or_default();
        place.state = state;
        for line in &place.lines {
            line.set(state);
        }
        place.lines.retain(|line| line.flow() != Flow::Cut && Arc::strong_count(line) > 1);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: frozen, ask again after a change.
    fn try_connect(&self, address: &str) -> Option<io::Result<Connection>> {
        let mut inner = self.lock();
        let number = inner.connections + 1;
        let place = inner.places.entry(address.to_owned()).or_default();
        let refused = |why: &str| {
            let text = format!("{address} {why}");
            Some(Err(io::Error::new(io::ErrorKind::ConnectionRefused, text)))
        };
        match place.state {
            Flow::Open => {}
            Flow::Frozen => return None,
            Flow::Cut => return refused("is cut off"),
        }
        let line = Arc::new(Line::default());
        line.lock().rate = place.rate;
        let (near, far) = tokio::io::duplex(PIPE);
        let far = connection(far, &line, format!("local-{number}"));
        match place.listener.as_ref().map(|listener| listener.try_send(far)) {
            Some(Ok(())) => {}
            Some(Err(mpsc::error::TrySendError::Full(_))) => return refused("is too busy"),
            _ => return refused("is not listened at"),
        }
        place.lines.retain(|line| Arc::strong_count(line) > 1);
        place.lines.push(line.clone());
        inner.connections = number;
        Some(Ok(connection(near, &line, address.to_owned())))
    }
}

#[async_trait::async_trait]
impl Transport for LocalTransport {
    async fn connect(&self, address: &str, patience: Duration) -> io::Result<Connection> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(result) = self.try_connect(address) {
                return result;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let text = format!("{address} does not answer");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let mut inner = self.lock();
        let address = match address.strip_suffix(":0") {
            Some(host) => {
                inner.port_next += 1;
                format!("{host}:{}", inner.port_next)
            }
            None => address.to_owned(),
        };
        let place = inner.places.entry(address.clone()).or_default();
        if place.listener.as_ref().is_some_and(|listener| !listener.is_closed()) {
            let text = format!("{address} is listened at already");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        let (listener, incoming) = mpsc::channel(BACKLOG);
        place.listener = Some(listener);
        self.changed.notify_waiters();
        Ok(Box::new(LocalListener { address, incoming }))
    }
}

struct LocalListener {
    address: String,
    incoming: mpsc::Receiver<Connection>,
}

#[async_trait::async_trait]
impl Listener for LocalListener {
    fn address(&self) -> io::Result<String> {
        Ok(self.address.clone())
    }

    async fn accept(&mut self) -> io::Result<Connection> {
        match self.incoming.recv().await {
            Some(connection) => Ok(connection),
            // Another listener took the address: none will come here any more.
            None => std::future::pending().await,
        }
    }
}

/// What the four ends of a connection share: whether anything passes, and who waits for that to
/// change.
#[derive(Default)]
struct Line {
    inner: Mutex<LineInner>,
}

#[derive(Default)]
struct LineInner {
    flow: Flow,
    rate: Option<u64>,
    wakers: [Option<Waker>; 4],
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, LineInner> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flow(&self) -> Flow {
        self.lock().flow
    }

    fn set(&self, flow: Flow) {
        let mut inner = self.lock();
        // A cut line stays cut: mending a place is for new connections.
        if inner.flow != Flow::Cut {
            inner.flow = flow;
        }
        inner.wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    /// Ready when the line is open; an error when it is cut. `end` waits for changes in any case.
    fn poll_open(&self, end: usize, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        match inner.flow {
            Flow::Cut => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Flow::Open | Flow::Frozen => {}
        }
        if let Some(waker) = inner.wakers.get_mut(end) {
            *waker = Some(context.waker().clone());
        }
        if inner.flow == Flow::Open { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

fn connection(stream: DuplexStream, line: &Arc<Line>, peer: String) -> Connection {
    let (reader, writer) = tokio::io::split(stream);
    // The two connections of a line use different slots.
    let first = if peer.starts_with("local-") { 0 } else { 2 };
    Connection {
        reader: Box::new(LocalReader {
            stream: reader,
            line: line.clone(),
            end: first,
            pause: None,
        }),
        writer: Box::new(LocalWriter { stream: writer, line: line.clone(), end: first + 1 }),
        peer,
        local: String::new(),
        slows_at_losses: false,
    }
}

struct LocalReader {
    stream: ReadHalf<DuplexStream>,
    line: Arc<Line>,
    end: usize,
    /// On a slow line: until the bytes of before have come.
    pause: Option<Pin<Box<Sleep>>>,
}

impl LocalReader {
    /// Reads a little, and then nothing for as long as a line of that rate needs for it.
    fn poll_slowly(
        &mut self,
        rate: u64,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let mut space = [0; SLOW_STEP];
        let mut piece = ReadBuf::new(&mut space[..buffer.remaining().min(SLOW_STEP)]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
        buffer.put_slice(piece.filled());
        let seconds = piece.filled().len() as f64 / rate.max(1) as f64;
        self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_secs_f64(seconds))));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for LocalReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.line.poll_open(self.end, context))?;
        let rate = self.line.lock().rate;
        match rate {
            Some(rate) => self.poll_slowly(rate, context, buffer),
            None => Pin::new(&mut self.stream).poll_read(context, buffer),
        }
    }
}

struct LocalWriter {
    stream: WriteHalf<DuplexStream>,
    line: Arc<Line>,
    end: usize,
}

impl AsyncWrite for LocalWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.line.poll_open(self.end, context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// As TCP: dropping the sending end is the end of the stream, also while our own reader lives on.
impl Drop for LocalWriter {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // Shutting a pipe down never waits.
        let _ = Pin::new(&mut self.stream).poll_shutdown(&mut context);
    }
}

#[async_trait::async_trait]
impl StreamWriter for LocalWriter {
    async fn send_file(&mut self, range: &FileRange) -> io::Result<()> {
        let mut bytes = vec![0; range.length as usize];
        range.file.read_exact_at(&mut bytes, range.offset)?;
        self.write_all(&bytes).await
    }
}

/// Dice that fall the same way for the same seed. Not for keys.
pub struct SeededDice {
    state: Mutex<u64>,
}

impl SeededDice {
    pub fn new(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }
}

impl Dice for SeededDice {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.chunks_mut(8) {
            let number = splitmix(&mut state).to_le_bytes();
            part.copy_from_slice(&number[..part.len()]);
        }
    }
}

/// SplitMix64: the numbers of a counter, well mixed.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Wall time that goes as tokio's timers go, from 2026-01-01 at the first look.
#[derive(Default)]
pub struct TimerClock {
    first: OnceLock<Instant>,
}

impl Clock for TimerClock {
    fn wall(&self) -> Duration {
        const START: Duration = Duration::from_secs(1_767_225_600);
        START + self.first.get_or_init(Instant::now).elapsed()
    }
}

#[cfg(test)]
mod tests;
