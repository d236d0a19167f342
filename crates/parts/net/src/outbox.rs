//! What waits to be sent on one connection, and the task that sends it.
//!
//! Frames without bulk go first, so that an answer or a ping does not wait behind megabytes; within
//! each of the two lanes order is kept. One task owns the stream: a frame is never torn by another.
//!
//! Invariants: the outbox is bounded by those who fill it: each frame stands for a request, a
//! notice or a ping of which there are only so many at once. After [`Outbox::close`] nothing more
//! is taken; what was taken before is still sent.

use crate::frames::{FrameWriter, Held, OutFrame};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_types::RequestNumber;
use tieline_wire::FrameKind;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Where frames wait. Cloned freely.
#[derive(Clone, Default)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lanes: Mutex<Lanes>,
    changed: Notify,
}

#[derive(Default)]
struct Lanes {
    small: VecDeque<Waiting>,
    bulk: VecDeque<Waiting>,
    is_closed: bool,
    drained: u64,
}

/// A frame, and what is given back once it is sent or dropped.
pub struct Waiting {
    frame: OutFrame,
    _holds: Holds,
}

/// Places among the requests at once, of the connection and of whose it is, and room for body and
/// bulk.
#[derive(Default)]
pub struct Holds {
    _places: [Option<OwnedSemaphorePermit>; 2],
    _room: [Held; 2],
}

impl Holds {
    pub fn new(places: impl IntoIterator<Item = OwnedSemaphorePermit>, room: [Held; 2]) -> Self {
        let mut places = places.into_iter();
        Self { _places: [places.next(), places.next()], _room: room }
    }
}

impl Outbox {
    pub fn push(&self, frame: OutFrame) {
        self.push_holding(frame, Holds::default());
    }

    /// Gives `holds` back when the frame is sent, or was not because the connection ended.
    pub fn push_holding(&self, frame: OutFrame, holds: Holds) {
        let mut lanes = self.lock();
        if lanes.is_closed {
            return;
        }
        // A goodbye is the last word: nothing that was said before may come after it.
        let is_bulk = !frame.bulk.is_empty() || frame.header().kind == FrameKind::Goodbye;
        let lane = if is_bulk { &mut lanes.bulk } else { &mut lanes.small };
        lane.push_back(Waiting { frame, _holds: holds });
        drop(lanes);
        self.shared.changed.notify_one();
    }

    /// Takes back a request that was not sent yet.
    pub fn withdraw(&self, number: RequestNumber) -> bool {
        let mut lanes = self.lock();
        let before = lanes.small.len() + lanes.bulk.len();
        let is_other = |waiting: &Waiting| {
            let header = waiting.frame.header();
            header.kind != FrameKind::Request || header.number != number
        };
        lanes.small.retain(is_other);
        lanes.bulk.retain(is_other);
        lanes.small.len() + lanes.bulk.len() < before
    }

    /// How often all there was had been sent. While this stands still the stream takes less than
    /// there is to send, and each byte it takes is a sign that the peer takes some; else it may
    /// only
    /// be a buffer that fills.
    pub fn drained(&self) -> u64 {
        self.lock().drained
    }

    /// Takes no more; the task ends when all is sent.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.shared.changed.notify_one();
    }

    /// Forgets all and takes no more.
    pub fn abandon(&self) {
        let mut lanes = self.lock();
        lanes.is_closed = true;
        lanes.small.clear();
        lanes.bulk.clear();
        drop(lanes);
        self.shared.changed.notify_one();
    }

    /// Sends what comes until the outbox is closed and empty, or the stream fails.
    pub async fn send_all(self, mut writer: FrameWriter) -> io::Result<()> {
        let result = self.send_until_closed(&mut writer).await;
        self.abandon();
        result
    }

    async fn send_until_closed(&self, writer: &mut FrameWriter) -> io::Result<()> {
        let mut gathered = Vec::new();
        loop {
            match self.pop() {
                Popped::Frame(waiting) => {
                    writer.write(&waiting.frame).await?;
                    gathered.push(waiting);
                    if writer.is_full() {
                        writer.flush().await?;
                        gathered.clear();
                    }
                }
                Popped::Empty => {
                    writer.flush().await?;
                    gathered.clear();
                    if self.is_idle() {
                        self.shared.changed.notified().await;
                    }
                }
                Popped::Closed => return writer.shutdown().await,
            }
        }
    }

    fn pop(&self) -> Popped {
        let mut lanes = self.lock();
        match lanes.small.pop_front().or_else(|| lanes.bulk.pop_front()) {
            Some(waiting) => Popped::Frame(waiting),
            None if lanes.is_closed => Popped::Closed,
            None => Popped::Empty,
        }
    }

    fn is_idle(&self) -> bool {
        let mut lanes = self.lock();
        let is_empty = lanes.small.is_empty() && lanes.bulk.is_empty();
        lanes.drained += u64::from(is_empty);
        is_empty && !lanes.is_closed
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.shared.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Popped {
    Frame(Waiting),
    Empty,
    Closed,
}
