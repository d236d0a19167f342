//! Writes: gathers bytes into chunks, and sends those that are whole while the program goes on.
//!
//! A write lays its bytes over the file ([`tieline_ranges::overlay`]) and returns. When a chunk's
//! range is whole it is sealed and sent ([`crate::send`]); the rest goes when the file is flushed
//! or synced, when it was idle for a second, or when memory is short ([`crate::background`]).
//! [`Shared::launder`] is the one way to the MDS ([`crate::commit`]).
//!
//! What is appended lies at the end as it is believed here, until the commit says where it went:
//! the MDS assigns the place. So appended bytes are one run at the overlay's end, and what would
//! mix with it is kept apart by a commit in between.
//!
//! While other clients write to the file too it is *shared*: each write is committed before it
//! returns. So is what is appended through a handle that was opened to write at places: the door
//! has it in its own cache where it believed the end, and forgets it when the place is known.
//!
//! Invariants: held bytes are bounded, writers wait beyond; an append is whole, and behind all that
//! was appended here before.

use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::{Error, HandleId, Invalidation, Result, Writing};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_keep::Keep;
use tieline_owed::cause;
use tieline_owed::writes::Writer;
use tieline_ranges::overlay::Sealed;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, Extent, Layout, StripeCount, Time};
use tokio::time::{Instant, timeout};

/// What is to be committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// What has arrived at its OST: the program writes on.
    Arrived,
    /// Everything that was written.
    Flush,
    /// Everything, and durable.
    Sync,
}

/// A write waits for a server. A recall must not wait for the door meanwhile: that may wait for
/// this write.
pub(crate) struct Waiting<'a>(&'a File);

impl<'a> Waiting<'a> {
    pub fn new(file: &'a File) -> Self {
        file.with(|state| state.waiting_writes += 1);
        Self(file)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.waiting_writes -= 1);
    }
}

impl Shared {
    pub(crate) async fn write(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        how: Writing,
        data: Bytes,
    ) -> Result<()> {
        let open = self.handles.usable(handle)?;
        if !open.access.write {
            return Err(Error::local(ErrorKind::BadHandle, "handle is not open for writing"));
        }
        let file = &open.file;
        let appends = how.appends.unwrap_or(open.access.append);
        // Servers keep it for root alone.
        let ends_setid = how.ends_setid == Some(true) || !open.caller.is_root();
        let is_cached_elsewhere = appends && !open.access.append;
        if cause::current().is_some_and(|cause| cause.has_written()) {
            // An earlier process took them.
            let is_shared = is_cached_elsewhere || file.with(|state| state.is_shared());
            return if is_shared { self.launder_within_write(file).await } else { Ok(()) };
        }
        if data.is_empty() {
            return Ok(());
        }
        if let Some((kind, detail)) = file.with(|state| state.late.at_write(&open.seen)) {
            return Err(Error::Late { kind, detail });
        }
        self.room(data.len()).await?;
        if appends {
            self.view(&open.caller, file, 0..0).await?;
        }
        let place = (!appends).then_some(offset);
        self.afford(&open, place, data.len() as u64).await?;
        METRICS.client_written_bytes.inc_by(data.len() as u64);
        let laid = loop {
            let now = (&self.keep, self.now_of(file.id));
            let laid = file.with(|state| {
                if !self.covers_more(state, data.len() as u64) {
                    return Ok(Some(None));
                }
                let may_gather = self.may_gather(file.id, state);
                may_gather.then(|| lay(state, &open, (place, ends_setid), &data, now)).transpose()
            });
            match laid? {
                Some(Some(laid)) => break laid,
                // What waits, and this, would not keep apart; or this has no room beside that.
                Some(None) => self.launder_within_write(file).await?,
                None => self.declare(&open).await,
            }
        };
        if laid.was_clean {
            self.mark_dirty(file);
            self.stir(file.with(|state| state.layout.clone()).as_ref());
        }
        laid.sealed.into_iter().for_each(|sealed| self.send(file, sealed));
        // What could not be kept is committed first.
        if laid.is_shared || !laid.is_kept || is_cached_elsewhere {
            self.launder_within_write(file).await?;
        }
        let is_sure = || file.with(|state| self.is_sure(file.id, state));
        if laid.is_shared && !is_cached_elsewhere && !is_sure() {
            // Others write there just now, and nobody would tell us.
            self.forget_once(file, offset..offset.saturating_add(data.len() as u64));
        }
        if is_cached_elsewhere {
            // Not to be waited for: the door holds the pages until this is answered.
            let (attributes, data) = (vec![file.id], vec![file.id]);
            self.tell(Invalidation { attributes, data, ..Invalidation::default() });
        }
        Ok(())
    }

    pub(crate) async fn launder_within_write(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let _waiting = Waiting::new(file);
        self.launder_detached(file, How::Flush).await
    }

    pub(crate) async fn launder_detached(
        self: &Arc<Self>,
        file: &Arc<File>,
        how: How,
    ) -> Result<()> {
        let (shared, file) = (self.clone(), file.clone());
        self.detached(async move { shared.launder(&file, how).await }).await
    }

