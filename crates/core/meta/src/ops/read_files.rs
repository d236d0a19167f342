//! ReadFiles: where the bytes of many small files are, as opens for reading would tell.
//!
//! Files that are gone, that the caller may not read, that are large or in many pieces are left
//! out: their own opens tell, or say why not.

use super::read_tree::{Found, layout_number};
use crate::chunks::{self, weigh};
use crate::error::{Error, Result};
use crate::permission::{self, READ};
use crate::view::{View, unit_of};
use crate::walked;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::mdt::Inode;
use tieline_types::{Content, FileId, FileKind, Layout};
use tieline_wire::meta::ExtentPage;
use tieline_wire::trees::{BYTES_MAX, FileBytes, FilesPage, NAMED_MAX, ReadFiles, ToldFile};

/// Files with more extents tell them page by page.
const EXTENTS_MAX: usize = 16;
/// Larger files are not told in bulk, whatever is asked for: they are opened.
pub const CONTENTS_MAX: u64 = 64 << 20;
/// Files that are read at once.
const STEP: usize = 256;
/// What a file takes besides its extents, roughly.
const WEIGHT: usize = 120;

/// Fills `found` with what it rests on.
pub async fn run(view: &mut View<'_>, request: &ReadFiles, found: &mut Found) -> Result<FilesPage> {
    if request.ids.len() > NAMED_MAX {
        return Err(Error::Invalid { what: "at most 4096 files are read at once" });
    }
    let mut bytes_left = request.bytes.clamp(1, BYTES_MAX) as usize;
    let mut page = FilesPage::default();
    for ids in request.ids.chunks(STEP) {
        let mine: Vec<FileId> =
            ids.iter().copied().filter(|id| id.mdt() == view.scene.mdt).collect();
        let mine = reached(view, mine).await?;
        let inodes = view.inodes(&mine).await?;
        let there: Vec<(FileId, Inode)> =
            mine.into_iter().zip(inodes).filter_map(|(id, inode)| Some((id, inode?))).collect();
        let small: Vec<(FileId, &Inode)> = there
            .iter()
            .filter(|(_, inode)| inode.size <= request.contents_max.min(CONTENTS_MAX))
            .map(|(id, inode)| (*id, inode))
            .collect();
        let Pages { found: mut pages, unread } = pages(view, &small, bytes_left).await?;
        let there: BTreeMap<FileId, Inode> = there.into_iter().collect();
        for id in ids {
            if bytes_left == 0 || unread.contains(id) {
                return Ok(page);
            }
            page.count += 1;
            let (Some(inode), Some(extents)) = (there.get(id), pages.remove(id)) else { continue };
            let unit = unit_of(*id, inode);
            found.units.insert(unit);
            if has_chunks(&extents) {
                found.readable.push((unit, *id));
            }
            let weight =
                WEIGHT + list_weight(inode) + extents.extents.iter().map(weigh).sum::<usize>();
            bytes_left = bytes_left.saturating_sub(weight);
            let attributes = view.attributes(*id, inode);
            let bytes = bytes(&mut page.layouts, inode, extents);
            page.files.push(ToldFile { attributes, unit, bytes });
        }
    }
    Ok(page)
}

/// Those that the session may be told of.
async fn reached(view: &mut View<'_>, ids: Vec<FileId>) -> Result<Vec<FileId>> {
    let mut reached = Vec::with_capacity(ids.len());
    for id in ids {
        match walked::reach(view, id).await {
            Ok(()) => reached.push(id),
            Err(Error::Denied { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(reached)
}

/// What was read of files, and those for which there was no room.
pub struct Pages {
    pub found: BTreeMap<FileId, ExtentPage>,
    unread: BTreeSet<FileId>,
}

/// All extents of those files that are regular, may be read, and have few; about `budget` bytes of
/// them.
pub async fn pages(
    view: &mut View<'_>,
    files: &[(FileId, &Inode)],
    budget: usize,
) -> Result<Pages> {
    let caller = view.scene.caller;
    let is_told = |inode: &Inode| {
        inode.kind == FileKind::Regular && permission::is_allowed(inode, caller, READ)
    };
    let mut found = BTreeMap::new();
    let mut stored = vec![];
    for &(id, inode) in files.iter().filter(|(_, inode)| is_told(inode)) {
        match inode.stored {
            0 => drop(found.insert(id, ExtentPage { extents: vec![], covered: inode.size })),
            _ => stored.push((id, inode.size)),
        }
    }
    let pages = chunks::whole_pages(view, &stored, EXTENTS_MAX, budget).await?;
    let unread = stored.iter().skip(pages.len()).map(|(id, _)| *id).collect();
    found.extend(stored.into_iter().zip(pages).filter_map(|((id, _), page)| Some((id, page?))));
    Ok(Pages { found, unread })
}

pub fn bytes(layouts: &mut Vec<Layout>, inode: &Inode, extents: ExtentPage) -> FileBytes {
    let layout = layout_number(layouts, inode.layout.clone().unwrap_or_default());
    FileBytes { layout, stripe: inode.stripe.clone(), extents }
}

/// What an access list adds to an answer, roughly.
pub fn list_weight(inode: &Inode) -> usize {
    inode.acls.as_deref().map_or(0, |lists| tieline_wire::encode(lists).len())
}

pub fn has_chunks(page: &ExtentPage) -> bool {
    page.extents.iter().any(|extent| matches!(extent.content, Content::Chunk(_)))
}
