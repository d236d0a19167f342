//! A file's bytes, for whoever may read them: from end to end, a range, or many of them.
//!
//! What is read from end to end is announced, so that it comes ahead of its reader. Many ranges are
//! one plan: all of them are on their way before the first is sent, as far as [`AHEAD_MAX`] reaches
//! for all clients together. Who finds it taken reads one range after the other.

use crate::visitor::Visit;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tieline_files::{Files, Held, check_ranges};
use tieline_http::body::BodyError;
use tieline_http::server::content::Content;
use tieline_telemetry::metrics::METRICS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of lists of ranges that are in memory, all clients together.
const AHEAD_MAX: usize = 128 << 20;
/// Of one list.
const LIST_MAX: u64 = 32 << 20;
/// What a permit stands for.
const GRAIN: u64 = 4096;

/// Room for lists of ranges.
pub struct Ahead(Arc<Semaphore>);

impl Default for Ahead {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AHEAD_MAX / GRAIN as usize)))
    }
}

impl Ahead {
    fn take(&self, ranges: &[Range<u64>]) -> Option<OwnedSemaphorePermit> {
        let bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum::<u64>();
        let grains = u32::try_from(bytes.div_ceil(GRAIN)).ok().filter(|_| bytes <= LIST_MAX)?;
        self.0.clone().try_acquire_many_owned(grains).ok()
    }
}

/// See the module.
pub struct FileContent {
    files: Arc<dyn Files>,
    held: Held,
    /// For whom, until the last byte.
    _visit: Visit,
    /// What was read and is not sent: it begins at that offset.
    left: Mutex<(u64, VecDeque<Bytes>)>,
    fetched: Vec<(Range<u64>, Vec<Bytes>)>,
    _room: Option<OwnedSemaphorePermit>,
}

impl FileContent {
    /// `ranges` will be asked for, in their order.
    pub async fn new(
        (files, held): (Arc<dyn Files>, Held),
        visit: Visit,
        ahead: &Ahead,
        ranges: &[Range<u64>],
    ) -> tieline_files::Result<Self> {
        let (mut fetched, mut room) = (Vec::new(), None);
        match ranges {
            [one] => files.announce(held.handle, one.clone()),
            many if check_ranges(many).is_ok() => {
                room = ahead.take(many);
                if room.is_some() {
                    let read = files.read_ranges(held.handle, many).await?;
                    fetched = many.iter().cloned().zip(read).collect();
                }
            }
            _ => {}
        }
        let left = Mutex::default();
        Ok(Self { files, held, _visit: visit, left, fetched, _room: room })
    }

    /// None at all: the file became shorter, which ends the answer.
    async fn fetch(&self, offset: u64, length: usize) -> tieline_files::Result<Bytes> {
        let wanted = u32::try_from(length).unwrap_or(u32::MAX);
        let read = self.files.read(self.held.handle, offset, wanted).await?;
        let read = read.into_iter().filter(|piece| !piece.is_empty());
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = (offset, read.collect());
        Ok(self.left(offset, length).unwrap_or_default())
    }

    /// The next of what was read before, if it begins there.
    fn left(&self, offset: u64, length: usize) -> Option<Bytes> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.0 != offset {
            left.1.clear();
        }
        let mut piece = left.1.pop_front()?;
        if piece.len() > length {
            left.1.push_front(piece.split_off(length));
        }
        left.0 = offset + piece.len() as u64;
        Some(piece)
    }

    /// Of what was fetched ahead.
    fn ahead(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (range, pieces) = self.fetched.iter().find(|(range, _)| range.contains(&offset))?;
        let mut skip = usize::try_from(offset - range.start).ok()?;
        for piece in pieces {
            if skip < piece.len() {
                return Some(piece.slice(skip..piece.len().min(skip.saturating_add(length))));
            }
            skip -= piece.len();
        }
        None
    }
}

#[async_trait::async_trait]
impl Content for FileContent {
    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, BodyError> {
        let piece = match self.ahead(offset, length).or_else(|| self.left(offset, length)) {
            Some(piece) => piece,
            None => self.fetch(offset, length).await?,
        };
        METRICS.door_sent_bytes.with_label_values(&["https"]).inc_by(piece.len() as u64);
        Ok(piece)
    }
}
