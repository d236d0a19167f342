//! What is decided here, where a directory is held alone.
//!
//! Each call here looks at what is held, and either does the whole operation (cache, journal, the
//! file's own state) and answers, or gives `None`: then the MDS is asked, as without a journal.
//! Only success is decided here; whatever would be refused the MDS refuses itself, with its reason.
//!
//! * [`files`]: attributes, and bytes that become part of a file.
//!
//! Invariants: nothing here waits; an operation is decided, put into the cache and into the journal
//! under one lock of both.

use crate::shared::Shared;
use crate::{At, Known, NewFile, Opened};
use std::sync::Arc;
use tieline_believed::Tables;
use tieline_owed::act::Act;
use tieline_owed::line::Line;
use tieline_types::rules::{Inherited, Rights, SEARCH, WRITE};
use tieline_types::{
    Attributes, Caller, FileId, FileKind, Layout, Mode, RenameMode, Time, Version,
};
use tieline_wire::Request;
use tieline_wire::meta::{
    Create, Link, MakeDirectory, MakeNode, MakeSymlink, RemoveDirectory, Rename, Unlink,
};

mod files;

/// What a new file is made of, besides its request.
struct Made {
    kind: FileKind,
    mode: Mode,
    umask: Mode,
    device: u32,
    size: u64,
}

impl Shared {
    /// Decides something about `files`, if nothing is under way there.
    fn act<T>(
        &self,
        files: &[FileId],
        decide: impl FnOnce(&mut Tables, &mut Line) -> Option<T>,
    ) -> Option<T> {
        let queue = self.journal.of(files.first()?.mdt())?;
        let decided = {
            let mut tables = self.cache.lock();
            let mut state = queue.lock();
            if !state.is_free(files) {
                return None;
            }
            decide(&mut tables, &mut state)?
        };
        queue.pushed();
        Some(decided)
    }

    /// Waits while too much waits to be sent.
    pub(crate) async fn own_room(&self, file: FileId) {
        if let Some(queue) = self.journal.of(file.mdt())
            && !queue.lock().has_room()
        {
            // Late or not: who is asked next says what is wrong.
            let _ = queue.room(self.servers.wait_for(file.mdt())).await;
        }
    }

    /// Makes a file that no name stands in the way of.
    fn make_own(
        &self,
        caller: &Caller,
        at: At<'_>,
        made: &Made,
        request: impl FnOnce() -> Request,
        prepare: impl FnOnce(FileId, Version),
    ) -> Option<(Known, Layout)> {
        let At { parent, name } = at;
        let queue = self.journal.of(parent.mdt())?;
        // A look before an id is spent.
        if !self.cache.lock().is_alone(parent) {
            return None;
        }
        let id = queue.serial()?;
        let (version, now) = (self.journal.version(), self.now_of(parent));
        prepare(id, version);
        let decided = self.act(&[parent], |tables, journal| {
            let (directory, layout) = tables.alone(parent)?;
            if tables.name(parent, name)?.0.is_some() {
                return None;
            }
            let rights = Rights::of(&directory);
            if !rights.allow(caller, WRITE | SEARCH) {
                return None;
            }
            let is_directory = made.kind == FileKind::Directory;
            let gid = rights.inherit(caller, made.kind, made.mode, made.umask).gid;
            let payers = (caller.uid, gid, directory.project.unwrap_or(0));
            if !self.is_free(parent, payers, Some(&layout).filter(|_| !is_directory)) {
                return None;
            }
            let attributes =
                new_attributes(caller, (rights, directory.project), made, (id, version, now));
            let number = journal.next();
            let act = Act::new(caller, now, id, version, request());
            let act = act.names([(parent, name.clone())]);
            journal.push(if is_directory { act.rights(id) } else { act });
            tables.put_name(number, parent, name, Some(id));
            let links = directory.links + u32::from(is_directory);
            tables.put_attributes(number, parent, changed(directory, links, now));
            if is_directory {
                tables.put_directory(id, parent, layout.clone());
            }
            let unit = if is_directory { id } else { parent };
            let known = tables.put_attributes(number, unit, attributes);
            tables.put_new(id);
            Some((known, layout))
        });
        match decided {
            Some(_) => self.shrink(),
            None => self.files.remove(id),
        }
        decided
    }

