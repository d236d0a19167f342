//! What was put down of directories once (whoever pins trees), for times without their server.
//!
//! Invariant: it fills what is not known here any more, and takes the place of nothing that is; it
//! is told only while the server is away.

use super::{Basis, Entry, Tables};
use tieline_types::{Attributes, FileId, ServerNumber};
use tieline_wire::meta::DirectoryEntry;

impl Tables {
    /// Takes what was put down of a directory; `is_complete`: these are all its names.
    pub fn put_last(
        &mut self,
        server: ServerNumber,
        attributes: Attributes,
        (entries, is_complete): (Vec<DirectoryEntry>, bool),
    ) {
        let unit = attributes.id;
        let (generation, as_of) = self.units.hold_last(unit, server);
        let basis = Basis { as_of, unit, generation };
        self.put_attributes_last(basis, attributes);
        let directory = self.directories.entry(unit).or_default();
        for one in &entries {
            let entry = Entry { id: Some(one.id), as_of, generation, own: None };
            directory.names.entry(one.name.clone()).or_insert(entry);
        }
        if is_complete {
            directory.complete.get_or_insert(generation);
        }
        for one in entries {
            let inode = self.inodes.entry(one.id).or_default();
            inode.seen_at.get_or_insert((unit, one.name));
            inode.kind = Some(one.kind);
            inode.target = one.target.or(inode.target.take());
            if let Some(attributes) = one.attributes {
                self.put_attributes_last(basis, attributes);
            }
        }
    }

    fn put_attributes_last(&mut self, basis: Basis, attributes: Attributes) {
        let inode = self.inodes.get(&attributes.id);
        let is_known = inode.is_some_and(|inode| {
            let known = inode.basis();
            inode.own.is_some()
                || known.is_some_and(|known| self.units.keeps(known.unit, known.generation))
        });
        if !is_known {
            self.put_learned(basis, attributes);
        }
    }

    /// Is all of a directory known, at least for when its server is away?
    pub fn keeps_complete(&self, unit: FileId) -> bool {
        let whole = self.directories.get(&unit).filter(|one| one.thinned.is_empty());
        let complete = whole.and_then(|one| one.complete);
        complete.is_some_and(|generation| self.units.keeps(unit, generation))
    }
}
