//! What was learned, and under which lease it is good.
//!
//! * [`drops`]: letting go of it. * [`thin`]: of a part of one directory. * [`bulk`]: whole
//!   directories. * [`last`]: what was put down of it for times without its server.
//!
//! Invariant: what is here is newer than anything that may still be refused by a unit's bar; only
//! [`Units`] decides whether it may be believed.

use super::units::{Stamp, Units};
use crate::access::{self, SEARCH};
use crate::limits::Limits;
use crate::{Belief, Known};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use thin::Thinned;
use tieline_foresight::walks::ListingMark;
use tieline_telemetry::metrics::METRICS;
use tieline_types::rules::Rights;
use tieline_types::{Attributes, Caller, FileId, FileKind, Name, Version};
use tieline_wire::meta::{LeaseGrant, Xattr};
use tokio::time::Instant;

mod bulk;
mod drops;
mod last;
mod own;
mod thin;

pub use own::{is_provisional, provisional};

/// A reply that may be learned from.
#[derive(Clone, Copy)]
pub struct Reply {
    pub stamp: Stamp,
    pub as_of: Version,
}

/// Which directory a file's attributes are believed under.
#[derive(Clone, Copy)]
pub enum Under {
    /// The directory it was just found in.
    Parent(FileId),
    /// Whichever the lease names.
    Granted,
}

/// A name in a directory, and what it leads to; `None` for nothing.
#[derive(Clone)]
struct Entry {
    id: Option<FileId>,
    as_of: Version,
    /// Of the unit when it was learned.
    generation: u64,
    /// The last own operation on it that the MDS does not know yet.
    own: Option<u64>,
}

const BURIED_MAX: usize = 256;

/// Names of a listing that are looked up one by one before the others are asked for together.
const UNSTATED_MIN: u32 = 3;
/// How many names a path is put together from: deeper trees exist, but a label need not be whole.
const DEPTH_MAX: usize = 64;

#[derive(Default)]
struct Directory {
    /// Of the unit when something was learned last.
    generation: u64,
    names: BTreeMap<Name, Entry>,
    /// Of the unit when every name was here, or was gone for want of room.
    complete: Option<u64>,
    thinned: Thinned,
    /// When names came last, as far as they came with others.
    heard: Option<Instant>,
    /// Lookups that found a name and no attributes: whoever listed the names is asking for all.
    unstated: u32,
    /// How often a name was dropped: a listing under way does not know all names then.
    dropped: u64,
    told_names: BTreeSet<Name>,
    told_files: BTreeSet<FileId>,
}

/// When and under what something was learned.
#[derive(Clone, Copy)]
struct Basis {
    as_of: Version,
    unit: FileId,
    generation: u64,
}

#[derive(Default)]
struct Inode {
    attributes: Option<(Attributes, Basis)>,
    kind: Option<FileKind>,
    /// Times, links and version changed with an own mutation; owner and mode are still right.
    is_partial: bool,
    /// The last own operation on it that the MDS does not know yet.
    own: Option<u64>,
    /// Nothing that was read before this version is to be remembered.
    floor: Version,
    /// Of a symlink: never changes.
    target: Option<Vec<u8>>,
    xattrs: Option<(XattrsKnown, Basis)>,
    /// Where it was last seen, for messages and objects' labels.
    seen_at: Option<(FileId, Name)>,
}

/// The extended attributes of a file.
#[derive(Clone)]
pub struct XattrsKnown {
    pub list: Vec<Xattr>,
    /// `trusted.` ones are shown to root only.
    pub has_trusted: bool,
}

pub struct Tables {
    pub units: Units,
    directories: BTreeMap<FileId, Directory>,
    inodes: BTreeMap<FileId, Inode>,
    /// Directories of pinned trees: they do not make room.
    pub pinned: BTreeSet<FileId>,
    /// Directories that went here, of late, as they were: programs may be in them still.
    buried: VecDeque<Attributes>,
    /// Does any MDT have quotas?
    pub limits: Limits,
    inodes_max: usize,
    /// More files than this are too many: beyond the room for them where not enough could go.
    shrink_at: usize,
    /// A directory alone has more names than there is room for.
    is_crowded: bool,
}

