//! What a session may name: ids are counted up, so that they can be guessed.
//!
//! Where everybody proves who he is, what is told of a file by its id is told to whose session
//! holds the id, and else to who may search the way to it: each directory from one of its names up
//! to one that the session holds, or to the root of the MDT. A session holds an id once it was told
//! of the file where that was allowed: so a program goes on in a directory below one that was made
//! private since. What it holds is bounded, and forgotten when the MDT is started anew: then the
//! way decides.
//!
//! Calls about what is written are not asked: what a program was promised is not lost with a
//! directory's mode. Nor is anybody who may ask as root all the same.
//!
//! Knows nothing of rights to the file itself: those are looked at as ever.
//!
//! Invariant: nothing is held by having been named, only by having been told.

use crate::error::{Error, Result};
use crate::permission::{self, SEARCH};
use crate::view::{Scene, View};
use tieline_format::mdt::{Inode, Orphan, key};
use tieline_types::{Attributes, FileId, FileKind};
use tieline_wire::meta::{EntryReply, LookupParent, SetAttributes};
use tieline_wire::{Request, TreeReply};

/// Directories above each other: nobody means more.
const DEPTH_MAX: usize = 1024;

impl Scene<'_> {
    /// The session was told of a file.
    pub fn walked_to(&self, id: FileId, kind: FileKind) {
        if let Some(walks) = self.walks {
            walks.hold(self.session, id, kind);
        }
    }

    fn holds(&self, id: FileId) -> bool {
        self.walks.is_none_or(|walks| walks.holds(self.session, id))
    }
}

/// May the session name what this request is told of?
pub async fn check(view: &mut View<'_>, request: &Request) -> Result<()> {
    if view.scene.walks.is_none() {
        return Ok(());
    }
    // Or who owns a directory would be told of all above it.
    if let Request::LookupParent(LookupParent { id }) = request {
        return reach_by_walk(view, *id).await;
    }
    for id in named(request).into_iter().flatten() {
        reach(view, id).await?;
    }
    Ok(())
}

/// Notes what an answer tells.
pub fn note(view: &View<'_>, reply: &TreeReply) {
    use TreeReply as R;
    if view.scene.walks.is_none() {
        return;
    }
    let told = |attributes: &Attributes| view.scene.walked_to(attributes.id, attributes.kind);
    let entry = |reply: &EntryReply| reply.attributes.iter().for_each(told);
    match reply {
        R::Lookup(reply)
        | R::MakeDirectory(reply)
        | R::MakeSymlink(reply)
        | R::MakeNode(reply)
        | R::Link(reply)
        | R::Undelete(reply) => entry(reply),
        R::LookupParent(reply) => view.scene.walked_to(reply.parent, FileKind::Directory),
        R::GetAttributes(reply) => told(&reply.attributes),
        R::Create(reply) => told(&reply.open.attributes),
        R::Open(reply) => told(&reply.attributes),
        // Without attributes the names alone were told.
        R::ReadDirectory(reply) => {
            reply.entries.iter().filter_map(|entry| entry.attributes.as_ref()).for_each(told);
        }
        _ => {}
    }
}

/// What is told of by a call, or where a name is changed.
fn named(request: &Request) -> [Option<FileId>; 2] {
    use Request as R;
    let named = match request {
        // By another name it would be found.
        R::Rename(r) => return [r.from_parent, r.to_parent].map(Some),
        R::Lookup(r) => Some(r.parent),
        R::GetAttributes(r) => Some(r.id),
        R::SetAttributes(r) if sets_nothing(r) || r.is_access == Some(true) => Some(r.id),
        R::ReadDirectory(r) => Some(r.id),
        R::Create(r) => Some(r.parent),
        R::MakeDirectory(r) => Some(r.parent),
        R::MakeSymlink(r) => Some(r.parent),
        R::MakeNode(r) => Some(r.parent),
        R::Unlink(r) => Some(r.parent),
        R::RemoveDirectory(r) => Some(r.parent),
        // A name of one's own leads there.
        R::Link(r) => Some(r.id),
        R::ReadSymlink(r) => Some(r.id),
        R::Open(r) => Some(r.id),
        R::GetExtents(r) => Some(r.id),
        R::GetXattr(r) => Some(r.id),
        R::ListXattrs(r) => Some(r.id),
        R::GetLayout(r) => Some(r.id),
        R::CopyRange(r) => Some(r.from),
        R::GetTape(r) => Some(r.id),
        R::AskTape(r) => Some(r.id),
        R::ListDeleted(r) => Some(r.directory),
        _ => None,
    };
    [named, None]
}

fn sets_nothing(change: &SetAttributes) -> bool {
    let SetAttributes { mode, uid, gid, size, atime, mtime, .. } = *change;
    (mode, uid, gid, size) == (None, None, None, None) && (atime, mtime) == (None, None)
}

/// Refuses what the session neither holds nor gets to, unless it is the caller's own.
pub async fn reach(view: &mut View<'_>, id: FileId) -> Result<()> {
    match reach_by_walk(view, id).await {
        Err(error @ Error::Denied { .. }) => {
            let caller = view.scene.caller;
            let is_own =
                inode(view, id).await?.is_some_and(|one| permission::is_owner(&one, caller));
            if is_own { Ok(()) } else { Err(error) }
        }
        reached => reached,
    }
}

async fn reach_by_walk(view: &mut View<'_>, id: FileId) -> Result<()> {
    if id.mdt() != view.scene.mdt || id.is_root() || view.scene.holds(id) {
        return Ok(());
    }
    // Of what is not there the call itself says so.
    let Some(inode) = inode(view, id).await? else { return Ok(()) };
    let is_kept = inode.names.is_empty() && is_kept(view, id).await?;
    if is_kept || is_found(view, &inode).await? {
        return Ok(());
    }
    let wish = "get to it: the session was not told of it, and a directory above is private";
    Err(Error::Denied { id, uid: view.scene.caller.uid.0, wish })
}

/// Does one of its names lead there?
async fn is_found(view: &mut View<'_>, inode: &Inode) -> Result<bool> {
    for name in &inode.names {
        if is_way_open(view, name.parent).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// May the caller search a directory, and those above it that the session does not hold?
async fn is_way_open(view: &mut View<'_>, directory: FileId) -> Result<bool> {
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        let Some(inode) = inode(view, at).await? else { return Ok(false) };
        if !permission::is_allowed(&inode, view.scene.caller, SEARCH) {
            return Ok(false);
        }
        if at.is_root() || view.scene.holds(at) {
            return Ok(true);
        }
        let Some(name) = inode.names.first() else { return Ok(false) };
        at = name.parent;
    }
    Ok(false)
}

/// A file without a name is kept for who has it open.
async fn is_kept(view: &mut View<'_>, id: FileId) -> Result<bool> {
    let kept: Option<Orphan> = view.record(key::orphan(id, view.scene.session)).await?;
    Ok(kept.is_some())
}

/// Without telling anybody that it was looked at.
async fn inode(view: &mut View<'_>, id: FileId) -> Result<Option<Inode>> {
    view.record(key::inode(id)).await
}

#[cfg(test)]
mod tests;