    pub(crate) fn create_own(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        new: &NewFile,
    ) -> Option<(Known, Opened)> {
        if new.layout.is_some() {
            return None;
        }
        let NewFile { mode, umask, access, .. } = *new;
        let made = Made { kind: FileKind::Regular, mode, umask, device: 0, size: 0 };
        let (parent, name) = (at.parent, at.name.clone());
        let is_exclusive = true;
        let (layout, is_nameless) = (None, None);
        let request =
            || Create { parent, name, mode, umask, is_exclusive, layout, is_nameless }.into();
        let prepare = |id, version| {
            self.file(id).with(|state| {
                state.door.changed_here(state.version, version);
                state.version = version;
                state.extents.truncate(0);
            });
        };
        let (known, layout) = self.make_own(caller, at, &made, request, prepare)?;
        self.stir(Some(&layout));
        self.file(known.attributes.id).with(|state| state.layout = Some(layout));
        let opened = self.add_handle(caller, known.attributes.clone(), access);
        self.untold.note(known.attributes.id, at.parent, caller);
        Some((known, opened))
    }

    pub(crate) fn make_directory_own(
        &self,
        caller: &Caller,
        at: At<'_>,
        (mode, umask): (Mode, Mode),
    ) -> Option<Known> {
        let made = Made { kind: FileKind::Directory, mode, umask, device: 0, size: 0 };
        let (parent, name) = (at.parent, at.name.clone());
        let request = || MakeDirectory { parent, name, mode, umask }.into();
        Some(self.make_own(caller, at, &made, request, |_, _| {})?.0)
    }

    pub(crate) fn make_symlink_own(
        &self,
        caller: &Caller,
        at: At<'_>,
        target: &[u8],
    ) -> Option<Known> {
        // What is too short or too long the MDS refuses.
        if target.is_empty() || target.len() > TARGET_MAX {
            return None;
        }
        let (mode, umask) = (Mode::new(0o777), Mode::default());
        let size = target.len() as u64;
        let made = Made { kind: FileKind::Symlink, mode, umask, device: 0, size };
        let (parent, name) = (at.parent, at.name.clone());
        let request = || MakeSymlink { parent, name, target: target.to_vec() }.into();
        let (known, _) = self.make_own(caller, at, &made, request, |_, _| {})?;
        self.cache.lock().learn_target(known.attributes.id, target.to_vec());
        Some(known)
    }

    pub(crate) fn make_node_own(
        &self,
        caller: &Caller,
        at: At<'_>,
        node: &crate::NewNode,
    ) -> Option<Known> {
        let crate::NewNode { kind, mode, umask, device } = *node;
        // Devices are for root, and the MDS says to whom it says no.
        if !matches!(kind, FileKind::Fifo | FileKind::Socket) || device != 0 {
            return None;
        }
        let made = Made { kind, mode, umask, device, size: 0 };
        let (parent, name) = (at.parent, at.name.clone());
        let request = || MakeNode { parent, name, kind, mode, umask, device }.into();
        Some(self.make_own(caller, at, &made, request, |_, _| {})?.0)
    }

    /// Gives a file that has one name another one beside it. git makes each object so.
    pub(crate) fn link_own(&self, caller: &Caller, id: FileId, at: At<'_>) -> Option<Known> {
        let At { parent, name } = at;
        let now = self.now_of(parent);
        self.act(&[parent, id], |tables, journal| {
            let (directory, _) = tables.alone(parent)?;
            if tables.name(parent, name)?.0.is_some() {
                return None;
            }
            let (file, unit) = tables.own_file(id)?;
            let is_plain = !file.is_directory() && unit == parent;
            // A project's directory takes only its own files.
            let is_here = is_plain && directory.project == file.project;
            if !is_here || !Rights::of(&directory).allow(caller, WRITE | SEARCH) {
                return None;
            }
            let request = Link { id, parent, name: name.clone(), replaces: None, keep: None };
            let act = Act::new(caller, now, id, file.version, request.into());
            let number = journal.next();
            journal.push(act.names([(parent, name.clone())]));
            tables.put_name(number, parent, name, Some(id));
            let links = directory.links;
            tables.put_attributes(number, parent, changed(directory, links, now));
            Some(tables.put_attributes(number, parent, Attributes { links: 2, ctime: now, ..file }))
        })
    }

