//! GetXattr: one extended attribute.

use super::access_lists::{self, Which};
use super::list_xattrs::check_read;
use crate::error::{Error, Result};
use crate::view::View;
use tieline_format::mdt::{XattrValue, key};
use tieline_wire::meta::{GetXattr, GetXattrReply};

pub async fn run(view: &mut View<'_>, request: &GetXattr) -> Result<GetXattrReply> {
    let GetXattr { id, ref name } = *request;
    let inode = view.inode(id).await?;
    if let Some(which) = Which::named(name) {
        let value = access_lists::value(&inode, which);
        let value = value.ok_or_else(|| Error::NoXattr { id, name: name.clone() })?;
        return Ok(GetXattrReply { value });
    }
    check_read(view, (id, &inode), name)?;
    let value: Option<XattrValue> = view.record(key::xattr(id, name)).await?;
    let value = value.ok_or_else(|| Error::NoXattr { id, name: name.clone() })?.value;
    Ok(GetXattrReply { value })
}
