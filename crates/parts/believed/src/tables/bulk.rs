//! Directories that come whole, and what walks are to know of them (`tieline_foresight::walks`).
//!
//! Invariant: what no door was told need not be taken back from one.

use super::{Basis, Reply, Tables, Under, XattrsKnown};
use crate::access::{self, READ, SEARCH};
use std::ops::Bound;
use tieline_foresight::walks::{AT_WORK, is_loaded};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Attributes, Caller, FileId, FileKind, Mode, Name};
use tieline_wire::meta::LeaseGrant;
use tieline_wire::trees::{ToldFile, TreeDirectory};
use tokio::time::Instant;

/// Levels that are climbed in search of the next directory, and names that are looked through on
/// each: whoever walks through larger ones finds less ahead of him.
const LEVELS_MAX: usize = 64;
const NAMES_MAX: usize = 4096;
/// Levels of known directories under which unknown ones are searched for: some come with a visit.
const UNKNOWN_LEVELS: usize = 5;
/// What an empty file counts as, so that no number of them is nothing.
const EMPTY: u64 = 64;

struct Unknown<'c> {
    caller: &'c Caller,
    /// Names that may be looked at yet.
    left: usize,
    found: Vec<FileId>,
}

impl Tables {
    /// Takes names of a directory.
    pub fn learn_directory(
        &mut self,
        (reply, lease): (Reply, &LeaseGrant),
        told: &TreeDirectory,
        has_trusted: bool,
    ) {
        let id = told.attributes.id;
        self.learn_untold((reply, lease), Under::Granted, &told.attributes);
        for one in &told.entries {
            let entry = &one.entry;
            self.learn_name_untold(reply, id, &entry.name, Some(entry.id));
            self.learn_kind(entry.id, entry.kind);
            if let Some(target) = &entry.target {
                self.learn_target(entry.id, target.clone());
            }
            let Some(attributes) = &entry.attributes else { continue };
            self.learn_untold((reply, lease), Under::Parent(id), attributes);
            if let Some(list) = &one.xattrs {
                let known = XattrsKnown { list: list.clone(), has_trusted };
                self.learn_xattrs(reply, entry.id, known);
            }
        }
        METRICS.client_inodes.set(self.inodes.len() as i64);
        // One without names is known as well.
        if let Some(generation) = self.units.generation_next(id)
            && self.units.admits(id, reply.stamp, reply.as_of)
        {
            let directory = self.directories.entry(id).or_default();
            directory.renew(generation);
            directory.heard = Some(Instant::now());
        }
    }

    /// Takes attributes that no door was told.
    pub fn learn_untold(
        &mut self,
        (reply, lease): (Reply, &LeaseGrant),
        under: Under,
        attributes: &Attributes,
    ) {
        let known = self.inodes.get(&attributes.id);
        let is_newer = known.is_some_and(|inode| {
            let basis = inode.basis();
            inode.own.is_some() || basis.is_some_and(|basis| basis.as_of > reply.as_of)
        });
        if is_newer {
            return;
        }
        // What is known under a lease stays so, if this one does not cover it.
        let Some((unit, generation)) = self.unit_for(reply, lease, under, attributes) else {
            return;
        };
        let basis = Basis { as_of: reply.as_of, unit, generation };
        self.put_learned(basis, attributes.clone());
    }

    /// Takes attributes of a file whose bytes are told.
    pub fn learn_told(&mut self, told: (Reply, &LeaseGrant), file: &ToldFile) {
        self.learn_untold(told, Under::Parent(file.unit), &file.attributes);
    }

    /// May more come that nobody asked for?
    pub fn has_room_ahead(&self) -> bool {
        self.inodes.len() < self.inodes_max - self.inodes_max / 8
    }

    /// Are all names of a directory here?
    pub fn is_complete(&self, id: FileId) -> bool {
        let whole = self.directories.get(&id).filter(|one| one.thinned.is_empty());
        let complete = whole.and_then(|one| one.complete);
        complete.is_some_and(|generation| self.units.believes(id, generation))
    }

    /// The directory that a file was last seen in.
    pub fn parent_of(&self, id: FileId) -> Option<FileId> {
        self.inodes.get(&id)?.seen_at.as_ref().map(|(parent, _)| *parent)
    }

    /// A directory and those above it, as far as they are known.
    pub fn way_up(&self, directory: FileId) -> Vec<FileId> {
        let mut way = vec![directory];
        while let Some(above) = way.last().and_then(|&id| self.parent_of(id))
            && way.len() < LEVELS_MAX
        {
            way.push(above);
        }
        way
    }

