//! Makes many small extents few: what was written here and there, or synced in little pieces.
//!
//! The client that wrote them does it, when the file rests: it has the ways to read and to write
//! chunks, and an MDS that had them would be one more reader of all bytes. A file that was left
//! worn by a client that went is compacted by the next that opens it for writing.
//!
//! The file is looked at in *windows*, each what one chunk would hold. Where that pays, the bytes
//! of a window become one chunk, which is durable before the MDS exchanges the extents; holes stay
//! holes. If anybody wrote there meanwhile, the MDS does nothing. Nobody else is told: who has the
//! old extents reads the old chunks, and fetches the new ones when those are gone.
//!
//! Invariants: one file at a time, and no faster than [`BYTES_PER_SECOND`]; only committed bytes
//! are moved.

use crate::commit::SMALL_BELOW;
use crate::file::File;
use crate::reader::EXTENTS_PAGE;
use crate::shared::{Shared, lock};
use crate::writer::width;
use crate::{Error, Result};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tieline_bytes::Segment;
use tieline_bytes::Whose;
use tieline_foresight::ahead::Width;
use tieline_ranges::overlay::Sealed;
use tieline_ranges::windows::{is_worn, runs, windows};
use tieline_types::{Caller, Content, Digest, ErrorKind, Extent, FileId};
use tieline_wire::meta::{GetExtents, OpenReply};
use tieline_wire::ranges::{Compact, SeenContent, SeenExtent};
use tokio::time::Instant;

/// Small extents that make a file worn.
pub(crate) const WORN_FROM: usize = 64;
/// The same, in what an open tells of a file.
const WORN_AT_OPEN: usize = 32;
/// How long a file must rest.
const REST: Duration = Duration::from_secs(2);
const BYTES_PER_SECOND: u64 = 32 << 20;

impl Shared {
    /// The file has many small extents.
    pub(crate) fn mark_worn(&self, file: &Arc<File>) {
        lock(&self.worn).insert(file.id, file.clone());
        self.dirtied.notify_one();
    }

    pub(crate) fn look_for_wear(&self, open: &OpenReply) {
        let small = open.extents.extents.iter().filter(|extent| extent.length < SMALL_BELOW);
        if small.count() >= WORN_AT_OPEN {
            self.mark_worn(&self.file(open.attributes.id));
        }
    }

    /// Starts with the first worn file that rests, if none is under way.
    pub(crate) fn compact_due(self: &Arc<Self>) {
        let now = Instant::now();
        let rests = |file: &Arc<File>| {
            file.with(|state| {
                let committed = state.last_committed.max(state.last_written);
                !state.is_dirty() && committed.is_none_or(|at| now.duration_since(at) >= REST)
            })
        };
        let Some(file) = lock(&self.worn).values().find(|file| rests(file)).cloned() else {
            return;
        };
        let Ok(turn) = self.compacting.clone().try_acquire_owned() else { return };
        lock(&self.worn).remove(&file.id);
        let shared = self.clone();
        tokio::spawn(async move {
            match shared.compact(&file).await {
                Ok(replaced) => tracing::debug!(file = %file.id, replaced, "file was compacted"),
                // The next who writes to it comes here again.
                Err(error) => tracing::info!(file = %file.id, %error, "file is not compacted"),
            }
            drop(turn);
        });
    }

    /// Compacts a file; says how many extents were replaced.
    pub(crate) async fn compact(self: &Arc<Self>, file: &Arc<File>) -> Result<usize> {
        let caller = file.with(|state| {
            state.small = 0;
            state.writer.clone()
        });
        let (mut offset, mut replaced) = (0, 0);
        // The window that a page ended in.
        let mut begun = Vec::new();
        loop {
            let message = GetExtents { id: file.id, offset, limit: EXTENTS_PAGE };
            let reply = self.ask(&caller, file.id, message).await?.reply;
            let page = reply.page;
            let is_last = page.covered >= reply.attributes.size || page.covered <= offset;
            begun.extend(page.extents);
            let mut windows = file.with(|state| {
                let layout = state.layout.clone().unwrap_or_default();
                windows(&layout, width(state), begun)
            });
            begun = if is_last { Vec::new() } else { windows.pop().unwrap_or_default() };
            for window in windows.iter().filter(|window| is_worn(window, SMALL_BELOW)) {
                if file.is_dirty() {
                    // It does not rest any more.
                    self.mark_worn(file);
                    return Ok(replaced);
                }
                replaced += self.compact_window(&caller, file, window).await?;
            }
            if is_last {
                break;
            }
            offset = page.covered;
        }
        if replaced > 0 {
            // What is known of them is right, but long.
            file.with(|state| state.forget_extents());
        }
        Ok(replaced)
    }

