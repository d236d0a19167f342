//! Files that were archived or restored in the background: what that means for their records.

use crate::chunks;
use crate::error::Result;
use crate::tape;
use crate::view::View;
use tieline_format::mdt::{
    Archived, FEATURE_TAPE, Inode, Lacking, OfTape, Superblock, Wished, key,
};
use tieline_kv::Range;
use tieline_types::{FileId, TapeCopy, TapeWish, Version};

/// Extents that are looked through at once.
const PAGE: usize = 1024;

/// Notes what tape has. What it had before is removed: all that the file is made of is at OSTs, or
/// it could not have been archived.
pub async fn archived(
    view: &mut View<'_>,
    file: FileId,
    content: Version,
    copy: &TapeCopy,
) -> Result<bool> {
    let before: Option<Archived> = view.record(key::tape_copy(file)).await?;
    let superblock: Option<Superblock> = view.record(key::superblock()).await?;
    let inode = view.find_inode(file).await?;
    let is_released = |inode: &Inode| inode.tape.is_some_and(|tape| tape.released.is_some());
    let fits = |inode: &Inode| inode.content_version() == content && !is_released(inode);
    let Some(mut inode) = inode.filter(fits) else {
        // It was changed or deleted meanwhile. A script may give one name to the same bytes.
        if before.is_none_or(|before| before.copy.uris != copy.uris) {
            tape::remove(view, file, content, copy.clone());
        }
        return Ok(false);
    };
    if let Some(before) = before.filter(|before| before.copy.uris != copy.uris) {
        tape::remove(view, file, before.content, before.copy);
    }
    if let Some(mut superblock) = superblock.filter(|block| block.features & FEATURE_TAPE == 0) {
        superblock.features |= FEATURE_TAPE;
        view.put(key::superblock(), &superblock);
    }
    view.put(key::tape_copy(file), &Archived { copy: copy.clone(), content });
    view.delete(key::tape_wish(file));
    inode.tape = Some(OfTape { content, released: None });
    inode.bytes_stay(view.next_version(&inode));
    view.put_inode(file, &inode);
    view.touch_file(file, &inode);
    Ok(true)
}

/// Says that OSTs have all of a file again. If its layout wants more copies they are made.
pub async fn restored(view: &mut View<'_>, file: FileId) -> Result<bool> {
    let Some(mut inode) = view.find_inode(file).await? else {
        view.delete(key::tape_wish(file));
        return Ok(true);
    };
    let wished: Option<Wished> = view.record(key::tape_wish(file)).await?;
    if is_lacking(view, file).await? {
        return Ok(false);
    }
    if wished.is_some_and(|wished| wished.state.wish == TapeWish::Restore) {
        view.delete(key::tape_wish(file));
    }
    tape::all_here(&mut inode);
    inode.bytes_stay(view.next_version(&inode));
    if inode.layout.as_ref().is_some_and(|layout| layout.mirrors > 1) {
        let lacking = Lacking { since: view.scene.now, file, next: 0 };
        view.put(key::lacking_file(file), &lacking);
    }
    view.put_inode(file, &inode);
    view.touch_file(file, &inode);
    Ok(true)
}

/// Does tape alone have something of it?
async fn is_lacking(view: &mut View<'_>, file: FileId) -> Result<bool> {
    let mut start = key::extents(file);
    loop {
        let range = Range::new(start, key::after(&key::extents(file)));
        let page = view.scan(range, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(false) };
        start = [last.as_slice(), &[0]].concat();
        let ids = chunks::named(&page)?;
        let records = chunks::read_chunks(view, ids).await?;
        if records.values().any(|chunk| chunk.tape.is_some()) {
            return Ok(true);
        }
        if page.len() < PAGE {
            return Ok(false);
        }
    }
}
