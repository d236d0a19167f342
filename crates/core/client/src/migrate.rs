//! Moves a file's bytes to where its layout says, as `lfs migrate` does, while the file is in use.
//!
//! Extents that lie otherwise than the layout has it are taken in *groups*: the bytes of one are
//! read, written as chunks where they belong, made durable, and exchanged at the MDS in one step
//! ([`crate::compact`]). If anybody wrote there meanwhile the MDS does nothing, and who looks
//! through the file again finds that group again. Readers have the old chunks or the new ones.
//!
//! Invariants: at most [`AT_ONCE`] groups are in memory; only committed bytes are moved; what was
//! moved is not moved again, even if an OST had no room and it went elsewhere.

use crate::compact::seen;
use crate::file::{File, copies};
use crate::reader::EXTENTS_PAGE;
use crate::shared::Shared;
use crate::{Error, Result, Volume};
use std::collections::BTreeSet;
use std::sync::Arc;
use tieline_ranges::overlay::Sealed;
use tieline_ranges::windows::{groups, pieces, runs};
use tieline_types::{
    Caller, ChunkId, ChunkRef, Content, ErrorKind, Extent, FileId, Layout, OstIndex,
};
use tieline_wire::meta::GetExtents;
use tieline_wire::ranges::Compact;
use tokio::task::JoinSet;

/// Groups under way.
const AT_ONCE: usize = 4;

/// A file whose bytes are being moved.
pub struct Migration {
    shared: Arc<Shared>,
    caller: Caller,
    file: Arc<File>,
    layout: Layout,
    /// Chunks that were written here.
    made: BTreeSet<ChunkId>,
}

/// What one look at a part of the file did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The next begins here.
    pub covered: u64,
    pub is_end: bool,
    /// Bytes that were looked at, moved, and not moved since somebody wrote there.
    pub looked: u64,
    pub moved: u64,
    pub busy: u64,
}

impl Volume {
    /// Begins to move the bytes of a file whose layout was set ([`crate::Operator::set_layout`]).
    pub async fn migration(&self, caller: &Caller, id: FileId) -> Result<Migration> {
        let shared = self.shared().clone();
        let layout = shared.layout(caller, id).await?;
        let file = shared.file(id);
        file.with(|state| {
            state.layout = Some(layout.layout.clone());
            state.stripe = layout.stripe;
            state.writer = caller.clone();
        });
        let (caller, layout) = (caller.clone(), layout.layout);
        Ok(Migration { shared, caller, file, layout, made: BTreeSet::new() })
    }
}

impl Migration {
    /// Looks through a page of extents from `offset` on, where a group begins, and moves what lies
    /// elsewhere than it should.
    pub async fn step(&mut self, offset: u64) -> Result<Step> {
        let message = GetExtents { id: self.file.id, offset, limit: EXTENTS_PAGE };
        let reply = self.shared.ask(&self.caller, self.file.id, message).await?.reply;
        let (page, size) = (reply.page, reply.attributes.size);
        let is_end = page.covered >= size || page.covered <= offset;
        let limit = u64::from(self.layout.inline_limit.min(Layout::INLINE_MAX));
        let goes_inline = size <= limit;
        let stripe = match goes_inline || page.extents.is_empty() {
            true => Vec::new(),
            false => self.shared.stripe(&self.file, &BTreeSet::new()).await?,
        };
        let width = self.layout.columns(&stripe);
        let mut groups = groups(&self.layout, width, page.extents);
        let mut step = Step { covered: page.covered, is_end, ..Step::default() };
        // The last may go on behind the page.
        if !is_end
            && groups.len() > 1
            && let Some(begun) = groups.pop_back()
        {
            step.covered = begun.first().map_or(page.covered, |extent| extent.offset);
        }
        let mut moving = JoinSet::new();
        while let Some(group) = groups.pop_front() {
            step.looked += length(&group);
            let fits = match goes_inline {
                true => group.iter().all(|extent| matches!(extent.content, Content::Inline(_))),
                false => self.fits(&stripe, &group),
            };
            if fits {
                continue;
            }
            if moving.len() >= AT_ONCE {
                self.note(moving.join_next().await, &mut step)?;
            }
            let (shared, caller, file) =
                (self.shared.clone(), self.caller.clone(), self.file.clone());
            let cut = (!goes_inline).then(|| (self.layout.clone(), width));
            moving.spawn(async move { shared.move_group(&caller, &file, &group, cut).await });
        }
        while !moving.is_empty() {
            self.note(moving.join_next().await, &mut step)?;
        }
        Ok(step)
    }