impl Tables {
    pub fn new(inodes_max: usize) -> Self {
        let inodes_max = inodes_max.max(16);
        Self {
            units: Units::default(),
            directories: BTreeMap::new(),
            inodes: BTreeMap::new(),
            pinned: BTreeSet::new(),
            buried: VecDeque::new(),
            limits: Limits::default(),
            inodes_max,
            shrink_at: inodes_max,
            is_crowded: false,
        }
    }

    /// Takes note of the leases that a reply grants.
    pub fn admit(&mut self, stamp: Stamp, lease: &LeaseGrant) -> Reply {
        for &unit in &lease.units {
            self.units.grant(unit, stamp, lease.as_of);
        }
        let reply = Reply { stamp, as_of: lease.as_of };
        for unit in lease.exclusive.iter().flatten() {
            self.learn_alone(reply, lease, unit);
        }
        reply
    }

    /// The same for the reply to an own mutation in `directories`: older answers about them do not
    /// count any more.
    pub fn admit_mutation(
        &mut self,
        stamp: Stamp,
        lease: &LeaseGrant,
        directories: &[FileId],
    ) -> Reply {
        for &unit in directories {
            self.units.mutated(unit, lease.as_of);
            self.blur(unit);
        }
        self.admit(stamp, lease)
    }

    /// Remembers a file's attributes, if a lease covers them; says how far they may be believed.
    pub fn learn_attributes(
        &mut self,
        reply: Reply,
        lease: &LeaseGrant,
        under: Under,
        attributes: Attributes,
    ) -> Known {
        let id = attributes.id;
        if let Some(newer) = self.attributes_newer(id, reply.as_of) {
            return newer;
        }
        let unit = self.unit_for(reply, lease, under, &attributes);
        let Some((unit, generation)) = unit else {
            let inode = self.inodes.entry(id).or_default();
            inode.attributes = None;
            inode.floor = inode.floor.max(reply.as_of);
            return Known { attributes, belief: Belief::default() };
        };
        self.put_learned(Basis { as_of: reply.as_of, unit, generation }, attributes.clone());
        METRICS.client_inodes.set(self.inodes.len() as i64);
        self.tell_file(unit, generation, id);
        Known { attributes, belief: self.units.belief_in(unit, generation) }
    }

    fn put_learned(&mut self, basis: Basis, attributes: Attributes) {
        let inode = self.inodes.entry(attributes.id).or_default();
        inode.kind = Some(attributes.kind);
        inode.attributes = Some((attributes, basis));
        inode.is_partial = false;
    }

    fn attributes_newer(&mut self, id: FileId, as_of: Version) -> Option<Known> {
        let inode = self.inodes.get(&id)?;
        let (_, basis) = inode.attributes.as_ref()?;
        if basis.as_of > as_of || inode.own.is_some() { self.attributes(id) } else { None }
    }

    fn unit_for(
        &self,
        reply: Reply,
        lease: &LeaseGrant,
        under: Under,
        attributes: &Attributes,
    ) -> Option<(FileId, u64)> {
        let inode = self.inodes.get(&attributes.id);
        let is_known = inode.is_some_and(|inode| inode.attributes.is_some());
        let admitted = |unit: FileId| {
            let generation = self.units.generation_next(unit)?;
            let is_admitted = self.units.admits(unit, reply.stamp, reply.as_of);
            (is_admitted && (is_known || self.is_new_to(unit, reply.as_of)))
                .then_some((unit, generation))
        };
        let floor = inode.map_or(Version(0), |inode| inode.floor);
        let is_own = inode.is_some_and(|inode| inode.own.is_some());
        // What another client writes is as it was told for a moment only.
        let is_written = attributes.is_written == Some(true);
        if reply.as_of < floor || is_own || is_written {
            return None;
        }
        let own = admitted(attributes.id);
        if attributes.is_directory() || own.is_some() {
            return own;
        }
        match under {
            Under::Parent(parent) => admitted(parent),
            Under::Granted => {
                let basis = self.inodes.get(&attributes.id).and_then(|inode| inode.basis());
                let before = basis
                    .filter(|basis| self.is_good(basis))
                    .and_then(|basis| admitted(basis.unit));
                before.or_else(|| lease.units.iter().find_map(|&unit| admitted(unit)))
            }
        }
    }

    fn is_good(&self, basis: &Basis) -> bool {
        self.units.believes(basis.unit, basis.generation)
    }

