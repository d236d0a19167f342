//! What is to be done where a pool is exposed, for one file after the other, in one transaction.
//!
//! A *group* is steps for one file or directory that are done together or not. What is recorded is
//! written with the plan; what a group's end means is written down beside its steps.
//!
//! Invariants: no path stands in the steps of two groups, so that a batch may be done again; a
//! record of a file goes only when its removal was done.

use super::paths::{dress, is_dressed, record};
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::Record;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{
    ExposeNote, Exposed, ExposedEntry, Inode, LaterWrite, NO_SESSION, NameOf, StepGroup, key,
};
use tieline_kv::{Key, Transaction, Value};
use tieline_types::{FileId, FileKind, PoolName, Time, Version};
use tieline_wire::exposed::{Path, Step};

/// Steps in one batch.
const STEPS_MAX: usize = 256;
/// Bytes of their paths, roughly.
const WEIGHT_MAX: usize = 256 << 10;

/// Why planning ends.
#[derive(Debug)]
pub enum Halt {
    /// What is planned is done first.
    Full,
    /// A directory is not where records say: the file system changes, or they do not agree.
    Lost,
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A group that is to be added.
#[derive(Default)]
pub struct Planned {
    pub steps: Vec<Step>,
    pub done: Vec<LaterWrite>,
    pub undone: Vec<LaterWrite>,
}

/// A note that is over when its groups are done.
pub struct Followed {
    pub key: Key,
    pub value: Value,
    pub groups: std::ops::Range<usize>,
}

/// What became of a file's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is as it is to be when the steps are done.
    Followed,
    /// Its bytes are to be put together first.
    Stage(Version),
    /// Another turn is needed.
    Again,
    /// Others come first: what is in the directory.
    Later,
}

pub struct Plan<'a> {
    pub pool: &'a PoolName,
    pub map: &'a FederationMap,
    /// The root of the MDT, and its path there.
    pub root: FileId,
    pub prefix: &'a [tieline_types::Name],
    pub now: Time,
    /// Files whose bytes wait for their names.
    pub ready: &'a BTreeMap<FileId, Version>,
    pub transaction: Box<dyn Transaction>,
    pub steps: Vec<Step>,
    pub groups: Vec<StepGroup>,
    pub followed: Vec<Followed>,
    /// Directories are made that are recorded to be there.
    pub remakes: bool,
    pub remade: BTreeSet<FileId>,
    touched: BTreeSet<Path>,
    weight: usize,
}