    /// Takes one of two names of a file, or the only one if nobody here has it open.
    pub(crate) fn unlink_own(&self, caller: &Caller, at: At<'_>) -> Option<()> {
        let At { parent, name } = at;
        self.journal.of(parent.mdt())?;
        let id = self.cache.lock().name(parent, name)?.0?;
        let is_in_use = self.is_in_use(id);
        let now = self.now_of(parent);
        let is_gone = self.act(&[parent, id], |tables, journal| {
            let (directory, _) = tables.alone(parent)?;
            if tables.name(parent, name)?.0 != Some(id) {
                return None;
            }
            let file = tables.own_named(id, (parent, name))?;
            let is_last = file.links == 1;
            let may = !file.is_directory() && may_remove(caller, &directory, &file);
            if !may || (is_last && is_in_use) {
                return None;
            }
            let request = Unlink { parent, name: name.clone(), keep: None };
            let version = if is_last { self.journal.version() } else { file.version };
            let act = Act::new(caller, now, id, version, request.into());
            let number = journal.next();
            journal.push(act.names([(parent, name.clone())]));
            tables.put_name(number, parent, name, None);
            let links = directory.links;
            tables.put_attributes(number, parent, changed(directory, links, now));
            if is_last {
                tables.forget(id);
            } else {
                tables.put_attributes(number, parent, Attributes { links: 1, ctime: now, ..file });
            }
            Some(is_last)
        })?;
        if is_gone {
            self.files.remove(id);
        }
        Some(())
    }

    /// Removes a directory that is surely empty.
    pub(crate) fn remove_directory_own(&self, caller: &Caller, at: At<'_>) -> Option<()> {
        let At { parent, name } = at;
        self.journal.of(parent.mdt())?;
        let id = self.cache.lock().name(parent, name)?.0?;
        if id.mdt() != parent.mdt() {
            return None;
        }
        let now = self.now_of(parent);
        let told = self.act(&[parent, id], |tables, journal| {
            let (directory, _) = tables.alone(parent)?;
            let (gone, _) = tables.alone(id)?;
            let is_there = tables.name(parent, name)?.0 == Some(id);
            let is_junction = self.has_junction(id);
            let is_free = is_there && tables.is_empty(id) && !is_junction;
            if !is_free || !may_remove(caller, &directory, &gone) {
                return None;
            }
            let request = RemoveDirectory { parent, name: name.clone() };
            let act = Act::new(caller, now, id, self.journal.version(), request.into());
            let number = journal.next();
            journal.push(act.names([(parent, name.clone())]));
            tables.put_name(number, parent, name, None);
            let links = directory.links.saturating_sub(1);
            tables.put_attributes(number, parent, changed(directory, links, now));
            tables.forget(id);
            Some(tables.drop_unit(id))
        })?;
        self.tell(told);
        Some(())
    }

