//! Undelete: gives a deleted file a name again. It is the same file, with the same id. Or one that
//! is there, for a name that it lost while it had others.

use super::{ENTRIES_MAX, lease, link};
use crate::error::{Error, Result};
use crate::names::{self, LastName};
use crate::view::{View, decode, unit_of};
use tieline_format::mdt::{Deleted, Inode, LostName, NameOf, Orphan, key};
use tieline_kv::Range;
use tieline_types::{FileId, FileKind, Name};
use tieline_wire::ledger::Undelete;
use tieline_wire::meta::{EntryReply, Link};

pub async fn run(view: &mut View<'_>, request: &Undelete) -> Result<EntryReply> {
    let Undelete { id, from, parent, ref name, ref lost } = *request;
    view.scene.check_mine(id)?;
    view.scene.check_mine(from)?;
    if let Some(lost) = lost {
        return link_again(view, request, lost).await;
    }
    end_keeping(view, from, id).await?;
    let deleted: Option<Deleted> = view.record(key::deleted(from, id)).await?;
    let Deleted { mut inode, at, .. } = deleted.ok_or(Error::NotDeleted { id })?;
    if view.find_inode(id).await?.is_some() {
        // Its id was given to another file.
        return Err(Error::NotDeleted { id });
    }
    check_owner(view, id, &inode)?;
    let mut directory = names::parent_for_new(view, parent, name).await?;
    // Who has it open had leases on it alone.
    view.touch_itself(id, inode.kind);
    inode.project = directory.project;
    inode.is_uncounted = None;
    view.afford((id, None), &inode, 0)?;
    inode.names = vec![NameOf { parent, name: name.clone() }];
    inode.links = if inode.kind == FileKind::Directory { 2 } else { 1 };
    inode.ctime = view.scene.changed(inode.ctime);
    inode.bytes_stay(view.next_version(&inode));
    view.delete(key::deleted(from, id));
    view.delete(key::deletion(at.millis(), id));
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

fn check_owner(view: &View<'_>, id: FileId, inode: &Inode) -> Result<()> {
    let caller = view.scene.caller;
    if !caller.is_root() && caller.uid != inode.uid {
        return Err(Error::NotOwner { id, uid: caller.uid.0, wish: "undelete it" });
    }
    Ok(())
}

async fn link_again(view: &mut View<'_>, request: &Undelete, lost: &Name) -> Result<EntryReply> {
    let Undelete { id, from, parent, ref name, .. } = *request;
    let kept = key::lost_name(from, id, lost);
    let is_kept = view.record::<LostName>(kept.clone()).await?.is_some();
    let inode = view.find_inode(id).await?.filter(|_| is_kept);
    check_owner(view, id, &inode.ok_or(Error::NotDeleted { id })?)?;
    let reply =
        link::run(view, &Link { id, parent, name: name.clone(), replaces: None, keep: None })
            .await?;
    view.delete(kept);
    Ok(reply)
}

/// A file that somebody has open, or that was replaced a moment ago, is kept for those who have it
/// or looked it up: it is put aside now. They go on with it.
async fn end_keeping(view: &mut View<'_>, from: FileId, id: FileId) -> Result<()> {
    let all = Range::new(key::orphans_of(id), key::after(&key::orphans_of(id)));
    let kept = view.scan(all, ENTRIES_MAX as usize).await?;
    let Some((_, first)) = kept.first() else { return Ok(()) };
    let orphan: Orphan = decode(first, || id.to_string())?;
    let since = orphan.since;
    let (last, inode) = (LastName::of(orphan), view.find_inode(id).await?);
    if let (Some(last), Some(inode)) = (last.filter(|last| last.name.parent == from), inode) {
        kept.into_iter().for_each(|(key, _)| view.delete(key));
        view.freed_at = Some(since);
        names::remove_file(view, (id, inode), Some(last)).await?;
    }
    Ok(())
}
