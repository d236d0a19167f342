//! Place: chooses OSTs for a file's new chunks.
//!
//! The first answer is remembered in the file, so that all its writers go round the same OSTs;
//! those that failed a writer are replaced and the rest keep their turn. Where a writer was granted
//! room is chosen first, if the layout allows it: he has answered for the bytes.

use super::open;
use crate::error::Result;
use crate::permission;
use crate::view::View;
use tieline_types::OstIndex;
use tieline_wire::meta::{Place, PlaceReply};

pub async fn run(view: &mut View<'_>, request: &Place) -> Result<PlaceReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_handle(&view.scene, (id, &inode), &[permission::WRITE])?;
    let map = view.scene.map;
    let is_good = |ost: &OstIndex| {
        !request.exclude.contains(ost) && map.ost(*ost).is_some_and(|ost| ost.is_active)
    };
    if !inode.stripe.is_empty() && inode.stripe.iter().all(is_good) {
        return Ok(PlaceReply { stripe: inode.stripe });
    }
    let layout = inode.layout.clone().unwrap_or_default();
    let wish = request.wish.as_deref().unwrap_or_default();
    let known = (&*inode.stripe, wish);
    let stripe = view.scene.placement.choose(map, &layout, known, &request.exclude)?;
    inode.stripe = stripe.clone();
    view.put_inode(id, &inode);
    Ok(PlaceReply { stripe })
}
