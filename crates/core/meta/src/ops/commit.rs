//! Commit: written chunks become part of the file.
//!
//! Permission was decided when the handle was opened; it is the client that holds it to that.

use super::{EXTENTS_MAX, lease, list_xattrs, open, set_attributes};
use crate::chunks;
use crate::error::{Error, Result};
use crate::mirrors;
use crate::view::{View, unit_of};
use tieline_types::{Content, Extent};
use tieline_wire::meta::{AttributesReply, Commit};

pub async fn run(view: &mut View<'_>, request: &Commit) -> Result<AttributesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    check(request)?;
    let mtime = set_attributes::resolve(request.mtime, view.scene.now)?;
    match chunks::replace(view, id, &request.extents).await? {
        Some(stored) => {
            inode.stored = inode.stored.saturating_add_signed(stored);
            inode.size = inode.size.max(request.size_min).max(end(&request.extents));
            mirrors::note(view, id, &inode, &request.extents);
        }
        None => {
            view.is_partial = true;
            inode = view.inode(id).await?;
        }
    }
    if !request.extents.is_empty() {
        list_xattrs::drop_capability(view, id, &mut inode).await?;
    }
    inode.mtime = mtime;
    inode.ctime = view.scene.now;
    inode.version = view.next_version(&inode);
    if request.clears_setid {
        inode.mode = inode.mode.without_setid();
    }
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

fn check(request: &Commit) -> Result<()> {
    if request.size_min > Extent::FILE_SIZE_MAX {
        return Err(Error::TooLarge { size: request.size_min });
    }
    if request.extents.len() > EXTENTS_MAX {
        return Err(Error::Invalid { what: "a commit has more than 1024 extents" });
    }
    let mut end = 0;
    for extent in &request.extents {
        extent.validate()?;
        if extent.offset < end {
            return Err(Error::Invalid { what: "extents of a commit overlap or are out of order" });
        }
        end = extent.end();
    }
    Ok(())
}

/// Where the last bytes end; a hole makes no file longer.
fn end(extents: &[Extent]) -> u64 {
    let held = extents.iter().rev().find(|extent| extent.content != Content::Hole);
    held.map_or(0, Extent::end)
}
