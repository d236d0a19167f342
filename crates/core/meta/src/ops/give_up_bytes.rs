//! GiveUpBytes: OSTs give up what tape has of a file.
//!
//! A page of extents at a time. A chunk goes if tape has all of it and nobody else refers to it:
//! it keeps its name, its checks and its record, which says where in the file on tape it begins;
//! its objects are freed as those of a mirror are that is split off. What was begun and not ended
//! leaves a file that is NEARLINE in part, and is restored like any other.
//!
//! Invariants: nothing is given up of a file that tape has not exactly as it is; the file's record
//! says so from the first page on.

use super::{EXTENTS_MAX, lease, open};
use crate::chunks;
use crate::error::{Error, Result};
use crate::permission;
use crate::view::{View, unit_of};
use std::collections::BTreeMap;
use tieline_format::mdt::{Archived, Chunk, Freed, OfTape, TapePlace, key};
use tieline_types::{Content, Extent, FileId, GrantedId};
use tieline_wire::tape::{GiveUpBytes, GiveUpBytesReply};

pub async fn run(view: &mut View<'_>, request: &GiveUpBytes) -> Result<GiveUpBytesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_owner(id, &inode, view.scene.caller, "release it")?;
    let archived: Option<Archived> = view.record(key::tape_copy(id)).await?;
    let own = inode.content_version();
    let as_it_is = inode.tape.filter(|tape| tape.content == own);
    let copy = archived.filter(|archived| archived.content == own);
    let (Some(tape), Some(Archived { copy, .. })) = (as_it_is, copy) else {
        return Err(Error::NotArchived { id });
    };
    if view.scene.writers.has_others(view.scene.session, id) {
        return Err(Error::IsWritten { id });
    }
    let limit = (request.limit as usize).clamp(1, EXTENTS_MAX);
    let page = chunks::page(view, id, &inode, request.offset, limit).await?;
    let is_done = page.covered >= inode.size || page.covered <= request.offset;
    let (going, kept) = going(view, &page.extents).await?;
    let released: u64 = going.values().map(|(_, chunk)| chunk.length).sum();
    for (chunk, (offset, record)) in going {
        give_up(view, (id, chunk), record, TapePlace { pool: copy.pool.clone(), offset });
    }
    if released > 0 {
        let before = tape.released.unwrap_or(0);
        inode.tape = Some(OfTape { released: Some(before + released), ..tape });
        // Whoever believes to know where its chunks are asks again.
        inode.bytes_stay(view.next_version(&inode));
        view.put_inode(id, &inode);
        view.touch_file(id, &inode);
    }
    Ok(GiveUpBytesReply {
        covered: page.covered,
        is_done,
        released,
        kept,
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

/// The chunks of a page that OSTs may give up, with their offsets in the file, and how many bytes
/// they keep.
async fn going(
    view: &mut View<'_>,
    extents: &[Extent],
) -> Result<(BTreeMap<GrantedId, (u64, Chunk)>, u64)> {
    let (mut whole, mut kept) = (BTreeMap::new(), 0);
    for extent in extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        if chunk.is_nearline() {
            continue;
        }
        let is_whole = chunk.skip == 0 && extent.length == chunk.length;
        match chunk.chunk.granted().filter(|_| is_whole) {
            Some(id) => drop(whole.insert(id, extent.offset)),
            None => kept += extent.length,
        }
    }
    let mut going = BTreeMap::new();
    for (id, record) in chunks::read_chunks(view, whole.keys().copied().collect()).await? {
        let Some(&offset) = whole.get(&id) else { continue };
        // Adopted files are not ours to delete.
        let is_ours = record.places.iter().all(|place| place.is_own(id));
        if record.references == 1 && is_ours {
            going.insert(id, (offset, record));
        } else {
            kept += record.length;
        }
    }
    Ok((going, kept))
}

fn give_up(view: &mut View<'_>, (file, id): (FileId, GrantedId), mut record: Chunk, to: TapePlace) {
    let (length, places) = (record.length, std::mem::take(&mut record.places));
    record.tape = Some(to);
    let freed = Freed { length, places, file, is_split: Some(true) };
    view.put(key::freed(view.scene.now.millis(), id), &freed);
    view.put(key::chunk(id), &record);
    view.delete(key::lacking_chunk(id));
}
