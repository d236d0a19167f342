//! Where a tree is cut into catalogs: at directories that ask for it, and where one would have too
//! many entries.

use crate::tree::{Item, Tree};
use std::collections::BTreeSet;
use std::io;
use tieline_types::FileKind;

/// A file of this name asks for a catalog of its directory.
pub const MARKER: &[u8] = b".cvmfscatalog";
/// And this one says that nobody asked for it.
pub const MARKER_OWN: &[u8] = b".cvmfsautocatalog";
/// Deeper trees are not walked.
pub const DEPTH_MAX: usize = 1024;

/// When a catalog has too many entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// More than this are divided, where directories allow it.
    pub most: u64,
    /// Fewer are not worth a catalog.
    pub least: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { most: 100_000, least: 1_000 }
    }
}

/// The directories that get a catalog of their own although nobody asked for one.
pub fn divided(tree: &mut dyn Tree, limits: Limits) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut planner = Planner { tree, limits, divided: BTreeSet::new() };
    planner.weigh(b"", 0)?;
    Ok(planner.divided)
}

struct Planner<'t> {
    tree: &'t mut dyn Tree,
    limits: Limits,
    divided: BTreeSet<Vec<u8>>,
}

impl Planner<'_> {
    /// How many entries a directory brings into the catalog above it.
    fn weigh(&mut self, path: &[u8], depth: usize) -> io::Result<u64> {
        let items = self.tree.list(path)?;
        if depth > DEPTH_MAX {
            return Err(too_deep(path));
        }
        let (mut weight, mut below) = (items.len() as u64, Vec::new());
        for item in items.iter().filter(|item| item.kind == FileKind::Directory) {
            let path = [path, b"/", &item.name].concat();
            let own = self.weigh(&path, depth + 1)?;
            weight += own;
            below.push((own, path));
        }
        below.sort();
        while weight > self.limits.most
            && let Some((own, path)) = below.pop()
            && own >= self.limits.least.max(1)
        {
            weight -= own;
            self.divided.insert(path);
        }
        Ok(if is_marked(&items) { 0 } else { weight })
    }
}

/// Does a directory ask for a catalog of its own?
pub fn is_marked(items: &[Item]) -> bool {
    items.iter().any(|item| item.name == MARKER && item.kind == FileKind::Regular)
}

pub fn too_deep(path: &[u8]) -> io::Error {
    let path = String::from_utf8_lossy(path).chars().take(80).collect::<String>();
    io::Error::other(format!("{path}…: more than {DEPTH_MAX} directories deep"))
}