    async fn compact_window(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        window: &[Extent],
    ) -> Result<usize> {
        let begun = Instant::now();
        let bytes = self.bytes_of(caller, file.id, window).await?;
        let length = bytes.len() as u64;
        let start = window.first().map_or(0, |extent| extent.offset);
        let runs = runs(window);
        // Where there are gaps, the object alone does not say what lies where.
        let sealed = Sealed::loose(start, bytes, runs.len() > 1);
        let chunk = self.put_loose(file, &sealed).await?;
        let enough = file.with(|state| state.layout.as_ref().map_or(1, |layout| layout.sync));
        let copies = BTreeSet::from([crate::file::copies(&chunk)]);
        self.sync_copies(file, &copies, enough.max(1).into()).await?;
        let mut skip = 0;
        let mut extents = Vec::new();
        for (offset, length) in runs {
            let mut chunk = chunk.clone();
            chunk.skip = skip;
            skip += length;
            extents.push(Extent { offset, length, content: Content::Chunk(chunk) });
        }
        let was = window.iter().map(seen).collect();
        let message = Compact { id: file.id, was, extents };
        let is_done = self.ask(caller, file.id, message).await?.reply.is_done;
        let pace = Duration::from_secs_f64(length as f64 / BYTES_PER_SECOND as f64);
        tokio::time::sleep_until(begun + pace).await;
        Ok(if is_done { window.len() } else { 0 })
    }

    /// The bytes of extents, one behind the other. What was written and not committed is not in
    /// them.
    pub(crate) async fn bytes_of(
        self: &Arc<Self>,
        caller: &Caller,
        file: FileId,
        extents: &[Extent],
    ) -> Result<Bytes> {
        let is_nearline = |extent: &Extent| match &extent.content {
            Content::Chunk(chunk) => chunk.is_nearline(),
            Content::Inline(_) | Content::Hole => false,
        };
        if extents.iter().any(is_nearline) {
            let what = format!("file {file} is on tape alone: `tieline hsm restore` it first");
            return Err(Error::local(ErrorKind::WouldBlock, what));
        }
        let total: u64 = extents.iter().map(|extent| extent.length).sum();
        let mut all = BytesMut::with_capacity(total as usize);
        for extent in extents {
            match &extent.content {
                Content::Inline(bytes) => all.extend_from_slice(bytes),
                Content::Hole => all.resize(all.len() + extent.length as usize, 0),
                Content::Chunk(chunk) => {
                    let range = chunk.skip..chunk.skip + extent.length;
                    let whose = Whose { offset: extent.offset, ..Whose::own(file, caller) };
                    for segment in self.chunks.start(chunk, range, Width::Exact, &whose) {
                        match segment {
                            Segment::Here(here) => all.extend_from_slice(&here),
                            Segment::Coming(flight, range) => {
                                all.extend_from_slice(&flight.bytes(range).await?);
                            }
                        }
                    }
                }
            }
        }
        if all.len() as u64 != total {
            return Err(Error::local(ErrorKind::Internal, "extents to be compacted"));
        }
        Ok(all.freeze())
    }
}

pub(crate) fn seen(extent: &Extent) -> SeenExtent {
    let content = match &extent.content {
        Content::Chunk(chunk) => SeenContent::Chunk { chunk: chunk.chunk, skip: chunk.skip },
        Content::Inline(bytes) => SeenContent::Inline(Digest::of(bytes)),
        Content::Hole => SeenContent::Inline(Digest::blake3([0; 32])),
    };
    SeenExtent { offset: extent.offset, length: extent.length, content }
}
