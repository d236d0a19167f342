//! Who may do what: the rules of POSIX, as Linux applies them.

use crate::error::{Error, Result};
use crate::view::Scene;
use tieline_format::map::FederationMap;
use tieline_format::mdt::Inode;
use tieline_types::rules::Rights;
use tieline_types::{Caller, FileId, FileKind};

pub use tieline_types::rules::{READ, SEARCH, WRITE};

pub fn rights(inode: &Inode) -> Rights<'_> {
    let Inode { kind, mode, uid, gid, ref acls, .. } = *inode;
    Rights { kind, mode, uid, gid, acls: acls.as_deref() }
}

/// Do mode and list let the caller do all of `wish` (bits of [`READ`], [`WRITE`], [`SEARCH`])?
pub fn is_allowed(inode: &Inode, caller: &Caller, wish: u32) -> bool {
    rights(inode).allow(caller, wish)
}

pub fn check(id: FileId, inode: &Inode, caller: &Caller, wish: u32) -> Result<()> {
    if is_allowed(inode, caller, wish) {
        return Ok(());
    }
    let wish = match wish {
        READ => "read it",
        WRITE => "write it",
        SEARCH if inode.kind == FileKind::Regular => "run it",
        SEARCH => "search it",
        _ => "change its names",
    };
    Err(Error::Denied { id, uid: caller.uid.0, wish })
}

/// May a handle of the caller do one of `wishes`? The client held it to that when it was opened.
/// Where clients prove who they are they are not believed about handles: mode and list must allow
/// it still.
pub fn check_handle(
    scene: &Scene<'_>,
    (id, inode): (FileId, &Inode),
    wishes: &[u32],
) -> Result<()> {
    check_handle_of(scene.caller, scene.map, (id, inode), wishes)
}

/// The same where there is no scene.
pub fn check_handle_of(
    caller: &Caller,
    map: &FederationMap,
    (id, inode): (FileId, &Inode),
    wishes: &[u32],
) -> Result<()> {
    let is_proven = map.security.is_some();
    if is_proven { check_open(id, inode, caller, wishes) } else { Ok(()) }
}

/// May somebody have it open for one of `wishes`? An owner may: he may have opened what he has made
/// read-only since. Who may run a program reads it.
pub fn check_open(id: FileId, inode: &Inode, caller: &Caller, wishes: &[u32]) -> Result<()> {
    let may = |&wish: &u32| {
        let is_run = wish == READ && inode.kind == FileKind::Regular;
        is_allowed(inode, caller, wish) || is_run && is_allowed(inode, caller, SEARCH)
    };
    match wishes.first() {
        Some(&first) if !is_owner(inode, caller) && !wishes.iter().any(may) => {
            check(id, inode, caller, first)
        }
        _ => Ok(()),
    }
}

pub fn is_owner(inode: &Inode, caller: &Caller) -> bool {
    rights(inode).is_owner(caller)
}

pub fn check_owner(id: FileId, inode: &Inode, caller: &Caller, wish: &'static str) -> Result<()> {
    if is_owner(inode, caller) {
        Ok(())
    } else {
        Err(Error::NotOwner { id, uid: caller.uid.0, wish })
    }
}

pub fn check_root(caller: &Caller, wish: &'static str) -> Result<()> {
    if caller.is_root() { Ok(()) } else { Err(Error::NotRoot { uid: caller.uid.0, wish }) }
}

/// May the caller take a name of `file` out of a directory?
pub fn check_removal(
    (parent_id, parent): (FileId, &Inode),
    (file_id, file): (FileId, &Inode),
    caller: &Caller,
) -> Result<()> {
    check(parent_id, parent, caller, WRITE | SEARCH)?;
    if rights(parent).is_stuck(rights(file), caller) {
        let wish = "remove it from a sticky directory";
        return Err(Error::NotOwner { id: file_id, uid: caller.uid.0, wish });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
