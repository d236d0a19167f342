//! Putting a file together from its chunks, a page of extents at a time.
//!
//! Chunks are fetched whole, from this server or another, and verified as copies are. The next is
//! on its way while one is written.
//!
//! Invariants: pages come in order; what is answered as the last is durable and whole; the table of
//! what was begun is bounded: the one that rested longest goes.

use super::{ExposedAt, about, blocking, failure};
use crate::ChunkService;
use crate::copies::{ObjectSource, fetch_from};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_exposed::Staged;
use tieline_telemetry::metrics::METRICS;
use tieline_types::checksum;
use tieline_types::{
    ByteSize, ChunkRef, Content, ErrorKind, Extent, FileId, Layout, OstPlace, PoolName, Version,
};
use tieline_wire::Failure;
use tieline_wire::data::ObjectOwner;
use tieline_wire::exposed::{StageFile, StageFileReply};
use tieline_wire::mirrors::FetchChunk;
use tokio::time::Instant;

/// Files that are begun, or wait for their names.
const DRAFTS_MAX: usize = 256;
/// Extents of one page.
const EXTENTS_MAX: usize = 1024;

/// A file that is being put together, or waits for its name.
pub struct Draft {
    content: Version,
    pub staged: Staged,
    /// What comes next begins here.
    next: AtomicU64,
    is_whole: AtomicBool,
    touched: Mutex<Instant>,
}

impl Draft {
    pub fn is_whole_of(&self, content: Version) -> bool {
        self.content == content && self.is_whole.load(Ordering::Acquire)
    }

    fn touch(&self) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl ChunkService {
    /// Puts a page of a file together.
    pub async fn stage(
        self: &Arc<Self>,
        message: StageFile,
        at: ExposedAt,
        source: &dyn ObjectSource,
    ) -> Result<StageFileReply, Failure> {
        let refuse = |reason: String| {
            let detail = format!("{}: {reason}", about(message.ost, &message.pool));
            Failure::new(ErrorKind::InvalidArgument, detail)
        };
        if message.extents.len() > EXTENTS_MAX || message.size > Extent::FILE_SIZE_MAX {
            return Err(refuse("a page of a file is too large".to_owned()));
        }
        let draft = match message.is_first {
            true => self.begin(&message, at).await?,
            false => self.draft(&message)?,
        };
        let mut writing: Option<(Bytes, u64)> = None;
        let mut last: Option<(ChunkRef, Bytes)> = None;
        for extent in &message.extents {
            extent.validate().map_err(|error| refuse(error.to_string()))?;
            if extent.offset < draft.next.load(Ordering::Relaxed) || extent.end() > message.size {
                return Err(refuse("extents of a file are out of order".to_owned()));
            }
            draft.next.store(extent.end(), Ordering::Relaxed);
            let write = write(&draft, &message.pool, writing.take());
            let (bytes, written) =
                tokio::join!(self.bytes_of(&message, extent, source, &mut last), write);
            written?;
            writing = bytes?.map(|bytes| (bytes, extent.offset));
        }
        write(&draft, &message.pool, writing).await?;
        if message.is_last {
            let (own, size, pool) = (draft.clone(), message.size, message.pool.clone());
            blocking(move || own.staged.finish(size).map_err(|error| fault(&pool, &error))).await?;
            draft.is_whole.store(true, Ordering::Release);
        }
        draft.touch();
        Ok(StageFileReply {})
    }

    async fn begin(
        self: &Arc<Self>,
        message: &StageFile,
        at: ExposedAt,
    ) -> Result<Arc<Draft>, Failure> {
        let (service, pool, size) = (self.clone(), message.pool.clone(), message.size);
        let staged = blocking(move || {
            let open = service.exposing().open(&pool, &at, false)?;
            let staged = open.tree.stage(size);
            let trouble = staged.as_ref().err().map(ToString::to_string);
            service.exposing().lock().troubles.insert(pool.clone(), trouble);
            staged.map_err(|error| failure(&pool, &error))
        });
        let draft = Arc::new(Draft {
            content: message.content,
            staged: staged.await?,
            next: AtomicU64::new(0),
            is_whole: AtomicBool::new(false),
            touched: Mutex::new(Instant::now()),
        });
        let mut inner = self.exposing().lock();
        if inner.drafts.len() >= DRAFTS_MAX {
            let touched =
                |draft: &Arc<Draft>| *draft.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let oldest = inner.drafts.iter().min_by_key(|(_, draft)| touched(draft));
            let oldest: Option<(PoolName, FileId)> = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| inner.drafts.remove(&key));
        }
        inner.drafts.insert((message.pool.clone(), message.file), draft.clone());
        Ok(draft)
    }

