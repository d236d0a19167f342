//! What the kernel knows: nodes, and how often it was told of each.
//!
//! A node's number is the file's id, so there is little to keep. Counts say of which files the
//! kernel may have cached something: nothing is invalidated for others. The mounted directory must
//! be node 1 to the kernel; where it is not file 1, the two change places.
//!
//! Of files with setuid or setgid that is kept too. The file system clears those when others write
//! (init.rs), and the kernel must then not believe the old mode: it starts programs by it. And so
//! is the size that it was told, by which it fills up what is shorter (cuts.rs).
//!
//! What the kernel has nothing of need not be forgotten, and must not: it drops each answer during
//! which it is told to forget ([`Nodes::doubt`]), so that a file that is written elsewhere all the
//! time would keep its size here for ever.
//!
//! Invariant: a count is raised before the reply that tells of the node is written.

use crate::abi::ROOT_NODE;
use crate::abi::outgoing::NodeNumber;
use crate::answer::Trust;
use crate::numbers::Numbers;
use crate::places::{Place, Places};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_files::Belief;
use tieline_types::{Attributes, FileId, FileKind, Mode};
use tokio::time::Instant;

/// Shared by all of a mount's threads.
pub struct Nodes {
    root: FileId,
    /// Bounded by the kernel's own inode cache, which forgets under memory pressure.
    known: Mutex<HashMap<FileId, Node>>,
    pub places: Places,
    /// An earlier process told the kernel of nodes too: it may know any.
    is_taken: bool,
    asks_for_directories: bool,
    numbers: Numbers,
}

#[derive(Default)]
struct Node {
    lookups: u64,
    /// The kernel was told a mode that others' writes end.
    is_privileged: bool,
    told: Told,
    /// Until then the kernel is about to put an answer about the file's end to use.
    ending: Option<Instant>,
    /// What it takes for the size at least, whatever answers it drops.
    sure: u64,
    /// When it was told to doubt what it had.
    doubted: Option<Instant>,
    attributes: Given,
    pages: Given,
}

/// How long a kernel takes to put an answer to use: it drops one during which it is told to forget.
const PUT_TO_USE: Duration = Duration::from_millis(3);

/// Far longer than a question waits in a busy kernel and here: who asks so soon after a doubt may
/// have asked before it.
const DOUBTED_LATELY: Duration = Duration::from_secs(10);

/// What the kernel was told of a file's size: that, and how often not to believe it any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// The largest that it may take for the size.
    pub size: u64,
    pub doubts: u32,
}

/// How often the kernel was given something to keep, and up to which time it has forgotten that.
#[derive(Clone, Copy, Default, Debug)]
struct Given {
    times: u64,
    forgotten: u64,
}

impl Given {
    fn is_there(self) -> bool {
        self.times > self.forgotten
    }
}

/// What is about to be forgotten: all that was given up to then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Doubted {
    attributes: u64,
    pages: u64,
}

impl Node {
    /// An earlier process may have given the kernel anything.
    fn new(is_taken: bool) -> Self {
        let given = Given { times: u64::from(is_taken), forgotten: 0 };
        Self { attributes: given, pages: given, ..Self::default() }
    }

    /// `before`: as of the request, if that is known. The kernel drops the answer if it was told to
    /// doubt since.
    fn tell(&mut self, attributes: &Attributes, before: Option<Told>) {
        self.is_privileged = is_privileged(attributes);
        let is_believed = before.is_some_and(|before| before.doubts == self.told.doubts);
        let least = if is_believed { 0 } else { self.told.size };
        self.told.size = attributes.size.max(least);
        self.sure = self.sure.min(attributes.size);
    }

    fn is_doubted_lately(&self) -> bool {
        self.doubted.is_some_and(|at| at.elapsed() < DOUBTED_LATELY)
    }
}

/// Setuid and setgid: what ends when somebody else writes.
fn is_privileged(attributes: &Attributes) -> bool {
    let mode = attributes.mode;
    let has_any = mode.has(Mode::SETUID) || mode.has(Mode::SETGID);
    has_any && attributes.kind == FileKind::Regular
}

impl Nodes {
    pub fn new(root: FileId) -> Self {
        let (known, places) = Default::default();
        let numbers = Numbers::new(false);
        Self { root, known, places, is_taken: false, asks_for_directories: false, numbers }
    }