    async fn room(&self, bytes: usize) -> Result<()> {
        if self.budget.has_room(bytes) {
            return Ok(());
        }
        self.dirtied.notify_one();
        let slow = |_| Error::local(ErrorKind::Timeout, "written bytes cannot be sent");
        timeout(self.servers.wait(), self.budget.room(bytes)).await.map_err(slow)
    }

    pub(crate) fn mark_dirty(&self, file: &Arc<File>) {
        lock(&self.dirty).insert(file.id, file.clone());
        self.dirtied.notify_one();
    }

    pub(crate) async fn flush(self: &Arc<Self>, handle: HandleId) -> Result<()> {
        let open = self.handles.file(handle)?;
        self.settle_file(&open, How::Flush).await
    }

    pub(crate) async fn sync(self: &Arc<Self>, handle: HandleId, _data_only: bool) -> Result<()> {
        // Times and sizes travel with the data's commit: both kinds of sync are one.
        let open = self.handles.file(handle)?;
        self.settle_file(&open, How::Sync).await?;
        open.check_locks()
    }

    /// Makes what was done in a directory durable. The mounted one stands for everything: all that
    /// was written is.
    pub(crate) async fn sync_directory(self: &Arc<Self>, handle: HandleId) -> Result<()> {
        let id = self.handles.directory(handle)?.id();
        if id == self.root {
            self.sync_all().await?;
        }
        if let Some(queue) = self.journal.of(id.mdt()) {
            self.launder_deferred(id, How::Sync).await?;
            queue.drain(queue.last(), self.servers.wait_for(id.mdt())).await?;
        }
        self.sync_arrived((id != self.root).then_some(id)).await?;
        if id != self.root {
            return self.journal.of(id.mdt()).map_or(Ok(()), |queue| queue.late(Some(id)));
        }
        // Each is told once: all are heard, whatever the first says.
        let told: Vec<_> = self.journal.all().iter().map(|queue| queue.late(None)).collect();
        told.into_iter().collect()
    }

    async fn sync_all(self: &Arc<Self>) -> Result<()> {
        let files: Vec<_> = lock(&self.dirty).values().cloned().collect();
        let mut tasks = tokio::task::JoinSet::new();
        for file in files {
            let shared = self.clone();
            tasks.spawn(async move { shared.launder(&file, How::Sync).await });
        }
        let mut outcome = Ok(());
        while let Some(joined) = tasks.join_next().await {
            let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
            outcome = outcome.and(joined.map_err(stopped).and_then(|one| one));
        }
        self.drain_all(self.servers.wait()).await?;
        outcome
    }

    /// Launders and tells what went wrong, then or earlier ([`crate::late`]).
    async fn settle_file(self: &Arc<Self>, open: &FileHandle, how: How) -> Result<()> {
        let file = &open.file;
        if how == How::Flush {
            // Who writes on through another handle says so anew.
            file.with(|state| state.is_closing = true);
        }
        if how == How::Flush && file.is_dirty() {
            self.own_room(file.id).await;
            // Where it is not ours alone, that is for the commit below to find out.
            let _ = self.launder_own(file);
        }
        let is_left = how == How::Flush && file.is_dirty() && self.defer_once_covered(file).await;
        let needs = !is_left && file.with(|state| state.is_dirty() || how == How::Sync);
        let mut laundered = if needs { self.launder_detached(file, how).await } else { Ok(()) };
        if how == How::Sync && laundered.is_ok() {
            laundered = self.drain_file(file.id).await;
        }
        file.with(|state| state.is_closing = false);
        let late = file.with(|state| {
            state.late.say(file.id);
            match how {
                How::Sync => state.late.at_sync(&open.seen),
                How::Flush | How::Arrived => state.late.at_close(&open.seen),
            }
        });
        let Some((kind, detail)) = late else {
            if is_left && laundered.is_ok() {
                // This may have been the last that can be told.
                file.with(|state| state.is_answered |= state.is_dirty());
            }
            return laundered;
        };
        if open.access.write {
            self.told_writer(file.id).await;
        }
        if let Some(queue) = self.journal.of(file.id.mdt()) {
            queue.lock().told_late(file.id);
        }
        Err(Error::Late { kind, detail })
    }
}

/// What came of laying bytes over a file.
struct Laid {
    sealed: Vec<Sealed>,
    was_clean: bool,
    is_shared: bool,
    is_kept: bool,
}

