//! Ranges of a file: holes and data, setting space aside, copying.

use crate::fetch::Width;
use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::volume::Shared;
use crate::writer::How;
use crate::{
    Allocation, AllocationMode, AttributeChange, CopyEnd, Error, HandleId, Result, SeekTarget,
};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_types::{Caller, Content, ErrorKind, Extent};

/// One call copies at most this much: programs ask again, and can be stopped in between.
const COPY_MAX: u64 = 16 << 20;
const COPY_STEP: u64 = 1 << 20;

impl Shared {
    pub(crate) async fn seek(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64> {
        let open = self.handles.file(handle)?;
        let end = || Error::local(ErrorKind::NoDevice, "offset at or beyond the file's end");
        let mut at = offset;
        loop {
            self.view(&open.caller, &open.file, at..at.saturating_add(1)).await?;
            let step = open.file.with(|state| step(state, at, target));
            match step {
                Step::Found(found) => return Ok(found),
                Step::On(next) => at = next,
                Step::End(size) if target == SeekTarget::Hole && offset < size => return Ok(size),
                Step::End(_) => return Err(end()),
            }
        }
    }

    pub(crate) async fn allocate(
        self: &Arc<Self>,
        handle: HandleId,
        change: Allocation,
    ) -> Result<()> {
        let open = self.handles.file(handle)?;
        if !open.access.write {
            return Err(Error::local(ErrorKind::BadHandle, "handle is not open for writing"));
        }
        let end = change.offset.checked_add(change.length);
        let Some(end) = end.filter(|&end| end <= Extent::FILE_SIZE_MAX) else {
            return Err(Error::local(ErrorKind::FileTooLarge, "range beyond the largest file"));
        };
        if change.length == 0 {
            return Err(Error::local(ErrorKind::InvalidArgument, "range without bytes"));
        }
        let shared = self.clone();
        let range = change.offset..end;
        self.detached(async move {
            match change.mode {
                AllocationMode::KeepSize => Ok(()),
                AllocationMode::Extend => shared.extend(handle, &open, end).await,
                AllocationMode::Punch => shared.punch(&open, range).await,
                AllocationMode::Zero { keeps_size } => {
                    shared.punch(&open, range).await?;
                    if keeps_size { Ok(()) } else { shared.extend(handle, &open, end).await }
                }
            }
        })
        .await
    }

    /// Makes the file at least `end` long.
    async fn extend(self: &Arc<Self>, handle: HandleId, open: &FileHandle, end: u64) -> Result<()> {
        self.view(&open.caller, &open.file, 0..0).await?;
        if open.file.with(|state| state.size_here()) >= end {
            return Ok(());
        }
        let change = AttributeChange { size: Some(end), ..AttributeChange::default() };
        self.set_attributes(&open.caller, open.file.id, Some(handle), change).await.map(drop)
    }

    /// Cuts a hole, within the file.
    async fn punch(self: &Arc<Self>, open: &FileHandle, range: Range<u64>) -> Result<()> {
        let file = &open.file;
        // The file's end must be where programs here see it before a hole is cut.
        self.launder(file, How::Flush).await?;
        let _gate = file.gate.lock().await;
        self.view(&open.caller, file, 0..0).await?;
        let end = range.end.min(file.with(|state| state.size_here()));
        if range.start >= end {
            return Ok(());
        }
        let length = end - range.start;
        let hole = Extent { offset: range.start, length, content: Content::Hole };
        let clears_setid = !open.caller.is_root();
        self.commit_extents(file, &open.caller, vec![hole], clears_setid).await?;
        file.with(|state| state.overlay.cut(range.start..end));
        Ok(())
    }

    pub(crate) async fn copy_range(
        self: &Arc<Self>,
        from: CopyEnd,
        to: CopyEnd,
        length: u64,
    ) -> Result<u64> {
        let (source, target) = (self.handles.file(from.handle)?, self.handles.file(to.handle)?);
        if !source.access.read || !target.access.write || target.access.append {
            return Err(Error::local(ErrorKind::BadHandle, "handles of a copy"));
        }
        let length = length.min(COPY_MAX);
        if source.file.id == target.file.id && overlaps(from.offset, to.offset, length) {
            return Err(Error::local(ErrorKind::InvalidArgument, "ranges of a copy overlap"));
        }
        let mut done = 0;
        while done < length {
            let at = from.offset.saturating_add(done);
            let range = at..at.saturating_add((length - done).min(COPY_STEP));
            let step = self.read_file(&source.caller, &source.file, range, Width::Pieces).await;
            let pieces = match step {
                // What was copied already counts.
                Err(_) if done > 0 => break,
                other => other?,
            };
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                let length = piece.len() as u64;
                self.write(to.handle, to.offset.saturating_add(done), piece).await?;
                done += length;
            }
        }
        Ok(done)
    }

    /// The bytes of a file in steps, for those who want all of them.
    pub(crate) async fn read_step(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        offset: u64,
    ) -> Result<Vec<Bytes>> {
        let range = offset..offset.saturating_add(COPY_STEP);
        self.read_file(caller, file, range, Width::Pieces).await
    }
}

enum Step {
    Found(u64),
    /// Look on from here, when more is known.
    On(u64),
    /// The file ends; its size.
    End(u64),
}

/// Looks for a hole or data from `at` on, as far as extents are known.
fn step(state: &State, at: u64, target: SeekTarget) -> Step {
    let size = state.size_here();
    if at >= size {
        return Step::End(size);
    }
    let known = state.extents.unknown(at..state.size.max(at)).unwrap_or(u64::MAX).min(size);
    let mut is_data_at = Vec::new();
    for (offset, bytes) in state.overlay.read(at..known.max(at + 1)) {
        is_data_at.push(offset..offset + bytes.len() as u64);
    }
    for piece in state.extents.plan(at..known.min(state.size).max(at)) {
        if piece.extent.is_some() {
            is_data_at.push(piece.range);
        }
    }
    is_data_at.sort_by_key(|range| range.start);
    let mut next = at;
    for range in is_data_at {
        if target == SeekTarget::Data {
            return Step::Found(range.start.max(at));
        }
        if range.start > next {
            break;
        }
        next = next.max(range.end);
    }
    match target {
        SeekTarget::Data => Step::On(known.max(at + 1)),
        SeekTarget::Hole if next < known => Step::Found(next),
        SeekTarget::Hole => Step::On(next.max(at + 1)),
    }
}

fn overlaps(one: u64, other: u64, length: u64) -> bool {
    one.abs_diff(other) < length
}