    /// With such numbers for programs.
    pub fn showing(self, numbers: Numbers) -> Self {
        Self { numbers, ..self }
    }

    /// For a kernel that can only drop names, and not let them run out.
    pub fn asking_for_directories(self, asks: bool) -> Self {
        Self { asks_for_directories: asks, ..self }
    }

    /// A name of a directory is not believed where it could only be dropped: somebody may stand in
    /// it.
    pub fn trust(&self, attributes: &Attributes, trust: Trust) -> Trust {
        let is_asked = self.asks_for_directories && attributes.kind == FileKind::Directory;
        if is_asked { trust.without_name() } else { trust }
    }

    /// That a directory is gone is not believed there either: until it is found elsewhere its name
    /// counts as that of a directory, and the kernel would not be told that it is back.
    pub fn believed_absence(&self, had_directory: bool, absence: Belief) -> Belief {
        if self.asks_for_directories && had_directory { Belief::default() } else { absence }
    }

    /// Of a mount that an earlier process served.
    pub fn taken(root: FileId) -> Self {
        Self { is_taken: true, ..Self::new(root) }
    }

    /// Is it the mounted directory?
    pub fn is_root(&self, id: FileId) -> bool {
        id == self.root
    }

    /// The kernel's number of a file.
    pub fn node_of(&self, id: FileId) -> u64 {
        self.swap(id.0)
    }

    /// The number by which programs know the file.
    pub fn shown(&self, id: FileId) -> u64 {
        self.numbers.of(id)
    }

    pub fn number_of(&self, id: FileId) -> NodeNumber {
        NodeNumber { node: self.node_of(id), shown: self.shown(id) }
    }

    /// The file that the kernel means.
    pub fn id_of(&self, node: u64) -> FileId {
        FileId(self.swap(node))
    }

    fn swap(&self, number: u64) -> u64 {
        match number {
            ROOT_NODE => self.root.0,
            root if root == self.root.0 => ROOT_NODE,
            other => other,
        }
    }

    /// The kernel is about to be told of it once more.
    pub fn remember(&self, attributes: &Attributes) {
        let mut known = self.lock();
        let node = known.entry(attributes.id).or_insert_with(|| {
            // A kernel that has nothing of it drops nothing.
            let sure = if self.is_taken { 0 } else { attributes.size };
            Node { sure, ..Node::new(self.is_taken) }
        });
        node.lookups += 1;
        node.tell(attributes, None);
    }

    /// A directory of which the kernel is told stands at that name. Says which other one did.
    pub fn place(&self, directory: FileId, place: Place) -> Option<(FileId, Place)> {
        let known = self.lock();
        known.contains_key(&directory).then(|| self.places.put(directory, place)).flatten()
    }

    /// The kernel is about to be told its attributes, for which it asked when it had been told
    /// that.
    pub fn tell(&self, attributes: &Attributes, before: Option<Told>) {
        if let Some(node) = self.lock().get_mut(&attributes.id) {
            node.tell(attributes, before);
        }
    }

    /// These are a file's attributes, which the kernel is not told. An open may have cut it.
    pub fn see(&self, attributes: &Attributes) {
        if let Some(node) = self.lock().get_mut(&attributes.id) {
            node.is_privileged = is_privileged(attributes);
            node.sure = node.sure.min(attributes.size);
        }
    }

    /// The kernel is given attributes of these to keep, or was just now. To be called before and
    /// after: a doubt in between may have come too early, or have ended them.
    pub fn give_attributes(&self, ids: &[FileId]) {
        let mut known = self.lock();
        for id in ids {
            if let Some(node) = known.get_mut(id) {
                node.attributes.times += 1;
            }
        }
    }

    /// The kernel asks for pages of it, or has written some: it has them locked until then. Says
    /// what it was told of the file's size, if anything.
    pub fn give_pages(&self, id: FileId) -> Option<Told> {
        let mut known = self.lock();
        let node = known.get_mut(&id)?;
        node.pages.times += 1;
        Some(node.told)
    }

