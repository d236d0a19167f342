//! Ranges of a file: holes and data, setting space aside, copying.

use crate::commit::Change;
use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::shared::Shared;
use crate::writer::How;
use crate::{Allocation, AllocationMode, CopyEnd, Error, HandleId, Result, SeekTarget, Writing};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_believed::Under;
use tieline_foresight::ahead::Width;
use tieline_types::{ByteSize, Caller, Content, ErrorKind, Extent};
use tieline_wire::ranges::{CopyRange, CopyRangeReply};

/// One call copies at most this much: programs ask again, and can be stopped in between.
const COPY_MAX: u64 = 16 << 20;
const COPY_STEP: u64 = 1 << 20;
/// Up to this much bytes are copied where they could be shared: what fits into the metadata, and
/// over distance what crosses twice in less than two round trips.
const SHORT: u64 = 16 << 10;
const SHORT_FAR: u64 = 256 << 10;

impl Shared {
    pub(crate) async fn seek(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64> {
        let open = self.handles.usable(handle)?;
        let end = || Error::local(ErrorKind::NoDevice, "offset at or beyond the file's end");
        let mut at = offset;
        loop {
            let seen = self.view(&open.caller, &open.file, at..at.saturating_add(1)).await;
            match seen {
                // Who may write alone is not told where the holes are.
                Err(error) if is_hidden(&open, &error) => {
                    self.view(&open.caller, &open.file, 0..0).await?;
                    let size = open.file.with(|state| state.size_here());
                    return match target {
                        _ if offset >= size => Err(end()),
                        SeekTarget::Data => Ok(offset),
                        SeekTarget::Hole => Ok(size),
                    };
                }
                seen => seen?,
            }
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
        let open = self.handles.usable(handle)?;
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
        if matches!(change.mode, AllocationMode::Extend | AllocationMode::KeepSize) {
            self.check_room(&open, change.length).await?;
        }
        let shared = self.clone();
        let range = change.offset..end;
        self.detached(async move {
            match change.mode {
                AllocationMode::KeepSize => shared.touch(&open, 0).await,
                AllocationMode::Extend => shared.touch(&open, end).await,
                AllocationMode::Punch => shared.punch(&open, range).await,
                AllocationMode::Zero { keeps_size } => {
                    shared.punch(&open, range).await?;
                    let is_there = keeps_size || open.file.with(|state| state.size_here() >= end);
                    if is_there { Ok(()) } else { shared.touch(&open, end).await }
                }
            }
        })
        .await
    }

    /// No room is kept for a file, but what there is not is not promised either.
    async fn check_room(self: &Arc<Self>, open: &FileHandle, length: u64) -> Result<()> {
        let (caller, id) = (&open.caller, open.file.id);
        let stored = self.attributes(caller, id).await?.attributes.stored;
        // Where nobody says how much there is, it will be seen when it is written.
        let Ok(space) = self.statfs(id).await else { return Ok(()) };
        if space.bytes_total == 0 || length.saturating_sub(stored) <= space.bytes_free {
            return Ok(());
        }
        let (length, free) = (ByteSize(length), ByteSize(space.bytes_free));
        let what = format!("room for {length} of {}: {free} are free", open.file.id);
        Err(Error::local(ErrorKind::NoSpace, what))
    }

    /// Makes the file at least `size_min` long. That it was written counts in any case, as on a
    /// local file system: times move, and what a write ends is ended.
    async fn touch(self: &Arc<Self>, open: &FileHandle, size_min: u64) -> Result<()> {
        self.view(&open.caller, &open.file, 0..0).await?;
        // What waits may be appended bytes, whose place is not settled yet.
        self.launder(&open.file, How::Flush).await?;
        let _gate = open.file.gate.lock().await;
        let clears_setid = !open.caller.is_root();
        // Not a change of the size, which could cut off what others have added meanwhile.
        let change = Change { size_min, clears_setid, ..Change::default() };
        self.commit_extents(&open.file, &open.caller, change).await.map(drop)
    }

    /// Cuts a hole, within the file: beyond it there is nothing to cut.
    async fn punch(self: &Arc<Self>, open: &FileHandle, range: Range<u64>) -> Result<()> {
        let file = &open.file;
        // The file's end must be where programs here see it before a hole is cut.
        self.launder(file, How::Flush).await?;
        let _gate = file.gate.lock().await;
        self.view(&open.caller, file, 0..0).await?;
        let end = range.end.min(file.with(|state| state.size_here()));
        let length = end.saturating_sub(range.start);
        let hole = Extent { offset: range.start, length, content: Content::Hole };
        let clears_setid = !open.caller.is_root();
        let extents = if length > 0 { vec![hole] } else { Vec::new() };
        let change = Change { extents, clears_setid, ..Change::default() };
        self.commit_extents(file, &open.caller, change).await?;
        // What was appended meanwhile is behind the end as it was.
        file.with(|state| {
            let end = end.min(state.appended_from().unwrap_or(u64::MAX));
            let range = range.start..end.max(range.start);
            state.overlay.cut(range.clone());
            state.cut_kept(&self.keep, file.id, range);
        });
        Ok(())
    }

    pub(crate) async fn copy_range(
        self: &Arc<Self>,
        from: CopyEnd,
        to: CopyEnd,
        length: u64,
    ) -> Result<u64> {
        let (source, target) = (self.handles.usable(from.handle)?, self.handles.usable(to.handle)?);
        if !source.access.read || !target.access.write {
            return Err(Error::local(ErrorKind::BadHandle, "handles of a copy"));
        }
        if source.file.id == target.file.id && overlaps(from.offset, to.offset, length) {
            return Err(Error::local(ErrorKind::InvalidArgument, "ranges of a copy overlap"));
        }
        let is_short = self.is_short(&source, from.offset, length);
        if !is_short && source.file.id.mdt() == target.file.id.mdt() {
            let (shared, places) = (self.clone(), (from.offset, to.offset));
            let sharing = async move { shared.share_range(&source, &target, places, length).await };
            return self.detached(sharing).await;
        }
        self.copy_bytes(&source, from, to, length.min(COPY_MAX)).await
    }

    /// Is so little copied that its bytes are read and written sooner than a server is asked to
    /// share them? `cp -r` would wait for each file.
    fn is_short(&self, source: &FileHandle, offset: u64, length: u64) -> bool {
        let size = source.file.with(|state| state.size_here());
        let mds = self.servers.mds(source.file.id.mdt());
        let limit = if mds.is_ok_and(|mds| mds.ways.is_far()) { SHORT_FAR } else { SHORT };
        size.saturating_sub(offset).min(length) <= limit
    }

    /// Makes chunks of one file chunks of another.
    async fn share_range(
        self: &Arc<Self>,
        source: &FileHandle,
        target: &FileHandle,
        (from_offset, to_offset): (u64, u64),
        length: u64,
    ) -> Result<u64> {
        // Durable, since whoever syncs the target does not know where the source's chunks are.
        self.launder(&source.file, How::Sync).await?;
        let file = &target.file;
        self.launder(file, How::Flush).await?;
        let _gate = file.gate.lock().await;
        let message = CopyRange {
            from: source.file.id,
            from_offset,
            to: file.id,
            to_offset,
            length,
            mtime: tieline_types::SetTime::Now,
            clears_setid: !target.caller.is_root(),
        };
        let before = self.before(file);
        let mut asked = self.ask(&target.caller, file.id, message.clone()).await;
        if asked.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            // What tape alone has is not shared.
            self.bring_back(&source.caller, &source.file).await?;
            asked = self.ask(&target.caller, file.id, message).await;
        }
        let told = match asked {
            Ok(told) => told,
            Err(error) => {
                self.doubt_change(file.id, &error);
                return Err(error);
            }
        };
        let CopyRangeReply { copied, attributes, lease } = told.reply;
        let known = {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &lease);
            // A capability among them is gone.
            tables.forget_xattrs(file.id);
            tables.learn_attributes(reply, &lease, Under::Granted, attributes)
        };
        let was_alone = before.is_still(&known);
        file.with(|state| {
            state.learn_change(lease.as_of, &known.attributes, was_alone);
            state.forget_extents();
        });
        Ok(copied)
    }

