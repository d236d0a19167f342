//! GetAttributes: what `stat` tells of a file.

use super::lease;
use crate::error::Result;
use crate::view::{View, unit_of};
use tieline_wire::meta::{AttributesReply, GetAttributes};

pub async fn run(view: &mut View<'_>, request: &GetAttributes) -> Result<AttributesReply> {
    let inode = view.inode(request.id).await?;
    Ok(AttributesReply {
        attributes: view.attributes(request.id, &inode),
        lease: lease(view, [unit_of(request.id, &inode)]),
    })
}
