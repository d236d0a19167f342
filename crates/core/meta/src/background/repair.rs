//! Repairs: each one transaction on what is there now, which may be well by then.
//!
//! A file that no name leads to gets one in `lost+found` in the MDT's root. Counts are moved by
//! what they were wrong by, since they go on changing.

use crate::error::Result;
use crate::names::{self, NewFile};
use crate::view::View;
use tieline_format::mdt::{Chunk, Entry, Freed, Inode, Lacking, NameOf, key};
use tieline_kv::Range;
use tieline_types::background::Repair;
use tieline_types::{FileId, FileKind, GrantedId, Mode, Name, OstIndex, Time};

/// Entries of a directory that is gone which one transaction takes away.
const ENTRIES: usize = 1024;

/// Runs a repair. Says whether there was something to do.
pub async fn run(view: &mut View<'_>, repair: &Repair) -> Result<bool> {
    match repair {
        Repair::Names(id) => names_of(view, *id).await,
        Repair::Entry(directory, name) => entry(view, *directory, name).await,
        Repair::Entries(directory) => entries(view, *directory).await,
        Repair::Counts(id, entries, links) => {
            change(view, *id, |inode| {
                inode.entries = inode.entries.saturating_add_signed(*entries);
                inode.links = (i64::from(inode.links) + links).max(2) as u32;
            })
            .await
        }
        Repair::Size(id, size) => {
            change(view, *id, |inode| inode.size = inode.size.max(*size)).await
        }
        Repair::Stored(id, by) => {
            change(view, *id, |inode| inode.stored = inode.stored.saturating_add_signed(*by)).await
        }
        Repair::References(id, by) => references(view, *id, *by).await,
        Repair::Stale(id, ost) => stale(view, *id, *ost).await,
    }
}

async fn change(view: &mut View<'_>, id: FileId, change: impl FnOnce(&mut Inode)) -> Result<bool> {
    let Some(mut inode) = view.find_inode(id).await? else { return Ok(false) };
    change(&mut inode);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(true)
}

async fn names_of(view: &mut View<'_>, id: FileId) -> Result<bool> {
    let Some(mut inode) = view.find_inode(id).await? else { return Ok(false) };
    let before = (inode.names.clone(), inode.links);
    let mut names = Vec::new();
    for name in std::mem::take(&mut inode.names) {
        let entry: Option<Entry> = view.record(key::entry(name.parent, &name.name)).await?;
        if entry.is_some_and(|entry| entry.id == id) {
            names.push(name);
        }
    }
    if names.is_empty() {
        let orphans = Range::new(key::orphans_of(id), key::after(&key::orphans_of(id)));
        if view.scan(orphans, 1).await?.is_empty() {
            let name = Name::new(format!("#{id}").into_bytes());
            let name = name.expect("an id in digits is a name");
            let (parent, mut directory) = lost_and_found(view).await?;
            names.push(NameOf { parent, name: name.clone() });
            names::link_entry(view, (parent, &mut directory), &name, (id, inode.kind));
            view.put_inode(parent, &directory);
        }
    }
    inode.names = names;
    if inode.kind != FileKind::Directory {
        inode.links = inode.names.len() as u32;
    }
    if before == (inode.names.clone(), inode.links) {
        return Ok(false);
    }
    view.put_inode(id, &inode);
    Ok(true)
}

/// The directory for what has no name, made if it is not there.
async fn lost_and_found(view: &mut View<'_>) -> Result<(FileId, Inode)> {
    let root = FileId::root_of(view.scene.mdt);
    let name = Name::new(*b"lost+found").expect("the constant is a name");
    let (parent, entry) = view.directory_and_entry(root, &name).await?;
    if let Some(entry) = entry {
        let inode = view.entry_inode(&entry).await?;
        if inode.kind == FileKind::Directory {
            return Ok((entry.id, inode));
        }
        return Ok((root, parent));
    }
    let new = NewFile {
        kind: FileKind::Directory,
        mode: Mode::new(0o700),
        umask: Mode::new(0),
        device: 0,
        target: None,
        layout: None,
    };
    names::add_file(view, (root, parent), &name, new).await
}

async fn entry(view: &mut View<'_>, directory: FileId, name: &Name) -> Result<bool> {
    let Some(mut parent) = view.find_inode(directory).await? else { return Ok(false) };
    let Some(entry) = view.record::<Entry>(key::entry(directory, name)).await? else {
        return Ok(false);
    };
    let at = NameOf { parent: directory, name: name.clone() };
    let Some(mut inode) = view.find_inode(entry.id).await? else {
        view.delete(key::entry(directory, name));
        parent.entries = parent.entries.saturating_sub(1);
        if entry.kind == FileKind::Directory {
            parent.links = parent.links.saturating_sub(1).max(2);
        }
        names::directory_changed(view, &mut parent);
        view.put_inode(directory, &parent);
        return Ok(true);
    };
    let mut is_changed = false;
    if inode.kind != entry.kind {
        view.put(key::entry(directory, name), &Entry { id: entry.id, kind: inode.kind });
        is_changed = true;
    }
    if !inode.names.contains(&at) {
        if inode.kind == FileKind::Directory && !inode.names.is_empty() {
            // A directory has one name: this one goes.
            view.delete(key::entry(directory, name));
            parent.entries = parent.entries.saturating_sub(1);
            parent.links = parent.links.saturating_sub(1).max(2);
            view.put_inode(directory, &parent);
            return Ok(true);
        }
        inode.names.push(at);
        if inode.kind != FileKind::Directory {
            inode.links = inode.names.len() as u32;
        }
        view.put_inode(entry.id, &inode);
        is_changed = true;
    }
    Ok(is_changed)
}

/// Their files are found without a name by the next check.
async fn entries(view: &mut View<'_>, directory: FileId) -> Result<bool> {
    if view.find_inode(directory).await?.is_some() {
        return Ok(false);
    }
    let all = Range::new(key::entries(directory), key::after(&key::entries(directory)));
    let page = view.scan(all, ENTRIES).await?;
    let has_some = !page.is_empty();
    for (key, _) in page {
        view.delete(key);
    }
    Ok(has_some)
}

async fn references(view: &mut View<'_>, id: GrantedId, by: i64) -> Result<bool> {
    let Some(mut chunk) = view.record::<Chunk>(key::chunk(id)).await? else { return Ok(false) };
    let references = (i64::from(chunk.references) + by).max(0) as u32;
    chunk.references = references;
    view.put(key::chunk(id), &chunk);
    if references == 0 {
        let (length, places) = (chunk.length, chunk.places);
        let file = FileId::default();
        let freed = Freed { length, places, file, is_split: None };
        view.put(key::freed(view.scene.now.millis(), id), &freed);
    }
    Ok(true)
}

async fn stale(view: &mut View<'_>, id: GrantedId, ost: OstIndex) -> Result<bool> {
    let Some(mut chunk) = view.record::<Chunk>(key::chunk(id)).await? else { return Ok(false) };
    let others = chunk.places.iter().filter(|place| place.ost != ost && !place.is_stale).count();
    let bad = chunk.places.iter_mut().filter(|place| place.ost == ost && !place.is_stale);
    let mut is_changed = false;
    for place in bad.filter(|_| others > 0) {
        place.is_stale = true;
        is_changed = true;
    }
    if is_changed {
        view.put(key::chunk(id), &chunk);
        // Whose chunk it is does not matter: the marked place is what is to be filled again.
        let lacking = Lacking { since: Time::default(), file: FileId::default(), next: 0 };
        view.put(key::lacking_chunk(id), &lacking);
    }
    Ok(is_changed)
}