    async fn copy_bytes(
        self: &Arc<Self>,
        source: &FileHandle,
        from: CopyEnd,
        to: CopyEnd,
        length: u64,
    ) -> Result<u64> {
        let mut done = 0;
        while done < length {
            let at = from.offset.saturating_add(done);
            let wanted = done + (length - done).min(COPY_STEP);
            let range = at..at.saturating_add(wanted - done);
            let step = self.read_file(&source.caller, &source.file, range, Width::Pieces).await;
            let pieces = match step {
                // What was copied already counts.
                Err(_) if done > 0 => break,
                other => other?,
            };
            for piece in pieces {
                let length = piece.len() as u64;
                let how = Writing { appends: Some(false), ..Writing::default() };
                self.write(to.handle, to.offset.saturating_add(done), how, piece).await?;
                done += length;
            }
            // Here the source ended. It may not any more, where it is the target as well.
            if done < wanted {
                break;
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

/// Was a handle that only writes refused to know of the file's extents?
fn is_hidden(open: &FileHandle, error: &Error) -> bool {
    !open.access.read && error.kind() == ErrorKind::PermissionDenied
}

/// Looks for a hole or data from `at` on, as far as extents are known. Nothing is looked at twice,
/// however many extents there are.
fn step(state: &State, at: u64, target: SeekTarget) -> Step {
    let size = state.size_here();
    if at >= size {
        return Step::End(size);
    }
    let known = state.extents.unknown(at..state.size.max(at)).unwrap_or(u64::MAX).min(size);
    let data_end = |at: u64| {
        let own = state.overlay.end_around(at);
        let committed = state.extents.end_around(at).filter(|_| at < state.size);
        own.max(committed)
    };
    let next = match target {
        SeekTarget::Data if data_end(at).is_some() => return Step::Found(at),
        SeekTarget::Data => {
            let own = state.overlay.next_from(at).unwrap_or(u64::MAX);
            let committed = state.extents.next_from(at).filter(|&next| next < state.size);
            match own.min(committed.unwrap_or(u64::MAX)) {
                next if next < known => return Step::Found(next),
                _ => known,
            }
        }
        SeekTarget::Hole => {
            let mut next = at;
            while let Some(end) = data_end(next).filter(|_| next < known) {
                next = end;
            }
            if next < known {
                return Step::Found(next);
            }
            next
        }
    };
    Step::On(next.max(at + 1))
}

fn overlaps(one: u64, other: u64, length: u64) -> bool {
    one.abs_diff(other) < length
}
