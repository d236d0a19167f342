//! Rename: moves one entry, replacing the target if POSIX allows it, or exchanges two; and leaves a
//! whiteout behind if that is wanted.
//!
//! Reads both parents, both entries and the chain above the target, decides in Linux's order, then
//! writes.
//!
//! Invariants: no directory comes below itself; link counts equal entries; both parents' versions
//! advance together.

use super::{lease, remove_directory};
use crate::error::{Error, Result};
use crate::names::{self, directory_changed};
use crate::permission::{self, SEARCH, WRITE};
use crate::view::View;
use tieline_format::mdt::{Entry, Inode, NameOf, key};
use tieline_types::{FileId, FileKind, Name, RenameMode};
use tieline_wire::meta::{ChangeReply, Rename};

/// One end of the move: a directory, a name in it, and what has that name.
struct End {
    parent: FileId,
    name: Name,
    found: Option<(FileId, Inode)>,
}

/// The directories of both ends; one of them when they are the same.
struct Parents {
    from: Inode,
    to: Option<Inode>,
}

impl Parents {
    fn to(&self) -> &Inode {
        self.to.as_ref().unwrap_or(&self.from)
    }

    fn to_mut(&mut self) -> &mut Inode {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

pub async fn run(view: &mut View<'_>, request: &Rename) -> Result<ChangeReply> {
    view.scene.check_mine(request.from_parent)?;
    if request.to_parent.mdt() != view.scene.mdt {
        let (from, to) = (request.from_parent, request.to_parent);
        return Err(Error::CrossDevice { from, to });
    }
    let (parents, from, to) = read(view, request).await?;
    let no_name = |end: &End| Error::NoName { parent: end.parent, name: end.name.clone() };
    let Some((id, inode)) = from.found.clone() else { return Err(no_name(&from)) };
    match (request.mode, &to.found) {
        (RenameMode::NoReplace | RenameMode::NoReplaceLeaving, Some(_)) => {
            return Err(Error::NameTaken { parent: to.parent, name: to.name });
        }
        (RenameMode::Exchange, None) => return Err(no_name(&to)),
        _ => {}
    }
    check_loops(view, request.mode, &from, &to).await?;
    if to.found.as_ref().is_some_and(|(target, _)| *target == id) {
        // Two names of one file: POSIX says nothing happens.
        return Ok(reply(view, request, id, &inode));
    }
    check_rights(view, request.mode, &parents, &from, &to)?;
    let mut from = from;
    change_project(view, request.mode, &parents, &mut from)?;
    let Some((id, inode)) = from.found.clone() else { return Err(no_name(&from)) };
    let inode = match (request.mode, to.found.clone()) {
        (RenameMode::Exchange, Some(other)) => {
            exchange(view, parents, (from, (id, inode)), (to, other))
        }
        _ => replace(view, parents, (from, (id, inode)), to, request).await?,
    };
    Ok(reply(view, request, id, &inode))
}

fn reply(view: &View<'_>, request: &Rename, id: FileId, inode: &Inode) -> ChangeReply {
    ChangeReply {
        attributes: Some(view.attributes(id, inode)),
        lease: lease(view, [request.from_parent, request.to_parent]),
    }
}

async fn read(view: &mut View<'_>, request: &Rename) -> Result<(Parents, End, End)> {
    let Rename { from_parent, ref from_name, to_parent, ref to_name, .. } = *request;
    let caller = view.scene.caller;
    let (from_directory, from_entry) = view.directory_and_entry(from_parent, from_name).await?;
    permission::check(from_parent, &from_directory, caller, SEARCH)?;
    let (to_directory, to_entry) = view.directory_and_entry(to_parent, to_name).await?;
    permission::check(to_parent, &to_directory, caller, SEARCH)?;
    for (parent, name) in [(from_parent, from_name), (to_parent, to_name)] {
        if let Some(mdt) = view.scene.junction(parent, name) {
            return Err(Error::Junction { parent, name: name.clone(), mdt });
        }
    }
    let from = End::read(view, from_parent, from_name, from_entry).await?;
    let to = End::read(view, to_parent, to_name, to_entry).await?;
    let to_directory = (from_parent != to_parent).then_some(to_directory);
    Ok((Parents { from: from_directory, to: to_directory }, from, to))
}

impl End {
    async fn read(
        view: &mut View<'_>,
        parent: FileId,
        name: &Name,
        entry: Option<Entry>,
    ) -> Result<Self> {
        let found = match entry {
            Some(entry) => Some((entry.id, view.entry_inode(&entry).await?)),
            None => None,
        };
        Ok(Self { parent, name: name.clone(), found })
    }

    fn name_of(&self) -> NameOf {
        NameOf { parent: self.parent, name: self.name.clone() }
    }

    fn directory(&self) -> Option<FileId> {
        let (id, inode) = self.found.as_ref()?;
        (inode.kind == FileKind::Directory).then_some(*id)
    }
}

/// What is moved must not be above where it goes; the target must not be above what is moved.
async fn check_loops(view: &mut View<'_>, mode: RenameMode, from: &End, to: &End) -> Result<()> {
    if from.parent == to.parent {
        return Ok(());
    }
    if let Some(id) = from.directory()
        && is_above(view, id, to.parent).await?
    {
        return Err(Error::Cycle { id });
    }
    if let Some(id) = to.directory()
        && is_above(view, id, from.parent).await?
    {
        return Err(match mode {
            RenameMode::Exchange => Error::Cycle { id },
            _ => Error::NotEmpty { id },
        });
    }
    Ok(())
}

/// Is `above` the directory `below`, or one of those it is in?
async fn is_above(view: &mut View<'_>, above: FileId, below: FileId) -> Result<bool> {
    let mut at = below;
    loop {
        if at == above {
            return Ok(true);
        }
        match view.inode(at).await?.names.first() {
            Some(name) => at = name.parent,
            None => return Ok(false),
        }
    }
}

fn check_rights(
    view: &View<'_>,
    mode: RenameMode,
    parents: &Parents,
    from: &End,
    to: &End,
) -> Result<()> {
    let caller = view.scene.caller;
    let Some((id, inode)) = &from.found else { return Ok(()) };
    permission::check_removal((from.parent, &parents.from), (*id, inode), caller)?;
    let is_directory = from.directory().is_some();
    match &to.found {
        None => permission::check(to.parent, parents.to(), caller, WRITE | SEARCH)?,
        Some((target, other)) => {
            permission::check_removal((to.parent, parents.to()), (*target, other), caller)?;
            if mode != RenameMode::Exchange {
                check_replacement(view, is_directory, *target, other)?;
            }
        }
    }
    // Another parent means another `..`: that is a change of the directory itself.
    if from.parent != to.parent {
        if is_directory {
            permission::check(*id, inode, caller, WRITE)?;
        }
        if let (RenameMode::Exchange, Some((target, other))) = (mode, &to.found)
            && other.kind == FileKind::Directory
        {
            permission::check(*target, other, caller, WRITE)?;
        }
    }
    Ok(())
}

/// What moves between trees of different projects changes its project; only what can be changed
/// here is moved, the rest is for the caller to copy.
fn change_project(
    view: &mut View<'_>,
    mode: RenameMode,
    parents: &Parents,
    from: &mut End,
) -> Result<()> {
    let project = parents.to().project;
    let Some((id, inode)) = &mut from.found else { return Ok(()) };
    if parents.from.project == project || inode.project == project {
        return Ok(());
    }
    let is_directory = inode.kind == FileKind::Directory;
    let is_more = if is_directory { inode.entries > 0 } else { inode.names.len() > 1 };
    if is_more || mode == RenameMode::Exchange {
        return Err(Error::OtherProject { what: *id });
    }
    let before = inode.clone();
    inode.project = project;
    view.afford((*id, Some(&before)), inode, 0)
}

fn check_replacement(
    view: &View<'_>,
    is_directory: bool,
    target: FileId,
    other: &Inode,
) -> Result<()> {
    match (is_directory, other.kind == FileKind::Directory) {
        (true, false) => Err(Error::NotDirectory { id: target }),
        (false, true) => Err(Error::IsDirectory { id: target }),
        (true, true) => remove_directory::check_empty(view, target, other),
        (false, false) => Ok(()),
    }
}

/// Moves the source over whatever the target is.
async fn replace(
    view: &mut View<'_>,
    mut parents: Parents,
    (from, (id, mut inode)): (End, (FileId, Inode)),
    to: End,
    request: &Rename,
) -> Result<Inode> {
    view.touch_file(id, &inode);
    if let Some((_, other)) = &to.found {
        names::unlink_entry(view, (to.parent, parents.to_mut()), &to.name, other.kind);
    }
    names::unlink_entry(view, (from.parent, &mut parents.from), &from.name, inode.kind);
    if request.mode.leaves_whiteout() {
        names::add_whiteout(view, (from.parent, &mut parents.from), &from.name).await?;
    }
    names::link_entry(view, (to.parent, parents.to_mut()), &to.name, (id, inode.kind));
    put_parents(view, &from, &to, &parents);
    move_name(view, (id, &mut inode), &from, &to);
    view.touch_file(id, &inode);
    view.put_inode(id, &inode);
    let name = to.name_of();
    match to.found {
        Some((target, other)) if other.kind == FileKind::Directory => {
            remove_directory::remove(view, target, other).await?;
        }
        Some(target) => {
            view.replaces(target.0);
            names::drop_name(view, target, &name, request.keep, names::Nameless::Lingers).await?;
        }
        None => {}
    }
    Ok(inode)
}

/// Both keep their places; only what stands there is swapped.
fn exchange(
    view: &mut View<'_>,
    mut parents: Parents,
    (from, (id, mut inode)): (End, (FileId, Inode)),
    (to, (other_id, mut other)): (End, (FileId, Inode)),
) -> Inode {
    view.touch_file(id, &inode);
    view.touch_file(other_id, &other);
    view.put(key::entry(from.parent, &from.name), &Entry { id: other_id, kind: other.kind });
    view.put(key::entry(to.parent, &to.name), &Entry { id, kind: inode.kind });
    let subdirectory = |inode: &Inode| u32::from(inode.kind == FileKind::Directory);
    parents.from.links = parents.from.links + subdirectory(&other) - subdirectory(&inode);
    let to_links = parents.to().links + subdirectory(&inode) - subdirectory(&other);
    parents.to_mut().links = to_links;
    directory_changed(view, &mut parents.from);
    if let Some(to) = &mut parents.to {
        directory_changed(view, to);
    }
    put_parents(view, &from, &to, &parents);
    view.touch_name(from.parent, &from.name);
    view.touch_name(to.parent, &to.name);
    move_name(view, (id, &mut inode), &from, &to);
    move_name(view, (other_id, &mut other), &to, &from);
    for (id, inode) in [(id, &inode), (other_id, &other)] {
        view.replaces(id);
        view.touch_file(id, inode);
        view.put_inode(id, inode);
    }
    inode
}

fn put_parents(view: &mut View<'_>, from: &End, to: &End, parents: &Parents) {
    view.put_inode(from.parent, &parents.from);
    if let Some(directory) = &parents.to {
        view.put_inode(to.parent, directory);
    }
}

fn move_name(view: &mut View<'_>, (id, inode): (FileId, &mut Inode), from: &End, to: &End) {
    if inode.kind == FileKind::Directory {
        view.touch_moved(id, [from.parent, to.parent]);
    }
    let (old, new) = (from.name_of(), to.name_of());
    for name in &mut inode.names {
        if *name == old {
            *name = new.clone();
        }
    }
    inode.ctime = view.scene.changed(inode.ctime);
}