    fn draft(&self, message: &StageFile) -> Result<Arc<Draft>, Failure> {
        let inner = self.exposing().lock();
        let begun = inner.drafts.get(&(message.pool.clone(), message.file));
        let same = begun.filter(|draft| draft.content == message.content);
        same.cloned().ok_or_else(|| {
            let place = about(message.ost, &message.pool);
            let detail = format!("{place}: file {} was not begun here", message.file);
            Failure::new(ErrorKind::NotFound, detail)
        })
    }

    /// The bytes of an extent; those of a chunk of which the extent before had some are still here.
    async fn bytes_of(
        &self,
        message: &StageFile,
        extent: &Extent,
        source: &dyn ObjectSource,
        last: &mut Option<(ChunkRef, Bytes)>,
    ) -> Result<Option<Bytes>, Failure> {
        let chunk = match &extent.content {
            Content::Hole => return Ok(None),
            Content::Inline(bytes) => return Ok(Some(bytes.clone().into())),
            Content::Chunk(chunk) => chunk,
        };
        let whole = match last.take().filter(|(known, _)| known.chunk == chunk.chunk) {
            Some((_, bytes)) => bytes,
            None => {
                let _room = self.whole.acquire().await;
                fetch(message, chunk, source).await?
            }
        };
        let end = chunk.skip.saturating_add(extent.length);
        let part =
            (end <= whole.len() as u64).then(|| whole.slice(chunk.skip as usize..end as usize));
        let short = || {
            let detail =
                format!("chunk {} is shorter than file {} says", chunk.chunk, message.file);
            Failure::new(ErrorKind::Corrupt, detail)
        };
        let part = part.ok_or_else(short)?;
        METRICS.exposed_bytes.with_label_values(&[message.pool.as_str()]).inc_by(extent.length);
        *last = Some((chunk.clone(), whole));
        Ok(Some(part))
    }
}

/// A whole chunk, from the first place where it is good.
async fn fetch(
    message: &StageFile,
    chunk: &ChunkRef,
    source: &dyn ObjectSource,
) -> Result<Bytes, Failure> {
    let Some((id, places)) = chunk.granted() else {
        let detail = format!("chunk {} of file {} is no MDT's", chunk.chunk, message.file);
        return Err(Failure::new(ErrorKind::NotSupported, detail));
    };
    if chunk.length > Layout::CHUNK_SIZE_MAX.into() {
        let limit = ByteSize(Layout::CHUNK_SIZE_MAX.into());
        let detail = format!("chunk {id} of {} bytes, over {limit}", chunk.length);
        return Err(Failure::new(ErrorKind::InvalidArgument, detail));
    }
    let owner =
        ObjectOwner { file: message.file, offset: 0, version: Version(0), path: Vec::new() };
    let fetching = FetchChunk {
        ost: message.ost,
        chunk: id,
        length: chunk.length,
        digest: chunk.digest,
        from: vec![],
        owner,
        capability: message.capability.clone(),
    };
    let mut worst: Option<Failure> = None;
    let good = places.iter().filter(|place: &&OstPlace| !place.is_stale);
    for place in good {
        match fetch_from(&fetching, place, source).await {
            Ok(bytes) if is_as_known(&bytes, chunk) => return Ok(bytes),
            Ok(_) => {
                let detail = format!("copy of chunk {id} at {} is damaged", place.ost.label());
                worst.get_or_insert(Failure::new(ErrorKind::Corrupt, detail));
            }
            Err(failure) => drop(worst.get_or_insert(failure)),
        }
    }
    Err(worst.unwrap_or_else(|| {
        let detail = format!("no good copy of chunk {id} of file {}", message.file);
        Failure::new(ErrorKind::Gone, detail)
    }))
}

/// Files that were there before us have no checks beside them: the metadata has.
fn is_as_known(bytes: &Bytes, chunk: &ChunkRef) -> bool {
    let mismatch = |checks: &Vec<u32>| checksum::first_mismatch(bytes, checks).is_some();
    !chunk.checks.as_ref().is_some_and(mismatch)
}

async fn write(
    draft: &Arc<Draft>,
    pool: &PoolName,
    bytes: Option<(Bytes, u64)>,
) -> Result<(), Failure> {
    let Some((bytes, offset)) = bytes else { return Ok(()) };
    let (draft, pool) = (draft.clone(), pool.clone());
    blocking(move || draft.staged.write_at(&bytes, offset).map_err(|error| fault(&pool, &error)))
        .await
}

fn fault(pool: &PoolName, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::StorageFault,
    };
    Failure::new(kind, format!("exposed pool {pool}: {error}"))
}
