//! Extents and chunk records of files in the store: reading pages of them, replacing, cutting,
//! freeing.
//!
//! Invariants: a chunk's record counts exactly the extents that refer to it; a chunk whose count
//! reached 0 is freed in that transaction and is never referred to again (its record stays, with 0,
//! until its objects are deleted); one transaction meets a bounded number of extents, larger
//! changes are cut into several.

use crate::error::{Error, Result};
use crate::view::{View, decode};
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::mdt::{Chunk, Freed, Inode, StoredContent, StoredExtent, key};
use tieline_kv::{Key, Range, Value};
use tieline_ranges::stored::{self, Edit, Extents, Piece};
use tieline_types::checksum::BLOCK;
use tieline_types::{
    ChunkRef, Content, Extent, FileId, GrantedId, Layout, ObjectName, Origin, OstPlace, Place,
};
use tieline_wire::meta::ExtentPage;

/// Extents (or attributes) of a removed file that are deleted with its last name; more are left to
/// the collector.
pub const AT_ONCE: usize = 256;
/// Extents that one transaction replaces or cuts.
pub const STEP: usize = 4096;
/// Copies of one chunk.
const PLACES_MAX: usize = Layout::MIRRORS_MAX as usize;
/// Chunks whose records are read at once for many files.
const CHUNKS_AT_ONCE: usize = 128;
/// Bytes of inline data and checks after which a page ends.
const PAGE_WEIGHT: usize = 512 << 10;

/// Who says which chunks extents refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// A client: it may name what its session wrote, and what the file holds there already (it
    /// sends again what another session of its had committed). Else it could make any chunk its
    /// own.
    Client,
    /// Our own records, of a file that may be read.
    Records,
}

/// The extents that end after `offset`, with what their chunks are.
pub async fn page(
    view: &mut View<'_>,
    id: FileId,
    inode: &Inode,
    offset: u64,
    limit: usize,
) -> Result<ExtentPage> {
    if inode.stored == 0 {
        return Ok(ExtentPage { extents: vec![], covered: offset.max(inode.size) });
    }
    let mut found = Extents::new();
    overlapping_before(view, id, offset, &mut found).await?;
    found.retain(|at, extent| at + extent.length > offset);
    let range = Range::new(key::extent(id, offset), key::after(&key::extents(id)));
    collect(id, view.scan(range, limit + 1).await?, &mut found)?;
    let chunk_ids: BTreeSet<GrantedId> = found.values().filter_map(chunk_of).collect();
    let chunks = read_chunks(view, chunk_ids).await?;

    let mut page = ExtentPage { extents: vec![], covered: offset };
    let mut weight = 0;
    let count = found.len();
    for (at, extent) in found {
        if page.extents.len() == limit || weight > PAGE_WEIGHT {
            break;
        }
        let extent = told(at, extent, &chunks)?;
        weight += weigh(&extent);
        page.covered = extent.end();
        page.extents.push(extent);
    }
    if page.extents.len() == count {
        page.covered = page.covered.max(inode.size);
    }
    Ok(page)
}

/// All extents of files that have few, in the order of the files; `None` for one that has more than
/// `limit`. Ends after about `budget` bytes, at the earliest after the first: there are fewer pages
/// than files then.
pub async fn whole_pages(
    view: &mut View<'_>,
    files: &[(FileId, u64)],
    limit: usize,
    budget: usize,
) -> Result<Vec<Option<ExtentPage>>> {
    let (mut all, mut files, mut weight) = (Vec::with_capacity(files.len()), files.iter(), 0);
    while weight < budget.max(1) && files.len() > 0 {
        // What is read at once is bounded, too: records of chunks have checksums of all blocks.
        let (mut group, mut chunk_ids) = (vec![], BTreeSet::new());
        while chunk_ids.len() < CHUNKS_AT_ONCE
            && weight < budget.max(1)
            && let Some(&(id, size)) = files.next()
        {
            let mut found = Extents::new();
            let range = Range::new(key::extents(id), key::after(&key::extents(id)));
            collect(id, view.scan(range, limit + 1).await?, &mut found)?;
            let found = Some(found).filter(|found| found.len() <= limit);
            chunk_ids.extend(found.iter().flat_map(Extents::values).filter_map(chunk_of));
            weight += found.iter().flat_map(Extents::values).map(inline_bytes).sum::<usize>();
            group.push((found, size));
        }
        let chunks = read_chunks(view, chunk_ids).await?;
        for (found, size) in group {
            let Some(found) = found else {
                all.push(None);
                continue;
            };
            let extents = found.into_iter().map(|(at, extent)| told(at, extent, &chunks));
            let extents = extents.collect::<Result<Vec<Extent>>>()?;
            let is_chunk = |extent: &&Extent| matches!(extent.content, Content::Chunk(_));
            weight += extents.iter().filter(is_chunk).map(weigh).sum::<usize>();
            all.push(Some(ExtentPage { extents, covered: size }));
        }
    }
    Ok(all)
}

