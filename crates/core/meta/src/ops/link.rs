//! Link: one more name for a file that is no directory, or the first for one that was made without.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, NAMES_MAX};
use crate::view::View;
use tieline_format::mdt::{NameOf, Orphan, key};
use tieline_types::{FileId, FileKind};
use tieline_wire::meta::{EntryReply, Link};

pub async fn run(view: &mut View<'_>, request: &Link) -> Result<EntryReply> {
    let Link { id, parent, ref name } = *request;
    view.scene.check_mine(id)?;
    if parent.mdt() != view.scene.mdt {
        return Err(Error::CrossDevice { from: id, to: parent });
    }
    let mut inode = view.inode(id).await?;
    let mut directory = names::parent_for_new(view, parent, name).await?;
    if inode.kind == FileKind::Directory {
        let wish = "link directories (nobody may)";
        return Err(Error::NotOwner { id, uid: view.scene.caller.uid.0, wish });
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
    names::link_entry(view, (parent, &mut directory), name, (id, inode.kind));
    view.put_inode(parent, &directory);
    inode.names.push(NameOf { parent, name: name.clone() });
    inode.links = inode.names.len() as u32;
    inode.ctime = view.scene.at;
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent]),
        target: inode.target,
    })
}

/// A file without a name may get one if it never had any, by the client that made it.
async fn check_linkable(view: &mut View<'_>, id: FileId) -> Result<()> {
    let kept: Option<Orphan> = view.record(key::orphan(id, view.scene.session)).await?;
    match kept.and_then(|orphan| orphan.is_linkable) {
        Some(true) => Ok(()),
        _ => Err(Error::Nameless { id }),
    }
}
