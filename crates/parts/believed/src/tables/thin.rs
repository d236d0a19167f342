//! Directories that are larger than there is room for: some of what is in them goes, and the lease
//! on them stays.
//!
//! Names go in their order, round and round, so that whoever goes through a directory in that order
//! loses what he came past longest ago. Of each a mark is left: of a directory whose every name was
//! known it is known still which names are not there, and whoever makes a million files in one
//! need not ask for each whether it is there already.
//!
//! Invariants: a name that exists, of a directory that is complete, is here or has a mark; what an
//! own operation changed stays until the MDS knows it; what was read before something that went was
//! learned does not take its place; marks are bounded.

use super::{Directory, Entry, Inode, Tables};
use crate::Invalidation;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use tieline_types::{FileId, Name, Version};

/// Marks, for each file that is remembered at most: they take a tenth of what that takes.
const MARKS_PER_INODE: usize = 8;

/// So many names in their order were asked for one by one: somebody goes through them, and the next
/// come together. Whoever asks for any name does so once in 7! times.
const RUN_MIN: u32 = 7;

/// Names that differ have different marks, but for a chance of one in 10^12 among a few thousand.
fn mark(name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    hasher.finish()
}

type Inodes = BTreeMap<FileId, Inode>;

/// Does something that was done to it wait?
fn is_own(inodes: &Inodes, id: FileId) -> bool {
    inodes.get(&id).is_some_and(|inode| inode.own.is_some())
}

/// A name with as good as none between it and this one, which follows it.
fn before(name: &Name) -> Option<Name> {
    let (last, rest) = name.as_bytes().split_last()?;
    let mut bytes = rest.to_vec();
    // The byte before, but none that no name has.
    match last - 1 {
        0 => {}
        b'/' => bytes.extend([b'/' - 1, u8::MAX]),
        other => bytes.extend([other, u8::MAX]),
    }
    bytes.truncate(Name::LENGTH_MAX);
    Name::new(bytes).ok()
}

/// What is left of the names that went.
#[derive(Default)]
pub(super) struct Thinned {
    marks: BTreeSet<u64>,
    /// Of the unit when the last of them went.
    generation: u64,
    /// The latest version under which anything that went was learned.
    as_of: Version,
    /// The last name that went.
    hand: Option<Name>,
    /// How large the directory may become before names go again.
    at: usize,
    /// The last name that went and was asked for again, and how many before it were in order.
    asked: Option<Name>,
    run: u32,
}

impl Thinned {
    /// Are names gone that may be there?
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Is it one of the names that went?
    pub fn has(&self, name: &Name) -> bool {
        !self.marks.is_empty() && self.marks.contains(&mark(name))
    }

    /// The name is here again, or surely gone.
    pub fn settle(&mut self, name: &Name) {
        if !self.marks.is_empty() {
            self.marks.remove(&mark(name));
        }
    }

    /// May this be learned of a name that is not here? What went may have been newer: then it is as
    /// if the name had gone now.
    pub fn admits(&mut self, name: &Name, as_of: Version) -> bool {
        let is_new = as_of >= self.as_of;
        if !is_new {
            self.marks.insert(mark(name));
        }
        is_new
    }

    /// Every name came under this generation, and is here unless it went under the same.
    pub fn complete(&mut self, generation: u64) {
        if self.generation != generation {
            self.marks.clear();
        }
    }

    /// A name that went is asked for. Says whether those behind it will be, too.
    pub fn asks_in_order(&mut self, name: &Name) -> bool {
        let is_next = self.asked.as_ref().is_some_and(|asked| name > asked);
        self.run = if is_next { self.run.saturating_add(1) } else { 0 };
        self.asked = Some(name.clone());
        self.run >= RUN_MIN
    }

    pub fn clear(&mut self) {
        self.marks.clear();
    }
}

impl Directory {
    fn size(&self) -> usize {
        self.names.len().max(self.told_names.len()).max(self.told_files.len())
    }

    /// Names that may go, the next in turn first.
    fn next_names(&self, inodes: &Inodes, count: usize) -> Vec<Name> {
        let all = self.round(self.thinned.hand.as_ref());
        let may_go =
            |entry: &Entry| entry.own.is_none() && !entry.id.is_some_and(|id| is_own(inodes, id));
        all.filter(|(_, entry)| may_go(entry)).map(|(name, _)| name.clone()).take(count).collect()
    }

    /// Files that a door was told of by their numbers, and that may go.
    fn next_files(&self, inodes: &Inodes, unit: FileId, count: usize) -> Vec<FileId> {
        let may_go = |id: &FileId| *id != unit && !is_own(inodes, *id);
        self.told_files.iter().copied().filter(may_go).take(count).collect()
    }

    fn let_name_go(
        &mut self,
        inodes: &mut Inodes,
        (unit, generation): (FileId, u64),
        name: Name,
        told: &mut Invalidation,
    ) {
        let Some(entry) = self.names.remove(&name) else { return };
        self.thinned.generation = generation;
        self.thinned.as_of = self.thinned.as_of.max(entry.as_of);
        if let Some(id) = entry.id {
            self.thinned.marks.insert(mark(&name));
            self.let_file_go(inodes, (unit, id), told);
        }
        self.thinned.hand = Some(name.clone());
        if self.told_names.remove(&name) {
            told.doubted.push((unit, name));
        }
    }

