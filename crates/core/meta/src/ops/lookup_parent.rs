//! LookupParent: which directory a directory is in; and, for its owner, a file.

use crate::error::Result;
use crate::permission;
use crate::view::View;
use tieline_types::FileKind;
use tieline_wire::meta::{LookupParent, LookupParentReply, NameAt};

pub async fn run(view: &mut View<'_>, request: &LookupParent) -> Result<LookupParentReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    if inode.kind != FileKind::Directory {
        // Names are what reading a directory is for, which others may not be allowed to.
        permission::check_owner(id, &inode, view.scene.caller, "ask for its name")?;
    }
    let mut names = inode.names.into_iter();
    if let Some(name) = names.next() {
        let others = names.map(|name| NameAt { parent: name.parent, name: name.name });
        let others = Some(others.collect()).filter(|others: &Vec<NameAt>| !others.is_empty());
        return Ok(LookupParentReply { parent: name.parent, name: Some(name.name), others });
    }
    // A root: of an MDT that is mounted somewhere, or of the file system.
    let junction = view.scene.map.junction_of(view.scene.mdt);
    Ok(match junction {
        Some(junction) => {
            let name = Some(junction.name.clone());
            LookupParentReply { parent: junction.parent, name, others: None }
        }
        None => LookupParentReply { parent: id, name: None, others: None },
    })
}