    /// The directory whose path comes next after that of one: the first in it, or the next beside
    /// it, or beside one that it is in. Of what is known, within one MDT, and no more than so many
    /// levels down.
    pub fn directory_behind(&self, id: FileId, levels: usize) -> Option<FileId> {
        let (mut within, mut after) = (id, None);
        let mut level = self.way_up(id).len();
        for _ in 0..LEVELS_MAX {
            if level < levels
                && let Some(next) = self.directory_in(within, after)
            {
                return Some(next);
            }
            let (parent, name) = self.inodes.get(&within)?.seen_at.as_ref()?;
            (within, after) = (*parent, Some(name));
            level = level.saturating_sub(1);
        }
        None
    }

    fn directory_in(&self, parent: FileId, after: Option<&Name>) -> Option<FileId> {
        let names = &self.directories.get(&parent)?.names;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = names.range::<Name, _>((from, Bound::Unbounded)).take(NAMES_MAX);
        let is_one =
            |id: &FileId| id.mdt() == parent.mdt() && self.kind(*id) == Some(FileKind::Directory);
        behind.filter_map(|(_, entry)| entry.id).find(is_one)
    }

    /// Directories in `parent` that `caller` may walk and whose names are not known: those behind
    /// `after` first; and those in others there that are known, some levels down. `limit` names are
    /// looked at.
    pub fn unknown_directories(
        &self,
        caller: &Caller,
        parent: FileId,
        after: Option<FileId>,
        limit: usize,
    ) -> Vec<FileId> {
        let mut search = Unknown { caller, left: limit, found: vec![] };
        self.search_unknown(&mut search, parent, after, UNKNOWN_LEVELS);
        search.found
    }

    fn search_unknown(
        &self,
        search: &mut Unknown<'_>,
        parent: FileId,
        after: Option<FileId>,
        levels: usize,
    ) {
        let Some(directory) = self.directories.get(&parent) else { return };
        let place = after.and_then(|id| self.inodes.get(&id)?.seen_at.as_ref());
        let place = place.filter(|(within, _)| *within == parent).map(|(_, name)| name);
        let was_at_work = directory.heard.is_none_or(|heard| heard.elapsed() < AT_WORK);
        for id in directory.round(place).filter_map(|(_, entry)| entry.id) {
            if search.left == 0 {
                return;
            }
            search.left -= 1;
            if id.mdt() != parent.mdt() || self.kind(id) != Some(FileKind::Directory) {
                continue;
            }
            if !self.may_be_walked(search.caller, id).unwrap_or(!was_at_work) {
                continue;
            }
            if !self.is_complete(id) {
                search.found.push(id);
            } else if levels > 0 {
                self.search_unknown(search, id, None, levels - 1);
            }
        }
    }

    /// Whoever surely may not need not ask. `None`: its attributes were not told, since somebody
    /// was at work there who held it alone.
    fn may_be_walked(&self, caller: &Caller, id: FileId) -> Option<bool> {
        let (attributes, _) = self.inodes.get(&id)?.attributes.as_ref()?;
        Some(access::allows(caller, attributes, READ | SEARCH))
    }

    /// Is a file of that mode loaded, as its name says?
    pub fn is_loaded(&self, id: FileId, mode: Mode) -> bool {
        let seen = self.inodes.get(&id).and_then(|inode| inode.seen_at.as_ref());
        seen.is_some_and(|(_, name)| is_loaded(name, mode))
    }

    /// Regular files in a directory that `caller` may read, up to a size: those behind `after`
    /// first.
    pub fn small_files(
        &self,
        caller: &Caller,
        parent: FileId,
        after: Option<FileId>,
        size_max: u64,
    ) -> Vec<(FileId, u64)> {
        let Some(directory) = self.directories.get(&parent) else { return vec![] };
        let place = after.and_then(|id| self.inodes.get(&id)?.seen_at.as_ref());
        let place = place.filter(|(within, _)| *within == parent).map(|(_, name)| name);
        let small = |id: FileId| {
            let (attributes, basis) = self.inodes.get(&id)?.attributes.as_ref()?;
            let is_small = attributes.kind == FileKind::Regular
                && attributes.size <= size_max
                && self.is_good(basis)
                && access::allows(caller, attributes, READ);
            is_small.then_some((id, attributes.size.max(EMPTY)))
        };
        let files = directory.round(place).filter_map(|(_, entry)| small(entry.id?));
        files.filter(|(id, _)| Some(*id) != after).collect()
    }
}
