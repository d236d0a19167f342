//! What this client did itself under exclusive leases: it is so, whatever the MDS says until it has
//! been told.
//!
//! Each thing that an own operation changed remembers the operation's number until its outcome is
//! known ([`Tables::settle`]); answers of the MDS about it are not learned until then, and older
//! ones not after.
//!
//! Invariant: what is put here is true as long as nobody else changes it: only callers that found
//! the directory held alone put anything, under the same lock.

use super::{Basis, Directory, Entry, Reply, Tables, Under, XattrsKnown};
use crate::{Belief, Known};
use tieline_types::{Attributes, FileId, Layout, Name, Version};
use tieline_wire::meta::{BatchOutcome, ExclusiveUnit, LeaseGrant};

/// A version that no MDS gives: of what the MDS does not know yet.
const PROVISIONAL: u64 = 1 << 63;

/// The version of what the `number`th own change leaves.
pub fn provisional(number: u64) -> Version {
    Version(PROVISIONAL | number)
}

pub fn is_provisional(version: Version) -> bool {
    version.0 & PROVISIONAL != 0
}

impl Tables {
    /// A directory is held alone, and this is how it is.
    pub(super) fn learn_alone(&mut self, reply: Reply, lease: &LeaseGrant, unit: &ExclusiveUnit) {
        let id = unit.attributes.id;
        self.units.grant_alone(id, reply.stamp, reply.as_of, unit.layout.clone());
        self.limits.told(unit.has_limits == Some(true));
        self.learn_attributes(reply, lease, Under::Granted, unit.attributes.clone());
        let generation = self.units.generation(id);
        if let Some(generation) = generation.filter(|_| unit.is_empty && self.is_alone(id)) {
            self.learn_empty(id, generation);
        }
    }

    fn learn_empty(&mut self, id: FileId, generation: u64) {
        let directory = self.directories.entry(id).or_default();
        directory.renew(generation);
        directory.names.retain(|_, entry| entry.own.is_some());
        directory.thinned.clear();
        directory.complete = Some(generation);
    }

    pub fn is_alone(&self, unit: FileId) -> bool {
        self.units.alone(unit).is_some()
    }

    /// A directory as it surely is, with what new files in it inherit: if it is held alone.
    pub fn alone(&mut self, id: FileId) -> Option<(Attributes, Layout)> {
        let layout = self.units.alone(id)?.clone();
        let known = self.attributes(id)?;
        known.attributes.is_directory().then_some((known.attributes, layout))
    }

    /// A file as it surely is, and the directory it lies in: if that is held alone, and the file
    /// has no other name.
    pub fn own_file(&mut self, id: FileId) -> Option<(Attributes, FileId)> {
        let known = self.attributes(id)?;
        let unit = known.belief.units.first()?.0;
        let is_only = known.attributes.is_directory() || known.attributes.links == 1;
        (is_only && self.is_alone(unit)).then_some((known.attributes, unit))
    }

    /// A file that lies in `parent` under `name` and one other name, or under none other: if that
    /// is held alone.
    pub fn own_named(&mut self, id: FileId, (parent, name): (FileId, &Name)) -> Option<Attributes> {
        if let Some((file, unit)) = self.own_file(id) {
            return (unit == parent).then_some(file);
        }
        let file = self.attributes(id)?.attributes;
        let (_, other) = self.place_of(id).filter(|(at, _)| *at == parent)?;
        let are_both_here = file.links == 2 && other != *name && self.is_alone(parent);
        are_both_here.then_some(file)
    }

    /// Does a directory that is held alone surely have no names?
    pub fn is_empty(&self, id: FileId) -> bool {
        let (Some(directory), Some(generation)) =
            (self.directories.get(&id), self.units.generation(id))
        else {
            return false;
        };
        let is_known = directory.complete == Some(generation) && directory.thinned.is_empty();
        is_known && directory.names.values().all(|entry| entry.id.is_none())
    }

    pub(super) fn is_own_name(&self, parent: FileId, name: &Name) -> bool {
        let entry = self.directories.get(&parent).and_then(|one| one.names.get(name));
        entry.is_some_and(|entry| entry.own.is_some())
    }

    /// A name leads elsewhere, or nowhere, by own operation `own`.
    pub fn put_name(&mut self, own: u64, parent: FileId, name: &Name, id: Option<FileId>) {
        let Some(generation) = self.units.generation(parent) else { return };
        let directory = self.directories.entry(parent).or_default();
        directory.renew(generation);
        let as_of = directory.names.get(name).map_or(Version(0), |entry| entry.as_of);
        directory.put(name, Entry { id, as_of, generation, own: Some(own) });
        directory.told_names.insert(name.clone());
        if let Some(id) = id {
            self.inodes.entry(id).or_default().seen_at = Some((parent, name.clone()));
        }
        self.grew(parent);
    }

    /// A file that lies under `unit` is as these attributes say, by own operation `own`.
    pub fn put_attributes(&mut self, own: u64, unit: FileId, attributes: Attributes) -> Known {
        let id = attributes.id;
        let Some(generation) = self.units.generation(unit) else {
            return Known { attributes, belief: Belief::default() };
        };
        let inode = self.inodes.entry(id).or_default();
        let as_of = inode.basis().map_or(Version(0), |basis| basis.as_of);
        inode.kind = Some(attributes.kind);
        inode.attributes = Some((attributes.clone(), Basis { as_of, unit, generation }));
        if let Some((_, basis)) = &mut inode.xattrs {
            (basis.unit, basis.generation) = (unit, generation);
        }
        inode.is_partial = false;
        inode.own = Some(own);
        self.tell_file(unit, generation, id);
        Known { attributes, belief: Belief { units: vec![(unit, generation)] } }
    }

    /// A file that was just put was made just now: it has no extended attributes.
    pub fn put_new(&mut self, id: FileId) {
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        let known = XattrsKnown { list: Vec::new(), has_trusted: true };
        inode.xattrs = inode.basis().map(|basis| (known, basis));
    }

    /// A directory was made in `parent`: it is held alone as that is, and empty.
    pub fn put_directory(&mut self, id: FileId, parent: FileId, layout: Layout) {
        self.units.made_alone(id, parent, layout);
        if let Some(generation) = self.units.generation(id) {
            self.directories.insert(id, Directory::default());
            self.learn_empty(id, generation);
        }
    }

    /// Own operations up to `done` are carried out, as of `as_of`; `outcome` is of the one that
    /// left `left` behind.
    pub fn settle(
        &mut self,
        (done, as_of): (u64, Version),
        (files, names): (&[FileId], &[(FileId, Name)]),
        (left, outcome): (Version, &BatchOutcome),
    ) {
        for (parent, name) in names {
            let directory = self.directories.get_mut(parent);
            if let Some(entry) = directory.and_then(|one| one.names.get_mut(name))
                && entry.own.is_some_and(|own| own <= done)
            {
                (entry.own, entry.as_of) = (None, as_of);
            }
        }
        for id in files {
            let Some(inode) = self.inodes.get_mut(id) else { continue };
            let is_last = inode.own.is_some_and(|own| own <= done);
            if let Some((attributes, basis)) = &mut inode.attributes {
                if attributes.version == left {
                    attributes.version = outcome.version.unwrap_or(left);
                    attributes.stored = outcome.stored.unwrap_or(attributes.stored);
                }
                if is_last {
                    basis.as_of = as_of;
                }
            }
            if is_last {
                inode.own = None;
            }
        }
    }
}
