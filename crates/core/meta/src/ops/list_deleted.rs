//! ListDeleted: what lost its last name in a directory and can be brought back; or which names
//! files lost there while they had others.
//!
//! The directory may be gone itself: what was deleted from it is found under its id.

use super::ENTRIES_MAX;
use crate::error::{Error, Result};
use crate::names::LastName;
use crate::permission::{self, READ};
use crate::view::{View, decode};
use tieline_format::mdt::{Deleted, LostName, NameOf, Orphan, key};
use tieline_kv::Range;
use tieline_types::{FileId, Name};
use tieline_wire::ledger::{DeletedFile, ListDeleted, ListDeletedReply};

/// Files without a name are not sorted by where they were: more pages of them are not looked
/// through for one question.
const ORPHAN_PAGES: usize = 16;

pub async fn run(view: &mut View<'_>, request: &ListDeleted) -> Result<ListDeletedReply> {
    let directory = request.directory;
    view.scene.check_mine(directory)?;
    if request.limit == 0 || request.limit > ENTRIES_MAX {
        return Err(Error::Invalid { what: "a page has 1 to 4096 entries" });
    }
    if let Some(inode) = view.find_inode(directory).await? {
        permission::check(directory, &inode, view.scene.caller, READ)?;
    }
    if request.is_lost == Some(true) {
        return lost_names(view, request).await;
    }
    let start = match request.after {
        Some(after) => [key::deleted(directory, after), vec![0]].concat(),
        None => key::deleted_from(directory),
    };
    let range = Range::new(start, key::after(&key::deleted_from(directory)));
    let limit = request.limit as usize;
    let page = view.scan(range, limit).await?;
    // A page of others' files is empty, and not the last all the same.
    let last = page.last().filter(|_| page.len() == limit);
    let next = last.and_then(|(key, _)| key::deleted_parts(key)).map(|(_, id)| id);
    let caller = view.scene.caller;
    let mut files = match request.after {
        // Where nothing is kept they go with the last who has them.
        None if view.scene.keeps_deleted => kept_for_others(view, directory).await?,
        _ => vec![],
    };
    for (key, value) in page {
        let Some((_, id)) = key::deleted_parts(&key) else { continue };
        files.push(told(id, decode(&value, || id.to_string())?));
    }
    files.retain(|file| caller.is_root() || caller.uid == file.uid);
    Ok(reply(view, files, (next, None)))
}

fn reply(
    view: &View<'_>,
    files: Vec<DeletedFile>,
    (next, next_name): (Option<FileId>, Option<Name>),
) -> ListDeletedReply {
    let (now, keep_ms) = (view.scene.now, view.scene.keep_ms);
    ListDeletedReply { files, next, now, keep_ms, next_name }
}

async fn lost_names(view: &mut View<'_>, request: &ListDeleted) -> Result<ListDeletedReply> {
    let own = key::lost_names_in(request.directory);
    let start = match (request.after, &request.after_name) {
        (Some(file), Some(name)) => {
            [key::lost_name(request.directory, file, name), vec![0]].concat()
        }
        _ => own.clone(),
    };
    let limit = request.limit as usize;
    let page = view.scan(Range::new(start, key::after(&own)), limit).await?;
    let last = page.last().filter(|_| page.len() == limit);
    let next = last.and_then(|(key, _)| key::lost_name_parts(key)).unzip();
    let caller = view.scene.caller;
    let mut files = vec![];
    for (key, value) in page {
        let Some((id, name)) = key::lost_name_parts(&key) else { continue };
        let lost: LostName = decode(&value, || id.to_string())?;
        if caller.is_root() || caller.uid == lost.uid {
            let LostName { at: deleted, by, kind, mode, uid, gid, size, mtime } = lost;
            let is_lost = Some(true);
            files.push(DeletedFile {
                id,
                name,
                kind,
                mode,
                uid,
                gid,
                size,
                mtime,
                deleted,
                by,
                is_lost,
            });
        }
    }
    Ok(reply(view, files, next))
}

/// Files that lost their last name in the directory and stay: for those who have them open, or had
/// looked the name up a moment before.
async fn kept_for_others(view: &mut View<'_>, directory: FileId) -> Result<Vec<DeletedFile>> {
    let mut files = Vec::new();
    let (mut start, end) = (key::orphans(), key::after(&key::orphans()));
    for _ in 0..ORPHAN_PAGES {
        let page = view.scan(Range::new(start, end.clone()), ENTRIES_MAX as usize).await?;
        let Some((last, _)) = page.last() else { break };
        start = [&last[..], &[0]].concat();
        for (key, value) in &page {
            let Some((id, _)) = key::orphan_parts(key) else { continue };
            // Once, however many have it.
            if files.last().is_some_and(|before: &DeletedFile| before.id == id) {
                continue;
            }
            let orphan: Orphan = decode(value, || id.to_string())?;
            let (at, name) = (orphan.since, LastName::of(orphan));
            let Some(LastName { name: NameOf { parent, name }, by }) = name else { continue };
            if parent == directory
                && let Some(inode) = view.find_inode(id).await?
            {
                files.push(told(id, Deleted { inode, name, at, by }));
            }
        }
    }
    Ok(files)
}

fn told(id: FileId, deleted: Deleted) -> DeletedFile {
    let Deleted { inode, name, at, by } = deleted;
    DeletedFile {
        id,
        name,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        mtime: inode.mtime,
        deleted: at,
        by,
        is_lost: None,
    }
}