    /// Attributes under a lease, whole and up to date; or as they were known last.
    pub fn attributes(&mut self, id: FileId) -> Option<Known> {
        let inode = self.inodes.get(&id)?;
        let (attributes, basis) = inode.attributes.as_ref()?;
        let is_whole = !inode.is_partial || self.units.tells_last_of(basis.unit);
        if !is_whole || !self.is_good(basis) {
            return None;
        }
        let (attributes, basis) = (attributes.clone(), *basis);
        self.units.touch(basis.unit);
        self.tell_file(basis.unit, basis.generation, id);
        let belief = Belief { units: vec![(basis.unit, basis.generation)] };
        Some(Known { attributes, belief })
    }

    /// Does what we know under a lease give `caller` what is wanted of `id`?
    pub fn allows(&self, caller: &Caller, id: FileId, wanted: u32) -> bool {
        let Some(inode) = self.inodes.get(&id) else { return false };
        inode.attributes.as_ref().is_some_and(|(attributes, basis)| {
            self.is_good(basis) && access::allows(caller, attributes, wanted)
        })
    }

    /// That anybody may look names up in a directory, whoever it is, as far as we know; resting on
    /// nothing if that is not so.
    pub fn searched_by_all(&self, directory: FileId) -> Belief {
        let known = self.inodes.get(&directory).and_then(|inode| inode.attributes.as_ref());
        let open = known.filter(|(attributes, basis)| {
            self.is_good(basis) && Rights::of(attributes).allow_everybody(SEARCH)
        });
        let units = open.map(|(_, basis)| (basis.unit, basis.generation));
        Belief { units: units.into_iter().collect() }
    }