fn inline_bytes(extent: &StoredExtent) -> usize {
    match &extent.content {
        StoredContent::Inline(bytes) => 32 + bytes.len(),
        StoredContent::Chunk { .. } => 0,
    }
}

/// What an extent adds to an answer, roughly.
pub fn weigh(extent: &Extent) -> usize {
    match &extent.content {
        Content::Inline(bytes) => 32 + bytes.len(),
        Content::Chunk(chunk) => {
            128 * chunk.places.len() + 4 * chunk.checks.as_ref().map_or(0, Vec::len)
        }
        Content::Hole => 0,
    }
}

/// An extent as readers see it.
fn told(offset: u64, stored: StoredExtent, chunks: &BTreeMap<GrantedId, Chunk>) -> Result<Extent> {
    let content = match stored.content {
        StoredContent::Inline(bytes) => Content::Inline(bytes),
        StoredContent::Chunk { chunk: id, skip } => {
            let missing = || Error::Missing { what: "chunk record", id: id.to_string() };
            let chunk = chunks.get(&id).ok_or_else(missing)?;
            Content::Chunk(ChunkRef {
                chunk: id.into(),
                length: chunk.length,
                skip,
                places: places(chunk),
                digest: chunk.digest,
                adler32: chunk.adler32,
                checks: chunk.checks.clone(),
            })
        }
    };
    Ok(Extent { offset, length: stored.length, content })
}

/// Where readers find a chunk: on tape only if it is nowhere else.
fn places(chunk: &Chunk) -> Vec<Place> {
    let mut places: Vec<Place> = chunk.places.iter().cloned().map(Place::from).collect();
    let is_lost = chunk.places.iter().all(|place| place.is_stale);
    if let Some(tape) = chunk.tape.as_ref().filter(|_| is_lost) {
        places.push(Place {
            origin: Origin::Tape(tape.pool.clone()),
            object: ObjectName::Key(String::new()),
            offset: tape.offset,
            length: Some(chunk.length),
            is_stale: false,
            encoding: None,
        });
    }
    places
}

/// Lays extents over a file. Says by how many bytes more or fewer it covers; `None` when so much is
/// covered that a first part was cut and the rest must follow in another transaction. Whoever pays
/// for the file must be able to.
pub async fn replace(
    view: &mut View<'_>,
    (id, inode): (FileId, &Inode),
    extents: &[Extent],
    naming: Naming,
) -> Result<Option<i64>> {
    let mut old = Extents::new();
    let clusters = clusters(extents);
    // Every extent counts as stored: of a new file there is nothing to look for.
    let looked_at = if inode.stored == 0 { &[][..] } else { &clusters };
    for &(from, to) in looked_at {
        overlapping_before(view, id, from, &mut old).await?;
        // One that starts exactly at the end may be merged with.
        let range = Range::new(key::extent(id, from), key::extent(id, to + 1));
        collect(id, view.scan(range, STEP + 1).await?, &mut old)?;
        if old.len() > STEP {
            return cut_part(view, id, old, &clusters).await.map(|()| None);
        }
    }
    let is_clients = naming == Naming::Client;
    let held = is_clients.then(|| old.values().filter_map(chunk_of).collect());
    let mut new_chunks = NewChunks { held, chunks: BTreeMap::new() };
    let pieces: Vec<Piece> = extents
        .iter()
        .map(|extent| piece(extent, &mut new_chunks.chunks))
        .collect::<Result<_>>()?;
    let edit = stored::replace(&old, &pieces);
    if edit.stored > 0 {
        view.afford((id, Some(inode)), inode, edit.stored)?;
    }
    write(view, id, &edit, new_chunks).await?;
    Ok(Some(edit.stored))
}

