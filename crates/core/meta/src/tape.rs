//! Copies of files on tape, as changes of files see them: whose HSM has them, and what becomes of
//! those that nobody needs.
//!
//! Invariants: a copy is removed from tape only when no chunk is on tape alone under it; what is to
//! be removed is written down in the transaction that gives it up.

use crate::error::Result;
use crate::view::View;
use tieline_format::map::{FederationMap, Pool};
use tieline_format::mdt::{Archived, Inode, OfTape, TapeRemoval, key};
use tieline_types::{FileId, PoolName, TapeCopy, Version};

/// The pool whose HSM archives a file: the one of its layout, or the first that has all OSTs of its
/// stripe.
pub fn pool_of<'m>(map: &'m FederationMap, inode: &Inode) -> Option<&'m Pool> {
    let named = inode.layout.as_ref().map_or_else(Vec::new, |layout| {
        let mirrors = 0..usize::from(layout.mirrors.max(1));
        mirrors.filter_map(|mirror| layout.pool_of_mirror(mirror)).collect::<Vec<&PoolName>>()
    });
    let named = named.into_iter().filter_map(|name| map.pool(name));
    let holds = |pool: &&Pool| {
        let mut stripe = inode.stripe.iter();
        !inode.stripe.is_empty() && stripe.all(|ost| pool.osts.contains(ost))
    };
    let holding = map.pools.iter().filter(holds);
    let mut all = named.chain(holding);
    all.find(|pool| pool.hsm.is_some() && !pool.osts.is_empty())
}

/// A file is deleted: its copy on tape goes, too, and whatever was wished for it.
pub async fn forget(view: &mut View<'_>, id: FileId, inode: &Inode) -> Result<()> {
    if inode.tape.is_none() {
        return Ok(());
    }
    let archived: Option<Archived> = view.record(key::tape_copy(id)).await?;
    view.delete(key::tape_wish(id));
    view.delete(key::tape_copy(id));
    if let Some(Archived { copy, content }) = archived {
        remove(view, id, content, copy);
    }
    Ok(())
}

/// Has the HSM remove a copy.
pub fn remove(view: &mut View<'_>, id: FileId, content: Version, copy: TapeCopy) {
    let TapeCopy { pool, uris, .. } = copy;
    let since = view.scene.now;
    let removal = TapeRemoval { pool, uris, since, tries: 0, next_ms: 0 };
    view.put(key::tape_removal(id, content), &removal);
}

/// OSTs have all of it.
pub fn all_here(inode: &mut Inode) {
    if let Some(tape) = inode.tape {
        inode.tape = Some(OfTape { released: None, ..tape });
    }
}

#[cfg(test)]
mod tests;
