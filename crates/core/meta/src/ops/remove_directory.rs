//! RemoveDirectory: takes away an empty directory.

use super::{lease, report_bundle};
use crate::error::{Error, Result};
use crate::names::{self, LastName};
use crate::permission;
use crate::view::View;
use tieline_format::mdt::Inode;
use tieline_types::{FileId, FileKind};
use tieline_wire::meta::{ChangeReply, RemoveDirectory};

pub async fn run(view: &mut View<'_>, request: &RemoveDirectory) -> Result<ChangeReply> {
    let RemoveDirectory { parent, ref name } = *request;
    let (mut directory, entry) = names::parent_and_entry(view, parent, name).await?;
    let inode = view.entry_inode(&entry).await?;
    permission::check_removal((parent, &directory), (entry.id, &inode), view.scene.caller)?;
    if inode.kind != FileKind::Directory {
        return Err(Error::NotDirectory { id: entry.id });
    }
    check_empty(view, entry.id, &inode)?;
    names::unlink_entry(view, (parent, &mut directory), name, inode.kind);
    view.put_inode(parent, &directory);
    remove(view, entry.id, inode).await?;
    Ok(ChangeReply { attributes: None, lease: lease(view, [parent]) })
}

/// A directory in which an MDT is mounted is not empty.
pub fn check_empty(view: &View<'_>, id: FileId, inode: &Inode) -> Result<()> {
    let is_mounted_in = view.scene.map.junctions_in(id).next().is_some();
    if inode.entries > 0 || is_mounted_in { Err(Error::NotEmpty { id }) } else { Ok(()) }
}

/// Deletes an empty directory whose entry is gone.
pub async fn remove(view: &mut View<'_>, id: FileId, mut inode: Inode) -> Result<()> {
    view.touch_file(id, &inode);
    let name = inode.names.drain(..).next();
    inode.links = 0;
    view.gone.insert(id);
    report_bundle::forget(view, id).await?;
    view.directories.remove(&id);
    let by = view.scene.caller.uid;
    let last = name.map(|name| LastName { name, by });
    names::remove_file(view, (id, inode), last).await
}