/// Lays bytes over the file, at the end if they have no place; `None` if what waits must be
/// committed before.
fn lay(
    state: &mut State,
    open: &FileHandle,
    (place, ends_setid): (Option<u64>, bool),
    data: &Bytes,
    (keep, now): (&Keep, Time),
) -> Result<Option<Laid>> {
    let too_large = || Error::local(ErrorKind::FileTooLarge, "write beyond the largest file");
    let length = data.len() as u64;
    let is_possible =
        |offset: u64| offset.checked_add(length).is_some_and(|end| end <= Extent::FILE_SIZE_MAX);
    if !is_possible(place.unwrap_or_else(|| state.size_here())) {
        return Err(too_large());
    }
    let offset = match place {
        Some(offset) => state.may_place(offset + length).then_some(offset),
        None => state.place_append(length),
    };
    let Some(offset) = offset else { return Ok(None) };
    state.mtime = Some(now);
    (state.keeps_mtime, state.is_closing) = (false, false);
    state.writer = open.caller.clone();
    state.clears_setid |= ends_setid;
    state.last_written = Some(Instant::now());
    let was_clean = state.first_written.is_none();
    state.first_written = state.first_written.or(state.last_written);
    let writer = Writer { caller: &open.caller, mtime: now, clears_setid: state.clears_setid };
    let is_kept = state.kept.add(keep, open.file.id, place, data, &writer);
    state.overlay.written = state.kept.last;
    state.overlay.write(offset, data.clone());
    state.door.wrote();
    let sealed = seal_whole(state, offset..offset + length);
    Ok(Some(Laid { sealed, was_clean, is_shared: state.is_shared(), is_kept }))
}

/// How many OSTs the chunks of the file go round, or will.
pub(crate) fn width(state: &State) -> usize {
    let layout = state.layout.as_ref();
    match (state.stripe.len(), layout.map(|layout| layout.stripe_count)) {
        (0, Some(StripeCount::Exactly(count))) => count.into(),
        // Not placed yet: cut as if it were several.
        (0, Some(StripeCount::All)) => 2,
        (0, None) => 1,
        (placed, _) => layout.map_or(placed, |layout| layout.columns(&state.stripe)),
    }
}

/// Seals the chunks that a write to `range` made whole.
fn seal_whole(state: &mut State, range: Range<u64>) -> Vec<Sealed> {
    let Some(layout) = state.layout.clone() else { return Vec::new() };
    let width = width(state);
    let mut sealed = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let cut = layout.cut_end(at, width);
        // Only a chunk whose last byte is here can be whole.
        if let Some(run) = state.overlay.is_fresh(cut - 1).then(|| state.overlay.fresh_around(at))
            && let Some(run) = run
            && run.end >= cut
        {
            let start = cut_start(&layout, at, width);
            if run.start <= start {
                sealed.push(state.overlay.seal(start..cut));
            }
        }
        at = cut;
    }
    sealed
}

/// Where the chunk that holds `offset` begins.
fn cut_start(layout: &Layout, offset: u64, width: usize) -> u64 {
    let cut = layout.cut_size(width);
    if width <= 1 {
        return offset / cut * cut;
    }
    let stripe = u64::from(layout.stripe_size);
    let start = offset / stripe * stripe;
    start + (offset - start) / cut * cut
}

/// Runs that are written here and there, and are more than this many, go inline: an object for each
/// would be slow, and compaction makes chunks of them.
const SCATTERED: usize = 4;

/// What becomes of all that is fresh.
pub(crate) struct Sealing {
    /// Small things, to go with the commit.
    pub inline: Vec<Range<u64>>,
    /// The rest, to be cut into chunks.
    pub chunks: Vec<Range<u64>>,
}

impl Sealing {
    pub fn of(state: &State, how: How) -> Self {
        let layout = state.layout.as_ref();
        let limit = layout.map_or(Layout::default().inline_limit, |layout| layout.inline_limit);
        let limit = u64::from(limit.min(Layout::INLINE_MAX));
        let is_small = is_small(state);
        let fresh = state.overlay.fresh();
        let is_little = |run: &Range<u64>| run.end - run.start <= limit;
        let takes_little =
            how == How::Sync || fresh.iter().filter(|run| is_little(run)).count() > SCATTERED;
        let goes_inline = |run: &Range<u64>| is_small || (takes_little && is_little(run));
        let (inline, chunks) = fresh.into_iter().partition(goes_inline);
        Self { inline, chunks }
    }
}

/// Seals everything that is fresh.
pub(crate) fn seal_all(state: &mut State, how: How) -> Vec<Sealed> {
    let layout = state.layout.clone().unwrap_or_default();
    let width = width(state);
    let Sealing { inline, chunks } = Sealing::of(state, how);
    inline.into_iter().for_each(|run| state.overlay.seal_inline(run));
    let mut sealed = Vec::new();
    for run in chunks {
        let mut at = run.start;
        while at < run.end {
            let end = layout.cut_end(at, width).min(run.end);
            sealed.push(state.overlay.seal(at..end));
            at = end;
        }
    }
    sealed
}

/// Does all of the file go into the metadata?
pub(crate) fn is_small(state: &State) -> bool {
    let limit =
        state.layout.as_ref().map_or(Layout::default().inline_limit, |one| one.inline_limit);
    let limit = u64::from(limit.min(Layout::INLINE_MAX));
    state.size_here() <= limit && !state.extents.has_chunks() && !state.overlay.has_chunks()
}
