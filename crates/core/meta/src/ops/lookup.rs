//! Lookup: what a name in a directory leads to.

use super::lease;
use crate::error::Result;
use crate::permission::{self, SEARCH};
use crate::view::View;
use tieline_types::FileKind;
use tieline_wire::meta::{EntryReply, Lookup};

pub async fn run(view: &mut View<'_>, request: &Lookup) -> Result<EntryReply> {
    let Lookup { parent, ref name } = *request;
    let (directory, entry) = view.directory_and_entry(parent, name).await?;
    permission::check(parent, &directory, view.scene.caller, SEARCH)?;
    let mut reply = EntryReply {
        attributes: None,
        junction: view.scene.junction(parent, name),
        lease: lease(view, [parent]),
        target: None,
    };
    let Some(entry) = entry.filter(|_| reply.junction.is_none()) else { return Ok(reply) };
    let inode = view.entry_inode(&entry).await?;
    reply.attributes = Some(view.attributes(entry.id, &inode));
    if entry.kind == FileKind::Directory {
        reply.lease = lease(view, [parent, entry.id]);
    }
    reply.target = inode.target;
    Ok(reply)
}
