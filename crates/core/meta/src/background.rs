//! Changes that no client asked for: each is one transaction on what is there by then.
//!
//! Whoever tends the MDT finds out what is to be done, and when; what it does to names and files is
//! here, over the same records as operations.
//!
//! * `repair`: what a check finds wrong.
//! * `tape_done`: files that were archived or restored.
//!
//! Invariant: a change that is not needed any more changes nothing.

mod repair;
mod tape_done;

use crate::chunks;
use crate::error::Result;
use crate::mirrors::copies_of;
use crate::names::{self, LastName};
use crate::ops;
use crate::tape;
use crate::view::View;
use std::collections::BTreeSet;
use tieline_format::mdt::{Deleted, DeletedAt, Lacking, LostName, NO_SESSION, Orphan, key};
use tieline_types::background::Change;
use tieline_types::{Content, FileId, SessionId, Time};

/// Extents of a removed file that one transaction deletes.
const EXTENTS_PER_STEP: usize = 2048;
/// Extents that are looked through for chunks that lack copies.
const EXTENTS_PER_LOOK: usize = 256;

/// One transaction of a change. Says whether it is done; of a repair, whether there was something
/// to do.
pub async fn run(view: &mut View<'_>, change: &Change) -> Result<bool> {
    match *change {
        Change::Repair(ref repair) => return repair::run(view, repair).await,
        Change::Remove(file) => return remove(view, file).await,
        Change::NoteCopies(file) => return note_copies(view, file).await,
        Change::Archived(file, content, ref copy) => {
            return tape_done::archived(view, file, content, copy).await;
        }
        Change::Restored(file) => return tape_done::restored(view, file).await,
        Change::Release(file, session) => ops::release(view, file, session).await?,
        Change::Keep(file, ref sessions) => keep(view, file, sessions).await?,
        Change::Purge(at_ms, file) => purge(view, at_ms, file).await?,
        Change::Forget(until_ms, ref names) => forget(view, until_ms, names).await?,
    }
    Ok(true)
}

async fn keep(view: &mut View<'_>, file: FileId, sessions: &BTreeSet<SessionId>) -> Result<()> {
    let orphan: Option<Orphan> = view.record(key::orphan(file, NO_SESSION)).await?;
    let Some(orphan) = orphan else { return Ok(()) };
    if let Some(mut inode) = view.find_inode(file).await? {
        names::count_lingering(view, file, &mut inode).await?;
        view.put_inode(file, &inode);
    }
    view.delete(key::orphan(file, NO_SESSION));
    sessions.iter().for_each(|&session| view.put(key::orphan(file, session), &orphan));
    Ok(())
}

/// Deletes a file that was kept for undeleting: what is large about it is left to
/// [`Change::Remove`].
async fn purge(view: &mut View<'_>, at_ms: u64, file: FileId) -> Result<()> {
    let at: Option<DeletedAt> = view.record(key::deletion(at_ms, file)).await?;
    let Some(DeletedAt { parent }) = at else { return Ok(()) };
    let deleted: Option<Deleted> = view.record(key::deleted(parent, file)).await?;
    view.delete(key::deletion(at_ms, file));
    if let Some(deleted) = deleted {
        view.delete(key::deleted(parent, file));
        view.freed_at = Some(deleted.at);
        // It was counted out when it was deleted.
        view.count(file, 1);
        names::purge_file(view, (file, deleted.inode)).await?;
    }
    Ok(())
}

async fn forget(view: &mut View<'_>, until_ms: u64, names: &[Vec<u8>]) -> Result<()> {
    for name in names {
        let lost: Option<LostName> = view.record(name.clone()).await?;
        // It may have been lost once more.
        if lost.is_some_and(|lost| lost.at.millis() <= until_ms) {
            view.delete(name.clone());
        }
    }
    Ok(())
}

async fn remove(view: &mut View<'_>, file: FileId) -> Result<bool> {
    let orphan: Option<Orphan> = view.record(key::orphan(file, NO_SESSION)).await?;
    let inode = view.find_inode(file).await?;
    view.freed_at = orphan.as_ref().map(|orphan| orphan.since);
    if let Some(last) = orphan.and_then(LastName::of)
        && let Some(inode) = inode
    {
        view.delete(key::orphan(file, NO_SESSION));
        names::remove_file(view, (file, inode), Some(last)).await?;
        return Ok(true);
    }
    let left = view.find_inode(file).await?;
    let is_done = chunks::clear(view, file, EXTENTS_PER_STEP).await?;
    if is_done {
        if let Some(inode) = &left {
            tape::forget(view, file, inode).await?;
        }
        view.count(file, -i64::from(left.is_some()));
        view.delete_inode(file);
        view.delete(key::orphan(file, NO_SESSION));
    }
    Ok(is_done)
}

/// Notes those chunks of a file that lack copies.
async fn note_copies(view: &mut View<'_>, file: FileId) -> Result<bool> {
    let own = key::lacking_file(file);
    let Some(noted) = view.record::<Lacking>(own.clone()).await? else { return Ok(true) };
    let inode = view.find_inode(file).await?;
    let Some(inode) = inode else {
        view.delete(own);
        return Ok(true);
    };
    let page = chunks::page(view, file, &inode, noted.next, EXTENTS_PER_LOOK).await?;
    let map = view.scene.map;
    for extent in &page.extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        let Some((chunk, places)) = chunk.granted() else { continue };
        if map.copies_lacking(chunk, &places, copies_of(&inode)) > 0 {
            let lacking = Lacking { since: Time::default(), file, next: 0 };
            view.put(key::lacking_chunk(chunk), &lacking);
        }
    }
    let is_done = page.covered >= inode.size || page.covered <= noted.next;
    if is_done {
        view.delete(own);
    } else {
        view.put(own, &Lacking { next: page.covered, ..noted });
    }
    Ok(is_done)
}