    /// The kernel is about to be told that the file is so long, which a read waits for. Nothing is
    /// doubted until it has put that to use. `false`: it may drop the answer, since it was told to
    /// doubt after it asked, or perhaps after.
    pub fn end_told(&self, id: FileId, before: Option<Told>, size: u64) -> bool {
        let mut known = self.lock();
        let Some(node) = known.get_mut(&id) else { return true };
        let is_same = before.is_some_and(|before| before.doubts == node.told.doubts);
        let is_used = is_same && !node.is_doubted_lately();
        node.ending = is_used.then(|| Instant::now() + PUT_TO_USE);
        is_used || size <= node.sure
    }

    /// The kernel has taken that the file is so long at least.
    pub fn end_taken(&self, id: FileId, size: u64) {
        if let Some(node) = self.lock().get_mut(&id) {
            node.sure = node.sure.max(size);
        }
    }

    /// May the kernel have pages of it?
    pub fn has_pages(&self, id: FileId) -> bool {
        self.lock().get(&id).is_none_or(|node| node.pages.is_there())
    }

    /// The same when the kernel has put to use what it was told of the file's end; until then.
    pub fn doubt_after_end(
        &self,
        id: FileId,
        with_pages: bool,
    ) -> Result<Option<Doubted>, Instant> {
        let mut known = self.lock();
        let ending = known.get(&id).and_then(|node| node.ending);
        match ending.filter(|until| *until > Instant::now()) {
            Some(until) => Err(until),
            None => Ok(Self::doubt_in(&mut known, id, with_pages)),
        }
    }

    /// Has the kernel any of it to forget? If so it is about to be told.
    pub fn doubt(&self, id: FileId, with_pages: bool) -> Option<Doubted> {
        Self::doubt_in(&mut self.lock(), id, with_pages)
    }

    fn doubt_in(
        known: &mut HashMap<FileId, Node>,
        id: FileId,
        with_pages: bool,
    ) -> Option<Doubted> {
        // Of what is not known here, it may.
        let Some(node) = known.get_mut(&id) else { return Some(Doubted::default()) };
        if !(node.attributes.is_there() || with_pages && node.pages.is_there()) {
            return None;
        }
        node.told.doubts = node.told.doubts.wrapping_add(1);
        node.doubted = Some(Instant::now());
        let pages = if with_pages { node.pages.times } else { 0 };
        Some(Doubted { attributes: node.attributes.times, pages })
    }

    /// The kernel has forgotten that.
    pub fn forgotten(&self, id: FileId, doubted: Doubted) {
        if let Some(node) = self.lock().get_mut(&id) {
            let Node { attributes, pages, .. } = node;
            attributes.forgotten = attributes.forgotten.max(doubted.attributes);
            pages.forgotten = pages.forgotten.max(doubted.pages);
        }
    }

    /// What the kernel was told of a file's size, if anything.
    pub fn told(&self, id: FileId) -> Option<Told> {
        self.lock().get(&id).map(|node| node.told)
    }

    /// Does the kernel believe that the file has setuid or setgid?
    pub fn is_privileged(&self, id: FileId) -> bool {
        self.lock().get(&id).map_or(self.is_taken, |node| node.is_privileged)
    }

