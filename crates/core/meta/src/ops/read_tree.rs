//! ReadTree: directories with all that is in them, and those below.
//!
//! Each is told whole, from its first name on, as long as there is room; the last one that is begun
//! may be cut, and files' bytes are told as long as there is room for them. A directory's own
//! directories come before its neighbours, as those come who walk. Whoever may not list and search
//! a directory is not told of it; of files that he may not read he is told what `stat` tells. Of
//! directories that are not to be entered names are told alone.
//!
//! Invariant: an error is about the first root; others that cannot be told are left out.

use super::read_directory::stored;
use super::{list_xattrs, read_bundle, read_files};
use crate::chunks::weigh;
use crate::error::{Error, Result};
use crate::permission::{self, READ, SEARCH};
use crate::view::View;
use crate::walked;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tieline_format::mdt::{Entry, Inode};
use tieline_types::{FileId, FileKind, Layout, Name};
use tieline_wire::meta::{DirectoryEntry, Xattr};
use tieline_wire::trees::{
    BYTES_MAX, ENTRIES_MAX, NAMED_MAX, ReadTree, TreeDirectory, TreeEntry, TreePage,
};

/// Entries that are read at once.
const STEP: usize = 512;
/// What an entry takes besides its names and bytes, roughly.
const WEIGHT: usize = 150;
/// Levels: nobody means more.
const DEPTH_MAX: u32 = 256;

/// What was found, and what it rests on.
#[derive(Default)]
pub struct Found {
    pub page: TreePage,
    /// Lease units: directories that are told, and those among their entries.
    pub units: BTreeSet<FileId>,
    /// Files with chunks that may be read, with their units.
    pub readable: Vec<(FileId, FileId)>,
}

/// What an answer may still hold.
struct Room {
    entries: usize,
    bytes: usize,
    /// For files' bytes.
    contents: usize,
    contents_max: u64,
}

/// A directory to be told.
struct Next {
    id: FileId,
    depth: u32,
    after: Option<Name>,
}

/// Which directories may be told without asking anybody?
pub type MayEnter<'a> = &'a (dyn Fn(FileId) -> bool + Sync);

/// `may_enter` says which directories besides the first root are told.
pub async fn run(
    view: &mut View<'_>,
    request: &ReadTree,
    may_enter: MayEnter<'_>,
) -> Result<Found> {
    if request.roots.is_empty() || request.roots.len() > NAMED_MAX {
        return Err(Error::Invalid { what: "between 1 and 4096 directories are read at once" });
    }
    let mut room = Room {
        entries: request.entries.clamp(1, ENTRIES_MAX) as usize,
        bytes: request.bytes.clamp(1, BYTES_MAX) as usize,
        contents: request.bytes.min(BYTES_MAX) as usize / 2,
        contents_max: request.contents_max.min(read_files::CONTENTS_MAX),
    };
    let depth = request.depth.min(DEPTH_MAX);
    let roots = request.roots.iter().map(|&id| Next { id, depth, after: None });
    let mut queue: VecDeque<Next> = roots.collect();
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    let mut is_first = true;
    while let Some(mut next) = queue.pop_front() {
        if room.entries == 0 || room.bytes == 0 {
            found.page.is_cut = true;
            break;
        }
        let is_root = std::mem::take(&mut is_first);
        if is_root {
            next.after.clone_from(&request.after);
        } else if !may_enter(next.id) || seen.contains(&next.id) {
            continue;
        }
        seen.insert(next.id);
        let below = match directory(view, (&next, may_enter), &mut room, &mut found).await {
            Ok(below) => below,
            Err(error) if is_root || error.is_conflict() => return Err(error),
            // Gone, or not to be seen: whoever asks for it alone is told why.
            Err(_) => continue,
        };
        if next.depth > 0 {
            let depth = next.depth - 1;
            for id in below.into_iter().rev() {
                queue.push_front(Next { id, depth, after: None });
            }
        }
    }
    Ok(found)
}

