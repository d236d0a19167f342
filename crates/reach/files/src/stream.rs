//! A file, or a range of it, from end to end: a piece at a time, as fast as the reader takes them.
//!
//! The range is announced ([`Files::announce`]), so that what comes next is fetched while the
//! reader is busy with what it has, and nothing beyond. Who does not ask for the next piece has no
//! more fetched than that: memory is bounded by whoever fetches.

use crate::{Error, Files, Result};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tieline_types::{ErrorKind, HandleId};

/// What is asked for at once.
const PIECE: u64 = 1 << 20;

/// A range on its way to one reader.
pub struct Stream {
    files: Arc<dyn Files>,
    handle: HandleId,
    left: Range<u64>,
    ready: VecDeque<Bytes>,
}

impl Stream {
    /// Of a range that lies within the file, as its attributes told. The handle stays the caller's
    /// to release.
    pub fn of(files: Arc<dyn Files>, handle: HandleId, range: Range<u64>) -> Self {
        files.announce(handle, range.clone());
        Self { files, handle, left: range, ready: VecDeque::new() }
    }

    /// The next bytes; `None` when all were given. A file that became shorter meanwhile is an
    /// error: the reader was promised more.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        if let Some(piece) = self.ready.pop_front() {
            return Some(Ok(piece));
        }
        if self.left.is_empty() {
            return None;
        }
        let length = PIECE.min(self.left.end - self.left.start);
        let read = self.files.read(self.handle, self.left.start, length as u32).await;
        let pieces = match read {
            Ok(pieces) => pieces,
            Err(error) => return Some(self.ended(error)),
        };
        let got: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if got == 0 {
            let what = format!("bytes from {} of a file that was cut", self.left.start);
            return Some(self.ended(Error::local(ErrorKind::Stale, what)));
        }
        self.left.start += got;
        self.ready.extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        self.ready.pop_front().map(Ok)
    }

    /// Nothing follows an error.
    fn ended(&mut self, error: Error) -> Result<Bytes> {
        self.left = 0..0;
        Err(error)
    }
}
