//! A connection of the world as hyper and rustls want it: one object, with the patience of whoever
//! made it.
//!
//! Who takes what is written more slowly than a [`Pace`] loses it. A server also limits how long it
//! waits for a head: [`Waiting`], which the service moves on.
//!
//! Invariants: no wait for the peer is endless, but for those that the layer above limits itself.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tieline_world::{Connection, StreamWriter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The least that counts as progress: `bytes` in each `within` that is spent waiting for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    pub bytes: u64,
    pub within: Duration,
}

impl Default for Pace {
    /// 60 s for 1 KiB: slower than any line, faster than who only wants to be waited for.
    fn default() -> Self {
        Self { bytes: 1 << 10, within: Duration::from_secs(60) }
    }
}

/// Counts what was waited for how little.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paced {
    pace: Pace,
    waited: Duration,
    bytes: u64,
}

impl Paced {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, waited: Duration::ZERO, bytes: 0 }
    }

    /// How much longer to wait for something.
    pub(crate) fn left(&self) -> Duration {
        self.pace.within.saturating_sub(self.waited)
    }

    /// So many bytes came after so long.
    pub(crate) fn note(&mut self, waited: Duration, bytes: usize) {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.bytes >= self.pace.bytes {
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
    }

    pub(crate) fn within(&self) -> Duration {
        self.pace.within
    }
}

/// Both directions of a connection, whatever it is made of.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Until when the next bytes must be here.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<Mutex<Wait>>);

#[derive(Clone, Copy, Default)]
enum Wait {
    /// The layer above has limits of its own.
    #[default]
    Free,
    /// For the first byte of a head, until then; from then on the head has so long.
    First {
        until: Instant,
        then: Duration,
    },
    Rest {
        until: Instant,
    },
}

impl Waiting {
    /// A head may come within `idle`, and has `head` from its first byte on.
    pub(crate) fn for_head(&self, idle: Duration, head: Duration) {
        self.set(Wait::First { until: Instant::now() + idle, then: head });
    }

    pub(crate) fn free(&self) {
        self.set(Wait::Free);
    }

    fn set(&self, wait: Wait) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    fn until(&self) -> Option<Instant> {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Wait::Free => None,
            Wait::First { until, .. } | Wait::Rest { until } => Some(until),
        }
    }

    fn came(&self) {
        let mut wait = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Wait::First { then, .. } = *wait {
            *wait = Wait::Rest { until: Instant::now() + then };
        }
    }
}

/// A connection's two directions in one.
pub(crate) struct Stream {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn StreamWriter>,
    waiting: Waiting,
    read_end: Timer,
    write_end: Timer,
    /// How the peer takes what is sent, and since when we wait for it.
    paced: Paced,
    waits_since: Option<Instant>,
}

impl Stream {
    pub(crate) fn new(connection: Connection, pace: Pace, waiting: Waiting) -> Self {
        let Connection { reader, writer, .. } = connection;
        let (read_end, write_end) = (Timer::default(), Timer::default());
        let (paced, waits_since) = (Paced::new(pace), None);
        Self { reader, writer, waiting, read_end, write_end, paced, waits_since }
    }

    /// What a write gives, or the end of patience with who does not take it.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
        taken: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        let now = Instant::now();
        match result {
            Poll::Ready(result) => {
                let waited = self.waits_since.take().map_or(Duration::ZERO, |since| now - since);
                self.paced.note(waited, result.as_ref().map_or(0, taken));
                Poll::Ready(result)
            }
            Poll::Pending => {
                let since = *self.waits_since.get_or_insert(now);
                let until = since + self.paced.left();
                if self.write_end.poll(until, context) { timed_out() } else { Poll::Pending }
            }
        }
    }
}

fn timed_out<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

/// A timer that is made when first needed.
#[derive(Default)]
struct Timer {
    until: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    fn poll(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if self.until.replace(until) != Some(until) {
            sleep.as_mut().reset(until);
        }
        sleep.as_mut().poll(context).is_ready()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.reader).poll_read(context, buffer);
        if result.is_ready() {
            this.waiting.came();
        }
        // Also when something came: who sends a head byte by byte shall not go on for ever.
        match this.waiting.until() {
            Some(until) if this.read_end.poll(until, context) => timed_out(),
            _ => result,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.writer).poll_write(context, bytes);
        this.limited(context, result, |taken| *taken)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.writer).poll_write_vectored(context, slices);
        this.limited(context, result, |taken| *taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.writer).poll_flush(context);
        this.limited(context, result, |()| 0)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.writer).poll_shutdown(context);
        this.limited(context, result, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_counts() {
        let second = Duration::from_secs(1);
        let mut paced = Paced::new(Pace { bytes: 10, within: second * 5 });
        paced.note(second * 2, 3);
        assert_eq!(paced.left(), second * 3);
        paced.note(second, 6);
        assert_eq!(paced.left(), second * 2, "nine bytes are not enough");
        paced.note(second, 1);
        assert_eq!(paced.left(), second * 5);
    }
}