    fn note(
        &mut self,
        joined: Option<std::result::Result<Result<Moved>, tokio::task::JoinError>>,
        step: &mut Step,
    ) -> Result<()> {
        let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
        let Some(moved) = joined.transpose().map_err(stopped)?.transpose()? else { return Ok(()) };
        if moved.is_done {
            step.moved += moved.bytes;
            self.made.extend(moved.chunks);
        } else {
            step.busy += moved.bytes;
        }
        Ok(())
    }

    /// Do extents lie as the layout has it: one chunk for each cut, where that belongs?
    fn fits(&self, stripe: &[OstIndex], group: &[Extent]) -> bool {
        let width = self.layout.columns(stripe);
        let windows = pieces(&self.layout, width, group);
        let there = group.iter().map(|extent| (extent.offset, extent.length));
        if !windows.iter().flatten().copied().eq(there) {
            return false;
        }
        group.iter().all(|extent| {
            let Content::Chunk(chunk) = &extent.content else { return false };
            let column = self.layout.column(extent.offset, stripe);
            let wanted: BTreeSet<OstIndex> = column.iter().copied().collect();
            self.made.contains(&chunk.chunk)
                || copies(chunk).into_iter().collect::<BTreeSet<_>>() == wanted
        })
    }
}

/// What became of a group.
struct Moved {
    is_done: bool,
    bytes: u64,
    chunks: Vec<ChunkId>,
}

impl Shared {
    /// `cut`: the layout, and how many OSTs side by side; without, the bytes go into the metadata.
    async fn move_group(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        group: &[Extent],
        cut: Option<(Layout, usize)>,
    ) -> Result<Moved> {
        let mut bytes = self.bytes_of(caller, file.id, group).await?;
        let (mut extents, mut chunks) = (Vec::new(), Vec::<ChunkRef>::new());
        match &cut {
            None => {
                for (offset, length) in runs(group) {
                    let content = Content::Inline(bytes.split_to(length as usize).to_vec());
                    extents.push(Extent { offset, length, content });
                }
            }
            Some((layout, width)) => {
                for window in pieces(layout, *width, group) {
                    let total: u64 = window.iter().map(|(_, length)| length).sum();
                    let start = window.first().map_or(0, |(offset, _)| *offset);
                    let own = bytes.split_to(total as usize);
                    let sealed = Sealed::loose(start, own, window.len() > 1);
                    let chunk = self.put_loose(file, &sealed).await?;
                    let mut skip = 0;
                    for (offset, length) in window {
                        let content = Content::Chunk(ChunkRef { skip, ..chunk.clone() });
                        skip += length;
                        extents.push(Extent { offset, length, content });
                    }
                    chunks.push(chunk);
                }
                let places = chunks.iter().map(copies).collect();
                self.sync_copies(file, &places, layout.sync.max(1).into()).await?;
            }
        }
        let message = Compact { id: file.id, was: group.iter().map(seen).collect(), extents };
        let is_done = self.ask(caller, file.id, message).await?.reply.is_done;
        let chunks = chunks.into_iter().map(|chunk| chunk.chunk).collect();
        Ok(Moved { is_done, bytes: length(group), chunks })
    }
}

fn length(group: &[Extent]) -> u64 {
    group.iter().map(|extent| extent.length).sum()
}
