//! Unlink: takes a name from a file that is no directory, and the file with its last name.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, Nameless};
use crate::permission;
use crate::view::View;
use tieline_format::mdt::NameOf;
use tieline_types::FileKind;
use tieline_wire::meta::{ChangeReply, Unlink};

pub async fn run(view: &mut View<'_>, request: &Unlink) -> Result<ChangeReply> {
    let Unlink { parent, ref name, keep } = *request;
    let (mut directory, entry) = names::parent_and_entry(view, parent, name).await?;
    let inode = view.entry_inode(&entry).await?;
    permission::check_removal((parent, &directory), (entry.id, &inode), view.scene.caller)?;
    if inode.kind == FileKind::Directory {
        return Err(Error::IsDirectory { id: entry.id });
    }
    names::unlink_entry(view, (parent, &mut directory), name, inode.kind);
    view.put_inode(parent, &directory);
    let name = NameOf { parent, name: name.clone() };
    let left = names::drop_name(view, (entry.id, inode), &name, keep, Nameless::Goes).await?;
    Ok(ChangeReply {
        attributes: left.map(|inode| view.attributes(entry.id, &inode)),
        lease: lease(view, [parent]),
    })
}
