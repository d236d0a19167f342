//! Open: decides whether the caller may read and write a regular file, and tells all a reader needs
//! to begin.

use super::{EXTENTS_AT_OPEN, lease};
use crate::chunks;
use crate::error::{Error, Result};
use crate::permission::{self, READ, SEARCH, WRITE};
use crate::view::{View, unit_of};
use tieline_format::mdt::Inode;
use tieline_types::{FileId, FileKind};
use tieline_wire::meta::{ExtentPage, Open, OpenReply};

pub async fn run(view: &mut View<'_>, request: &Open) -> Result<OpenReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    check_kind(id, &inode)?;
    let caller = view.scene.caller;
    if request.is_read {
        permission::check(id, &inode, caller, READ)?;
    }
    if request.is_write {
        permission::check(id, &inode, caller, WRITE)?;
    }
    if request.is_run() {
        // Or of a handle whose rights were found: a client that begins anew asks again.
        permission::check_handle(&view.scene, (id, &inode), &[SEARCH, READ, WRITE])?;
    }
    if request.writes == Some(true) {
        if !request.is_write {
            permission::check_handle(&view.scene, (id, &inode), &[WRITE])?;
        }
        // What others believe of it ends.
        view.touch_file(id, &inode);
    }
    let unit = unit_of(id, &inode);
    reply(view, id, inode, EXTENTS_AT_OPEN, unit).await
}

pub fn check_kind(id: FileId, inode: &Inode) -> Result<()> {
    match inode.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDirectory { id }),
        FileKind::Symlink => Err(Error::IsSymlink { id }),
        _ => Err(Error::Invalid { what: "special files are opened by the client's kernel" }),
    }
}

pub async fn reply(
    view: &mut View<'_>,
    id: FileId,
    inode: Inode,
    extents_max: usize,
    unit: FileId,
) -> Result<OpenReply> {
    // Who may write alone is not told of bytes, nor where they are.
    let may_read = permission::check_handle(&view.scene, (id, &inode), &[READ]).is_ok();
    let extents = match may_read && !view.hides_bytes {
        true => chunks::page(view, id, &inode, 0, extents_max).await?,
        false => ExtentPage::default(),
    };
    Ok(OpenReply {
        attributes: view.attributes(id, &inode),
        layout: inode.layout.unwrap_or_default(),
        stripe: inode.stripe,
        extents,
        lease: lease(view, [unit]),
        capability: None,
        has_limits: Some(view.scene.quotas.has_limits()).filter(|&has| has),
    })
}