    /// A directory is believed under its own lease, and a file of several names under any of them.
    fn let_file_go(
        &mut self,
        inodes: &mut Inodes,
        (unit, id): (FileId, FileId),
        told: &mut Invalidation,
    ) {
        let basis = inodes.get(&id).and_then(Inode::basis);
        if basis.is_none_or(|basis| basis.unit == unit) {
            self.thinned.as_of = self.thinned.as_of.max(basis.map_or(Version(0), |one| one.as_of));
            inodes.remove(&id);
        }
        if self.told_files.remove(&id) {
            told.attributes.push(id);
        }
    }

    /// Names that a door was told and that are not here: there are none of them, or nobody knows.
    fn untell_others(&mut self, unit: FileId, told: &mut Invalidation) {
        let all = std::mem::take(&mut self.told_names).into_iter();
        let (here, others): (_, BTreeSet<Name>) =
            all.partition(|name| self.names.contains_key(name));
        self.told_names = here;
        told.doubted.extend(others.into_iter().map(|name| (unit, name)));
    }

    fn forget_marks(&mut self) {
        if !self.thinned.is_empty() {
            self.thinned.clear();
            self.complete = None;
            self.dropped += 1;
        }
    }
}

impl Tables {
    /// Something of a directory was learned, or told: is it too large for itself?
    pub(super) fn grew(&mut self, unit: FileId) {
        let Some(directory) = self.directories.get(&unit) else { return };
        let most = self.inodes_max.max(directory.thinned.at);
        if directory.size() > most && !self.pinned.contains(&unit) {
            self.is_crowded = true;
        }
    }

    /// A name that went is looked for. If it is one of many in their order: says after which name a
    /// page of the directory brings it.
    pub(super) fn gone_after(&mut self, parent: FileId, name: &Name) -> Option<Option<Name>> {
        let thinned = &mut self.directories.get_mut(&parent)?.thinned;
        (thinned.has(name) && thinned.asks_in_order(name)).then(|| before(name))
    }

    /// May attributes that are not here be learned under this unit? Those that went may have been
    /// newer.
    pub(super) fn is_new_to(&self, unit: FileId, as_of: Version) -> bool {
        self.directories.get(&unit).is_none_or(|one| as_of >= one.thinned.as_of)
    }

    /// Directories that take more than half the room: they make room for themselves first.
    pub(super) fn huge(&self) -> BTreeSet<FileId> {
        let is_huge = |unit: FileId, one: &Directory| {
            one.size() > self.inodes_max / 2 && !self.pinned.contains(&unit)
        };
        let all = self.directories.iter();
        all.filter(|(unit, one)| is_huge(**unit, one)).map(|(unit, _)| *unit).collect()
    }

    /// Lets names and files of a directory go until `target` are left, of it and of all.
    pub(super) fn thin(&mut self, unit: FileId, target: usize) -> Invalidation {
        let mut told = Invalidation::default();
        let generation = self.units.generation(unit).unwrap_or_default();
        let (all, step) = (self.inodes.len(), self.inodes_max / 8);
        let Some(directory) = self.directories.get_mut(&unit) else { return told };
        let inodes = &mut self.inodes;
        let count = all.max(directory.size()).saturating_sub(target);
        for name in directory.next_names(inodes, count) {
            directory.let_name_go(inodes, (unit, generation), name, &mut told);
        }
        if directory.told_names.len() > directory.names.len() + step {
            directory.untell_others(unit, &mut told);
        }
        let more = directory.told_files.len().saturating_sub(target);
        for id in directory.next_files(inodes, unit, more) {
            directory.let_file_go(inodes, (unit, id), &mut told);
        }
        directory.thinned.at = directory.size() + step;
        told
    }

    /// Too many names are gone to remember which they were.
    pub(super) fn bound_marks(&mut self) {
        let marks: usize = self.directories.values().map(|one| one.thinned.marks.len()).sum();
        if marks > MARKS_PER_INODE * self.inodes_max {
            self.directories.values_mut().for_each(Directory::forget_marks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_right_before_another() {
        let next =
            |text: &[u8]| before(&Name::new(text).unwrap()).map(|one| one.as_bytes().to_vec());
        assert_eq!(next(b"f12").unwrap(), b"f11\xff");
        assert_eq!(next(b"f10").unwrap(), b"f1.\xff");
        assert_eq!(next(b"f\x01").unwrap(), b"f");
        assert_eq!(next(b"\x01"), None);
        assert_eq!(next(&[b'b'; 255]).unwrap().len(), 255);
    }

    #[test]
    fn who_goes_through_names_in_their_order_is_told_from_who_does_not() {
        let number = |one: u32| Name::new(format!("{one:03}")).unwrap();
        let mut thinned = Thinned::default();
        let asked: Vec<bool> = (0..20).map(|one| thinned.asks_in_order(&number(one))).collect();
        assert!(!asked[..7].contains(&true) && !asked[7..].contains(&false));
        let mut any = (0..20).map(|one| thinned.asks_in_order(&number(one * 13 % 20)));
        assert!(!any.any(|is_next| is_next));
    }
}
