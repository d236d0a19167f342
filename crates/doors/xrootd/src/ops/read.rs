//! Reading a range of a file.

use super::{Asked, FRAME, Last, Outcome, cut, total};
use crate::answer;
use crate::handles::OpenFile;
use crate::output::Frame;
use crate::refusal::Refusal;
use crate::wire::{Handle, Status};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are asked for at once: as many as stock clients ask for.
pub(super) const BATCH: usize = 8 << 20;
/// The same where memory is short.
pub(super) const BATCH_LEAST: usize = 1 << 20;

impl Asked {
    pub(super) async fn read(&self, handle: Handle, range: Range<u64>) -> Outcome {
        let file = self.session.handles.get(handle)?;
        let mut at = range.start;
        loop {
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            if left == 0 {
                return Ok(Vec::new().into());
            }
            let taken = self.room(left.min(BATCH), BATCH_LEAST).await?;
            let pieces = self.bytes(&file, at, taken.bytes).await?;
            let mut got = total(&pieces);
            at += got as u64;
            let is_end = got < taken.bytes || at == range.end;
            let (mut pieces, taken) = (VecDeque::from(pieces), Arc::new(taken));
            while got > FRAME || (got > 0 && !is_end) {
                let some = got.min(FRAME);
                self.piece(cut(&mut pieces, some), Status::Partly, &taken).await?;
                got -= some;
            }
            if is_end {
                self.piece(pieces, Status::Done, &taken).await?;
                return Ok(Last::Sent);
            }
        }
    }

    async fn bytes(&self, file: &OpenFile, at: u64, length: usize) -> Result<Vec<Bytes>, Refusal> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let read = self.files().read(file.held.handle, at, length).await;
        read.map_err(|error| self.refused(&file.path, &error))
    }

    /// Sends some bytes, and counts them until they have left.
    async fn piece(
        &self,
        mut pieces: VecDeque<Bytes>,
        status: Status,
        taken: &Arc<crate::budget::Taken>,
    ) -> Result<(), Refusal> {
        let length = pieces.iter().map(Bytes::len).sum();
        pieces.push_front(answer::begun(self.stream, status, length));
        self.send(Frame { pieces, taken: Some(taken.clone()) }).await
    }

    pub(super) async fn room(
        &self,
        wanted: usize,
        least: usize,
    ) -> Result<crate::budget::Taken, Refusal> {
        let ends = || Refusal::new(crate::refusal::Code::ServerError, "the door ends");
        self.session.budget.take(wanted, least).await.ok_or_else(ends)
    }
}
