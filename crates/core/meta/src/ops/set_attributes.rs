//! SetAttributes: mode, owner, group, times and size.
//!
//! Checks in Linux's order: the size's range, then owner, group, mode, times; the right to write
//! for the size.

use super::{lease, list_xattrs};
use crate::chunks;
use crate::error::{Error, Result};
use crate::permission::{self, READ, WRITE};
use crate::tape;
use crate::view::{View, unit_of};
use tieline_format::mdt::Inode;
use tieline_types::{Caller, Extent, FileId, FileKind, Mode, SetTime, Time};
use tieline_wire::meta::{AttributesReply, SetAttributes};

pub async fn run(view: &mut View<'_>, request: &SetAttributes) -> Result<AttributesReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    if request.is_access == Some(true) {
        access(view, request, &mut inode)?;
    } else {
        check(view, request, &inode)?;
        check_quota(view, request, &inode)?;
        change(view, request, &mut inode).await?;
    }
    Ok(AttributesReply {
        attributes: view.attributes(id, &inode),
        lease: lease(view, [unit_of(id, &inode)]),
    })
}

/// Somebody read the file. That is no change of it, and nobody's right is asked who could read.
fn access(view: &mut View<'_>, request: &SetAttributes, inode: &mut Inode) -> Result<()> {
    let (id, caller) = (request.id, view.scene.caller);
    if !request.is_handle {
        permission::check(id, inode, caller, READ)?;
    }
    permission::check_handle(&view.scene, (id, inode), &[READ])?;
    let Some(atime) = request.atime else { return Ok(()) };
    let is_proven = view.scene.map.security.is_some();
    let latest = is_proven.then(|| view.scene.latest());
    let atime = resolve(atime, view.scene.at)?;
    let atime = latest.map_or(atime, |latest| atime.min(latest));
    // Of several clients that read it for the first time, one is noted.
    let changed = inode.mtime.max(inode.ctime);
    if atime > inode.atime && Time::is_access_due(inode.atime, changed, atime) {
        inode.atime = atime;
        view.touch_file(id, inode);
        view.put_inode(id, inode);
    }
    Ok(())
}

async fn change(view: &mut View<'_>, request: &SetAttributes, inode: &mut Inode) -> Result<()> {
    let id = request.id;
    if is_change(request) {
        change_owner(view.scene.caller, request, inode);
        change_mode(view, request, inode);
        change_times(view, request, inode)?;
        if let Some(size) = request.size {
            change_size(view, id, inode, size).await?;
        }
        if request.uid.is_some() || request.gid.is_some() || request.size.is_some() {
            list_xattrs::drop_capability(view, id, inode).await?;
        }
        inode.ctime = view.scene.changed(inode.ctime);
        view.touch_file(id, inode);
        view.put_inode(id, inode);
    }
    Ok(())
}

fn is_change(request: &SetAttributes) -> bool {
    request.mode.is_some()
        || request.uid.is_some()
        || request.gid.is_some()
        || request.size.is_some()
        || request.atime.is_some()
        || request.mtime.is_some()
}

fn check(view: &View<'_>, request: &SetAttributes, inode: &Inode) -> Result<()> {
    let (id, caller) = (request.id, view.scene.caller);
    if let Some(size) = request.size {
        check_size(id, inode, size)?;
        if !request.is_handle {
            permission::check(id, inode, caller, WRITE)?;
        }
        permission::check_handle(&view.scene, (id, inode), &[WRITE])?;
        view.scene.check_locks(id)?;
    }
    if request.uid.is_some_and(|uid| uid != inode.uid) {
        permission::check_root(caller, "give files away")?;
    } else if request.uid.is_some() {
        permission::check_owner(id, inode, caller, "set its owner")?;
    }
    if let Some(gid) = request.gid {
        permission::check_owner(id, inode, caller, "change its group")?;
        if gid != inode.gid && !caller.is_root() && !caller.is_member(gid) {
            let wish = "give it to a group they are not in";
            return Err(Error::NotOwner { id, uid: caller.uid.0, wish });
        }
    }
    if request.mode.is_some() {
        permission::check_owner(id, inode, caller, "change its mode")?;
    }
    check_times(request, inode, view)
}

