//! Release: a client closed a file that has no name any more.

use crate::error::Result;
use crate::names::{self, LastName};
use crate::view::View;
use tieline_format::mdt::{NO_SESSION, Orphan, key};
use tieline_kv::Range;
use tieline_types::{FileId, SessionId};
use tieline_wire::meta::{ChangeReply, LeaseGrant, Release};

pub async fn run(view: &mut View<'_>, request: &Release) -> Result<ChangeReply> {
    view.scene.check_mine(request.id)?;
    release(view, request.id, view.scene.session).await?;
    Ok(ChangeReply { attributes: None, lease: LeaseGrant::default() })
}

/// Takes away what a session holds of a nameless file; the file goes with the last. Nothing held is
/// no error.
pub async fn release(view: &mut View<'_>, id: FileId, session: SessionId) -> Result<()> {
    let range = Range::new(key::orphans_of(id), key::after(&key::orphans_of(id)));
    let held = view.scan(range, 2).await?;
    let own = key::orphan(id, session);
    let Some(orphan) = view.record::<Orphan>(own.clone()).await? else { return Ok(()) };
    let inode = view.find_inode(id).await?;
    view.delete(own);
    let is_last = held.len() == 1;
    if let Some(inode) = inode
        && is_last
        && inode.names.is_empty()
    {
        view.touch_file(id, &inode);
        names::remove_file(view, (id, inode), LastName::of(orphan)).await?;
    }
    debug_assert!(session != NO_SESSION, "the collector releases its files itself");
    Ok(())
}
