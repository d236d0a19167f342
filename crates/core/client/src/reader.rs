//! Reads: what a range is made of, and its bytes.
//!
//! A range is pieces of what was written here, inline bytes, holes and ranges of chunks. Chunk
//! ranges that are not in memory are fetched all at once ([`crate::fetch`]), those ahead of a
//! sequential reader as well.
//!
//! Invariants: what was written here is read here; extents are used only while the file's version
//! is believed, or just fetched; a chunk that is gone makes the extents be fetched anew, once.

use crate::capabilities::Whose;
use crate::chunks::Segment;
use crate::extents::Piece;
use crate::fetch::Width;
use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::volume::{Shared, lock};
use crate::{Error, HandleId, Result, cache};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, Content, ErrorKind, Extent, Version};
use tieline_wire::meta::GetExtents;

/// What one page of extents holds at most.
pub(crate) const EXTENTS_PAGE: u32 = 1024;
/// Pages for one read: far more than the largest read can need.
const PAGES_MAX: usize = 4096;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A part of a read.
enum Part {
    Bytes(Bytes),
    Zeroes(u64),
    Chunk(Vec<Segment>),
}

impl Shared {
    pub(crate) async fn read(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Bytes>> {
        let open = self.handles.file(handle)?;
        if !open.access.read {
            return Err(Error::local(ErrorKind::BadHandle, "handle is not open for reading"));
        }
        self.accessed(&open.caller, open.file.id, true);
        let range = offset..offset.saturating_add(length.into());
        let advice = {
            let window = self.settings.window_max.min(self.settings.read_bytes_max as u64 / 4);
            lock(&open.pattern).observe(range.clone(), window)
        };
        let bytes = self.read_file(&open.caller, &open.file, range, advice.width).await?;
        self.read_ahead(&open, advice.ahead);
        let total: usize = bytes.iter().map(Bytes::len).sum();
        METRICS.client_read_bytes.inc_by(total as u64);
        Ok(bytes)
    }

    pub(crate) async fn read_file(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        range: Range<u64>,
        width: Width,
    ) -> Result<Vec<Bytes>> {
        match self.read_once(caller, file, range.clone(), width).await {
            Err(error) if error.kind() == ErrorKind::Gone => {
                // Our extents are older than the chunk's end.
                file.with(|state| state.version = Version(0));
                self.read_once(caller, file, range, width).await
            }
            other => other,
        }
    }

    async fn read_once(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        range: Range<u64>,
        width: Width,
    ) -> Result<Vec<Bytes>> {
        self.view(caller, file, range.clone()).await?;
        let (plan, unsure) = file.with(|state| {
            let known = self.cache.lock().attributes(file.id);
            let is_sure = known.is_some_and(|known| known.attributes.version == state.version);
            (plan(state, range), (!is_sure).then_some(state.version))
        });
        if let Some(version) = unsure {
            self.confirm_later(caller, file, version);
        }
        // Everything that is missing starts before anything is waited for.
        let whose = Whose { file: file.id, caller: caller.clone(), offset: 0 };
        let start = |piece| self.start(piece, width, &whose);
        let parts: Vec<Part> = plan.into_iter().map(start).collect();
        let mut bytes = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Bytes(own) => bytes.push(own),
                Part::Zeroes(length) => push_zeroes(&mut bytes, length),
                Part::Chunk(segments) => {
                    for segment in segments {
                        bytes.push(match segment {
                            Segment::Here(here) => here,
                            Segment::Coming(flight, range) => flight.bytes(range).await?,
                        });
                    }
                }
            }
        }
        Ok(bytes)
    }

    fn start(self: &Arc<Self>, piece: Planned, width: Width, whose: &Whose) -> Part {
        match piece {
            Planned::Own(bytes) => Part::Bytes(bytes),
            Planned::Committed(Piece { range, extent: None }) => {
                Part::Zeroes(range.end - range.start)
            }
            Planned::Committed(Piece { extent: Some(extent), .. }) => match extent.content {
                Content::Inline(bytes) => Part::Bytes(bytes.into()),
                Content::Hole => Part::Zeroes(extent.length),
                Content::Chunk(chunk) => {
                    let range = chunk.skip..chunk.skip + extent.length;
                    let whose = Whose { offset: extent.offset, ..whose.clone() };
                    Part::Chunk(self.start_chunk(&chunk, range, width, &whose))
                }
            },
        }
    }

    /// Makes sure that the committed extents of `range` and the file's size are known and believed,
    /// or just fetched.
    pub(crate) async fn view(&self, caller: &Caller, file: &File, range: Range<u64>) -> Result<()> {
        let mut is_fresh = self.is_believed(file);
        let mut last = None;
        for _ in 0..PAGES_MAX {
            let missing = file.with(|state| {
                let end = range.end.min(state.size);
                state.extents.unknown(range.start.min(end)..end)
            });
            let offset = match (is_fresh, missing) {
                (true, None) => return Ok(()),
                (_, Some(offset)) => offset,
                (false, None) => range.start,
            };
            if is_fresh && last == Some(offset) {
                break;
            }
            last = Some(offset);
            is_fresh |= self.fetch_extents(caller, file, offset).await?;
        }
        let what = format!("extents of {} that do not go on", file.id);
        Err(Error::local(ErrorKind::Protocol, what))
    }

    /// Are the file's version and size surely what we have?
    pub(crate) fn is_believed(&self, file: &File) -> bool {
        file.with(|state| {
            let known = self.cache.lock().attributes(file.id);
            known.is_some_and(|known| {
                let is_same = known.attributes.version == state.version;
                if is_same && known.attributes.size != state.size {
                    state.set_size(known.attributes.size);
                }
                is_same
            })
        })
    }

    /// Fetches a page; says whether it was news.
    async fn fetch_extents(&self, caller: &Caller, file: &File, offset: u64) -> Result<bool> {
        let message = GetExtents { id: file.id, offset, limit: EXTENTS_PAGE };
        let told = self.servers.ask(caller, file.id, message).await?;
        let reply = told.reply;
        let as_of = reply.lease.as_of;
        let is_news = file.with(|state| {
            if state.version == Version(0) {
                // Nothing of before counts, whatever its age.
                state.as_of = as_of;
            }
            state.learn_page(as_of, &reply.attributes, offset, &reply.page)
        });
        let mut tables = self.cache.lock();
        let known = tables.admit(told.stamp, &reply.lease);
        let under = cache::Under::Granted;
        tables.learn_attributes(known, &reply.lease, under, reply.attributes);
        Ok(is_news)
    }

    /// Starts what a sequential reader will want, unless too much is on its way.
    fn read_ahead(self: &Arc<Self>, open: &FileHandle, range: Range<u64>) {
        if range.is_empty() || self.chunks.flying() > self.settings.read_bytes_max / 2 {
            return;
        }
        let pieces = open.file.with(|state| {
            let range = range.start.min(state.size)..range.end.min(state.size);
            match state.extents.unknown(range.clone()) {
                Some(end) => state.extents.plan(range.start..end.max(range.start)),
                None => state.extents.plan(range),
            }
        });
        for extent in pieces.into_iter().filter_map(|piece| piece.extent) {
            if let Extent { length, content: Content::Chunk(chunk), offset } = extent {
                let (file, caller) = (open.file.id, open.caller.clone());
                let whose = Whose { file, caller, offset };
                self.start_chunk(&chunk, chunk.skip..chunk.skip + length, Width::Ahead, &whose);
            }
        }
    }
}