/// Cuts those of `old` that lie whole within what is replaced. There are some: of each range at
/// most three others are among `old`, and a commit has no more ranges than a third of [`STEP`].
async fn cut_part(
    view: &mut View<'_>,
    id: FileId,
    old: Extents,
    clusters: &[(u64, u64)],
) -> Result<()> {
    let is_inside = |at: u64, end: u64| clusters.iter().any(|&(from, to)| at >= from && end <= to);
    let old: Extents =
        old.into_iter().filter(|(at, extent)| is_inside(*at, at + extent.length)).collect();
    let hole = |(at, extent): (&u64, &StoredExtent)| Piece {
        offset: *at,
        length: extent.length,
        content: None,
    };
    let pieces: Vec<Piece> = old.iter().map(hole).collect();
    let edit = stored::replace(&old, &pieces);
    write(view, id, &edit, NewChunks::default()).await?;
    let mut inode = view.inode(id).await?;
    inode.stored = inode.stored.saturating_add_signed(edit.stored);
    view.put_inode(id, &inode);
    Ok(())
}

/// Ranges that extents cover together without a gap.
fn clusters(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut clusters: Vec<(u64, u64)> = vec![];
    for extent in extents {
        match clusters.last_mut() {
            Some((_, end)) if *end == extent.offset => *end = extent.end(),
            _ => clusters.push((extent.offset, extent.end())),
        }
    }
    clusters
}

fn piece(extent: &Extent, new_chunks: &mut BTreeMap<GrantedId, Chunk>) -> Result<Piece> {
    let content = match &extent.content {
        Content::Hole => None,
        Content::Inline(bytes) => Some(StoredContent::Inline(bytes.clone())),
        Content::Chunk(chunk) => {
            let others = Error::Invalid { what: "a committed chunk is not granted, or at no OST" };
            let (id, places) = chunk.granted().ok_or(others)?;
            let record = Chunk {
                length: chunk.length,
                references: 0,
                places,
                digest: chunk.digest,
                adler32: chunk.adler32,
                checks: chunk.checks.clone(),
                tape: None,
            };
            new_chunks.insert(id, record);
            Some(StoredContent::Chunk { chunk: id, skip: chunk.skip })
        }
    };
    Ok(Piece { offset: extent.offset, length: extent.length, content })
}

/// Cuts everything from `size` on, from the end. `None` as for [`replace`], with the size down to
/// which it was cut.
pub async fn truncate(view: &mut View<'_>, id: FileId, size: u64) -> Result<(i64, Option<u64>)> {
    let mut old = Extents::new();
    let range = Range::new(key::extent(id, size), key::after(&key::extents(id))).reverse();
    collect(id, view.scan(range, STEP).await?, &mut old)?;
    let reached = match old.first_key_value() {
        Some((&first, _)) if old.len() == STEP && first > size => Some(first),
        _ => None,
    };
    if reached.is_none() {
        overlapping_before(view, id, size, &mut old).await?;
    }
    let from = reached.unwrap_or(size);
    let pieces = [Piece { offset: from, length: Extent::FILE_SIZE_MAX - from, content: None }];
    let edit = stored::replace(&old, &pieces);
    write(view, id, &edit, NewChunks::default()).await?;
    Ok((edit.stored, reached))
}

/// Deletes extents and attributes of a file that nobody can name, if they are at most `limit` of
/// each kind. Says whether all are gone; when not, and only then, `limit` of them may be left to
/// do.
pub async fn clear(view: &mut View<'_>, id: FileId, limit: usize) -> Result<bool> {
    let extents = Range::new(key::extents(id), key::after(&key::extents(id)));
    let extents = view.scan(extents, limit + 1).await?;
    let xattrs = Range::new(key::xattrs(id), key::after(&key::xattrs(id)));
    let xattrs = view.scan(xattrs, limit + 1).await?;
    let is_all = extents.len() <= limit && xattrs.len() <= limit;
    let mut old = Extents::new();
    collect(id, extents.into_iter().take(limit).collect(), &mut old)?;
    let whole = Piece { offset: 0, length: Extent::FILE_SIZE_MAX, content: None };
    let edit = stored::replace(&old, &[whole]);
    write(view, id, &edit, NewChunks::default()).await?;
    for (key, _) in xattrs.into_iter().take(limit) {
        view.delete(key);
    }
    Ok(is_all)
}

