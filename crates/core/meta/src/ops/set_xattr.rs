//! SetXattr: sets one extended attribute.

use super::access_lists::Which;
use super::list_xattrs::{LIST_MAX, OVERHEAD, SPACE_MAX, check_write, read_all};
use super::{XATTR_VALUE_MAX, access_lists, lease};
use crate::error::{Error, Result};
use crate::view::{View, unit_of};
use tieline_format::mdt::{XattrValue, key};
use tieline_types::XattrMode;
use tieline_wire::meta::{AttributesReply, SetXattr};

pub async fn run(view: &mut View<'_>, request: &SetXattr) -> Result<AttributesReply> {
    let SetXattr { id, ref name, ref value, mode } = *request;
    if let Some(which) = Which::named(name) {
        return access_lists::set(view, (id, which), value).await;
    }
    let mut inode = view.inode(id).await?;
    check_write(view, (id, &inode), name)?;
    if value.len() > XATTR_VALUE_MAX {
        return Err(Error::XattrSpace { id, limit: XATTR_VALUE_MAX });
    }
    let xattrs = read_all(view, id).await?;
    let is_there = xattrs.iter().any(|xattr| xattr.name == *name);
    match mode {
        XattrMode::Create if is_there => {
            return Err(Error::XattrTaken { id, name: name.clone() });
        }
        XattrMode::Replace if !is_there => {
            return Err(Error::NoXattr { id, name: name.clone() });
        }
        _ => {}
    }
    let others = xattrs.iter().filter(|xattr| xattr.name != *name);
    let taken: usize = others.map(|x| OVERHEAD + x.name.as_bytes().len() + x.value.len()).sum();
    if taken + OVERHEAD + name.as_bytes().len() + value.len() > SPACE_MAX {
        return Err(Error::XattrSpace { id, limit: SPACE_MAX });
    }
    let names = xattrs.iter().map(|xattr| &xattr.name).filter(|other| *other != name);
    let listed: usize = names.chain([name]).map(|name| name.as_bytes().len() + 1).sum();
    if listed > LIST_MAX {
        return Err(Error::XattrSpace { id, limit: LIST_MAX });
    }
    inode.xattrs = Some(xattrs.len() as u32 + u32::from(!is_there));
    view.put(key::xattr(id, name), &XattrValue { value: value.clone() });
    inode.ctime = view.scene.changed(inode.ctime);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}
