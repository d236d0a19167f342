//! To tape: what a file is made of is handed to an OSS of its pool; what tape has then is written
//! down, if the file is still the same.

use super::{Undone, driver, inner, restore};
use crate::Parts;
use crate::error::{Error, Result, decode};
use std::collections::BTreeMap;
use tieline_format::map::Pool;
use tieline_format::mdt::{Chunk, Inode, StoredContent, StoredExtent, key};
use tieline_kv::{Key, Range};
use tieline_telemetry::metrics::METRICS;
use tieline_types::background::Change;
use tieline_types::{ChunkRef, ErrorKind, FileId, GrantedId, Hsm, Place, TapeCopy, Version};
use tieline_wire::tape::{DriveState, TapeContent, TapeDeed, TapePart, TapeWork};

/// Extents in one look.
const PAGE: usize = 1024;

pub async fn archive(parts: &Parts, file: FileId) -> Result<(), Undone> {
    let inode = find(parts, file).await.map_err(|error| inner(parts, error))?;
    let Some(inode) = inode else { return drop_wish(parts, file).await };
    if inode.tape.is_some_and(|tape| tape.released.is_some()) {
        // What tape alone has of it goes there anew, with the rest.
        restore::restore(parts, file).await?;
    }
    let is_written = parts.mdt.is_written(file).await;
    if is_written.map_err(|failure| inner(parts, failure.into()))? {
        let detail = format!("file {file} is being written");
        return Err(Undone::delay(ErrorKind::Busy, detail));
    }
    // As it is once it is all here.
    let inode = find(parts, file).await.map_err(|error| inner(parts, error))?;
    let Some(inode) = inode else { return drop_wish(parts, file).await };
    let Some(pool) = parts.mdt.tape_pool(&inode) else {
        let detail = format!("no pool of file {file} has an HSM any more");
        return Err(Undone::fault(ErrorKind::NotFound, detail));
    };
    let Some(hsm) = pool.hsm.clone() else { return Ok(()) };
    let all = parts_of(parts, file).await?;
    let first = all.iter().find_map(|part| match &part.content {
        TapeContent::Chunk(chunk) => chunk.at_osts().next(),
        TapeContent::Inline(_) | TapeContent::To(..) => None,
    });
    let ost = driver::choose(parts, &pool, first.map(|place| place.ost))?;
    let (content, size) = (inode.content_version(), inode.size);
    let deed = TapeDeed::Put { name: name_on_tape(file, content), size };
    let storage_info = storage_info(&inode, &pool, &hsm, false);
    let total = all.len() as u64;
    let work = TapeWork { hsm, storage_info, deed, parts: vec![], before: 0, total };
    match driver::drive(parts, (ost, file), work, all).await? {
        DriveState::Put { uris, digest, adler32 } => {
            let at = parts.now();
            let pool = pool.name;
            let copy = TapeCopy { uris, pool, size, digest, adler32, at };
            let change = Change::Archived(file, content, copy);
            let is_same = parts.mdt.change(change).await;
            let is_same = is_same.map_err(|failure| inner(parts, failure.into()))?;
            METRICS.tape_files.with_label_values(&["put"]).inc();
            if is_same {
                tracing::info!(%file, size, "archived");
                return Ok(());
            }
            let detail = format!("file {file} was changed while it was archived");
            Err(Undone::delay(ErrorKind::Busy, detail))
        }
        _ => {
            let detail = format!("the OSS of {} did not say where {file} is", ost.label());
            Err(Undone::fault(ErrorKind::Protocol, detail))
        }
    }
}

/// What the script is told of a file, in dCache's words.
pub fn storage_info(inode: &Inode, pool: &Pool, hsm: &Hsm, is_stored: bool) -> String {
    let name = inode.names.first().map_or_else(String::new, |name| plain(name.name.as_bytes()));
    let (uid, gid) = (inode.uid.0, inode.gid.0);
    format!(
        "size={};new={};stored={is_stored};sClass={pool}:{pool};cClass=-;hsm={};uid={uid};\
         gid={gid};name={name};",
        inode.size,
        !is_stored,
        hsm.instance,
        pool = pool.name
    )
}

