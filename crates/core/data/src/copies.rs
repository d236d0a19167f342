//! Copies: looking whether an object is as it was written, and making one from another OST's.
//!
//! Where no source is whole, the copy is put together from the blocks that are good in any of them,
//! or in the damaged object that it replaces.
//!
//! Invariants: what is fetched is verified block by block against its source's checks, and whole
//! against the chunk's digest, before it is stored; what is there already is a copy only if it has
//! that digest, and is for the same file; a copy that is answered for is durable; the
//! site's limits hold for copies as for everything else.

use crate::ChunkService;
use crate::target::{Realm, Target};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use tieline_format::object::ObjectTrailer;
use tieline_telemetry::metrics::METRICS;
use tieline_types::checksum::{self, BLOCK};
use tieline_types::{
    ByteSize, Digest, ErrorKind, GrantedId, Layout, ObjectName, OstIndex, OstPlace, Patchwork,
};
use tieline_wire::Failure;
use tieline_wire::data::{ObjectOwner, ReadObject, ReadObjectReply, StatObject, StatObjectReply};
use tieline_wire::mirrors::{FetchChunk, FetchChunkReply, VerifyObject, VerifyObjectReply};
use tieline_world::Bulk;

/// Chunks that are held in memory at once while they are fetched or verified.
pub(crate) const WHOLE_AT_ONCE: usize = 4;
/// One request to a source.
const PIECE: u64 = 4 << 20;

/// Other OSTs, as this OSS reaches them.
#[async_trait::async_trait]
pub trait ObjectSource: Send + Sync {
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure>;

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure>;
}

impl ChunkService {
    /// Reads a range where it lies, and says whether it is as it was written.
    pub async fn verify(&self, message: VerifyObject) -> Result<VerifyObjectReply, Failure> {
        let target = self.target(message.ost)?;
        let _room = self.whole.acquire().await;
        let ObjectName::Chunk(chunk) = message.object else {
            return target.adopted.verify(message).await;
        };
        let looked = look(target, chunk, message.offset, message.length).await?;
        if let Some(first) = looked.reply.first_bad {
            let count = looked.reply.bad_blocks;
            METRICS.corrupt_blocks.with_label_values(&["disk"]).inc_by(count.into());
            let ost = message.ost.label();
            tracing::warn!(%chunk, ost, count, first, "object does not match its checksums");
        }
        Ok(looked.reply)
    }

    /// Makes an OST hold a good copy of a chunk.
    pub async fn fetch(
        &self,
        message: FetchChunk,
        source: &dyn ObjectSource,
    ) -> Result<FetchChunkReply, Failure> {
        let target = self.target(message.ost)?;
        target.check_site(&[message.chunk.mdt], Realm::Server)?;
        if message.length > Layout::CHUNK_SIZE_MAX.into() {
            let limit = ByteSize(Layout::CHUNK_SIZE_MAX.into());
            return Err(target.refuse(format!("chunk of {} bytes, over {limit}", message.length)));
        }
        let _room = self.whole.acquire().await;
        if !target.is_lost(message.chunk)
            && is_good(target, &message).await
            && is_its_files(target, &message, source).await
        {
            target.sync_chunk(message.chunk).await?;
            return Ok(FetchChunkReply { is_fetched: false, bad: vec![] });
        }
        let mut bad = Vec::new();
        let mut worst: Option<Failure> = None;
        for place in &message.from {
            match fetch_from(&message, place, source).await {
                Ok(bytes) => {
                    let owner = owner_at(place, source).await;
                    METRICS.fetched_bytes.inc_by(bytes.len() as u64);
                    store(target, &message, bytes, owner).await?;
                    return Ok(FetchChunkReply { is_fetched: true, bad });
                }
                Err(failure) => {
                    let is_bad = matches!(failure.kind, ErrorKind::Corrupt | ErrorKind::Gone);
                    bad.extend(is_bad.then_some(place.ost));
                    // One that only did not answer may have it: that is worth another try.
                    if worst.is_none() || !is_bad {
                        worst = Some(failure);
                    }
                }
            }
        }
        if !bad.is_empty()
            && let Some((bytes, owner)) = patched(target, &message, source).await
        {
            store(target, &message, bytes, owner).await?;
            return Ok(FetchChunkReply { is_fetched: true, bad });
        }
        let nowhere = || target.refuse(format!("no place to fetch {} from", message.chunk));
        Err(worst.unwrap_or_else(nowhere))
    }
}

