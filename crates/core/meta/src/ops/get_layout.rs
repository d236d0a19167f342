//! GetLayout: where new chunks of a file go, or those of new files in a directory.

use crate::error::Result;
use crate::view::View;
use tieline_wire::meta::{GetLayout, GetLayoutReply};

pub async fn run(view: &mut View<'_>, request: &GetLayout) -> Result<GetLayoutReply> {
    let inode = view.inode(request.id).await?;
    Ok(GetLayoutReply {
        is_own: inode.layout.is_some(),
        layout: inode.layout.unwrap_or_default(),
        stripe: inode.stripe,
    })
}
