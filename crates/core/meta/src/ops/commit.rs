//! Commit: written chunks become part of the file.
//!
//! Permission was decided when the handle was opened; it is the client that holds it to that, where
//! nobody proves who he is.

use super::{EXTENTS_MAX, lease, list_xattrs, open, set_attributes};
use crate::chunks::{self, Naming};
use crate::error::{Error, Result};
use crate::mirrors;
use crate::names;
use crate::permission;
use crate::view::{View, unit_of};
use tieline_types::{Content, Extent, Time};
use tieline_wire::meta::{AttributesReply, Commit};

pub async fn run(view: &mut View<'_>, request: &Commit) -> Result<AttributesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_handle(&view.scene, (id, &inode), &[permission::WRITE])?;
    view.scene.check_locks(id)?;
    check(request)?;
    names::count_lingering(view, id, &mut inode).await?;
    let said = set_attributes::resolve(request.mtime, view.scene.at)?;
    let appended = match request.append_from {
        Some(from) => Some(append(from, inode.size, &request.extents)?),
        None => None,
    };
    let extents = appended.as_deref().unwrap_or(&request.extents);
    match chunks::replace(view, (id, &inode), extents, Naming::Client).await? {
        Some(stored) => {
            inode.stored = inode.stored.saturating_add_signed(stored);
            // What was appended says itself where it ends.
            let size_min = if appended.is_some() { 0 } else { request.size_min };
            inode.size = inode.size.max(size_min).max(end(extents));
            mirrors::note(view, id, &inode, extents);
        }
        None => {
            view.is_partial = true;
            inode = view.inode(id).await?;
        }
    }
    list_xattrs::drop_capability(view, id, &mut inode).await?;
    let written = view.scene.written(said, inode.mtime);
    (inode.mtime, inode.ctime) = Time::after_write((inode.mtime, inode.ctime), written);
    inode.bytes_change(view.next_version(&inode));
    set_attributes::bytes_change(view.scene.caller, request.clears_setid, &mut inode);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

/// Moves what was appended from `from` on to where the file ends now: elsewhere it may have grown,
/// or been cut.
fn append(from: u64, size: u64, extents: &[Extent]) -> Result<Vec<Extent>> {
    let (placed, appended) = extents.split_at(extents.partition_point(|one| one.offset < from));
    let to = size.max(end(placed));
    let mut moved = placed.to_vec();
    for extent in appended {
        let offset = (extent.offset - from).saturating_add(to);
        let extent = Extent { offset, ..extent.clone() };
        if offset.saturating_add(extent.length) > Extent::FILE_SIZE_MAX {
            return Err(Error::TooLarge { size: offset });
        }
        moved.push(extent);
    }
    match placed.last() {
        Some(last) if last.end() > from => {
            Err(Error::Invalid { what: "an extent is in part appended" })
        }
        _ => Ok(moved),
    }
}

fn check(request: &Commit) -> Result<()> {
    if request.size_min > Extent::FILE_SIZE_MAX {
        return Err(Error::TooLarge { size: request.size_min });
    }
    check_extents(&request.extents)
}

pub fn check_extents(extents: &[Extent]) -> Result<()> {
    if extents.len() > EXTENTS_MAX {
        return Err(Error::Invalid { what: "a commit has more than 1024 extents" });
    }
    let mut end = 0;
    for extent in extents {
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