/// What was found of an object.
struct Looked {
    reply: VerifyObjectReply,
    is_whole: bool,
}

async fn look(
    target: &Arc<Target>,
    chunk: GrantedId,
    offset: u64,
    length: u64,
) -> Result<Looked, Failure> {
    let limit = u64::from(Layout::CHUNK_SIZE_MAX);
    if length > limit || !offset.is_multiple_of(BLOCK as u64) {
        let reason =
            format!("verification of {length} bytes at {offset}: up to {limit} from a block on");
        return Err(target.refuse(reason));
    }
    // The disk is asked, not memory: damage of the checks themselves, and another file under the
    // object's name, would not show else before the next start.
    target.forget(chunk);
    let slice = target.read(chunk, offset, length as u32).await?;
    let (checks, object_length) = (slice.checks, slice.object_length);
    let judge = move |bytes: Bytes| {
        // The last block was read whole, and may go on behind the range.
        let own = bytes.slice(..bytes.len().min(length as usize));
        let bad = bad_blocks(&bytes, &checks);
        Looked {
            reply: VerifyObjectReply {
                digest: Digest::of(&own),
                bad_blocks: bad.len() as u32,
                first_bad: bad.first().map(|block| offset + (block * BLOCK) as u64),
                length: own.len() as u64,
            },
            is_whole: offset == 0 && object_length == own.len() as u64,
        }
    };
    with_bytes(target, chunk, slice.bulk, judge).await
}

/// Does something with an object's bytes; with those of a file where the disk may be waited for.
pub(crate) async fn with_bytes<T: Send + 'static>(
    target: &Target,
    chunk: GrantedId,
    bulk: Bulk,
    work: impl FnOnce(Bytes) -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = match bulk {
        Bulk::File(_) => {
            let work = tokio::task::spawn_blocking(move || bulk.to_bytes().map(work));
            work.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
        }
        here => here.to_bytes().map(work),
    };
    done.map_err(|error| target.fault(chunk, ErrorKind::StorageFault, &error.to_string()))
}

pub(crate) fn bad_blocks(bytes: &[u8], checks: &[u32]) -> Vec<usize> {
    let blocks = bytes.chunks(BLOCK).enumerate();
    let is_bad = |(index, block): &(usize, &[u8])| {
        checks.get(*index).is_none_or(|&check| checksum::crc32c(block) != check)
    };
    blocks.filter(is_bad).map(|(index, _)| index).collect()
}

/// Is a whole and matching copy there already? Without a digest nobody can say: whoever had a right
/// to put the chunk may have put other bytes where a copy would be made later.
async fn is_good(target: &Arc<Target>, message: &FetchChunk) -> bool {
    let Some(digest) = message.digest else { return false };
    let Ok(looked) = look(target, message.chunk, 0, message.length).await else { return false };
    let reply = looked.reply;
    looked.is_whole
        && digest == reply.digest
        && reply.bad_blocks == 0
        && reply.length == message.length
}

/// Does what is there say the same of its file as the MDS, or a source? Who may read it goes by
/// that.
async fn is_its_files(
    target: &Arc<Target>,
    message: &FetchChunk,
    source: &dyn ObjectSource,
) -> bool {
    let Ok(found) = target.stat(message.chunk).await else { return false };
    let file = found.owner.file;
    if file == message.owner.file {
        return true;
    }
    for place in &message.from {
        if let Some(owner) = owner_at(place, source).await {
            return owner.file == file;
        }
    }
    false
}

