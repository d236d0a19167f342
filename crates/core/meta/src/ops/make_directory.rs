//! MakeDirectory: an empty directory, with a copy of its parent's default layout.
//!
//! The copy is taken now, as in Lustre: a later change of the parent's default does not reach it,
//! and creating a file needs no walk up the tree.

use super::lease;
use crate::error::Result;
use crate::names::{self, NewFile};
use crate::view::View;
use tieline_types::FileKind;
use tieline_wire::meta::{EntryReply, MakeDirectory};

pub async fn run(view: &mut View<'_>, request: &MakeDirectory) -> Result<EntryReply> {
    let MakeDirectory { parent, ref name, mode, umask } = *request;
    let directory = names::parent_for_new(view, parent, name).await?;
    let layout = directory.layout.clone();
    let kind = FileKind::Directory;
    let new = NewFile { kind, mode, umask, device: 0, target: None, layout };
    let (id, inode) = names::add_file(view, (parent, directory), name, new).await?;
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent, id]),
        target: None,
    })
}