    /// The kernel dropped that many references.
    pub fn forget(&self, id: FileId, lookups: u64) {
        let mut known = self.lock();
        if let Some(node) = known.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                known.remove(&id);
                self.places.remove(id);
            }
        }
    }

    pub fn is_known(&self, id: FileId) -> bool {
        id == self.root || self.is_taken || self.lock().contains_key(&id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Node>> {
        // Nothing panics while the lock is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Time;

    fn attributes(id: u64, mode: u32) -> Attributes {
        Attributes::new(FileId(id), FileKind::Regular, Mode::new(mode), Time::default())
    }

    #[test]
    fn privileges_are_setuid_and_setgid_of_files() {
        let nodes = Nodes::new(FileId(1));
        let told = |mode| {
            nodes.remember(&attributes(9, mode));
            nodes.is_privileged(FileId(9))
        };
        assert!(told(0o4711) && told(0o6755) && told(0o2755));
        assert!(!told(0o755) && told(0o2644), "who is not in the group ends that, too");
        nodes.see(&attributes(9, 0o4711));
        assert!(nodes.is_privileged(FileId(9)) && !nodes.is_privileged(FileId(3)));
    }

    #[test]
    fn nothing_is_doubted_that_the_kernel_does_not_have() {
        let (nodes, file) = (Nodes::new(FileId(1)), FileId(9));
        nodes.remember(&attributes(9, 0o644));
        assert_eq!((nodes.doubt(file, true), nodes.doubt(file, false)), (None, None));
        nodes.give_attributes(&[file]);
        let first = nodes.doubt(file, true).unwrap();
        nodes.give_pages(file);
        nodes.forgotten(file, first);
        assert_eq!(nodes.doubt(file, false), None);
        // What came while the kernel forgot is there still.
        let second = nodes.doubt(file, true).unwrap();
        assert!(nodes.doubt(file, true).is_some(), "it has not forgotten yet");
        nodes.forgotten(file, second);
        assert_eq!(nodes.doubt(file, true), None);
        // An earlier process may have given it anything; so may we of what we do not know.
        let taken = Nodes::taken(FileId(1));
        taken.remember(&attributes(9, 0o644));
        assert!(taken.doubt(file, true).is_some() && nodes.doubt(FileId(10), true).is_some());
    }

    #[test]
    fn a_size_that_the_kernel_does_not_take_may_not_be_what_it_has() {
        let (nodes, file) = (Nodes::new(FileId(1)), FileId(9));
        let told = |size| Attributes { size, ..attributes(9, 0o644) };
        nodes.remember(&told(100));
        let before = nodes.told(file);
        nodes.tell(&told(50), before);
        assert_eq!(nodes.told(file).unwrap().size, 50);
        nodes.give_pages(file);
        nodes.doubt(file, true).unwrap();
        nodes.tell(&told(20), before);
        assert_eq!(nodes.told(file).unwrap().size, 50);
        nodes.tell(&told(70), before);
        assert_eq!(nodes.told(file).unwrap().size, 70);
    }

    #[test]
    fn an_end_that_the_kernel_may_drop_is_not_taken_for_told() {
        let (nodes, file) = (Nodes::new(FileId(1)), FileId(9));
        let told = |size| Attributes { size, ..attributes(9, 0o644) };
        nodes.remember(&told(100));
        let now = || nodes.told(file);
        assert!(nodes.end_told(file, now(), 200), "nothing was doubted");
        let before = now();
        nodes.give_attributes(&[file]);
        nodes.doubt(file, false).unwrap();
        assert!(!nodes.end_told(file, before, 200), "doubted since");
        assert!(!nodes.end_told(file, now(), 200), "the question may be older than that");
        assert!(nodes.end_told(file, now(), 100), "it has known that from the first");
        nodes.end_taken(file, 200);
        assert!(nodes.end_told(file, now(), 200) && !nodes.end_told(file, now(), 201));
        // Cut, it may grow again.
        nodes.see(&told(50));
        assert!(nodes.end_told(file, now(), 50) && !nodes.end_told(file, now(), 200));
        nodes.end_taken(file, 200);
        nodes.tell(&told(70), now());
        assert!(!nodes.end_told(file, now(), 200));
    }

    #[test]
    fn the_mounted_directory_is_node_one() {
        let below = Nodes::new(FileId(77));
        assert_eq!((below.node_of(FileId(77)), below.id_of(1)), (1, FileId(77)));
        assert_eq!((below.node_of(FileId(1)), below.id_of(77)), (77, FileId(1)));
        assert_eq!((below.node_of(FileId(5)), below.id_of(5)), (5, FileId(5)));
        let top = Nodes::new(FileId(1));
        assert_eq!((top.node_of(FileId(1)), top.id_of(1)), (1, FileId(1)));
    }

    #[test]
    fn a_node_is_known_until_every_lookup_is_forgotten() {
        let nodes = Nodes::new(FileId(1));
        assert!(nodes.is_known(FileId(1)) && !nodes.is_known(FileId(9)));
        let file = attributes(9, 0o644);
        nodes.remember(&file);
        nodes.remember(&file);
        nodes.forget(FileId(9), 1);
        assert!(nodes.is_known(FileId(9)));
        nodes.forget(FileId(9), 7);
        assert!(!nodes.is_known(FileId(9)));
    }
}