/// A piece of a read as it was planned.
enum Planned {
    Own(Bytes),
    Committed(Piece),
}

/// What `range` is made of, up to the file's end here: own bytes over committed ones.
fn plan(state: &State, range: Range<u64>) -> Vec<Planned> {
    let end = range.end.min(state.size_here());
    let mut pieces = Vec::new();
    let mut at = range.start;
    for (offset, bytes) in state.overlay.read(range.start..end.max(range.start)) {
        plan_committed(state, at..offset, &mut pieces);
        at = offset + bytes.len() as u64;
        pieces.push(Planned::Own(bytes));
    }
    plan_committed(state, at..end, &mut pieces);
    pieces
}

fn plan_committed(state: &State, range: Range<u64>, pieces: &mut Vec<Planned>) {
    if range.is_empty() {
        return;
    }
    let known_end = range.end.min(state.size).max(range.start);
    let known = state.extents.plan(range.start..known_end);
    pieces.extend(known.into_iter().map(Planned::Committed));
    if known_end < range.end {
        // Between the committed end and what was written beyond it.
        let hole = Piece { range: known_end..range.end, extent: None };
        pieces.push(Planned::Committed(hole));
    }
}

fn push_zeroes(bytes: &mut Vec<Bytes>, length: u64) {
    let mut left = length;
    while left > 0 {
        let some = left.min(ZEROES.len() as u64);
        bytes.push(Bytes::from_static(&ZEROES).slice(..some as usize));
        left -= some;
    }
}