/// The extents that begin in `from..to`, if they are at most `limit`, and the one that reaches
/// into it.
pub async fn between(
    view: &mut View<'_>,
    id: FileId,
    (from, to): (u64, u64),
    limit: usize,
) -> Result<Option<Extents>> {
    let mut found = Extents::new();
    overlapping_before(view, id, from, &mut found).await?;
    found.retain(|at, extent| at + extent.length > from);
    let range = Range::new(key::extent(id, from), key::extent(id, to));
    collect(id, view.scan(range, limit + 1).await?, &mut found)?;
    Ok((found.len() <= limit).then_some(found))
}

/// The extent that starts before `offset` and reaches it (or touches it).
async fn overlapping_before(
    view: &mut View<'_>,
    id: FileId,
    offset: u64,
    found: &mut Extents,
) -> Result<()> {
    let range = Range::new(key::extents(id), key::extent(id, offset)).reverse();
    let mut before = Extents::new();
    collect(id, view.scan(range, 1).await?, &mut before)?;
    found.extend(before.into_iter().filter(|(at, extent)| at + extent.length >= offset));
    Ok(())
}

fn collect(id: FileId, pairs: Vec<(Key, Value)>, extents: &mut Extents) -> Result<()> {
    for (key, value) in pairs {
        let damaged = || Error::Missing { what: "offset in an extent's key", id: id.to_string() };
        let offset = key::extent_offset(&key).ok_or_else(damaged)?;
        extents.insert(offset, decode(&value, || format!("{id} at {offset}"))?);
    }
    Ok(())
}

fn chunk_of(extent: &StoredExtent) -> Option<GrantedId> {
    match extent.content {
        StoredContent::Chunk { chunk, .. } => Some(chunk),
        StoredContent::Inline(_) => None,
    }
}

/// The chunks that records of extents name.
pub fn named(extents: &[(Key, Value)]) -> Result<BTreeSet<GrantedId>> {
    let mut named = BTreeSet::new();
    for (key, value) in extents {
        let extent = decode(value, || format!("{key:02x?}"))?;
        named.extend(chunk_of(&extent));
    }
    Ok(named)
}

pub async fn read_chunks(
    view: &mut View<'_>,
    ids: BTreeSet<GrantedId>,
) -> Result<BTreeMap<GrantedId, Chunk>> {
    let keys: Vec<Key> = ids.iter().map(|&id| key::chunk(id)).collect();
    let values = view.read(&keys).await?;
    let mut chunks = BTreeMap::new();
    for (id, value) in ids.into_iter().zip(values) {
        if let Some(value) = value {
            chunks.insert(id, decode(&value, || id.to_string())?);
        }
    }
    Ok(chunks)
}

/// Chunks that extents name which are laid over a file.
#[derive(Default)]
struct NewChunks {
    /// What the file holds there, if only that may be named besides the session's own.
    held: Option<BTreeSet<GrantedId>>,
    chunks: BTreeMap<GrantedId, Chunk>,
}

