//! Adding and removing names: what all operations on names do alike.
//!
//! Errors come in Linux's order: the directory, the right to search it, the name itself, then the
//! right to change it.
//!
//! Invariants: link counts equal names; a directory's count of entries and its subdirectories'
//! links move with its entries in one transaction; a change of names advances the directory's
//! version.

use crate::chunks;
use crate::error::{Error, Result};
use crate::permission::{self, SEARCH, WRITE};
use crate::tape;
use crate::view::View;
use tieline_format::mdt::{
    Deleted, DeletedAt, Entry, Inode, LostName, NO_SESSION, NameOf, Orphan, key,
};
use tieline_types::rules::Inherited;
use tieline_types::{FileId, FileKind, Layout, Mode, Name, Uid};

/// Names one file may have. They are in its record, which so stays well below what a store takes as
/// one value.
pub const NAMES_MAX: usize = 1024;

/// A directory that a new name may be added to.
pub async fn parent_for_new(view: &mut View<'_>, parent: FileId, name: &Name) -> Result<Inode> {
    let (inode, entry) = view.directory_and_entry(parent, name).await?;
    permission::check(parent, &inode, view.scene.caller, SEARCH)?;
    if entry.is_some() || view.scene.junction(parent, name).is_some() {
        return Err(Error::NameTaken { parent, name: name.clone() });
    }
    permission::check(parent, &inode, view.scene.caller, WRITE | SEARCH)?;
    Ok(inode)
}

/// A directory and what stands in it under a name that is to be changed.
pub async fn parent_and_entry(
    view: &mut View<'_>,
    parent: FileId,
    name: &Name,
) -> Result<(Inode, Entry)> {
    let (inode, entry) = view.directory_and_entry(parent, name).await?;
    permission::check(parent, &inode, view.scene.caller, SEARCH)?;
    if let Some(mdt) = view.scene.junction(parent, name) {
        return Err(Error::Junction { parent, name: name.clone(), mdt });
    }
    let entry = entry.ok_or_else(|| Error::NoName { parent, name: name.clone() })?;
    Ok((inode, entry))
}

/// What a new file is made of.
pub struct NewFile {
    pub kind: FileKind,
    pub mode: Mode,
    pub umask: Mode,
    pub device: u32,
    pub target: Option<Vec<u8>>,
    pub layout: Option<Layout>,
}

/// Makes a file in a directory that [`parent_for_new`] gave.
pub async fn add_file(
    view: &mut View<'_>,
    (parent_id, mut parent): (FileId, Inode),
    name: &Name,
    new: NewFile,
) -> Result<(FileId, Inode)> {
    let (id, mut inode) = new_file(view, &parent, new).await?;
    let kind = inode.kind;
    inode.names.push(NameOf { parent: parent_id, name: name.clone() });
    inode.links = if kind == FileKind::Directory { 2 } else { 1 };
    view.put_inode(id, &inode);
    if kind == FileKind::Directory && view.scene.chosen.is_some() {
        view.made.insert(id);
    }
    view.count(id, 1);
    link_entry(view, (parent_id, &mut parent), name, (id, kind));
    view.put_inode(parent_id, &parent);
    Ok((id, inode))
}

/// What an overlay takes for nothing under a name: anybody may make it.
pub fn is_whiteout(kind: FileKind, device: u32) -> bool {
    kind == FileKind::CharDevice && device == 0
}

/// Puts a whiteout under a name that has just become free. The caller puts the directory's record.
pub async fn add_whiteout(
    view: &mut View<'_>,
    (parent_id, parent): (FileId, &mut Inode),
    name: &Name,
) -> Result<()> {
    let kind = FileKind::CharDevice;
    let (mode, umask) = (Mode::new(0), Mode::new(0));
    let new = NewFile { kind, mode, umask, device: 0, target: None, layout: None };
    let (id, mut inode) = new_file(view, parent, new).await?;
    inode.names.push(NameOf { parent: parent_id, name: name.clone() });
    inode.links = 1;
    view.put_inode(id, &inode);
    view.count(id, 1);
    link_entry(view, (parent_id, parent), name, (id, kind));
    Ok(())
}

