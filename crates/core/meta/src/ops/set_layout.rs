//! SetLayout: a directory's default for new files, or the layout of a file without bytes, as `lfs
//! setstripe` sets them; or of a file whose bytes the client then moves, as `lfs migrate` does.
//!
//! What is not told comes from the parent directory, not from what was set here before; of a file
//! that moves, from the file. Its chunks are exchanged by [`super::compact`].

use super::lease;
use crate::error::{Error, Result};
use crate::permission;
use crate::placement;
use crate::view::{View, unit_of};
use std::collections::BTreeSet;
use tieline_format::mdt::Inode;
use tieline_types::{FileKind, Layout, OstIndex, StripeCount};
use tieline_wire::meta::{AttributesReply, LayoutChange, PoolChoice, SetLayout};

pub async fn run(view: &mut View<'_>, request: &SetLayout) -> Result<AttributesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    permission::check_owner(id, &inode, view.scene.caller, "set its layout")?;
    let moves = request.layout.as_ref().is_some_and(|change| change.moves == Some(true));
    match inode.kind {
        FileKind::Directory if !moves => {}
        FileKind::Regular if moves || inode.size == 0 && inode.stored == 0 => {}
        FileKind::Regular => return Err(Error::LayoutSettled { id }),
        _ => return Err(Error::Invalid { what: "only files and directories have a layout" }),
    }
    let before = inode.clone();
    let inherited = if moves { inode.layout.clone() } else { inherited(view, &inode).await? };
    let layout = match &request.layout {
        Some(change) => {
            let mut layout = changed(inherited.unwrap_or_default(), change);
            if change.sync.is_none() && layout.mirrors != 1 {
                layout.sync = placement::sync_copies(view.scene.map, &layout)?;
            }
            layout.validate()?;
            placement::check_mirrors(view.scene.map, &layout)?;
            Some(layout)
        }
        None if inode.kind == FileKind::Regular => Some(inherited.unwrap_or_default()),
        None => inherited,
    };
    inode.stripe = match request.layout.as_ref().and_then(|change| change.osts.as_ref()) {
        Some(osts) => stripe(view, inode.kind, layout.as_ref(), osts)?,
        // Who was interrupted goes on.
        None if moves && layout == before.layout && is_good(view, &before) => inode.stripe,
        None => vec![],
    };
    inode.layout = layout;
    if moves {
        // Its bytes are of another pool now.
        view.afford((id, Some(&before)), &inode, 0)?;
        // Whoever has it open knows where new chunks went: the next open is to ask.
        inode.bytes_stay(view.next_version(&inode));
    } else {
        inode.ctime = view.scene.changed(inode.ctime);
    }
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

/// Do all OSTs of a file's stripe take chunks, and belong to its layout?
fn is_good(view: &View<'_>, inode: &Inode) -> bool {
    let layout = inode.layout.clone().unwrap_or_default();
    let is_active = |pool, ost: &OstIndex| {
        let active = placement::active_osts(view.scene.map, pool).unwrap_or_default();
        active.iter().any(|known| known.ost == *ost)
    };
    inode.stripe.chunks(layout.mirrors.max(1).into()).all(|column| {
        let mut osts = column.iter().enumerate();
        osts.all(|(mirror, ost)| is_active(layout.pool_of_mirror(mirror), ost))
    })
}

/// What a file's chunks go round when it begins with `osts`.
fn stripe(
    view: &View<'_>,
    kind: FileKind,
    layout: Option<&Layout>,
    osts: &[OstIndex],
) -> Result<Vec<OstIndex>> {
    let (Some(layout), FileKind::Regular) = (layout, kind) else {
        return Err(Error::Invalid { what: "OSTs are chosen for a file; give a directory a pool" });
    };
    if layout.mirrors > 1 {
        return Err(Error::Invalid {
            what: "OSTs are not chosen one by one where there are mirrors",
        });
    }
    let map = view.scene.map;
    let mut seen = BTreeSet::new();
    for &ost in osts {
        let known = map.ost(ost).ok_or(Error::NoOst { ost })?;
        if !known.is_active {
            return Err(Error::Invalid { what: "an OST that was chosen is deactivated" });
        }
        if !seen.insert(ost) {
            return Err(Error::Invalid { what: "an OST is named twice" });
        }
    }
    if let StripeCount::Exactly(count) = layout.stripe_count
        && osts.len() > usize::from(count)
    {
        return Err(Error::Invalid { what: "more OSTs are named than the file shall have" });
    }
    view.scene.placement.choose(map, layout, (osts, &[]), &[])
}

async fn inherited(view: &mut View<'_>, inode: &Inode) -> Result<Option<Layout>> {
    match inode.names.first() {
        Some(name) => Ok(view.inode(name.parent).await?.layout),
        None => Ok(None),
    }
}

fn changed(base: Layout, change: &LayoutChange) -> Layout {
    let mirror_pools = match (&change.mirror_pools, &change.pool) {
        (Some(pools), _) => Some(pools.clone()),
        // One pool for all takes the place of one for each; so does another number of mirrors.
        (None, Some(_)) => None,
        (None, None) if change.mirrors.is_some_and(|mirrors| mirrors != base.mirrors) => None,
        (None, None) => base.mirror_pools,
    };
    let own_count = mirror_pools.as_ref().map(|pools| pools.len().min(255) as u8);
    let mirrors = change.mirrors.or(own_count).unwrap_or(base.mirrors);
    Layout {
        // `-c 0` means the default, as in Lustre.
        stripe_count: match change.stripe_count {
            None | Some(StripeCount::Exactly(0)) => base.stripe_count,
            Some(count) => count,
        },
        stripe_size: change.stripe_size.filter(|&size| size > 0).unwrap_or(base.stripe_size),
        pool: match &change.pool {
            None => base.pool,
            Some(PoolChoice::Any) => None,
            Some(PoolChoice::Pool(pool)) => Some(pool.clone()),
        },
        mirrors,
        sync: change.sync.unwrap_or(base.sync.min(mirrors)),
        mirror_pools,
        inline_limit: change.inline_limit.unwrap_or(base.inline_limit),
        chunk_size: change.chunk_size.unwrap_or(base.chunk_size),
    }
}
