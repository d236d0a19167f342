//! Files of exposed pools as changes see them: each change is noted, in its transaction, and one
//! that gives other bytes to a name is told apart: it waits until the old ones are taken away.
//!
//! Who follows the notes is somebody else.
//!
//! Invariant: no change of a file that its pool exposes commits without a note.

use crate::error::Result;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::map::FederationMap;
use tieline_format::mdt::{ExposeNote, Exposed, Inode, NameOf, key};
use tieline_types::{Acls, FileId, FileKind, Gid, Mode, PoolName, Uid, Version};

/// What was read of a file or directory that may be exposed.
#[derive(Clone, PartialEq, Debug)]
pub struct Before {
    /// Of a file: where it is exposed.
    pools: BTreeSet<PoolName>,
    content: Version,
    /// Of a directory, since it is written with each of its names.
    look: Option<Look>,
}

#[derive(Clone, PartialEq, Debug)]
struct Look {
    names: Vec<NameOf>,
    mode: Mode,
    uid: Uid,
    gid: Gid,
    acls: Option<Box<Acls>>,
}

/// What a transaction does to what is exposed.
#[derive(Default)]
pub struct Exposure {
    /// Of what was read.
    before: BTreeMap<FileId, Before>,
    /// Files that get other bytes, or lose a name to another, by the pools that had them.
    replaced: BTreeSet<(PoolName, FileId)>,
    /// Pools of which something was noted.
    pub noted: BTreeSet<PoolName>,
}

/// The exposed pools that a file is of: each of its mirrors may be in another.
fn pools_of(map: &FederationMap, inode: &Inode) -> BTreeSet<PoolName> {
    let Some(layout) = inode.layout.as_ref() else { return BTreeSet::new() };
    let pools = (0..layout.mirrors.into()).filter_map(|mirror| layout.pool_of_mirror(mirror));
    let is_exposed = |pool: &&PoolName| map.pool(pool).is_some_and(|pool| pool.exposed().is_some());
    pools.filter(is_exposed).cloned().collect()
}

impl Exposure {
    /// A file was read. Is nothing exposed, there is nothing to remember.
    pub fn see(&mut self, map: &FederationMap, id: FileId, inode: &Inode) {
        if map.exposed_pools().next().is_none() || self.before.contains_key(&id) {
            return;
        }
        let before = match inode.kind {
            FileKind::Regular => Before {
                pools: pools_of(map, inode),
                content: inode.content.unwrap_or(inode.version),
                look: None,
            },
            FileKind::Directory => {
                Before { pools: BTreeSet::new(), content: Version(0), look: Some(Look::of(inode)) }
            }
            _ => return,
        };
        self.before.insert(id, before);
    }

    /// A file is written, or gone. Says in which pools it is to be noted.
    pub fn change(
        &mut self,
        map: &FederationMap,
        id: FileId,
        after: Option<&Inode>,
    ) -> BTreeSet<PoolName> {
        let before = self.before.get(&id);
        let mut pools: BTreeSet<PoolName> = BTreeSet::new();
        let look = before.and_then(|before| before.look.as_ref());
        let is_directory = after.is_some_and(|inode| inode.kind == FileKind::Directory);
        if look.is_some() || is_directory {
            // A new one is made there with what is in it.
            let is_other = look.is_some_and(|look| after.map(Look::of).as_ref() != Some(look));
            if is_other {
                pools.extend(map.exposed_pools().map(|pool| pool.name.clone()));
            }
            return pools;
        }
        if let Some(before) = before {
            let content = after.map(|inode| inode.content.unwrap_or(inode.version));
            if content.is_some_and(|content| content != before.content) {
                let replaced = before.pools.iter().map(|pool| (pool.clone(), id));
                self.replaced.extend(replaced);
            }
            pools.extend(before.pools.iter().cloned());
        }
        if let Some(inode) = after.filter(|inode| inode.kind == FileKind::Regular) {
            pools.extend(pools_of(map, inode));
        }
        pools
    }
}

impl Look {
    fn of(inode: &Inode) -> Self {
        let Inode { names, mode, uid, gid, acls, .. } = inode;
        Self { names: names.clone(), mode: *mode, uid: *uid, gid: *gid, acls: acls.clone() }
    }
}

impl View<'_> {
    /// Notes what is written of exposed pools.
    pub(crate) fn note_exposed(&mut self, id: FileId, after: Option<&Inode>) {
        let pools = self.exposure.change(self.scene.map, id, after);
        let (at, session) = (self.scene.now, self.scene.session);
        for pool in pools {
            self.put(key::expose_note(&pool, id), &ExposeNote { at, session });
            self.exposure.noted.insert(pool);
        }
    }

    /// A file loses a name to another: whoever reads that name is to find the old bytes no more.
    pub(crate) fn replaces(&mut self, id: FileId) {
        let before = self.exposure.before.get(&id);
        let pools = before.map(|before| before.pools.clone()).unwrap_or_default();
        self.exposure.replaced.extend(pools.into_iter().map(|pool| (pool, id)));
    }

    /// Files that must be taken away before this is committed: those of which bytes may lie there.
    pub(crate) async fn still_exposed(&mut self) -> Result<BTreeMap<PoolName, Vec<FileId>>> {
        let mut there: BTreeMap<PoolName, Vec<FileId>> = BTreeMap::new();
        let replaced = std::mem::take(&mut self.exposure.replaced);
        for (pool, id) in replaced {
            if self.record::<Exposed>(key::exposed(&pool, id)).await?.is_some() {
                there.entry(pool).or_default().push(id);
            }
        }
        Ok(there)
    }
}
