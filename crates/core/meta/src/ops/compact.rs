//! Compact: replaces extents by fewer ones that hold the same bytes.
//!
//! A client has read them and written the bytes as chunks; it alone can, since no byte passes here.
//! Nothing that anybody may believe changes: not the version, not the times, not the space that is
//! counted. So no lease is taken back, and whoever still has the old extents reads the old chunks,
//! which are kept as all freed ones are.

use super::list_xattrs::capability;
use super::{EXTENTS_MAX, commit, open};
use crate::chunks::{self, Naming};
use crate::error::{Error, Result};
use crate::mirrors;
use crate::permission;
use crate::view::View;
use tieline_format::mdt::{Inode, StoredContent, StoredExtent};
use tieline_ranges::stored::Extents;
use tieline_types::{ChunkId, Content, Digest, Extent, FileId, Mode};
use tieline_wire::ranges::{Compact, CompactReply, SeenContent, SeenExtent};

pub async fn run(view: &mut View<'_>, request: &Compact) -> Result<CompactReply> {
    let inode = view.inode(request.id).await?;
    open::check_kind(request.id, &inode)?;
    permission::check_handle(&view.scene, (request.id, &inode), &[permission::WRITE])?;
    // Else what was there could be guessed at.
    permission::check_handle(&view.scene, (request.id, &inode), &[permission::READ])?;
    check_rights_stay(view, request.id, &inode).await?;
    let range = check(request)?;
    let found = chunks::between(view, request.id, range, EXTENTS_MAX).await?;
    let is_same = found.is_some_and(|found| is_as_seen(&found, &request.was));
    if !is_same {
        return Ok(CompactReply { is_done: false });
    }
    match chunks::replace(view, (request.id, &inode), &request.extents, Naming::Client).await? {
        Some(0) => {
            mirrors::note(view, request.id, &inode, &request.extents);
            Ok(CompactReply { is_done: true })
        }
        // The ranges are the same, and they are few.
        _ => unreachable!("the same bytes are covered"),
    }
}

/// That the bytes are the same is the client's word. A program that runs with rights of others
/// keeps them only if who says it could give them.
async fn check_rights_stay(view: &mut View<'_>, id: FileId, inode: &Inode) -> Result<()> {
    let caller = view.scene.caller;
    let gives_group = inode.mode.has(Mode::SETGID) && !caller.may_setgid(inode.gid);
    let gives_user = inode.mode.has(Mode::SETUID) && !permission::is_owner(inode, caller);
    let is_plain = !gives_group && !gives_user;
    if caller.is_root() || is_plain && capability(view, id, inode).await?.is_none() {
        return Ok(());
    }
    let wish = "replace bytes of a program that runs with rights of others";
    Err(Error::Denied { id, uid: caller.uid.0, wish })
}

/// The range that is rewritten.
fn check(request: &Compact) -> Result<(u64, u64)> {
    let what = "extents to be compacted";
    let (Some(first), Some(last)) = (request.was.first(), request.was.last()) else {
        return Err(Error::Invalid { what });
    };
    if request.was.len() > EXTENTS_MAX {
        return Err(Error::Invalid { what: "more than 1024 extents to be compacted" });
    }
    commit::check_extents(&request.extents)?;
    if request.extents.iter().any(|extent| extent.content == Content::Hole) {
        return Err(Error::Invalid { what: "compaction cuts no holes" });
    }
    let old = runs(request.was.iter().map(|seen| (seen.offset, seen.length)));
    let new = runs(request.extents.iter().map(|extent| (extent.offset, extent.length)));
    if old.is_none() || old != new {
        return Err(Error::Invalid { what: "compacted extents cover other bytes" });
    }
    Ok((first.offset, last.offset.saturating_add(last.length).min(Extent::FILE_SIZE_MAX)))
}

/// Where there are bytes, without the borders between neighbours; `None` if it is out of order.
fn runs(ranges: impl Iterator<Item = (u64, u64)>) -> Option<Vec<(u64, u64)>> {
    let mut runs: Vec<(u64, u64)> = vec![];
    for (offset, length) in ranges {
        let end = offset.checked_add(length).filter(|&end| end > offset)?;
        match runs.last_mut() {
            Some((_, last)) if *last > offset => return None,
            Some((_, last)) if *last == offset => *last = end,
            _ => runs.push((offset, end)),
        }
    }
    Some(runs)
}

fn is_as_seen(found: &Extents, was: &[SeenExtent]) -> bool {
    found.len() == was.len()
        && found.iter().zip(was).all(|((&offset, extent), seen)| {
            offset == seen.offset
                && extent.length == seen.length
                && is_content_as_seen(extent, &seen.content)
        })
}

fn is_content_as_seen(extent: &StoredExtent, seen: &SeenContent) -> bool {
    match (&extent.content, seen) {
        (StoredContent::Inline(bytes), SeenContent::Inline(digest)) => Digest::of(bytes) == *digest,
        (StoredContent::Chunk { chunk, skip }, SeenContent::Chunk { chunk: was, skip: from }) => {
            ChunkId::Granted(*chunk) == *was && skip == from
        }
        _ => false,
    }
}