/// Root gives files to whom it likes.
fn check_quota(view: &mut View<'_>, request: &SetAttributes, inode: &Inode) -> Result<()> {
    if view.scene.caller.is_root() || (request.uid.is_none() && request.gid.is_none()) {
        return Ok(());
    }
    let mut given = inode.clone();
    change_owner(view.scene.caller, request, &mut given);
    view.afford((request.id, Some(inode)), &given, 0)
}

fn check_size(id: FileId, inode: &Inode, size: u64) -> Result<()> {
    match inode.kind {
        FileKind::Directory => Err(Error::IsDirectory { id }),
        FileKind::Regular if size > Extent::FILE_SIZE_MAX => Err(Error::TooLarge { size }),
        FileKind::Regular => Ok(()),
        _ => Err(Error::Invalid { what: "only regular files have a size to set" }),
    }
}

/// A given time is the owner's to set; *now* is anybody's who may write.
fn check_times(request: &SetAttributes, inode: &Inode, view: &View<'_>) -> Result<()> {
    let caller = view.scene.caller;
    let times = [request.atime, request.mtime];
    // With the size, and through a handle, times come along with a write that was allowed.
    let is_allowed = permission::is_owner(inode, caller) || request.is_handle;
    if times == [None, None] {
        return Ok(());
    }
    if is_allowed {
        return permission::check_handle(&view.scene, (request.id, inode), &[WRITE]);
    }
    if times.iter().flatten().any(|time| *time != SetTime::Now) {
        return permission::check_owner(request.id, inode, caller, "set its times");
    }
    permission::check(request.id, inode, caller, WRITE)
}

/// Linux takes setuid and setgid from what changes hands, from root's calls too.
fn change_owner(caller: &Caller, request: &SetAttributes, inode: &mut Inode) {
    if request.uid.is_none() && request.gid.is_none() {
        return;
    }
    if inode.kind != FileKind::Directory {
        inode.mode = inode.mode.without_setid(caller.may_setgid(inode.gid));
    }
    inode.uid = request.uid.unwrap_or(inode.uid);
    inode.gid = request.gid.unwrap_or(inode.gid);
}

fn change_mode(view: &View<'_>, request: &SetAttributes, inode: &mut Inode) {
    let Some(mode) = request.mode else { return };
    let may_setgid = view.scene.caller.may_setgid(inode.gid);
    inode.mode = if may_setgid { mode } else { mode.without(Mode::SETGID) };
}

fn change_times(view: &View<'_>, request: &SetAttributes, inode: &mut Inode) -> Result<()> {
    let scene = &view.scene;
    let is_own = permission::is_owner(inode, scene.caller) || scene.map.security.is_none();
    // Who only writes moves times as writing does.
    let meant = |time: SetTime, before: Time| {
        let meant = resolve(time, scene.at);
        meant.map(|time| if is_own { time } else { time.min(scene.latest()).max(before) })
    };
    if let Some(time) = request.atime {
        inode.atime = meant(time, inode.atime)?;
    }
    if let Some(time) = request.mtime {
        inode.mtime = meant(time, inode.mtime)?;
    }
    Ok(())
}

/// The time that is meant.
pub fn resolve(time: SetTime, now: Time) -> Result<Time> {
    match time {
        SetTime::Now => Ok(now),
        SetTime::At(time) if time.nanos < 1_000_000_000 => Ok(time),
        SetTime::At(_) => {
            Err(Error::Invalid { what: "a time has a second or more of nanoseconds" })
        }
    }
}

async fn change_size(view: &mut View<'_>, id: FileId, inode: &mut Inode, size: u64) -> Result<()> {
    let mut reached = size;
    if size < inode.size {
        let (stored, part) = chunks::truncate(view, id, size).await?;
        inode.stored = inode.stored.saturating_add_signed(stored);
        reached = part.unwrap_or(size);
        view.is_partial = part.is_some();
    }
    inode.size = reached;
    if reached == 0 {
        // What tape had of it is cut away.
        tape::all_here(inode);
    }
    inode.bytes_change(view.next_version(inode));
    inode.mtime = view.scene.at;
    bytes_change(view.scene.caller, false, inode);
    Ok(())
}

/// Bytes change, and with them setuid and setgid end: only root may keep them, and only where his
/// kernel lets him.
pub fn bytes_change(caller: &Caller, clears_setid: bool, inode: &mut Inode) {
    if clears_setid || !caller.is_root() {
        inode.mode = inode.mode.without_setid(caller.may_setgid(inode.gid));
    }
}