/// Makes a file that has no name yet, and that the asking session keeps.
pub async fn add_nameless(
    view: &mut View<'_>,
    parent: &Inode,
    new: NewFile,
) -> Result<(FileId, Inode)> {
    let (id, inode) = new_file(view, parent, new).await?;
    view.put_inode(id, &inode);
    view.count(id, 1);
    let since = view.scene.now;
    let orphan = Orphan { since, name: None, by: None, is_linkable: Some(true) };
    view.put(key::orphan(id, view.scene.session), &orphan);
    Ok((id, inode))
}

/// A new file's record, as yet without names.
async fn new_file(view: &mut View<'_>, parent: &Inode, new: NewFile) -> Result<(FileId, Inode)> {
    let id = view.new_id().await?;
    let now = view.scene.at;
    let rights = permission::rights(parent);
    let inherited = rights.inherit(view.scene.caller, new.kind, new.mode, new.umask);
    let Inherited { mode, gid, acls } = inherited;
    let mut inode = Inode {
        kind: new.kind,
        mode,
        uid: view.scene.caller.uid,
        gid,
        links: 0,
        size: new.target.as_ref().map_or(0, |target| target.len() as u64),
        stored: 0,
        device: new.device,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        version: view.version(),
        names: vec![],
        layout: new.layout,
        stripe: vec![],
        target: new.target,
        entries: 0,
        project: parent.project,
        xattrs: Some(0),
        acls,
        is_uncounted: None,
        content: None,
        tape: None,
    };
    inode.version = view.next_version(&inode);
    view.afford((id, None), &inode, 0)?;
    Ok((id, inode))
}

/// Puts an entry into a directory. The caller puts the directory's record.
pub fn link_entry(
    view: &mut View<'_>,
    (parent_id, parent): (FileId, &mut Inode),
    name: &Name,
    (id, kind): (FileId, FileKind),
) {
    view.put(key::entry(parent_id, name), &Entry { id, kind });
    parent.entries += 1;
    if kind == FileKind::Directory {
        parent.links += 1;
    }
    directory_changed(view, parent);
    view.touch_name(parent_id, name);
}

/// Takes an entry out of a directory. The caller puts the directory's record.
pub fn unlink_entry(
    view: &mut View<'_>,
    (parent_id, parent): (FileId, &mut Inode),
    name: &Name,
    kind: FileKind,
) {
    view.delete(key::entry(parent_id, name));
    assert!(parent.entries > 0, "directory {parent_id} counts no entries and has one");
    parent.entries -= 1;
    if kind == FileKind::Directory {
        assert!(parent.links > 2, "directory {parent_id} counts no subdirectories and has one");
        parent.links -= 1;
    }
    directory_changed(view, parent);
    view.touch_name(parent_id, name);
}

pub fn directory_changed(view: &View<'_>, directory: &mut Inode) {
    directory.mtime = view.scene.at;
    directory.ctime = view.scene.changed(directory.ctime);
    directory.version = view.next_version(directory);
}

/// What becomes of a file with its last name, if nobody is known to hold it open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nameless {
    /// It goes at once: whoever has looked its name up finds no name when looking again.
    Goes,
    /// It stays a while for those who have looked its name up and are about to open it: they were
    /// promised a file under that name all the time.
    Lingers,
}

