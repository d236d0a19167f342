//! RemoveXattr: takes one extended attribute away.

use super::access_lists::Which;
use super::list_xattrs::check_remove;
use super::{access_lists, lease};
use crate::error::{Error, Result};
use crate::view::{View, unit_of};
use tieline_format::mdt::{XattrValue, key};
use tieline_wire::meta::{AttributesReply, RemoveXattr};

pub async fn run(view: &mut View<'_>, request: &RemoveXattr) -> Result<AttributesReply> {
    let RemoveXattr { id, ref name } = *request;
    if let Some(which) = Which::named(name) {
        return access_lists::set(view, (id, which), &[]).await;
    }
    let mut inode = view.inode(id).await?;
    check_remove(view, (id, &inode), name)?;
    let there: Option<XattrValue> = view.record(key::xattr(id, name)).await?;
    there.ok_or_else(|| Error::NoXattr { id, name: name.clone() })?;
    view.delete(key::xattr(id, name));
    inode.xattrs = inode.xattrs.map(|count| count.saturating_sub(1));
    inode.ctime = view.scene.changed(inode.ctime);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}
