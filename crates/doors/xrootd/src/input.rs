//! Requests as they come: a head, then its payload, each within its time.
//!
//! Invariants: no more than one request is read ahead of who answers; nothing is kept of a payload
//! that is larger than may be.

use crate::request::PAYLOAD_MAX;
use crate::wire::{HANDSHAKE_BYTES, HEAD_BYTES, Head};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

/// For the rest of what has begun.
const REST: Duration = Duration::from_secs(60);

pub struct Input {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
}

/// Why a connection is not listened to any more.
#[derive(Debug)]
pub enum Ended {
    /// The client left, or the line broke.
    Gone,
    /// It said nothing for too long, or not all of something.
    Silent,
    /// It asks for more than can be: the rest of what it says means nothing.
    TooLarge,
}

impl Input {
    pub fn new(reader: Box<dyn AsyncRead + Send + Unpin>) -> Self {
        Self { reader, buffer: BytesMut::new() }
    }

    pub async fn handshake(&mut self, until: Instant) -> Result<[u8; HANDSHAKE_BYTES], Ended> {
        self.fill(HANDSHAKE_BYTES, until).await?;
        Ok(self.taken())
    }

    /// The next head, which may be waited for until then. May be dropped while it waits for the
    /// first byte: nothing is lost.
    pub async fn head(&mut self, until: Instant) -> Result<Head, Ended> {
        self.fill(1, until).await?;
        self.fill(HEAD_BYTES, Instant::now() + REST).await?;
        Ok(Head::read(&self.taken()))
    }

    pub async fn payload(&mut self, head: &Head) -> Result<Bytes, Ended> {
        let length = usize::try_from(head.length).ok().filter(|length| *length <= PAYLOAD_MAX);
        let length = length.ok_or(Ended::TooLarge)?;
        self.fill(length, Instant::now() + REST).await?;
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Bytes that are there.
    fn taken<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        self.buffer.copy_to_slice(&mut taken);
        taken
    }

    async fn fill(&mut self, length: usize, until: Instant) -> Result<(), Ended> {
        while self.buffer.len() < length {
            let missing = length - self.buffer.len();
            self.buffer.reserve(missing.max(4 << 10));
            let read = timeout_at(until, self.reader.read_buf(&mut self.buffer)).await;
            let read: io::Result<usize> = read.map_err(|_| Ended::Silent)?;
            if read.unwrap_or(0) == 0 {
                return Err(Ended::Gone);
            }
        }
        Ok(())
    }
}
