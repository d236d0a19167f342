//! ListDeleted: what lost its last name in a directory and can be brought back.
//!
//! The directory may be gone itself: what was deleted from it is found under its id.

use super::ENTRIES_MAX;
use crate::error::{Error, Result};
use crate::permission::{self, READ};
use crate::view::{View, decode};
use tieline_format::mdt::{Deleted, key};
use tieline_kv::Range;
use tieline_types::FileId;
use tieline_wire::ledger::{DeletedFile, ListDeleted, ListDeletedReply};

pub async fn run(view: &mut View<'_>, request: &ListDeleted) -> Result<ListDeletedReply> {
    let directory = request.directory;
    view.scene.check_mine(directory)?;
    if request.limit == 0 || request.limit > ENTRIES_MAX {
        return Err(Error::Invalid { what: "a page has 1 to 4096 entries" });
    }
    if let Some(inode) = view.find_inode(directory).await? {
        permission::check(directory, &inode, view.scene.caller, READ)?;
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
    let mut files = Vec::new();
    for (key, value) in page {
        let Some((_, id)) = key::deleted_parts(&key) else { continue };
        let deleted: Deleted = decode(&value, || id.to_string())?;
        if caller.is_root() || caller.uid == deleted.inode.uid {
            files.push(told(id, deleted));
        }
    }
    Ok(ListDeletedReply { files, next, now: view.scene.now, keep_ms: view.scene.keep_ms })
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
    }
}
