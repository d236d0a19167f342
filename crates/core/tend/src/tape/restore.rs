//! From tape: chunks that are nowhere else get a place at an OST again, marked as not there yet; an
//! OSS has the script bring the file, compares it, and fills them; then the marks go.
//!
//! A place is written down before anything is put there: the collector, which may still have the
//! chunk's former objects to delete, leaves it alone from then on.

use super::archive::{drop_wish, find, name_on_tape, page, storage_info, told};
use super::{Undone, driver, inner};
use crate::Parts;
use crate::error::{Error, Result, decode};
use std::collections::BTreeMap;
use tieline_format::Record;
use tieline_format::map::Pool;
use tieline_format::mdt::{Archived, Chunk, StoredContent, key};
use tieline_kv::Key;
use tieline_telemetry::metrics::METRICS;
use tieline_types::background::Change;
use tieline_types::{ErrorKind, FileId, GrantedId, ObjectName, OstIndex, OstPlace};
use tieline_wire::tape::{DriveState, TapeContent, TapeDeed, TapePart, TapeWork};

/// Chunks that one transaction changes.
const BATCH: usize = 256;

pub async fn restore(parts: &Parts, file: FileId) -> Result<(), Undone> {
    let inode = find(parts, file).await.map_err(|error| inner(parts, error))?;
    let Some(inode) = inode else { return drop_wish(parts, file).await };
    let lacking = lacking(parts, file).await.map_err(|error| inner(parts, error))?;
    if !lacking.is_empty() {
        let copy = copy(parts, file).await.map_err(|error| inner(parts, error))?;
        let Some(Archived { copy, content }) = copy else {
            let detail = format!("file {file} is on tape alone, and nothing says where");
            return Err(Undone::fault(ErrorKind::StorageFault, detail));
        };
        let map = parts.map.current();
        let pool = map.map.pool(&copy.pool).filter(|pool| pool.hsm.is_some()).cloned();
        let Some((pool, hsm)) = pool.and_then(|pool| pool.hsm.clone().map(|hsm| (pool, hsm)))
        else {
            let detail = format!(
                "pool {} has no HSM any more: `tieline pool set {} --hsm SCRIPT`",
                copy.pool, copy.pool
            );
            return Err(Undone::delay(ErrorKind::NotFound, detail));
        };
        let ost = driver::choose(parts, &pool, None)?;
        let placed = place(parts, &pool, ost, lacking).await.map_err(|e| inner(parts, e))?;
        let size = copy.size;
        let deed = TapeDeed::Get { name: name_on_tape(file, content), copy };
        let storage_info = storage_info(&inode, &pool, &hsm, true);
        let all: Vec<TapePart> = placed.iter().map(Placed::part).collect();
        let total = all.len() as u64;
        let work = TapeWork { hsm, storage_info, deed, parts: vec![], before: 0, total };
        match driver::drive(parts, (ost, file), work, all).await? {
            DriveState::Done => {}
            _ => {
                let detail = format!("the OSS of {} did not say that {file} is there", ost.label());
                return Err(Undone::fault(ErrorKind::Protocol, detail));
            }
        }
        fill(parts, placed).await.map_err(|error| inner(parts, error))?;
        METRICS.tape_files.with_label_values(&["get"]).inc();
        tracing::info!(%file, size, "restored");
    }
    let is_whole = parts.mdt.change(Change::Restored(file)).await;
    if is_whole.map_err(|failure| inner(parts, failure.into()))? {
        return Ok(());
    }
    Err(Undone::delay(ErrorKind::Busy, format!("more of {file} went to tape meanwhile")))
}

async fn copy(parts: &Parts, file: FileId) -> Result<Option<Archived>> {
    let mut transaction = parts.store.begin().await?;
    let value = transaction.read(&[key::tape_copy(file)]).await?.into_iter().next().flatten();
    value.map(|value| decode(&value, || file.to_string())).transpose()
}

/// The chunks of a file that tape alone has.
async fn lacking(parts: &Parts, file: FileId) -> Result<BTreeMap<GrantedId, Chunk>> {
    let mut all = BTreeMap::new();
    let mut start = key::extents(file);
    while let Some((next, page)) = page(parts, file, start).await? {
        start = next;
        for (_, extent, chunk) in page {
            let (StoredContent::Chunk { chunk: id, .. }, Some(chunk)) = (extent.content, chunk)
            else {
                continue;
            };
            if chunk.tape.is_some() {
                all.insert(id, chunk);
            }
        }
    }
    Ok(all)
}