    /// Moves a name: of a file that has no other, or of a directory within its own.
    pub(crate) fn rename_own(
        &self,
        caller: &Caller,
        (from, to): (At<'_>, At<'_>),
        mode: RenameMode,
    ) -> Option<()> {
        let is_plain = matches!(mode, RenameMode::Replace | RenameMode::NoReplace);
        if !is_plain || from.parent.mdt() != to.parent.mdt() {
            return None;
        }
        self.journal.of(from.parent.mdt())?;
        let (id, target) = {
            let mut tables = self.cache.lock();
            (tables.name(from.parent, from.name)?.0?, tables.name(to.parent, to.name)?.0)
        };
        if target.is_some_and(|target| target == id || self.is_in_use(target)) {
            return None;
        }
        if target.is_some() && self.file_known(id).is_some_and(|file| file.is_dirty()) {
            // What is replaced may go only when the bytes that take its place are there.
            return None;
        }
        let now = self.now_of(from.parent);
        let files: Vec<FileId> = [from.parent, to.parent, id].into_iter().chain(target).collect();
        self.act(&files, |tables, journal| {
            let is_still = tables.name(from.parent, from.name)?.0 == Some(id)
                && tables.name(to.parent, to.name)?.0 == target;
            if !is_still || (mode == RenameMode::NoReplace && target.is_some()) {
                return None;
            }
            let (source, _) = tables.alone(from.parent)?;
            let (goal, _) = tables.alone(to.parent)?;
            if source.project != goal.project {
                return None;
            }
            let file = movable(tables, id, (from.parent, to.parent))?;
            if !may_remove(caller, &source, &file) {
                return None;
            }
            match target {
                None if !Rights::of(&goal).allow(caller, WRITE | SEARCH) => return None,
                None => {}
                Some(target) => {
                    let (old, unit) = tables.own_file(target)?;
                    let is_plain = !old.is_directory() && !file.is_directory();
                    if !is_plain || unit != to.parent || !may_remove(caller, &goal, &old) {
                        return None;
                    }
                }
            }
            let request = Rename {
                from_parent: from.parent,
                from_name: from.name.clone(),
                to_parent: to.parent,
                to_name: to.name.clone(),
                mode,
                keep: None,
            };
            let number = journal.next();
            let act = Act::new(caller, now, id, file.version, request.into());
            let names = [(from.parent, from.name.clone()), (to.parent, to.name.clone())];
            journal.push(act.names(names).also(target));
            tables.put_name(number, from.parent, from.name, None);
            tables.put_name(number, to.parent, to.name, Some(id));
            self.deferred.moved(id, to.parent);
            let links = source.links;
            tables.put_attributes(number, from.parent, changed(source, links, now));
            if to.parent != from.parent {
                let links = goal.links;
                tables.put_attributes(number, to.parent, changed(goal, links, now));
            }
            let unit = if file.is_directory() { id } else { to.parent };
            tables.put_attributes(number, unit, Attributes { ctime: now, ..file });
            if let Some(target) = target {
                tables.forget(target);
            }
            Some(())
        })?;
        if let Some(target) = target {
            self.files.remove(target);
        }
        self.shrink();
        Some(())
    }

    /// Do programs have it open, or does something of it wait?
    fn is_in_use(&self, id: FileId) -> bool {
        self.file_known(id).is_some_and(|file| {
            let is_open = file.with(|state| state.handles > 0);
            is_open || file.is_dirty()
        })
    }

    fn has_junction(&self, id: FileId) -> bool {
        self.servers.map.current().map.junctions_in(id).next().is_some()
    }
}

/// Longest target of a symlink.
const TARGET_MAX: usize = 4095;

fn new_attributes(
    caller: &Caller,
    (directory, project): (Rights<'_>, Option<u32>),
    made: &Made,
    (id, version, now): (FileId, Version, Time),
) -> Attributes {
    let inherited = directory.inherit(caller, made.kind, made.mode, made.umask);
    let Inherited { mode, gid, acls } = inherited;
    Attributes {
        uid: caller.uid,
        gid,
        size: made.size,
        device: made.device,
        version,
        has_xattrs: Some(false),
        acls,
        project,
        ..Attributes::new(id, made.kind, mode, now)
    }
}

/// A directory after its names changed.
fn changed(directory: Attributes, links: u32, now: Time) -> Attributes {
    Attributes { links, mtime: now, ctime: now, ..directory }
}

/// May the caller take a name of `file` out of `directory`?
fn may_remove(caller: &Caller, directory: &Attributes, file: &Attributes) -> bool {
    let rights = Rights::of(directory);
    rights.allow(caller, WRITE | SEARCH) && !rights.is_stuck(Rights::of(file), caller)
}

/// What is moved, if that is ours to decide. A directory stays in its own: whether it may go
/// elsewhere depends on all above.
fn movable(tables: &mut Tables, id: FileId, (from, to): (FileId, FileId)) -> Option<Attributes> {
    let known = tables.attributes(id)?;
    if known.attributes.is_directory() {
        // Its own attributes change: it must be held alone itself.
        return (from == to && tables.is_alone(id)).then_some(known.attributes);
    }
    let (file, unit) = tables.own_file(id)?;
    (unit == from).then_some(file)
}
