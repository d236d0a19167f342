//! Copies of chunks as changes of files see them: which have not arrived.
//!
//! A commit records as stale what is not there yet, and notes the chunk, so that it is not
//! forgotten until it has all its copies. Who has them made works on these notes.

use crate::view::View;
use std::collections::BTreeSet;
use tieline_format::mdt::{Inode, Lacking, key};
use tieline_types::{Content, Extent, FileId, OstIndex};

/// Notes those chunks of a commit that have not all their copies yet.
pub fn note(view: &mut View<'_>, id: FileId, inode: &Inode, extents: &[Extent]) {
    let mirrors = copies_of(inode);
    for extent in extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        let Some((chunk, places)) = chunk.granted() else { continue };
        let osts: BTreeSet<OstIndex> = places.iter().map(|place| place.ost).collect();
        let is_stale = places.iter().any(|place| place.is_stale);
        if is_stale || osts.len() < mirrors {
            let lacking = Lacking { since: view.scene.now, file: id, next: 0 };
            view.put(key::lacking_chunk(chunk), &lacking);
        }
    }
}

pub fn copies_of(inode: &Inode) -> usize {
    inode.layout.as_ref().map_or(1, |layout| layout.mirrors.into())
}
