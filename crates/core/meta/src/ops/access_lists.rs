//! POSIX access lists, which come and go as extended attributes of fixed names.
//!
//! They are in the file's own record, beside the mode that is half of them: whoever reads the one
//! has the other, and a right is decided without another look at the store.

use super::lease;
use crate::error::{Error, Result};
use crate::permission;
use crate::view::{View, unit_of};
use tieline_format::mdt::Inode;
use tieline_types::acl::{ACCESS_NAME, AccessList, DEFAULT_NAME, DefaultList};
use tieline_types::{Acls, FileId, FileKind, Mode, XattrName};
use tieline_wire::meta::AttributesReply;

/// Which of a file's two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Access,
    Default,
}

impl Which {
    /// The list that an attribute's name means.
    pub fn named(name: &XattrName) -> Option<Self> {
        match name.as_bytes() {
            ACCESS_NAME => Some(Self::Access),
            DEFAULT_NAME => Some(Self::Default),
            _ => None,
        }
    }
}

/// A list as its attribute's value, if the file has it. Anybody may look who found the file.
pub fn value(inode: &Inode, which: Which) -> Option<Vec<u8>> {
    let acls = inode.acls.as_deref()?;
    match which {
        Which::Access => Some(acls.access.as_ref()?.to_bytes(inode.mode)),
        Which::Default => Some(acls.default.as_ref()?.to_bytes()),
    }
}

/// Sets a list, or takes it away if there is none in `value`.
pub async fn set(
    view: &mut View<'_>,
    (id, which): (FileId, Which),
    value: &[u8],
) -> Result<AttributesReply> {
    let mut inode = view.inode(id).await?;
    if inode.kind == FileKind::Symlink {
        return Err(Error::NoAccessLists { id });
    }
    let caller = view.scene.caller;
    permission::check_owner(id, &inode, caller, "change its access list")?;
    let Acls { mut access, mut default } = inode.acls.take().map(|acls| *acls).unwrap_or_default();
    match which {
        Which::Access => match AccessList::parse(value)? {
            Some((classes, list)) => {
                let may_setgid = caller.is_root() || caller.is_member(inode.gid);
                let kept = inode.mode.bits() & 0o7000;
                let mode = Mode::new(kept | classes.bits());
                inode.mode = if may_setgid { mode } else { mode.without(Mode::SETGID) };
                access = list;
            }
            None => access = None,
        },
        Which::Default => {
            default = DefaultList::parse(value)?;
            if default.is_some() && inode.kind != FileKind::Directory {
                let wish = "give it a default access list, since it is no directory";
                return Err(Error::Denied { id, uid: caller.uid.0, wish });
            }
        }
    }
    inode.acls = Acls::new(access, default);
    inode.ctime = view.scene.changed(inode.ctime);
    view.put_inode(id, &inode);
    view.touch_file(id, &inode);
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}