/// A whole chunk from one place, verified.
pub(crate) async fn fetch_from(
    message: &FetchChunk,
    place: &OstPlace,
    source: &dyn ObjectSource,
) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::with_capacity(message.length as usize);
    while (bytes.len() as u64) < message.length {
        let at = bytes.len() as u64;
        let wanted = (message.length - at).min(PIECE);
        let offset = place.offset + at;
        let (reply, piece) = source.read(read_of(message, place, at)).await?;
        let damaged = || corrupt(message.chunk, place.ost);
        if checksum::first_mismatch(&piece, &reply.checks).is_some() {
            return Err(damaged());
        }
        let skip = offset.checked_sub(reply.offset).ok_or_else(damaged)? as usize;
        let end = skip.saturating_add(wanted as usize);
        bytes.extend_from_slice(piece.get(skip..end).ok_or_else(damaged)?);
    }
    let bytes = bytes.freeze();
    if message.digest.is_some_and(|digest| !digest.is_of(&bytes)) {
        return Err(corrupt(message.chunk, place.ost));
    }
    Ok(bytes)
}

/// The question for the next piece of a chunk, from `at` on.
fn read_of(message: &FetchChunk, place: &OstPlace, at: u64) -> ReadObject {
    ReadObject {
        ost: place.ost,
        object: place.object.clone(),
        offset: place.offset + at,
        length: (message.length - at).min(PIECE) as u32,
        capability: message.capability.clone(),
        hashed: None,
    }
}

/// What an object at a source remembers of its file.
async fn owner_at(place: &OstPlace, source: &dyn ObjectSource) -> Option<ObjectOwner> {
    let ObjectName::Chunk(chunk) = place.object else { return None };
    let asked = source.stat(StatObject { ost: place.ost, chunk }).await;
    asked.ok().map(|found| found.owner)
}

/// Puts a chunk together from what is good in the object that is there and in those of the sources.
async fn patched(
    target: &Arc<Target>,
    message: &FetchChunk,
    source: &dyn ObjectSource,
) -> Option<(Bytes, Option<ObjectOwner>)> {
    let (chunk, length) = (message.chunk, message.length);
    let mut owner = target.stat(chunk).await.ok().map(|found| found.owner);
    let nothing = Patchwork::new(&(0..length), length);
    let mut patchwork = good_blocks(target, chunk, length).await.unwrap_or(nothing);
    for place in message.from.iter().filter(|place| place.is_own(chunk)) {
        for at in (0..length).step_by(PIECE as usize) {
            // What does not come from here may come from the next.
            if let Ok((reply, piece)) = source.read(read_of(message, place, at)).await {
                METRICS.fetched_bytes.inc_by(piece.len() as u64);
                patchwork.add(reply.offset, &piece, &reply.checks);
            }
        }
        if owner.is_none() {
            owner = owner_at(place, source).await;
        }
    }
    let (_, bytes) = patchwork.finish()?;
    let is_other = message.digest.is_some_and(|digest| !digest.is_of(&bytes));
    (!is_other).then(|| (bytes.into(), owner))
}

/// What is good of the object that is there.
async fn good_blocks(
    target: &Arc<Target>,
    chunk: GrantedId,
    length: u64,
) -> Result<Patchwork, Failure> {
    let slice = target.read(chunk, 0, length as u32).await?;
    let (offset, checks) = (slice.offset, slice.checks);
    let take = move |bytes: Bytes| {
        let mut patchwork = Patchwork::new(&(0..length), length);
        patchwork.add(offset, &bytes, &checks);
        patchwork
    };
    with_bytes(target, chunk, slice.bulk, take).await
}

async fn store(
    target: &Arc<Target>,
    message: &FetchChunk,
    bytes: Bytes,
    owner: Option<ObjectOwner>,
) -> Result<(), Failure> {
    let ObjectOwner { file, offset, version, path } = owner.unwrap_or(message.owner.clone());
    let checks = checksum::block_checks(&bytes);
    let trailer =
        ObjectTrailer { chunk: message.chunk, file, offset, version, path, checks, tree: None };
    target.replace(trailer, bytes).await?;
    target.sync_chunk(message.chunk).await
}

fn corrupt(chunk: GrantedId, ost: OstIndex) -> Failure {
    let detail = format!("copy of chunk {chunk} at {} is damaged", ost.label());
    Failure::new(ErrorKind::Corrupt, detail)
}

#[cfg(test)]
mod tests;
