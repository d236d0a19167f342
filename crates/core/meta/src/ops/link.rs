//! Link: one more name for a file that is no directory, or the first for one that was made without;
//! if it replaces, in the place of what has that name, which goes as by a rename.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, NAMES_MAX, Nameless};
use crate::permission::{self, SEARCH, WRITE};
use crate::view::View;
use tieline_format::mdt::{Inode, NameOf, Orphan, key};
use tieline_types::{FileId, FileKind};
use tieline_wire::meta::{EntryReply, Link};

pub async fn run(view: &mut View<'_>, request: &Link) -> Result<EntryReply> {
    let Link { id, parent, ref name, replaces, keep } = *request;
    view.scene.check_mine(id)?;
    if parent.mdt() != view.scene.mdt {
        return Err(Error::CrossDevice { from: id, to: parent });
    }
    let mut inode = view.inode(id).await?;
    let (mut directory, replaced) = match replaces {
        Some(true) => parent_and_replaced(view, request).await?,
        _ => (names::parent_for_new(view, parent, name).await?, None),
    };
    if inode.kind == FileKind::Directory {
        let wish = "link directories (nobody may)";
        return Err(Error::NotOwner { id, uid: view.scene.caller.uid.0, wish });
    }
    if replaced.as_ref().is_some_and(|(other, _)| *other == id) {
        // Two names of one file: as a rename, nothing happens.
        return Ok(reply(view, parent, (id, inode)));
    }
    if directory.project != 0 && directory.project != inode.project {
        return Err(Error::OtherProject { what: id });
    }
    if inode.names.is_empty() {
        check_linkable(view, id).await?;
    }
    if inode.names.len() >= NAMES_MAX {
        return Err(Error::TooManyNames { id, limit: NAMES_MAX });
    }
    // Leases on its other names told of its link count.
    view.touch_file(id, &inode);
    if inode.names.is_empty() {
        view.delete(key::orphan(id, view.scene.session));
    }
    if let Some((_, other)) = &replaced {
        names::unlink_entry(view, (parent, &mut directory), name, other.kind);
    }
    names::link_entry(view, (parent, &mut directory), name, (id, inode.kind));
    view.put_inode(parent, &directory);
    inode.names.push(NameOf { parent, name: name.clone() });
    inode.links = inode.names.len() as u32;
    inode.ctime = view.scene.changed(inode.ctime);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    if let Some(other) = replaced {
        view.replaces(other.0);
        let name = NameOf { parent, name: name.clone() };
        names::drop_name(view, other, &name, keep, Nameless::Lingers).await?;
    }
    Ok(reply(view, parent, (id, inode)))
}

fn reply(view: &View<'_>, parent: FileId, (id, inode): (FileId, Inode)) -> EntryReply {
    EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent]),
        target: inode.target,
    }
}

/// The directory, and what has the name in it and may go.
async fn parent_and_replaced(
    view: &mut View<'_>,
    request: &Link,
) -> Result<(Inode, Option<(FileId, Inode)>)> {
    let (parent, name) = (request.parent, &request.name);
    let (directory, entry) = view.directory_and_entry(parent, name).await?;
    let caller = view.scene.caller;
    permission::check(parent, &directory, caller, SEARCH)?;
    if let Some(mdt) = view.scene.junction(parent, name) {
        return Err(Error::Junction { parent, name: name.clone(), mdt });
    }
    let Some(entry) = entry else {
        permission::check(parent, &directory, caller, WRITE | SEARCH)?;
        return Ok((directory, None));
    };
    let other = view.entry_inode(&entry).await?;
    permission::check_removal((parent, &directory), (entry.id, &other), caller)?;
    if other.kind == FileKind::Directory {
        return Err(Error::IsDirectory { id: entry.id });
    }
    Ok((directory, Some((entry.id, other))))
}

/// A file without a name may get one if it never had any, by the client that made it.
async fn check_linkable(view: &mut View<'_>, id: FileId) -> Result<()> {
    let kept: Option<Orphan> = view.record(key::orphan(id, view.scene.session)).await?;
    match kept.and_then(|orphan| orphan.is_linkable) {
        Some(true) => Ok(()),
        _ => Err(Error::Nameless { id }),
    }
}
