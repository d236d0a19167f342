//! A tree that nobody changes: names, kinds and sizes, numbered as they were put in.

use std::collections::BTreeMap;
use tieline_types::Name;

/// The root's number.
pub const ROOT: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Directory,
    File { size: u64 },
    Symlink,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub parent: usize,
    pub name: Option<Name>,
    pub names: BTreeMap<Name, usize>,
    /// Counts up when its bytes become others.
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        let names = BTreeMap::new();
        let root = Node { kind: Kind::Directory, parent: ROOT, name: None, names, version: 1 };
        Self { nodes: vec![root] }
    }
}

impl Tree {
    pub fn add(&mut self, parent: usize, name: &Name, kind: Kind) -> usize {
        let number = self.nodes.len();
        let names = BTreeMap::new();
        self.nodes.push(Node { kind, parent, name: Some(name.clone()), names, version: 1 });
        self.nodes[parent].names.insert(name.clone(), number);
        number
    }

    /// Puts a whole tree below a name; gives what is to be added to its numbers. Its root becomes
    /// the directory of that name.
    pub fn graft(&mut self, name: &Name, other: &Self) -> usize {
        let added = self.nodes.len();
        for node in &other.nodes {
            let names = node.names.iter().map(|(name, at)| (name.clone(), at + added)).collect();
            self.nodes.push(Node { parent: node.parent + added, names, ..node.clone() });
        }
        self.nodes[added].parent = ROOT;
        self.nodes[added].name = Some(name.clone());
        self.nodes[ROOT].names.insert(name.clone(), added);
        added
    }

    pub fn size(&self, number: usize) -> u64 {
        match self.nodes[number].kind {
            Kind::File { size } => size,
            Kind::Directory | Kind::Symlink => 0,
        }
    }

    /// From the root down to it.
    pub fn way_to(&self, number: usize) -> Vec<usize> {
        let mut way = vec![];
        let mut at = number;
        while at != ROOT {
            way.push(at);
            at = self.nodes[at].parent;
        }
        way.reverse();
        way
    }

    pub fn files(&self) -> impl Iterator<Item = usize> {
        let all = self.nodes.iter().enumerate();
        all.filter(|(_, node)| matches!(node.kind, Kind::File { .. })).map(|(number, _)| number)
    }
}