    /// Own mutations changed times and counts of `id`: ask before telling them to anybody.
    pub fn blur(&mut self, id: FileId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.is_partial = true;
        }
    }

    pub fn forget_name(&mut self, parent: FileId, name: &Name) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            directory.drop_name(name);
        }
    }

    /// The unit that a file's attributes are believed under.
    pub fn unit_of(&self, id: FileId) -> Option<FileId> {
        self.inodes.get(&id)?.basis().map(|basis| basis.unit)
    }

    pub fn forget(&mut self, id: FileId) {
        let known = self.inodes.remove(&id).and_then(|inode| inode.attributes);
        if let Some((attributes, _)) = known.filter(|(attributes, _)| attributes.is_directory()) {
            self.buried.truncate(BURIED_MAX - 1);
            self.buried.push_front(attributes);
        }
    }

    /// What is left to say of a directory that the MDS does not know any more.
    pub fn remains(&self, id: FileId) -> Option<Attributes> {
        let buried = self.buried.iter().find(|attributes| attributes.id == id);
        let known = || self.inodes.get(&id)?.attributes.as_ref().map(|(attributes, _)| attributes);
        let last = buried.or_else(known).filter(|last| last.is_directory())?;
        Some(Attributes { links: 0, ..last.clone() })
    }

    /// Remembers what a name leads to, if a lease covers it.
    pub fn learn_name(
        &mut self,
        reply: Reply,
        parent: FileId,
        name: &Name,
        id: Option<FileId>,
    ) -> Belief {
        let belief = self.learn_name_untold(reply, parent, name, id);
        if !belief.units.is_empty()
            && let Some(directory) = self.directories.get_mut(&parent)
        {
            directory.told_names.insert(name.clone());
            self.grew(parent);
        }
        belief
    }

    /// The same of a name that no door was told.
    fn learn_name_untold(
        &mut self,
        reply: Reply,
        parent: FileId,
        name: &Name,
        id: Option<FileId>,
    ) -> Belief {
        if self.is_own_name(parent, name) {
            return Belief::default();
        }
        let is_admitted = self.units.admits(parent, reply.stamp, reply.as_of);
        let Some(generation) = self.units.generation_next(parent).filter(|_| is_admitted) else {
            // Not to be remembered; what it contradicts is not to be remembered either.
            if let Some(directory) = self.directories.get_mut(&parent)
                && directory.names.get(name).is_some_and(|entry| entry.as_of <= reply.as_of)
            {
                directory.drop_name(name);
            }
            return Belief::default();
        };
        let directory = self.directories.entry(parent).or_default();
        directory.renew(generation);
        let before = directory.names.get(name).filter(|entry| entry.generation == generation);
        let is_newer = match before {
            Some(entry) => entry.as_of <= reply.as_of,
            None => directory.thinned.admits(name, reply.as_of),
        };
        if !is_newer {
            return Belief::default();
        }
        let entry = Entry { id, as_of: reply.as_of, generation, own: None };
        directory.put(name, entry);
        if let Some(id) = id {
            self.inodes.entry(id).or_default().seen_at = Some((parent, name.clone()));
        }
        self.grew(parent);
        self.units.belief_in(parent, generation)
    }

    /// What a name leads to, under a lease: `Some(None)` if it surely leads nowhere.
    pub fn name(&mut self, parent: FileId, name: &Name) -> Option<(Option<FileId>, Belief)> {
        let generation = self.units.generation(parent)?;
        let is_good = |generation: u64| self.units.believes(parent, generation);
        let directory = self.directories.get_mut(&parent)?;
        let id = match directory.names.get(name) {
            Some(entry) if is_good(entry.generation) => entry.id,
            None if directory.complete.is_some_and(is_good) && !directory.thinned.has(name) => None,
            _ => return None,
        };
        directory.told_names.insert(name.clone());
        self.units.touch(parent);
        self.grew(parent);
        Some((id, Belief { units: vec![(parent, generation)] }))
    }

    /// Where a directory stands, if a name there surely leads to it.
    pub fn parent(&mut self, id: FileId) -> Option<FileId> {
        let (parent, name) = self.inodes.get(&id)?.seen_at.clone()?;
        let (found, _) = self.name(parent, &name)?;
        (found == Some(id)).then_some(parent)
    }

    /// Where a directory is, if that is known.
    pub fn place_of(&mut self, id: FileId) -> Option<(FileId, Name)> {
        let parent = self.parent(id)?;
        let (_, name) = self.inodes.get(&id)?.seen_at.clone()?;
        Some((parent, name))
    }

    /// A name is looked up that is known by a listing without attributes, or that was. If it is not
    /// the first, others will be: says after which name a page of the directory brings it. `None`:
    /// ask for it alone.
    pub fn page_before(&mut self, parent: FileId, name: &Name) -> Option<Option<Name>> {
        if self.name(parent, name).is_none() {
            return self.gone_after(parent, name);
        }
        self.unstated_after(parent, name)
    }

    fn unstated_after(&mut self, parent: FileId, name: &Name) -> Option<Option<Name>> {
        self.name(parent, name)?.0?;
        let directory = self.directories.get_mut(&parent)?;
        directory.unstated = directory.unstated.saturating_add(1);
        if directory.unstated < UNSTATED_MIN {
            return None;
        }
        let before = directory.names.range::<Name, _>((Bound::Unbounded, Bound::Excluded(name)));
        Some(before.map(|(name, _)| name.clone()).next_back())
    }

    /// May `caller` look names up in `parent`, as far as we know?
    pub fn may_search(&self, caller: &Caller, parent: FileId) -> bool {
        self.allows(caller, parent, SEARCH)
    }

    /// What a listing goes on: its pages belong together while this stays the same. `None`: there
    /// is no lease, nor what was said of one.
    pub fn listing_mark(&self, parent: FileId) -> Option<ListingMark> {
        let generation = self.units.generation_next(parent)?;
        let directory = self.directories.get(&parent).filter(|one| one.generation == generation);
        Some(ListingMark { generation, dropped: directory.map_or(0, |one| one.dropped) })
    }

    /// Every name of a directory was learned, from the first page on under the same lease.
    pub fn learn_complete(&mut self, parent: FileId, mark: ListingMark) {
        if self.listing_mark(parent) == Some(mark)
            && let Some(directory) = self.directories.get_mut(&parent)
            && directory.generation == mark.generation
        {
            let is_named = |entry: &Entry| entry.generation == mark.generation;
            directory.names.retain(|_, entry| is_named(entry));
            directory.thinned.complete(mark.generation);
            directory.complete = Some(mark.generation);
            directory.heard = Some(Instant::now());
        }
    }

    /// Names of a directory after one, at most `limit`, if they are all known under a lease.
    pub fn listing(
        &mut self,
        parent: FileId,
        after: Option<&Name>,
        limit: usize,
    ) -> Option<Vec<(Name, FileId)>> {
        if !self.is_complete(parent) {
            return None;
        }
        self.units.touch(parent);
        let directory = self.directories.get(&parent)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = directory.names.range::<Name, _>((from, Bound::Unbounded));
        let real = rest.filter_map(|(name, entry)| Some((name.clone(), entry.id?)));
        Some(real.take(limit).collect())
    }

    /// A file's kind never changes.
    pub fn learn_kind(&mut self, id: FileId, kind: FileKind) {
        self.inodes.entry(id).or_default().kind = Some(kind);
    }

    pub fn kind(&self, id: FileId) -> Option<FileKind> {
        self.inodes.get(&id)?.kind
    }

    pub fn learn_target(&mut self, id: FileId, target: Vec<u8>) {
        self.inodes.entry(id).or_default().target = Some(target);
    }

    pub fn target(&self, id: FileId) -> Option<Vec<u8>> {
        self.inodes.get(&id)?.target.clone()
    }

    /// Remembers all extended attributes of a file whose attributes are believed.
    pub fn learn_xattrs(&mut self, reply: Reply, id: FileId, xattrs: XattrsKnown) {
        let Some(inode) = self.inodes.get(&id) else { return };
        let is_known = |basis: &Basis| self.is_good(basis) || self.units.is_in_doubt(basis.unit);
        let Some(basis) = inode.basis().filter(is_known) else { return };
        if !self.units.admits(basis.unit, reply.stamp, reply.as_of) {
            return;
        }
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.xattrs = Some((xattrs, Basis { as_of: reply.as_of, ..basis }));
        }
    }

    pub fn xattrs(&self, id: FileId) -> Option<XattrsKnown> {
        let inode = self.inodes.get(&id)?;
        let has_none = |(attributes, basis): &(Attributes, Basis)| {
            attributes.has_xattrs == Some(false) && self.is_good(basis)
        };
        if inode.attributes.as_ref().is_some_and(has_none) {
            return Some(XattrsKnown { list: Vec::new(), has_trusted: true });
        }
        let (known, basis) = inode.xattrs.as_ref()?;
        self.is_good(basis).then(|| known.clone())
    }

    pub fn forget_xattrs(&mut self, id: FileId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.xattrs = None;
        }
    }

    /// The path of a file within the file system, as far as it was seen.
    pub fn path(&self, id: FileId) -> Vec<u8> {
        let (mut names, _) = self.way(id);
        names.reverse();
        names.join(&b'/')
    }

    /// The lowest directory above a file (or itself) of which it is not known where it is, as far
    /// as a path goes.
    pub fn unplaced(&self, id: FileId) -> Option<FileId> {
        let (names, at) = self.way(id);
        (names.len() < DEPTH_MAX && !at.is_root()).then_some(at)
    }

    /// The names from a file upwards, and where they end.
    fn way(&self, id: FileId) -> (Vec<&[u8]>, FileId) {
        let mut names = Vec::new();
        let mut at = id;
        while names.len() < DEPTH_MAX
            && let Some((parent, name)) = self.inodes.get(&at).and_then(|one| one.seen_at.as_ref())
        {
            names.push(name.as_bytes());
            at = *parent;
        }
        (names, at)
    }

    /// Where something was seen, for messages and labels.
    pub fn seen(&mut self, id: FileId, parent: FileId, name: Name) {
        self.inodes.entry(id).or_default().seen_at.get_or_insert((parent, name));
    }

    fn tell_file(&mut self, unit: FileId, generation: u64, id: FileId) {
        let directory = self.directories.entry(unit).or_default();
        directory.renew(generation);
        directory.told_files.insert(id);
        self.grew(unit);
    }
}

impl Directory {
    /// All names: those behind one first, then it and those before it.
    fn round(&self, place: Option<&Name>) -> impl Iterator<Item = (&Name, &Entry)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.names.range::<Name, _>((from, Bound::Unbounded));
        let before = place.map(|place| self.names.range::<Name, _>(..=place));
        behind.chain(before.into_iter().flatten())
    }

    fn put(&mut self, name: &Name, entry: Entry) {
        self.names.insert(name.clone(), entry);
        self.thinned.settle(name);
    }

    fn drop_name(&mut self, name: &Name) {
        self.names.remove(name);
        self.thinned.settle(name);
        self.complete = None;
        self.dropped += 1;
    }

    /// Names of an earlier generation stay for when the server is away; what was told stays told.
    fn renew(&mut self, generation: u64) {
        if self.generation < generation {
            self.generation = generation;
            self.unstated = 0;
        }
    }
}

impl Inode {
    fn basis(&self) -> Option<Basis> {
        self.attributes.as_ref().map(|(_, basis)| *basis)
    }
}
