//! GetExtents: a page of where a file's bytes are.

use super::{EXTENTS_MAX, lease, open};
use crate::chunks;
use crate::error::Result;
use crate::permission::{READ, check_handle};
use crate::view::{View, unit_of};
use tieline_wire::meta::{GetExtents, GetExtentsReply};

pub async fn run(view: &mut View<'_>, request: &GetExtents) -> Result<GetExtentsReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    check_handle(&view.scene, (id, &inode), &[READ])?;
    let limit = (request.limit as usize).clamp(1, EXTENTS_MAX);
    let page = chunks::page(view, id, &inode, request.offset, limit).await?;
    Ok(GetExtentsReply {
        page,
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}
