//! Link: one more name for a file that is no directory.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, NAMES_MAX};
use crate::view::View;
use tieline_format::mdt::NameOf;
use tieline_types::FileKind;
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
    if inode.names.is_empty() {
        return Err(Error::Nameless { id });
    }
    if inode.names.len() >= NAMES_MAX {
        return Err(Error::TooManyNames { id, limit: NAMES_MAX });
    }
    // Leases on its other names told of its link count.
    view.touch_file(id, &inode);
    names::link_entry(view, (parent, &mut directory), name, (id, inode.kind));
    view.put_inode(parent, &directory);
    inode.names.push(NameOf { parent, name: name.clone() });
    inode.links = inode.names.len() as u32;
    inode.ctime = view.scene.now;
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent]),
        target: inode.target,
    })
}