/// Writes an edit: the extents, and what it means for the chunks. Checks before it writes.
async fn write(
    view: &mut View<'_>,
    id: FileId,
    edit: &Edit,
    NewChunks { held, chunks: new_chunks }: NewChunks,
) -> Result<()> {
    let asked = edit.references.keys().copied().chain(new_chunks.keys().copied()).collect();
    let known = read_chunks(view, asked).await?;
    for (chunk, new) in &new_chunks {
        check_chunk(view, *chunk, new, known.get(chunk))?;
        let is_nameable = |held: &BTreeSet<GrantedId>| held.contains(chunk);
        let is_own = chunk.grant == view.scene.grant;
        if !is_own && !held.as_ref().is_none_or(is_nameable) {
            return Err(Error::ChunkGone { chunk: *chunk });
        }
    }
    let mut counted = vec![];
    for (&chunk, &change) in &edit.references {
        let record = known.get(&chunk).or_else(|| new_chunks.get(&chunk));
        let missing = || Error::Missing { what: "chunk record", id: chunk.to_string() };
        let mut record = record.ok_or_else(missing)?.clone();
        let references = i64::from(record.references) + change;
        assert!(references >= 0, "chunk {chunk} is referred to by {references} extents");
        let full = |_| Error::Invalid { what: "a chunk is shared too often" };
        record.references = u32::try_from(references).map_err(full)?;
        counted.push((chunk, record));
    }
    let now_ms = view.freed_at.unwrap_or(view.scene.now).millis();
    for (chunk, record) in counted {
        if record.references == 0 {
            let (length, places) = (record.length, record.places.clone());
            let freed = Freed { length, places, file: id, is_split: None };
            view.put(key::freed(now_ms, chunk), &freed);
        }
        view.put(key::chunk(chunk), &record);
    }
    for &offset in &edit.removed {
        view.delete(key::extent(id, offset));
    }
    for (offset, extent) in &edit.put {
        view.put(key::extent(id, *offset), extent);
    }
    Ok(())
}

/// A chunk in a commit is either known and in use, or new and named with the session's own grant.
fn check_chunk(view: &View<'_>, id: GrantedId, new: &Chunk, known: Option<&Chunk>) -> Result<()> {
    match known {
        Some(chunk) if chunk.references == 0 => Err(Error::ChunkGone { chunk: id }),
        Some(chunk) if chunk.length != new.length => Err(Error::ChunkLength { chunk: id }),
        Some(_) => Ok(()),
        // Of another session: it was here, and was freed and deleted since.
        None if id.mdt == view.scene.mdt && id.grant != view.scene.grant => {
            Err(Error::ChunkGone { chunk: id })
        }
        None if id.mdt != view.scene.mdt => Err(Error::ChunkForeign { chunk: id }),
        None if new.places.iter().all(|place| place.is_stale) => {
            Err(Error::Invalid { what: "a new chunk has no place that holds it" })
        }
        // Else anybody could read whatever lies in an adopted tree.
        None if !view.scene.caller.is_root() && new.places.iter().any(is_external) => {
            let uid = view.scene.caller.uid.0;
            Err(Error::NotRoot { uid, wish: "adopt files" })
        }
        None => {
            check_new(id, new, view.scene.map.security.is_some())?;
            let mut osts = new.places.iter().map(|place| place.ost);
            let unknown = osts.find(|&ost| view.scene.map.ost(ost).is_none());
            unknown.map_or(Ok(()), |ost| Err(Error::NoOst { ost }))
        }
    }
}

/// What is kept of a chunk is told to every reader: it must be what a chunk can be. And an object
/// of ours has the name of its chunk, else a client could have others' chunks read as its own.
fn check_new(id: GrantedId, new: &Chunk, is_proven: bool) -> Result<()> {
    let blocks = new.length.div_ceil(BLOCK as u64);
    if new.length > u64::from(Layout::CHUNK_SIZE_MAX) {
        return Err(Error::Invalid { what: "a new chunk has more than 64 MiB" });
    }
    if new.places.len() > PLACES_MAX {
        return Err(Error::Invalid { what: "a new chunk has more than 16 places" });
    }
    if new.checks.as_ref().is_some_and(|checks| checks.len() as u64 != blocks) {
        return Err(Error::Invalid { what: "a new chunk has not one checksum for each block" });
    }
    let is_its = |place: &OstPlace| is_external(place) || place.is_own(id);
    if !new.places.iter().all(is_its) {
        return Err(Error::Invalid { what: "a new chunk lies in an object of another name" });
    }
    // By it readers see what an OST changes. That of adopted files comes with their checksums.
    if is_proven && new.digest.is_none() && !new.places.iter().all(is_external) {
        return Err(Error::Invalid { what: "a new chunk has no digest: update the client" });
    }
    Ok(())
}

fn is_external(place: &OstPlace) -> bool {
    matches!(place.object, ObjectName::External { .. })
}