/// A chunk with the place that is to be filled.
struct Placed {
    id: GrantedId,
    chunk: Chunk,
    offset: u64,
    ost: OstIndex,
}

impl Placed {
    fn part(&self) -> TapePart {
        let content = TapeContent::To(told(self.id, 0, &self.chunk), self.ost);
        TapePart { offset: self.offset, length: self.chunk.length, content }
    }
}

/// Gives chunks a place each, at OSTs of the same OSS in turn.
async fn place(
    parts: &Parts,
    pool: &Pool,
    ost: OstIndex,
    lacking: BTreeMap<GrantedId, Chunk>,
) -> Result<Vec<Placed>> {
    let map = parts.map.current();
    let address = |ost| map.map.ost(ost).filter(|ost| ost.is_active).map(|ost| &ost.addresses);
    let mut beside: Vec<OstIndex> = pool.osts.clone();
    beside.retain(|other| address(*other) == address(ost));
    let mut turns = beside.iter().cycle();
    let mut wishes: Vec<Placed> = vec![];
    for (id, chunk) in lacking {
        let Some(tape) = &chunk.tape else { continue };
        // Where it was to be put before, it may be.
        let before = chunk.places.iter().map(|place| place.ost).find(|ost| beside.contains(ost));
        let ost = before.or_else(|| turns.next().copied()).unwrap_or(ost);
        wishes.push(Placed { id, offset: tape.offset, chunk, ost });
    }
    wishes.sort_by_key(|placed| placed.offset);
    let mut done = Vec::with_capacity(wishes.len());
    for batch in wishes.chunks(BATCH) {
        // What is just being deleted is deleted before, and all else is left.
        let _freeing = parts.mirrors.freeing.lock().await;
        let places: BTreeMap<GrantedId, OstIndex> =
            batch.iter().map(|placed| (placed.id, placed.ost)).collect();
        let changed = change(parts, &places, |id, chunk, ost| {
            if !chunk.places.iter().any(|place| place.ost == ost) {
                let (object, length) = (ObjectName::Chunk(id), chunk.length);
                chunk.places.push(OstPlace { ost, object, offset: 0, length, is_stale: true });
            }
        });
        let still = changed.await?;
        for Placed { id, offset, ost, .. } in batch {
            let Some(chunk) = still.get(id).cloned() else { continue };
            done.push(Placed { id: *id, chunk, offset: *offset, ost: *ost });
        }
    }
    Ok(done)
}

/// The places were filled, and what is there is durable.
async fn fill(parts: &Parts, placed: Vec<Placed>) -> Result<()> {
    for batch in placed.chunks(BATCH) {
        let places: BTreeMap<GrantedId, OstIndex> =
            batch.iter().map(|placed| (placed.id, placed.ost)).collect();
        change(parts, &places, |_, chunk, ost| {
            chunk.tape = None;
            let own = chunk.places.iter_mut().filter(|place| place.ost == ost);
            own.for_each(|place| place.is_stale = false);
        })
        .await?;
    }
    Ok(())
}

/// Changes those chunks that are still referred to, and that tape alone has.
async fn change(
    parts: &Parts,
    places: &BTreeMap<GrantedId, OstIndex>,
    change: impl Fn(GrantedId, &mut Chunk, OstIndex),
) -> Result<BTreeMap<GrantedId, Chunk>> {
    let keys: Vec<Key> = places.keys().map(|&id| key::chunk(id)).collect();
    loop {
        let mut transaction = parts.store.begin().await?;
        let values = transaction.read(&keys).await?;
        let mut changed = BTreeMap::new();
        for ((&id, &ost), value) in places.iter().zip(values) {
            let Some(value) = value else { continue };
            let mut chunk: Chunk = decode(&value, || id.to_string())?;
            if chunk.references == 0 || chunk.tape.is_none() {
                continue;
            }
            change(id, &mut chunk, ost);
            transaction.put(key::chunk(id), chunk.to_bytes());
            changed.insert(id, chunk);
        }
        match transaction.commit().await {
            Ok(committed) => {
                committed.durable.await?;
                return Ok(changed);
            }
            Err(tieline_kv::Error::Conflict) => {}
            Err(error) => return Err(Error::from(error)),
        }
    }
}