/// Tells one directory; says which are in it.
async fn directory(
    view: &mut View<'_>,
    (next, may_enter): (&Next, MayEnter<'_>),
    room: &mut Room,
    found: &mut Found,
) -> Result<Vec<FileId>> {
    let id = next.id;
    walked::reach(view, id).await?;
    let directory = view.directory(id).await?;
    permission::check(id, &directory, view.scene.caller, READ)?;
    permission::check(id, &directory, view.scene.caller, SEARCH)?;
    let junctions: BTreeMap<Name, Entry> = view
        .scene
        .map
        .junctions_in(id)
        .map(|junction| {
            let root = FileId::root_of(junction.mdt);
            (junction.name.clone(), Entry { id: root, kind: FileKind::Directory })
        })
        .collect();
    let attributes = view.attributes(id, &directory);
    let bundles = match next.after {
        None => read_bundle::signs(view, id).await?,
        Some(_) => None,
    };
    let signs_weight = bundles.as_ref().map_or(0, |signs| tieline_wire::encode(signs).len());
    let list_weight = read_files::list_weight(&directory);
    room.bytes = room.bytes.saturating_sub(signs_weight + list_weight);
    let mut told = TreeDirectory { attributes, entries: vec![], is_end: false, bundles };
    found.units.insert(id);
    let (mut after, mut below) = (next.after.clone(), vec![]);
    while room.entries > 0 && (room.bytes > 0 || told.entries.is_empty()) && !told.is_end {
        let limit = room.entries.min(STEP);
        let mut names = stored(view, id, after.as_ref(), limit + 1).await?;
        let beyond = junctions.iter().filter(|(name, _)| after.as_ref().is_none_or(|a| *name > a));
        names.extend(beyond.map(|(name, entry)| (name.clone(), entry.clone())));
        told.is_end = names.len() <= limit;
        let names: Vec<(Name, Entry)> = names.into_iter().take(limit).collect();
        after = names.last().map(|(name, _)| name.clone());
        let mine = view.scene.mdt;
        below.extend(
            names
                .iter()
                .filter(|(_, entry)| entry.kind == FileKind::Directory && entry.id.mdt() == mine)
                .map(|(_, entry)| entry.id),
        );
        let told_all = entries(view, (id, may_enter), names, room, (found, &mut told)).await?;
        told.is_end &= told_all;
        if !told_all {
            break;
        }
    }
    found.page.is_cut |= !told.is_end;
    // What was cut off is not below for this answer.
    let reached: BTreeSet<FileId> = told.entries.iter().map(|one| one.entry.id).collect();
    below.retain(|id| reached.contains(id));
    found.page.directories.push(told);
    Ok(below)
}

/// Tells some of a directory's entries; says whether all of them.
async fn entries(
    view: &mut View<'_>,
    (parent, may_enter): (FileId, MayEnter<'_>),
    names: Vec<(Name, Entry)>,
    room: &mut Room,
    (found, told): (&mut Found, &mut TreeDirectory),
) -> Result<bool> {
    let mine = view.scene.mdt;
    let is_told = |entry: &Entry| {
        entry.id.mdt() == mine && (entry.kind != FileKind::Directory || may_enter(entry.id))
    };
    let told_ids = names.iter().map(|(_, entry)| entry).filter(|entry| is_told(entry));
    let local: Vec<FileId> = told_ids.map(|entry| entry.id).collect();
    let inodes = view.inodes(&local).await?;
    let mut inodes: BTreeMap<FileId, Option<Inode>> = local.into_iter().zip(inodes).collect();
    let is_wanted = room.contents_max > 0 && room.contents > 0;
    let with_bytes: Vec<(FileId, &Inode)> = inodes
        .iter()
        .filter_map(|(&id, inode)| Some((id, inode.as_ref()?)))
        .filter(|(_, inode)| is_wanted && inode.size <= room.contents_max)
        .collect();
    let mut pages = read_files::pages(view, &with_bytes, room.contents).await?.found;
    let count = names.len();
    for (number, (name, Entry { id, kind })) in names.into_iter().enumerate() {
        let mut weight = WEIGHT + name.as_bytes().len();
        let mut entry = DirectoryEntry { name, id, kind, attributes: None, target: None };
        let (mut file, mut xattrs) = (None, None);
        if let Some(Some(inode)) = inodes.remove(&id) {
            entry.attributes = Some(view.attributes(id, &inode));
            view.scene.walked_to(id, kind);
            weight += read_files::list_weight(&inode);
            xattrs = all_xattrs(view, id, &inode).await?;
            if let Some(extents) = pages.remove(&id).filter(|_| room.contents > 0) {
                let extents_weight = extents.extents.iter().map(weigh).sum::<usize>();
                room.contents = room.contents.saturating_sub(extents_weight);
                if read_files::has_chunks(&extents) {
                    found.readable.push((parent, id));
                }
                let layouts = &mut found.page.layouts;
                file = Some(read_files::bytes(layouts, &inode, extents));
            }
            if kind == FileKind::Directory {
                found.units.insert(id);
            }
            weight +=
                xattrs.iter().flatten().map(|one: &Xattr| one.value.len() + 32).sum::<usize>();
            entry.target = inode.target;
            weight += entry.target.as_ref().map_or(0, Vec::len);
        }
        told.entries.push(TreeEntry { entry, file, xattrs });
        room.entries -= 1;
        room.bytes = room.bytes.saturating_sub(weight);
        if room.bytes == 0 && number + 1 < count {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All extended attributes, if there are any and the caller may see them.
async fn all_xattrs(view: &mut View<'_>, id: FileId, inode: &Inode) -> Result<Option<Vec<Xattr>>> {
    let caller = view.scene.caller;
    let has_some = inode.xattrs.is_some_and(|count| count > 0);
    if !has_some || !permission::is_allowed(inode, caller, READ) {
        return Ok(None);
    }
    let mut xattrs = list_xattrs::read_all(view, id).await?;
    if !caller.is_root() {
        xattrs.retain(|xattr| !xattr.name.as_bytes().starts_with(b"trusted."));
    }
    Ok(Some(xattrs))
}

/// Where a layout stands among those of a page.
pub fn layout_number(layouts: &mut Vec<Layout>, layout: Layout) -> u32 {
    // There are few different ones, and the last is mostly the same.
    let number = layouts.iter().rposition(|one| *one == layout).unwrap_or_else(|| {
        layouts.push(layout);
        layouts.len() - 1
    });
    u32::try_from(number).unwrap_or(u32::MAX)
}