/// Bytes that cannot be taken for something else, all others as in URIs.
fn plain(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.+:,@".contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// dCache's `pnfsID`: 36 hexadecimal digits. Other bytes get another, so that no copy is ever
/// written over; the same bytes get the same, however often they are put.
pub fn name_on_tape(file: FileId, content: Version) -> String {
    format!("0000{:016X}{:016X}", file.0, content.0)
}

pub async fn find(parts: &Parts, file: FileId) -> Result<Option<Inode>> {
    let mut transaction = parts.store.begin().await?;
    let value = transaction.read(&[key::inode(file)]).await?.into_iter().next().flatten();
    value.map(|value| decode(&value, || file.to_string())).transpose()
}

/// A file without a record is deleted, or about to be brought back: its wish goes.
pub async fn drop_wish(parts: &Parts, file: FileId) -> Result<(), Undone> {
    let dropped = async {
        let mut transaction = parts.store.begin().await?;
        transaction.delete(key::tape_wish(file));
        transaction.commit().await?.durable.await?;
        Ok(())
    };
    dropped.await.map_err(|error: Error| inner(parts, error))
}

/// The parts of a file, in order.
async fn parts_of(parts: &Parts, file: FileId) -> Result<Vec<TapePart>, Undone> {
    let mut all = vec![];
    let mut start = key::extents(file);
    loop {
        let page = page(parts, file, start).await.map_err(|error| inner(parts, error))?;
        let Some((next, page)) = page else { return Ok(all) };
        start = next;
        for (offset, extent, chunk) in page {
            let length = extent.length;
            let content = match (extent.content, chunk) {
                (StoredContent::Inline(bytes), _) => TapeContent::Inline(bytes),
                (StoredContent::Chunk { chunk: id, skip }, Some(chunk)) => {
                    TapeContent::Chunk(told(id, skip, &chunk))
                }
                (StoredContent::Chunk { chunk, .. }, None) => {
                    let detail = format!("chunk {chunk} of {file} has no record");
                    return Err(Undone::fault(ErrorKind::StorageFault, detail));
                }
            };
            all.push(TapePart { offset, length, content });
        }
        if all.len() as u64 > TapeWork::TOTAL_MAX {
            let max = TapeWork::TOTAL_MAX;
            let detail = format!("file {file} has more than {max} extents");
            let failure = tieline_wire::Failure::new(ErrorKind::FileTooLarge, detail);
            return Err(Undone { failure, is_final: true, is_delay: false });
        }
    }
}

pub fn told(id: GrantedId, skip: u64, chunk: &Chunk) -> ChunkRef {
    ChunkRef {
        chunk: id.into(),
        length: chunk.length,
        skip,
        places: chunk.places.iter().cloned().map(Place::from).collect(),
        digest: chunk.digest,
        adler32: None,
        checks: None,
    }
}

type Page = Vec<(u64, StoredExtent, Option<Chunk>)>;

/// A page of a file's extents with their chunks, and where the next one begins.
pub async fn page(parts: &Parts, file: FileId, start: Key) -> Result<Option<(Key, Page)>> {
    let mut transaction = parts.store.begin().await?;
    let range = Range::new(start, key::after(&key::extents(file)));
    let found = transaction.scan(range, PAGE).await?;
    let Some((last, _)) = found.last() else { return Ok(None) };
    let next = [last.as_slice(), &[0]].concat();
    let mut extents = vec![];
    for (key, value) in &found {
        let id = || file.to_string();
        let damaged = || Error::Given { what: "an extent's key without an offset" };
        let offset = key::extent_offset(key).ok_or_else(damaged)?;
        extents.push((offset, decode::<StoredExtent>(value, id)?));
    }
    let named = extents.iter().filter_map(|(_, extent)| match extent.content {
        StoredContent::Chunk { chunk, .. } => Some(chunk),
        StoredContent::Inline(_) => None,
    });
    let ids: Vec<GrantedId> = named.collect();
    let keys: Vec<Key> = ids.iter().map(|&id| key::chunk(id)).collect();
    let values = transaction.read(&keys).await?;
    let mut chunks: BTreeMap<GrantedId, Chunk> = BTreeMap::new();
    for (id, value) in ids.into_iter().zip(values) {
        if let Some(value) = value {
            chunks.insert(id, decode(&value, || id.to_string())?);
        }
    }
    let with = |(offset, extent): (u64, StoredExtent)| {
        let chunk = match extent.content {
            StoredContent::Chunk { chunk, .. } => chunks.get(&chunk).cloned(),
            StoredContent::Inline(_) => None,
        };
        (offset, extent, chunk)
    };
    Ok(Some((next, extents.into_iter().map(with).collect())))
}
