//! ListXattrs: all extended attributes with their values. Whoever may not read the file is told the
//! names in `user.` alone, with empty values.
//!
//! `user.` belongs to those who may read and write the file, `trusted.` to root, `security.` is
//! root's to set and anybody's to see; `security.capability` is taken away by who may write, too.
//! Access lists (`system.`) are no attributes of this kind: [`super::access_lists`] has them, and
//! they are not listed here.

use super::lease;
use crate::error::{Error, Result};
use crate::permission::{self, READ, WRITE};
use crate::view::{View, decode, unit_of};
use tieline_format::mdt::{Inode, XattrValue, key};
use tieline_kv::Range;
use tieline_types::{FileId, FileKind, Mode, XattrName};
use tieline_wire::meta::{ListXattrs, ListXattrsReply, Xattr};

/// Names and values of one file's attributes together: they are answered, and kept by clients, as
/// one.
pub const SPACE_MAX: usize = 256 << 10;
/// Rights that a program has when it runs.
const CAPABILITY: &[u8] = b"security.capability";
/// More attributes than this do not fit into [`SPACE_MAX`].
const COUNT_MAX: usize = 4096;
/// Names with a zero byte after each: what Linux gives in one list.
pub const LIST_MAX: usize = 64 << 10;
/// What every attribute takes besides its name and value.
pub const OVERHEAD: usize = 64;

pub async fn run(view: &mut View<'_>, request: &ListXattrs) -> Result<ListXattrsReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    let mut xattrs = read_all(view, id).await?;
    if !view.scene.caller.is_root() {
        xattrs.retain(|xattr| !xattr.name.as_bytes().starts_with(b"trusted."));
    }
    if !permission::is_allowed(&inode, view.scene.caller, READ) {
        // Linux, too, lists names to anybody who found the file.
        let of_users = xattrs.iter_mut().filter(|one| one.name.as_bytes().starts_with(b"user."));
        of_users.for_each(|xattr| xattr.value.clear());
    }
    Ok(ListXattrsReply { xattrs, lease: lease(view, [unit_of(id, &inode)]) })
}

pub async fn read_all(view: &mut View<'_>, id: FileId) -> Result<Vec<Xattr>> {
    let range = Range::new(key::xattrs(id), key::after(&key::xattrs(id)));
    let mut xattrs = vec![];
    for (key, value) in view.scan(range, COUNT_MAX).await? {
        let damaged = || Error::Missing { what: "name in an attribute's key", id: id.to_string() };
        let name = key::xattr_name(&key).ok_or_else(damaged)?;
        let value: XattrValue = decode(&value, || format!("{id} {name}"))?;
        xattrs.push(Xattr { name, value: value.value });
    }
    Ok(xattrs)
}

enum Namespace {
    User,
    Trusted,
    Security,
}

fn namespace(name: &XattrName) -> Result<Namespace> {
    let bytes = name.as_bytes();
    let is_in = |prefix: &[u8]| bytes.starts_with(prefix) && bytes.len() > prefix.len();
    if is_in(b"user.") {
        Ok(Namespace::User)
    } else if is_in(b"trusted.") {
        Ok(Namespace::Trusted)
    } else if is_in(b"security.") {
        Ok(Namespace::Security)
    } else {
        Err(Error::XattrNamespace { name: name.clone() })
    }
}

pub fn check_read(view: &View<'_>, (id, inode): (FileId, &Inode), name: &XattrName) -> Result<()> {
    let caller = view.scene.caller;
    let absent = || Error::NoXattr { id, name: name.clone() };
    match namespace(name)? {
        Namespace::User if !has_user_xattrs(inode) => Err(absent()),
        Namespace::User => permission::check(id, inode, caller, READ),
        Namespace::Trusted if !caller.is_root() => Err(absent()),
        Namespace::Trusted | Namespace::Security => Ok(()),
    }
}

pub fn check_write(view: &View<'_>, (id, inode): (FileId, &Inode), name: &XattrName) -> Result<()> {
    let caller = view.scene.caller;
    match namespace(name)? {
        Namespace::User if !has_user_xattrs(inode) => {
            let wish = "set user attributes on special files (nobody may)";
            Err(Error::NotOwner { id, uid: caller.uid.0, wish })
        }
        Namespace::User => {
            if inode.kind == FileKind::Directory && inode.mode.has(Mode::STICKY) {
                permission::check_owner(id, inode, caller, "set attributes of a sticky directory")?;
            }
            permission::check(id, inode, caller, WRITE)
        }
        Namespace::Trusted | Namespace::Security => {
            permission::check_root(caller, "set trusted and security attributes")
        }
    }
}

/// Kernels take a capability away in the name of who writes the file, or gives it away.
pub fn check_remove(
    view: &View<'_>,
    (id, inode): (FileId, &Inode),
    name: &XattrName,
) -> Result<()> {
    let caller = view.scene.caller;
    match name.as_bytes() {
        CAPABILITY if permission::is_owner(inode, caller) => Ok(()),
        CAPABILITY => permission::check(id, inode, caller, WRITE),
        _ => check_write(view, (id, inode), name),
    }
}

/// A file whose bytes or owner change is not the program any more that was given these rights.
pub async fn drop_capability(view: &mut View<'_>, id: FileId, inode: &mut Inode) -> Result<()> {
    if let Some(name) = capability(view, id, inode).await? {
        view.delete(key::xattr(id, &name));
        inode.xattrs = inode.xattrs.map(|count| count.saturating_sub(1));
    }
    Ok(())
}

/// The attribute that gives a file capabilities, if it has it.
pub async fn capability(
    view: &mut View<'_>,
    id: FileId,
    inode: &Inode,
) -> Result<Option<XattrName>> {
    let name = XattrName::new(CAPABILITY).ok().filter(|_| inode.xattrs != Some(0));
    let Some(name) = name else { return Ok(None) };
    let there: Option<XattrValue> = view.record(key::xattr(id, &name)).await?;
    Ok(there.map(|_| name))
}

fn has_user_xattrs(inode: &Inode) -> bool {
    matches!(inode.kind, FileKind::Regular | FileKind::Directory)
}
