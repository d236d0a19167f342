//! ReadDirectory: a page of names in the order of their bytes, mounted MDTs among them.

use super::{ENTRIES_MAX, lease, read_files};
use crate::error::{Error, Result};
use crate::permission::{self, READ, SEARCH};
use crate::view::{View, decode};
use std::collections::BTreeMap;
use tieline_format::mdt::{Entry, key};
use tieline_kv::Range;
use tieline_types::{FileId, FileKind, Name};
use tieline_wire::meta::{DirectoryEntry, ReadDirectory, ReadDirectoryReply};

/// Targets and access lists of one page: beside them 4,096 entries fit into a frame.
const PAGE_WEIGHT: usize = 2 << 20;

pub async fn run(view: &mut View<'_>, request: &ReadDirectory) -> Result<ReadDirectoryReply> {
    let id = request.id;
    let directory = view.directory(id).await?;
    permission::check(id, &directory, view.scene.caller, READ)?;
    let limit = request.limit.clamp(1, ENTRIES_MAX) as usize;
    let mut found = stored(view, id, request.after.as_ref(), limit + 1).await?;
    for junction in view.scene.map.junctions_in(id) {
        if request.after.as_ref().is_none_or(|after| junction.name > *after) {
            let entry = Entry { id: FileId::root_of(junction.mdt), kind: FileKind::Directory };
            found.insert(junction.name.clone(), entry);
        }
    }
    let is_end = found.len() <= limit;
    let mut reply = ReadDirectoryReply { entries: vec![], is_end, lease: lease(view, [id]) };
    for (name, entry) in found.into_iter().take(limit) {
        let Entry { id, kind } = entry;
        reply.entries.push(DirectoryEntry { name, id, kind, attributes: None, target: None });
    }
    // Names are for who may read it, what they lead to for who may search it.
    if request.is_plus && permission::is_allowed(&directory, view.scene.caller, SEARCH) {
        add_attributes(view, &mut reply).await?;
    }
    Ok(reply)
}

pub async fn stored(
    view: &mut View<'_>,
    id: FileId,
    after: Option<&Name>,
    limit: usize,
) -> Result<BTreeMap<Name, Entry>> {
    let start = match after {
        // The first key that can follow the name's.
        Some(name) => [key::entry(id, name).as_slice(), &[0]].concat(),
        None => key::entries(id),
    };
    let range = Range::new(start, key::after(&key::entries(id)));
    let mut entries = BTreeMap::new();
    for (key, value) in view.scan(range, limit).await? {
        let damaged = || Error::Missing { what: "name in an entry's key", id: id.to_string() };
        let name = key::entry_name(&key).ok_or_else(damaged)?;
        let entry = decode(&value, || format!("{id}/{name}"))?;
        entries.insert(name, entry);
    }
    Ok(entries)
}

/// Attributes of all entries in one batch; subdirectories' are under leases of their own.
async fn add_attributes(view: &mut View<'_>, reply: &mut ReadDirectoryReply) -> Result<()> {
    let mine = view.scene.mdt;
    let ids: Vec<FileId> = reply.entries.iter().map(|entry| entry.id).collect();
    let local: Vec<FileId> = ids.iter().copied().filter(|id| id.mdt() == mine).collect();
    let inodes = view.inodes(&local).await?;
    let mut inodes: BTreeMap<FileId, _> = local.into_iter().zip(inodes).collect();
    let mut units = reply.lease.units.clone();
    let mut room = PAGE_WEIGHT;
    let mut told = 0;
    for entry in &mut reply.entries {
        if room == 0 {
            break;
        }
        told += 1;
        let Some(Some(inode)) = inodes.remove(&entry.id) else { continue };
        room = room.saturating_sub(read_files::list_weight(&inode));
        room = room.saturating_sub(inode.target.as_ref().map_or(0, Vec::len));
        entry.attributes = Some(view.attributes(entry.id, &inode));
        entry.target = inode.target;
        if inode.kind == FileKind::Directory {
            units.push(entry.id);
        }
    }
    reply.is_end &= told == reply.entries.len();
    reply.entries.truncate(told);
    reply.lease = lease(view, units);
    Ok(())
}
