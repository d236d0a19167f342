//! Having the bytes of files put together, a few at once, beside the steps.

use super::lane::Lane;
use super::plan::content_of;
use crate::Parts;
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::map::Exposure;
use tieline_format::mdt::Inode;
use tieline_types::{Content, ErrorKind, Extent, FileId, OstPlace, PoolName, SessionId, Version};
use tieline_wire::Failure;
use tieline_wire::exposed::StageFile;
use tokio::time::Instant;

/// Files that are put together at once.
const AT_ONCE: usize = 16;
/// Files that are, or are next, or wait for their names: fewer than an OSS keeps for all.
const BEGUN_MAX: usize = 192;
/// Who has a file open is asked about so many at once.
const ASKED_MAX: usize = 256;
/// A file that is open to be written is looked at again after so long.
const OPEN_REST: Duration = Duration::from_millis(400);
/// One that could not be put together rests so long.
const FAILED_REST: Duration = Duration::from_secs(5);
/// A page of extents: what is shown for them is small.
const PAGE: usize = 256;
/// A page may take so long, and longer by its bytes.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 1 << 20;

/// A file whose bytes are to be put together.
pub struct Candidate {
    pub file: FileId,
    pub content: Version,
    /// Who changed it last.
    pub session: SessionId,
    pub parents: BTreeSet<FileId>,
}

/// What came of putting a file together.
pub type Staged = (FileId, Version, Result<(), Failure>);

impl Lane {
    /// Begins with as many as can be had at once, of those that nobody writes.
    pub async fn begin_staging(&mut self, mut candidates: Vec<Candidate>) -> Result<()> {
        candidates.retain(|one| !self.busy.contains(&one.file));
        let room = BEGUN_MAX.saturating_sub(self.busy.len() + self.ready.len());
        candidates.truncate(room.min(ASKED_MAX));
        if candidates.is_empty() {
            return Ok(());
        }
        let asked: BTreeMap<_, _> =
            candidates.iter().map(|one| (one.file, (one.session, one.parents.clone()))).collect();
        let written = self.parts.mdt.still_written(&asked).await?;
        let now = Instant::now();
        for Candidate { file, content, .. } in candidates {
            if written.contains(&file) {
                self.rests.insert(file, now + OPEN_REST);
            } else {
                self.busy.insert(file);
                self.queue.push_back((file, content));
            }
        }
        self.fill();
        Ok(())
    }

    /// Begins with those that are next, as far as there is room.
    pub fn fill(&mut self) {
        let Ok(exposure) = self.exposure() else { return };
        while self.staging.len() < AT_ONCE
            && let Some((file, content)) = self.queue.pop_front()
        {
            let (parts, pool) = (self.parts.clone(), self.pool.clone());
            let exposure = exposure.clone();
            self.staging.spawn(async move {
                (file, content, stage(&parts, &pool, &exposure, (file, content)).await)
            });
        }
    }

    /// A file was put together, or not.
    pub fn staged(&mut self, (file, content, came): Staged) {
        self.busy.remove(&file);
        match came {
            Ok(()) => drop(self.ready.insert(file, content)),
            // It was changed meanwhile, and that was noted.
            Err(failure) if failure.kind == ErrorKind::Stale => {}
            Err(failure) => {
                self.rests.insert(file, Instant::now() + FAILED_REST);
                self.trouble(format!("file {file}: {}", failure.detail));
            }
        }
    }
}

async fn stage(
    parts: &Arc<Parts>,
    pool: &PoolName,
    exposure: &Exposure,
    (file, content): (FileId, Version),
) -> Result<(), Failure> {
    let (mut offset, mut is_first) = (0, true);
    loop {
        let found = parts.mdt.extents_of(file, offset, PAGE).await?;
        let is_same = |inode: &Inode| content_of(inode) == content && !inode.names.is_empty();
        let Some((inode, page)) = found.filter(|(inode, _)| is_same(inode)) else {
            return Err(Failure::new(ErrorKind::Stale, "the file was changed".to_owned()));
        };
        let size = inode.size;
        let extents: Vec<Extent> =
            page.extents.iter().filter_map(|extent| within(extent, offset..size)).collect();
        let is_last = page.covered >= size || page.covered <= offset;
        let bytes: u64 = extents.iter().map(|extent| extent.length).sum();
        let places: Vec<OstPlace> = places(&extents);
        let capability = parts.mdt.copy_capability(exposure.ost, file, &places);
        let (ost, pool) = (exposure.ost, pool.clone());
        let message =
            StageFile { ost, pool, file, content, size, extents, is_first, is_last, capability };
        let patience = PATIENCE + Duration::from_secs(bytes / BYTES_PER_SECOND);
        parts.exposed.stage(message, patience).await?;
        if is_last {
            return Ok(());
        }
        (offset, is_first) = (page.covered, false);
    }
}

/// The part of an extent within a range: pages may overlap, and a file may end within a chunk.
fn within(extent: &Extent, range: std::ops::Range<u64>) -> Option<Extent> {
    let (from, to) = (extent.offset.max(range.start), extent.end().min(range.end));
    if from >= to {
        return None;
    }
    let (cut, length) = (from - extent.offset, to - from);
    let content = match &extent.content {
        Content::Hole => Content::Hole,
        Content::Inline(bytes) => {
            let (start, end) = (cut as usize, (cut + length) as usize);
            Content::Inline(bytes.get(start..end.min(bytes.len()))?.to_vec())
        }
        Content::Chunk(chunk) => {
            let mut chunk = chunk.clone();
            chunk.skip += cut;
            Content::Chunk(chunk)
        }
    };
    Some(Extent { offset: from, length, content })
}

fn places(extents: &[Extent]) -> Vec<OstPlace> {
    let chunks = extents.iter().filter_map(|extent| match &extent.content {
        Content::Chunk(chunk) => Some(chunk),
        Content::Inline(_) | Content::Hole => None,
    });
    chunks.flat_map(|chunk| chunk.at_osts()).collect()
}