/// Takes a name from a file that is no directory. When it was the last, the file is kept for those
/// who hold it open, or goes. `keep`: the asking session holds it open.
pub async fn drop_name(
    view: &mut View<'_>,
    (id, mut inode): (FileId, Inode),
    name: &NameOf,
    keep: Option<FileId>,
    nameless: Nameless,
) -> Result<Option<Inode>> {
    // Leases on all its names told of its link count.
    view.touch_file(id, &inode);
    inode.names.retain(|other| other != name);
    inode.links = inode.names.len() as u32;
    inode.ctime = view.scene.changed(inode.ctime);
    if inode.links > 0 {
        view.put_inode(id, &inode);
        if view.scene.keeps_deleted {
            keep_name(view, (id, &inode), name);
        }
        return Ok(Some(inode));
    }
    view.touched.nameless.insert(id);
    let own = (keep == Some(id)).then_some(view.scene.session);
    let others = view.scene.keepers.iter().filter(|(file, _)| *file == id);
    let mut keepers: Vec<_> = others.map(|(_, session)| *session).chain(own).collect();
    if keepers.is_empty() && nameless == Nameless::Lingers {
        keepers.push(NO_SESSION);
        // Nobody is known to have it: it counts for nobody, like what is deleted.
        inode.is_uncounted = Some(true);
    }
    let last = LastName { name: name.clone(), by: view.scene.caller.uid };
    if keepers.is_empty() {
        remove_file(view, (id, inode), Some(last)).await?;
        return Ok(None);
    }
    let since = view.scene.now;
    for session in keepers {
        let (name, by) = (Some(last.name.clone()), Some(last.by));
        view.put(key::orphan(id, session), &Orphan { since, name, by, is_linkable: None });
    }
    view.put_inode(id, &inode);
    Ok(Some(inode))
}

/// A file that lingers counts again when somebody writes to it, or keeps it.
pub async fn count_lingering(view: &mut View<'_>, id: FileId, inode: &mut Inode) -> Result<()> {
    if inode.is_uncounted == Some(true) {
        let orphan: Option<Orphan> = view.record(key::orphan(id, NO_SESSION)).await?;
        // Without a name it is being deleted.
        if orphan.is_some_and(|orphan| orphan.name.is_some()) {
            inode.is_uncounted = None;
        }
    }
    Ok(())
}

/// The name that a file lost last, and who took it.
#[derive(Clone, Debug)]
pub struct LastName {
    pub name: NameOf,
    pub by: Uid,
}

impl LastName {
    /// As an orphan remembers it.
    pub fn of(orphan: Orphan) -> Option<Self> {
        Some(Self { name: orphan.name?, by: orphan.by? })
    }
}

/// Takes a nameless file away: if it had a name it is kept for undeleting, without one it is
/// deleted.
pub async fn remove_file(
    view: &mut View<'_>,
    (id, inode): (FileId, Inode),
    last: Option<LastName>,
) -> Result<()> {
    match last {
        Some(last) if view.scene.keeps_deleted => {
            keep_deleted(view, (id, inode), last);
            Ok(())
        }
        _ => purge_file(view, (id, inode)).await,
    }
}

/// Remembers a name that a file lost while it has others.
fn keep_name(view: &mut View<'_>, (id, inode): (FileId, &Inode), name: &NameOf) {
    let &Inode { kind, mode, uid, gid, size, mtime, .. } = inode;
    let (at, by) = (view.scene.now, view.scene.caller.uid);
    let lost = LostName { at, by, kind, mode, uid, gid, size, mtime };
    view.put(key::lost_name(name.parent, id, &name.name), &lost);
}

/// Puts a file aside. Its extents and attributes stay where they are.
fn keep_deleted(view: &mut View<'_>, (id, inode): (FileId, Inode), last: LastName) {
    let LastName { name: NameOf { parent, name }, by } = last;
    // It may have lingered.
    let at = view.freed_at.unwrap_or(view.scene.now);
    view.put(key::deleted(parent, id), &Deleted { inode, name, at, by });
    view.put(key::deletion(at.millis(), id), &DeletedAt { parent });
    view.delete_inode(id);
    view.count(id, -1);
}

/// Deletes a nameless file: at once when it is small, else it is left to the collector.
pub async fn purge_file(view: &mut View<'_>, (id, mut inode): (FileId, Inode)) -> Result<()> {
    if chunks::clear(view, id, chunks::AT_ONCE).await? {
        tape::forget(view, id, &inode).await?;
        view.delete_inode(id);
        view.count(id, -1);
    } else {
        // What is left of it is nobody's use any more.
        inode.is_uncounted = Some(true);
        view.put_inode(id, &inode);
        let since = view.freed_at.unwrap_or(view.scene.now);
        let orphan = Orphan { since, name: None, by: None, is_linkable: None };
        view.put(key::orphan(id, NO_SESSION), &orphan);
    }
    Ok(())
}
