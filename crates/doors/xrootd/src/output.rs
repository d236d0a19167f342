//! Answers on their way to the client.
//!
//! Whoever answers hands over frames; one task writes them, one after the other. Where the client
//! does not take them at the least pace, the connection ends.
//!
//! Invariants: at most [`QUEUE`] frames wait; room for bytes is given back when they were written.

use crate::budget::Taken;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_world::StreamWriter;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

const QUEUE: usize = 64;
const SLICES: usize = 256;
/// The least that counts as taking something: so many bytes in so long.
const PACE_BYTES: usize = 16 << 10;
const PACE_TIME: Duration = Duration::from_secs(60);

/// Bytes that are sent one behind the other.
pub struct Frame {
    pub pieces: VecDeque<Bytes>,
    /// Where they were counted.
    pub taken: Option<Arc<Taken>>,
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        Self { pieces: [bytes].into(), taken: None }
    }
}

/// Where answers go.
#[derive(Clone)]
pub struct Output(mpsc::Sender<Frame>);

/// The client hears nothing any more.
#[derive(Debug)]
pub struct Deaf;

impl Output {
    pub async fn send(&self, frame: impl Into<Frame>) -> Result<(), Deaf> {
        self.0.send(frame.into()).await.map_err(|_| Deaf)
    }
}

/// A way to the client, and what writes to it: until all who could send are gone, or the client is.
pub fn begin(
    mut writer: Box<dyn StreamWriter>,
) -> (Output, impl Future<Output = io::Result<()>> + Send) {
    let (sender, mut frames) = mpsc::channel::<Frame>(QUEUE);
    let writing = async move {
        while let Some(frame) = frames.recv().await {
            write(&mut *writer, frame).await?;
        }
        let closing = timeout_at(Instant::now() + PACE_TIME, writer.shutdown());
        closing.await.unwrap_or(Ok(()))
    };
    (Output(sender), writing)
}

async fn write(writer: &mut dyn StreamWriter, frame: Frame) -> io::Result<()> {
    let Frame { mut pieces, taken } = frame;
    let sent = METRICS.door_sent_bytes.with_label_values(&["root"]);
    let (mut until, mut some) = (Instant::now() + PACE_TIME, 0);
    while !pieces.is_empty() {
        let slices: Vec<IoSlice<'_>> =
            pieces.iter().take(SLICES).map(|piece| IoSlice::new(piece)).collect();
        let writing = timeout_at(until, writer.write_vectored(&slices)).await;
        let written = writing.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(&mut pieces, written);
        sent.inc_by(written as u64);
        some += written;
        if some >= PACE_BYTES {
            (until, some) = (Instant::now() + PACE_TIME, 0);
        }
    }
    let flushing = timeout_at(until, writer.flush()).await;
    flushing.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    drop(taken);
    Ok(())
}

/// Takes away what was written, and what is empty.
fn advance(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(first) = pieces.front_mut() {
        if written < first.len() {
            first.advance(written);
            return;
        }
        written -= first.len();
        pieces.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_taken_away() {
        let pieces = ["ab", "", "cde", ""].map(|text| Bytes::from_static(text.as_bytes()));
        let mut left: VecDeque<_> = pieces.into();
        advance(&mut left, 3);
        assert_eq!(left, ["de", ""].map(|text| Bytes::from_static(text.as_bytes())));
        advance(&mut left, 2);
        assert!(left.is_empty());
    }
}
