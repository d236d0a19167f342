//! What the kernel knows: nodes, and how often it was told of each.
//!
//! A node's number is the file's id, so there is little to keep. Counts say of which files the
//! kernel may have cached something: nothing is invalidated for others. The mounted directory must
//! be node 1 to the kernel; where it is not file 1, the two change places.
//!
//! Of files with setuid or setgid that is kept too. The file system clears those when others write
//! (init.rs), and the kernel must then not believe the old mode: it starts programs by it.
//!
//! Invariant: a count is raised before the reply that tells of the node is written.

use crate::abi::ROOT_NODE;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{Attributes, FileId, FileKind, Mode};

/// Shared by all of a mount's threads.
pub struct Nodes {
    root: FileId,
    /// Bounded by the kernel's own inode cache, which forgets under memory pressure.
    known: Mutex<HashMap<FileId, Node>>,
    /// An earlier process told the kernel of nodes too: it may know any.
    is_taken: bool,
}

#[derive(Default)]
struct Node {
    lookups: u64,
    /// The kernel was told a mode that others' writes end.
    is_privileged: bool,
}

/// Setuid and setgid: what ends when somebody else writes.
fn is_privileged(attributes: &Attributes) -> bool {
    let mode = attributes.mode;
    let has_any = mode.has(Mode::SETUID) || mode.has(Mode::SETGID);
    has_any && attributes.kind == FileKind::Regular
}

impl Nodes {
    pub fn new(root: FileId) -> Self {
        Self { root, known: Mutex::default(), is_taken: false }
    }

    /// Of a mount that an earlier process served.
    pub fn taken(root: FileId) -> Self {
        Self { is_taken: true, ..Self::new(root) }
    }

    /// The kernel's number of a file.
    pub fn node_of(&self, id: FileId) -> u64 {
        self.swap(id.0)
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
        let node = known.entry(attributes.id).or_default();
        node.lookups += 1;
        node.is_privileged = is_privileged(attributes);
    }

    /// The kernel is about to be told its attributes.
    pub fn see(&self, attributes: &Attributes) {
        if let Some(node) = self.lock().get_mut(&attributes.id) {
            node.is_privileged = is_privileged(attributes);
        }
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
    use tieline_types::{Gid, Time, Uid, Version};

    fn attributes(id: u64, mode: u32) -> Attributes {
        let time = Time::default();
        Attributes {
            id: FileId(id),
            kind: FileKind::Regular,
            mode: Mode::new(mode),
            links: 1,
            uid: Uid(0),
            gid: Gid(0),
            size: 0,
            stored: 0,
            device: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: Version(1),
            has_xattrs: None,
            acls: None,
            project: None,
            is_written: None,
        }
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