impl<'a> Plan<'a> {
    pub fn new(
        transaction: Box<dyn Transaction>,
        (pool, map): (&'a PoolName, &'a FederationMap),
        (root, prefix): (FileId, &'a [tieline_types::Name]),
        now: Time,
        ready: &'a BTreeMap<FileId, Version>,
    ) -> Self {
        Self {
            pool,
            map,
            root,
            prefix,
            now,
            ready,
            transaction,
            steps: vec![],
            groups: vec![],
            followed: vec![],
            remakes: false,
            remade: BTreeSet::new(),
            touched: BTreeSet::new(),
            weight: 0,
        }
    }

    /// Follows a note.
    pub async fn follow(&mut self, file: FileId, note: (Key, Value)) -> Result<Turn, Halt> {
        let begun = self.groups.len();
        let inode = self.inode(file).await?;
        let old = self.exposed(file).await?;
        let is_directory = match (&inode, &old) {
            (Some(inode), _) => inode.kind == FileKind::Directory,
            (None, old) => old.as_ref().is_some_and(|old| old.is_directory),
        };
        let turn = match is_directory {
            true => self.follow_directory(file, inode, old).await?,
            false => self.follow_file(file, inode, old).await?,
        };
        if turn == Turn::Followed {
            let groups = begun..self.groups.len();
            self.followed.push(Followed { key: note.0, value: note.1, groups });
        }
        Ok(turn)
    }

    async fn follow_directory(
        &mut self,
        id: FileId,
        inode: Option<Inode>,
        old: Option<Exposed>,
    ) -> Result<Turn, Halt> {
        let Some(old) = old else { return Ok(Turn::Followed) };
        let is_named = inode.is_some_and(|inode| !inode.names.is_empty());
        if is_named {
            self.settle_directory(id).await?;
            return Ok(Turn::Followed);
        }
        let Some(name) = old.names.first() else { return Ok(Turn::Followed) };
        if self.has_entries(id).await? {
            return Ok(Turn::Later);
        }
        let path = self.path(name).await?;
        let done = vec![self.deletes(id), self.deletes_entry(name)];
        let steps = vec![Step::RemoveDirectory { path }];
        self.add(Planned { steps, done, undone: vec![] })?;
        Ok(Turn::Followed)
    }

    async fn follow_file(
        &mut self,
        id: FileId,
        inode: Option<Inode>,
        old: Option<Exposed>,
    ) -> Result<Turn, Halt> {
        let wanted = inode.filter(|inode| self.is_wanted(inode));
        let content = wanted.as_ref().map(content_of);
        if let Some(old) = old {
            let is_same = Some(old.content) == content && !old.is_doubtful;
            match wanted.filter(|_| is_same) {
                Some(inode) => return self.rename(id, &inode, &old).await,
                None => self.take_away(id, &old).await?,
            }
            return Ok(if content.is_some() { Turn::Again } else { Turn::Followed });
        }
        let Some((inode, content)) = wanted.zip(content) else { return Ok(Turn::Followed) };
        if self.ready.get(&id) != Some(&content) {
            return Ok(Turn::Stage(content));
        }
        self.place(id, &inode, content).await
    }

    /// Is it to lie there?
    pub fn is_wanted(&self, inode: &Inode) -> bool {
        let is_exposed = self.map.pool(self.pool).is_some_and(|pool| pool.exposed().is_some());
        inode.kind == FileKind::Regular
            && !inode.names.is_empty()
            && is_of(inode, self.pool)
            && is_exposed
    }

    async fn place(&mut self, id: FileId, inode: &Inode, content: Version) -> Result<Turn, Halt> {
        let dress = dress(inode);
        let mut steps: Vec<Step> = vec![];
        let mut first: Option<Path> = None;
        for name in &inode.names {
            self.settle_directory(name.parent).await?;
            self.make_way(name, id).await?;
            let path = self.path(name).await?;
            match &first {
                None => {
                    steps.push(Step::Place { path: path.clone(), file: id, content, dress });
                    first = Some(path);
                }
                Some(first) => steps.push(Step::Link { from: first.clone(), path }),
            }
        }
        let own = record(content, inode.names.clone(), &dress, inode.size);
        let undone = vec![self.doubts(id, &own)];
        self.add(Planned { steps, undone, done: vec![] })?;
        inode.names.iter().for_each(|name| self.put_entry(name, id));
        self.put_exposed(id, &own);
        Ok(Turn::Followed)
    }

    /// Names, owner and mode follow; the bytes are the same.
    async fn rename(&mut self, id: FileId, inode: &Inode, old: &Exposed) -> Result<Turn, Halt> {
        let dress = dress(inode);
        let gone: Vec<&NameOf> =
            old.names.iter().filter(|name| !inode.names.contains(name)).collect();
        let new: Vec<&NameOf> =
            inode.names.iter().filter(|name| !old.names.contains(name)).collect();
        let kept = old.names.iter().find(|name| inode.names.contains(name));
        for name in &new {
            self.settle_directory(name.parent).await?;
            self.make_way(name, id).await?;
        }
        let (mut steps, mut from) = (vec![], None);
        if let Some(name) = kept {
            from = Some(self.path(name).await?);
        }
        let mut gone = gone.into_iter();
        let (mut took, mut gave) = (vec![], vec![]);
        for name in new {
            let path = self.path(name).await?;
            match gone.next() {
                Some(other) => {
                    let from = self.path(other).await?;
                    steps.push(Step::Move { from, path: path.clone() });
                    took.push(other.clone());
                }
                None => {
                    let from = from.clone().ok_or(Halt::Lost)?;
                    steps.push(Step::Link { from, path: path.clone() });
                }
            }
            from.get_or_insert(path);
            gave.push(name.clone());
        }
        for name in gone {
            steps.push(Step::Remove { path: self.path(name).await? });
            took.push(name.clone());
        }
        if !is_dressed(old, &dress) {
            let path = from.clone().ok_or(Halt::Lost)?;
            steps.push(Step::Dress { path, dress });
        }
        if steps.is_empty() {
            return Ok(Turn::Followed);
        }
        let own = record(old.content, inode.names.clone(), &dress, inode.size);
        // Until it is done it may be at any of them.
        let both = Exposed { names: [&own.names[..], &took[..]].concat(), ..own.clone() };
        let mut done = vec![self.writes_exposed(id, &own)];
        done.extend(took.iter().map(|name| self.deletes_entry(name)));
        let undone = vec![self.doubts(id, &both)];
        self.add(Planned { steps, done, undone })?;
        gave.iter().for_each(|name| self.put_entry(name, id));
        self.put_exposed(id, &both);
        Ok(Turn::Followed)
    }

    /// Takes a file away that something waits for, if it is there.
    pub async fn remove(&mut self, id: FileId) -> Result<(), Halt> {
        match self.exposed(id).await? {
            Some(old) if !old.is_directory => {
                self.take_away(id, &old).await?;
                self.note(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes a file away, under all its names.
    pub async fn take_away(&mut self, id: FileId, old: &Exposed) -> Result<(), Halt> {
        let (mut steps, mut done) = (vec![], vec![self.deletes(id)]);
        for name in &old.names {
            let path = match self.path(name).await {
                Ok(path) => path,
                // Its directory is not there either.
                Err(Halt::Lost) => continue,
                Err(halt) => return Err(halt),
            };
            steps.push(Step::Remove { path });
            done.push(self.deletes_entry(name));
        }
        self.add(Planned { steps, done, undone: vec![] })
    }

    /// Adds a group, if its paths are in no other.
    pub fn add(&mut self, planned: Planned) -> Result<(), Halt> {
        let paths: BTreeSet<Path> = planned.steps.iter().flat_map(Step::paths).cloned().collect();
        let weight: usize =
            paths.iter().flatten().map(|name| name.as_bytes().len() + 4).sum::<usize>() + 128;
        let is_full = self.steps.len() + planned.steps.len() > STEPS_MAX
            || self.weight + weight > WEIGHT_MAX
            || paths.iter().any(|path| self.touched.contains(path));
        if is_full && !self.groups.is_empty() {
            return Err(Halt::Full);
        }
        self.touched.extend(paths);
        self.weight += weight;
        let Planned { steps, done, undone } = planned;
        self.groups.push(StepGroup { steps: steps.len() as u32, done, undone });
        self.steps.extend(steps);
        Ok(())
    }

    // Records.

    /// Something is to have a turn.
    pub fn note(&mut self, id: FileId) {
        let note = ExposeNote { at: self.now, session: NO_SESSION };
        self.transaction.put(key::expose_note(self.pool, id), note.to_bytes());
    }

    pub fn put_exposed(&mut self, id: FileId, own: &Exposed) {
        self.transaction.put(key::exposed(self.pool, id), own.to_bytes());
    }

    pub fn put_entry(&mut self, name: &NameOf, id: FileId) {
        let LaterWrite { key, value } = self.writes_entry(name, id);
        self.transaction.put(key, value.unwrap_or_default());
    }

    pub fn delete_entry(&mut self, name: &NameOf) {
        self.transaction.delete(key::exposed_entry(self.pool, name.parent, &name.name));
    }

    pub fn writes_exposed(&self, id: FileId, own: &Exposed) -> LaterWrite {
        LaterWrite { key: key::exposed(self.pool, id), value: Some(own.to_bytes()) }
    }

    /// What lies there of it is not known.
    fn doubts(&self, id: FileId, own: &Exposed) -> LaterWrite {
        self.writes_exposed(id, &Exposed { is_doubtful: true, ..own.clone() })
    }

    pub fn deletes(&self, id: FileId) -> LaterWrite {
        LaterWrite { key: key::exposed(self.pool, id), value: None }
    }

    pub fn writes_entry(&self, name: &NameOf, id: FileId) -> LaterWrite {
        let key = key::exposed_entry(self.pool, name.parent, &name.name);
        LaterWrite { key, value: Some(ExposedEntry { id }.to_bytes()) }
    }

    pub fn deletes_entry(&self, name: &NameOf) -> LaterWrite {
        let key = key::exposed_entry(self.pool, name.parent, &name.name);
        LaterWrite { key, value: None }
    }
}

/// Is a file, or one of its mirrors, of a pool?
pub fn is_of(inode: &Inode, pool: &PoolName) -> bool {
    let Some(layout) = inode.layout.as_ref() else { return false };
    (0..layout.mirrors.into()).any(|mirror| layout.pool_of_mirror(mirror) == Some(pool))
}

/// Which bytes a file has.
pub fn content_of(inode: &Inode) -> Version {
    inode.content.unwrap_or(inode.version)
}
