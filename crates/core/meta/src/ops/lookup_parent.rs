//! LookupParent: which directory a directory is in.

use crate::error::Result;
use crate::view::View;
use tieline_wire::meta::{LookupParent, LookupParentReply};

pub async fn run(view: &mut View<'_>, request: &LookupParent) -> Result<LookupParentReply> {
    let id = request.id;
    let inode = view.directory(id).await?;
    if let Some(name) = inode.names.into_iter().next() {
        return Ok(LookupParentReply { parent: name.parent, name: Some(name.name) });
    }
    // A root: of an MDT that is mounted somewhere, or of the file system.
    let junction = view.scene.map.junction_of(view.scene.mdt);
    Ok(match junction {
        Some(junction) => {
            LookupParentReply { parent: junction.parent, name: Some(junction.name.clone()) }
        }
        None => LookupParentReply { parent: id, name: None },
    })
}
