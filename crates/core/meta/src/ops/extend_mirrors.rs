//! ExtendMirrors: a file shall have more copies, as `lfs mirror extend` makes them.
//!
//! Changes the layout, and notes the file: its chunks get their new places, and those are filled,
//! in the background ([`crate::mirrors`]). No byte is written anew.

use super::{lease, open};
use crate::error::{Error, Result};
use crate::permission;
use crate::placement;
use crate::view::{View, unit_of};
use tieline_format::mdt::{Inode, Lacking, key};
use tieline_types::{Layout, OstIndex, PoolName};
use tieline_wire::meta::AttributesReply;
use tieline_wire::mirrors::ExtendMirrors;

pub async fn run(view: &mut View<'_>, request: &ExtendMirrors) -> Result<AttributesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_owner(id, &inode, view.scene.caller, "give it mirrors")?;
    if request.count == 0 {
        return Err(Error::Invalid { what: "no mirror is none to add" });
    }
    let before = inode.clone();
    let old = inode.layout.clone().unwrap_or_default();
    let layout = extended(&old, request.count, request.pool.as_ref());
    layout.validate()?;
    placement::check_mirrors(view.scene.map, &layout)?;
    inode.stripe = widened(view, &inode, &old, &layout)?;
    inode.layout = Some(layout);
    inode.ctime = view.scene.changed(inode.ctime);
    // Its bytes are of the new mirrors' pools as well.
    view.afford((id, Some(&before)), &inode, 0)?;
    view.put_inode(id, &inode);
    view.put(key::lacking_file(id), &Lacking { since: view.scene.now, file: id, next: 0 });
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

fn extended(old: &Layout, count: u8, pool: Option<&PoolName>) -> Layout {
    let mirrors = old.mirrors.saturating_add(count);
    let is_same =
        pool.is_none_or(|pool| old.mirror_pools.is_none() && old.pool.as_ref() == Some(pool));
    let mirror_pools = if is_same && old.mirror_pools.is_none() {
        None
    } else {
        let pools = (0..usize::from(mirrors)).map(|mirror| match mirror < old.mirrors.into() {
            true => old.pool_of_mirror(mirror).cloned(),
            false => pool.or(old.pool.as_ref()).cloned(),
        });
        Some(pools.collect())
    };
    Layout { mirrors, mirror_pools, ..old.clone() }
}

/// The columns that new chunks go round, each with OSTs for the new mirrors.
fn widened(view: &View<'_>, inode: &Inode, old: &Layout, new: &Layout) -> Result<Vec<OstIndex>> {
    let (scene, count) = (&view.scene, usize::from(new.mirrors - old.mirrors));
    let mut stripe = Vec::new();
    for column in inode.stripe.chunks(old.mirrors.max(1).into()) {
        let mut wide = column.to_vec();
        wide.extend(scene.placement.choose_more(scene.map, new, column, count)?);
        while let Some(&first) = wide.first().filter(|_| wide.len() < new.mirrors.into()) {
            wide.push(first);
        }
        stripe.extend(wide);
    }
    Ok(stripe)
}
