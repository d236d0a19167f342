//! CopyRange: makes the chunks of one file's range part of another, or of the same file elsewhere.
//!
//! Costs what the extents cost, whatever the bytes: chunks are referred to once more, inline bytes
//! are copied, holes are cut. One call copies what one page of extents tells.

use super::{commit, lease, list_xattrs, open, set_attributes};
use crate::chunks::{self, Naming};
use crate::error::{Error, Result};
use crate::mirrors;
use crate::names;
use crate::permission;
use crate::view::{View, unit_of};
use tieline_types::{Content, Extent, Time};
use tieline_wire::ranges::{CopyRange, CopyRangeReply};

/// Extents that one call copies: with the holes between them at most twice as many pieces.
const EXTENTS_PER_COPY: usize = 512;

pub async fn run(view: &mut View<'_>, request: &CopyRange) -> Result<CopyRangeReply> {
    let source = view.inode(request.from).await?;
    let mut inode = view.inode(request.to).await?;
    open::check_kind(request.from, &source)?;
    open::check_kind(request.to, &inode)?;
    permission::check_handle(&view.scene, (request.from, &source), &[permission::READ])?;
    permission::check_handle(&view.scene, (request.to, &inode), &[permission::WRITE])?;
    view.scene.check_locks(request.to)?;
    names::count_lingering(view, request.to, &mut inode).await?;
    let end = check(request)?.min(source.size);
    let mtime = set_attributes::resolve(request.mtime, view.scene.at)?;
    let pieces = if end > request.from_offset {
        let from = request.from_offset;
        let page = chunks::page(view, request.from, &source, from, EXTENTS_PER_COPY).await?;
        // What tape alone has, one file refers to.
        if page.extents.iter().any(|extent| is_nearline(extent, (from, end))) {
            return Err(Error::Nearline { id: request.from });
        }
        pieces(request, &page.extents, end.min(page.covered))
    } else {
        vec![]
    };
    let copied = pieces.last().map_or(0, Extent::end).saturating_sub(request.to_offset);
    if copied > 0 {
        commit::check_extents(&pieces).or_else(|_| too_large(request))?;
        match chunks::replace(view, (request.to, &inode), &pieces, Naming::Records).await? {
            Some(stored) => {
                inode.stored = inode.stored.saturating_add_signed(stored);
                inode.size = inode.size.max(request.to_offset + copied);
                mirrors::note(view, request.to, &inode, &pieces);
            }
            None => {
                view.is_partial = true;
                inode = view.inode(request.to).await?;
            }
        }
        let written = view.scene.written(mtime, inode.mtime);
        let (mtime, ctime) = Time::after_write((inode.mtime, inode.ctime), written);
        (inode.mtime, inode.ctime) = (mtime, view.scene.changed(ctime));
        inode.bytes_change(view.next_version(&inode));
        set_attributes::bytes_change(view.scene.caller, request.clears_setid, &mut inode);
        list_xattrs::drop_capability(view, request.to, &mut inode).await?;
        view.put_inode(request.to, &inode);
        view.touch_file(request.to, &inode);
    }
    Ok(CopyRangeReply {
        copied,
        attributes: view.attributes(request.to, &inode),
        lease: lease(view, [unit_of(request.to, &inode)]),
    })
}

/// Where the source's range ends.
fn check(request: &CopyRange) -> Result<u64> {
    let end = |offset: u64| {
        let end = offset.checked_add(request.length);
        end.filter(|&end| end <= Extent::FILE_SIZE_MAX)
    };
    if request.to_offset > Extent::FILE_SIZE_MAX {
        return too_large(request).map(|()| 0);
    }
    let from_end = end(request.from_offset).unwrap_or(Extent::FILE_SIZE_MAX);
    let distance = request.from_offset.abs_diff(request.to_offset);
    if request.from == request.to && distance < request.length {
        return Err(Error::Invalid { what: "ranges of a copy overlap" });
    }
    Ok(from_end)
}

fn is_nearline(extent: &Extent, (from, end): (u64, u64)) -> bool {
    let is_within = extent.offset < end && extent.end() > from;
    let is_on_tape = matches!(&extent.content, Content::Chunk(chunk) if chunk.is_nearline());
    is_within && is_on_tape
}

fn too_large(request: &CopyRange) -> Result<()> {
    Err(Error::TooLarge { size: request.to_offset.saturating_add(request.length) })
}

/// What the target's range is to be: all of it, from its start to where `end` falls.
fn pieces(request: &CopyRange, extents: &[Extent], end: u64) -> Vec<Extent> {
    let place = |offset: u64| (offset - request.from_offset).saturating_add(request.to_offset);
    let hole = |from: u64, to: u64| Extent {
        offset: place(from),
        length: to - from,
        content: Content::Hole,
    };
    let mut pieces = vec![];
    let mut at = request.from_offset;
    let from = request.from_offset;
    for part in extents.iter().filter_map(|extent| extent.within(from, end)) {
        if part.offset > at {
            pieces.push(hole(at, part.offset));
        }
        at = part.end();
        pieces.push(Extent { offset: place(part.offset), ..part });
        if pieces.len() + 2 > super::EXTENTS_MAX {
            return pieces;
        }
    }
    if at < end {
        pieces.push(hole(at, end));
    }
    pieces
}
