//! Undelete: gives a deleted file a name again. It is the same file, with the same id.

use super::lease;
use crate::chunks::millis;
use crate::error::{Error, Result};
use crate::names::{self, LastName};
use crate::view::{View, unit_of};
use tieline_format::mdt::{Deleted, NO_SESSION, NameOf, Orphan, key};
use tieline_types::{FileId, FileKind};
use tieline_wire::ledger::Undelete;
use tieline_wire::meta::EntryReply;

pub async fn run(view: &mut View<'_>, request: &Undelete) -> Result<EntryReply> {
    let Undelete { id, from, parent, ref name } = *request;
    view.scene.check_mine(id)?;
    view.scene.check_mine(from)?;
    end_lingering(view, from, id).await?;
    let deleted: Option<Deleted> = view.record(key::deleted(from, id)).await?;
    let Deleted { mut inode, at, .. } = deleted.ok_or(Error::NotDeleted { id })?;
    if view.find_inode(id).await?.is_some() {
        // Its id was given to another file.
        return Err(Error::NotDeleted { id });
    }
    let caller = view.scene.caller;
    if !caller.is_root() && caller.uid != inode.uid {
        return Err(Error::NotOwner { id, uid: caller.uid.0, wish: "undelete it" });
    }
    let mut directory = names::parent_for_new(view, parent, name).await?;
    // Who has it open had leases on it alone.
    view.touch_itself(id, inode.kind);
    inode.project = directory.project;
    inode.is_uncounted = None;
    view.afford((id, None), &inode, 0)?;
    inode.names = vec![NameOf { parent, name: name.clone() }];
    inode.links = if inode.kind == FileKind::Directory { 2 } else { 1 };
    inode.ctime = view.scene.at;
    inode.version = view.next_version(&inode);
    view.delete(key::deleted(from, id));
    view.delete(key::deletion(millis(at), id));
    view.put_inode(id, &inode);
    view.count(id, 1);
    names::link_entry(view, (parent, &mut directory), name, (id, inode.kind));
    view.put_inode(parent, &directory);
    view.touch_file(id, &inode);
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent, unit_of(id, &inode)]),
        target: inode.target,
    })
}

/// A file that was replaced a moment ago is kept for those who had looked it up: it is put aside
/// now.
async fn end_lingering(view: &mut View<'_>, from: FileId, id: FileId) -> Result<()> {
    let orphan: Option<Orphan> = view.record(key::orphan(id, NO_SESSION)).await?;
    let Some(orphan) = orphan else { return Ok(()) };
    let since = orphan.since;
    let (last, inode) = (LastName::of(orphan), view.find_inode(id).await?);
    if let (Some(last), Some(inode)) = (last.filter(|last| last.name.parent == from), inode) {
        view.delete(key::orphan(id, NO_SESSION));
        view.freed_at = Some(since);
        names::remove_file(view, (id, inode), Some(last)).await?;
    }
    Ok(())
}
