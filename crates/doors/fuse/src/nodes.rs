//! What the kernel knows: nodes, and how often it was told of each.
//!
//! A node's number is the file's id, so there is little to keep. Counts say of which files the
//! kernel may have cached something: nothing is invalidated for others. The mounted directory must
//! be node 1 to the kernel; where it is not file 1, the two change places.
//!
//! Modes with setuid or setgid are kept too: the kernel leaves it to us to clear them when others
//! write (init.rs), and nobody should ask an MDS before every write for that.
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
}

#[derive(Default)]
struct Node {
    lookups: u64,
    /// The mode that the kernel was told last, if it has privileges that others' writes end.
    privileged: Option<Mode>,
}

/// Setuid, and setgid where the group may execute: what ends when somebody else writes.
fn privileged(attributes: &Attributes) -> Option<Mode> {
    let mode = attributes.mode;
    let is_privileged = mode.has(Mode::SETUID) || mode.has(Mode::SETGID | GROUP_EXECUTES);
    (is_privileged && attributes.kind == FileKind::Regular).then_some(mode)
}

const GROUP_EXECUTES: u32 = 0o010;

impl Nodes {
    pub fn new(root: FileId) -> Self {
        Self { root, known: Mutex::default() }
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
        node.privileged = privileged(attributes);
    }

    /// The kernel is about to be told its attributes.
    pub fn see(&self, attributes: &Attributes) {
        if let Some(node) = self.lock().get_mut(&attributes.id) {
            node.privileged = privileged(attributes);
        }
    }

    /// The mode a file shall have after somebody wrote to it who may not keep setuid and setgid, if
    /// it has any.
    pub fn mode_without_privileges(&self, id: FileId) -> Option<Mode> {
        let mode = self.lock().get(&id)?.privileged?;
        let setgid = if mode.has(GROUP_EXECUTES) { Mode::SETGID } else { 0 };
        Some(mode.without(Mode::SETUID | setgid))
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
        id == self.root || self.lock().contains_key(&id)
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
        }
    }

    #[test]
    fn privileges_end_as_the_kernel_would_end_them() {
        let nodes = Nodes::new(FileId(1));
        let after = |mode| {
            nodes.remember(&attributes(9, mode));
            nodes.mode_without_privileges(FileId(9)).map(Mode::bits)
        };
        assert_eq!(after(0o6755), Some(0o755));
        assert_eq!(after(0o4711), Some(0o711));
        assert_eq!(after(0o2644), None, "mandatory locking's mark stays");
        assert_eq!(after(0o755), None);
        assert_eq!(nodes.mode_without_privileges(FileId(3)), None);
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
