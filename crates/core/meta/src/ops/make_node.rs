//! MakeNode: FIFOs, sockets, devices, and regular files that are not opened.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, NewFile};
use crate::permission;
use crate::view::View;
use tieline_types::FileKind;
use tieline_wire::meta::{EntryReply, MakeNode};

pub async fn run(view: &mut View<'_>, request: &MakeNode) -> Result<EntryReply> {
    let MakeNode { parent, ref name, kind, mode, umask, device } = *request;
    if matches!(kind, FileKind::Directory | FileKind::Symlink) {
        return Err(Error::Invalid { what: "directories and symlinks have calls of their own" });
    }
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let directory = names::parent_for_new(view, parent, name).await?;
    if is_device && !names::is_whiteout(kind, device) {
        permission::check_root(view.scene.caller, "make devices")?;
    }
    let is_regular = kind == FileKind::Regular;
    let layout = is_regular.then(|| directory.layout.clone().unwrap_or_default());
    let device = if is_device { device } else { 0 };
    let new = NewFile { kind, mode, umask, device, target: None, layout };
    let (id, inode) = names::add_file(view, (parent, directory), name, new).await?;
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent]),
        target: None,
    })
}
