//! ReadSymlink: the path in a symlink.

use crate::error::{Error, Result};
use crate::view::View;
use tieline_wire::meta::{ReadSymlink, ReadSymlinkReply};

pub async fn run(view: &mut View<'_>, request: &ReadSymlink) -> Result<ReadSymlinkReply> {
    match view.inode(request.id).await?.target {
        Some(target) => Ok(ReadSymlinkReply { target }),
        None => Err(Error::Invalid { what: "only symlinks have a target" }),
    }
}
