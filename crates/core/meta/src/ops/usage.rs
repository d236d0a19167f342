//! Usage: space and objects per OST as last heard, and the files of this MDT.

use crate::error::Result;
use crate::view::View;
use tieline_wire::meta::{Usage, UsageReply};

pub async fn run(view: &mut View<'_>, _: &Usage) -> Result<UsageReply> {
    let osts = view.scene.placement.usage(view.scene.map);
    Ok(UsageReply { osts, inodes: view.scene.inodes })
}
