//! Rebuild: what the objects at the OSTs know of an MDT that is lost with its dumps and its log.
//!
//! Each object remembers its file, its offset, the file's version its writer started from, and the
//! path as it was then. Of each file, where chunks overlap the newer version wins. Its newest path
//! gives it its name; two that claim one are told apart by their ids. Nothing knows owners, modes,
//! times, links, attributes, layouts, empty and small files: the files are root's with mode 0600,
//! and what was deleted or cut off may be back. A chunk whose bytes lie in several places of its
//! file is left out: where, only the extents knew.
//!
//! Pure but for the store that is filled: whoever asks the OSTs hands in what they said.

use crate::restore::{Filler, Next};
use crate::{Error, Identity};
use std::collections::BTreeMap;
use tieline_format::Record;
use tieline_format::ledger::Write;
use tieline_format::mdt::{
    Chunk, Entry, Inode, NameOf, StoredContent, StoredExtent, Superblock, key,
};
use tieline_kv::Store;
use tieline_ranges::stored::{self, Extents};
use tieline_types::{
    FileId, FileKind, GrantedId, Mode, Name, ObjectName, OstIndex, OstPlace, Shown, Time, Version,
};
use tieline_wire::data::ObjectOwner;

/// Ranges of one file that are told.
const GAPS_TOLD: usize = 4;

/// An object at an OST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundObject {
    pub ost: OstIndex,
    pub chunk: GrantedId,
    pub length: u64,
    pub owner: ObjectOwner,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebuilt {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    /// Objects that newer ones cover.
    pub superseded: u64,
    /// Chunks whose place in their files is not known.
    pub scattered: u64,
    /// What is uncertain, each with a path.
    pub notes: Vec<String>,
    /// Files with ranges that are in no object.
    pub gaps: Vec<Vec<u8>>,
}

/// A chunk, wherever it lies.
struct Known {
    length: u64,
    offset: u64,
    version: Version,
    path: Vec<u8>,
    osts: Vec<OstIndex>,
}

/// Fills an empty store. `prefix` is the path of the MDT's own root within the file system.
pub async fn rebuild(
    store: &dyn Store,
    identity: &Identity,
    prefix: &[u8],
    found: Vec<FoundObject>,
    now: Time,
) -> Result<Rebuilt, Error> {
    if !store.begin().await?.scan(crate::dump::everything(), 1).await?.is_empty() {
        return Err(Error::NotEmpty { store: store.describe() });
    }
    let mut newest = Version(1);
    let mut last_grant = 0;
    let mut last_file = FileId::ROOT_SERIAL;
    let mut files: BTreeMap<FileId, BTreeMap<GrantedId, Known>> = BTreeMap::new();
    for object in found.into_iter().filter(|object| object.chunk.mdt == identity.mdt) {
        last_grant = last_grant.max(object.chunk.grant.0);
        newest = newest.max(object.owner.version);
        if object.owner.file.mdt() != identity.mdt {
            continue;
        }
        last_file = last_file.max(object.owner.file.serial());
        let known = files.entry(object.owner.file).or_default().entry(object.chunk);
        let known = known.or_insert_with(|| Known {
            length: object.length,
            offset: object.owner.offset,
            version: object.owner.version,
            path: object.owner.path,
            osts: vec![],
        });
        known.osts.push(object.ost);
    }
    let mut tree = Tree::new(identity, last_file + 1, Version(newest.0 + 1), now);
    let mut order: Vec<_> = files.into_iter().collect();
    // Who was written last has the first right to a name.
    order.sort_by_key(|(id, chunks)| {
        (std::cmp::Reverse(chunks.values().map(|known| known.version).max()), *id)
    });
    for (id, chunks) in order {
        tree.add_file(id, chunks, prefix);
    }
    let superblock = Superblock {
        fs: identity.fs.clone(),
        mdt: identity.mdt,
        file_serial: tree.next_serial,
        session_serial: last_grant + 1,
        features: 0,
        boot: 0,
        version_serial: 0,
        inodes: tree.inodes.len() as u64,
        restored: Some(now),
    };
    let (mut writes, rebuilt) = tree.finish();
    writes.push(Write { key: key::superblock(), value: Some(superblock.to_bytes()) });
    let mut filler = Filler::new(store);
    filler.fill(writes).await?;
    filler.finish(Next { newest, now }, None).await?;
    Ok(rebuilt)
}

/// The namespace as it grows.
struct Tree {
    root: FileId,
    mdt: tieline_types::MdtIndex,
    next_serial: u64,
    version: Version,
    now: Time,
    inodes: BTreeMap<FileId, Inode>,
    entries: BTreeMap<(FileId, Name), FileId>,
    writes: Vec<Write>,
    rebuilt: Rebuilt,
}

impl Tree {
    fn new(identity: &Identity, next_serial: u64, version: Version, now: Time) -> Self {
        let root = FileId::root_of(identity.mdt);
        Self {
            root,
            mdt: identity.mdt,
            next_serial,
            version,
            now,
            inodes: BTreeMap::from([(root, Inode::root(now))]),
            entries: BTreeMap::new(),
            writes: vec![],
            rebuilt: Rebuilt::default(),
        }
    }

    fn add_file(&mut self, id: FileId, chunks: BTreeMap<GrantedId, Known>, prefix: &[u8]) {
        let mut order: Vec<(&GrantedId, &Known)> = chunks.iter().collect();
        order.sort_by_key(|(chunk, known)| (known.version, **chunk));
        let path = order.last().map(|(_, known)| known.path.clone()).unwrap_or_default();
        let mut extents = Extents::new();
        let mut scattered = 0;
        for (chunk, known) in &order {
            if known.offset == ObjectOwner::SCATTERED {
                scattered += 1;
                continue;
            }
            stored::cut(&mut extents, known.offset, known.offset.saturating_add(known.length));
            let content = StoredContent::Chunk { chunk: **chunk, skip: 0 };
            extents.insert(known.offset, StoredExtent { length: known.length, content });
        }
        self.note_gaps(&path, &extents);
        if scattered > 0 {
            self.rebuilt.scattered += scattered;
            let shown = match path.is_empty() {
                true => format!("file {id}, whose name nobody knows"),
                false => Shown(&path).to_string(),
            };
            self.note(format!(
                "{shown}: {scattered} objects hold small writes of many places, which are not \
                 known any more: what lies there instead is older, or zeros"
            ));
        }
        let mut references: BTreeMap<GrantedId, u32> = BTreeMap::new();
        let (mut size, mut stored) = (0, 0);
        for (at, extent) in &extents {
            if let StoredContent::Chunk { chunk, .. } = extent.content {
                *references.entry(chunk).or_default() += 1;
            }
            size = size.max(at + extent.length);
            stored += extent.length;
            self.put(key::extent(id, *at), extent);
        }
        let mut stripe: Vec<OstIndex> = vec![];
        for (&chunk, &references) in &references {
            let Some(known) = chunks.get(&chunk) else { continue };
            let places = known.osts.iter().map(|&ost| OstPlace {
                ost,
                object: ObjectName::Chunk(chunk),
                offset: 0,
                length: known.length,
                is_stale: false,
            });
            stripe.extend(
                known.osts.iter().filter(|ost| !stripe.contains(ost)).copied().collect::<Vec<_>>(),
            );
            let places = places.collect();
            let (length, digest, adler32, checks) = (known.length, None, None, None);
            self.put(
                key::chunk(chunk),
                &Chunk { length, references, places, digest, adler32, checks, tape: None },
            );
        }
        self.rebuilt.superseded += chunks.len() as u64 - scattered - references.len() as u64;
        self.rebuilt.bytes += stored;
        self.rebuilt.files += 1;
        let name = self.name_file(id, &path, prefix);
        let inode = Inode { size, stored, stripe, ..self.inode(FileKind::Regular, 0o600, name) };
        self.inodes.insert(id, inode);
    }

    /// Ranges that no object has: they read as zeros, and may have been more than that.
    fn note_gaps(&mut self, path: &[u8], extents: &Extents) {
        let shown = Shown(path);
        let (mut gaps, mut end) = (Vec::new(), 0);
        for (&at, extent) in extents {
            if at > end {
                gaps.push(format!("{end} to {at}"));
            }
            end = at + extent.length;
        }
        if gaps.is_empty() {
            return;
        }
        self.rebuilt.gaps.push(path.to_vec());
        let more = match gaps.len().saturating_sub(GAPS_TOLD) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        gaps.truncate(GAPS_TOLD);
        let ranges = gaps.join(", ");
        self.note(format!(
            "{shown}: bytes {ranges}{more} are in no object: a hole, or small writes, or lost"
        ));
    }

    /// A free name for the file: the one it had, if possible.
    fn name_file(&mut self, id: FileId, path: &[u8], prefix: &[u8]) -> NameOf {
        let shown = Shown(path).to_string();
        let below = path.strip_prefix(prefix).unwrap_or(path);
        let parts = below.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let names: Result<Vec<Name>, _> = parts.map(Name::new).collect();
        let mut names = names.unwrap_or_default();
        let last = names.pop();
        let directory = names.iter().try_fold(self.root, |at, name| self.directory(at, name));
        if let (Some(parent), Some(name)) = (directory, last) {
            if self.link(parent, &name, id) {
                return NameOf { parent, name };
            }
            let other = [name.as_bytes(), format!(".~{id}").as_bytes()].concat();
            if let Ok(name) = Name::new(other)
                && self.link(parent, &name, id)
            {
                self.note(format!("{shown}: another file had the name last; this one is {name}"));
                return NameOf { parent, name };
            }
        }
        let lost: Name = Name::new(*b"lost+found").expect("the constant is a name");
        let parent = self.directory(self.root, &lost).unwrap_or(self.root);
        let name = Name::new(format!("#{id}").into_bytes()).expect("an id in digits is a name");
        self.link(parent, &name, id);
        self.note(format!("lost+found/{name}: no usable path is known (`{shown}`)"));
        NameOf { parent, name }
    }

    /// The directory of that name, made if nothing has it.
    fn directory(&mut self, parent: FileId, name: &Name) -> Option<FileId> {
        if let Some(&id) = self.entries.get(&(parent, name.clone())) {
            let is_directory =
                self.inodes.get(&id).is_some_and(|inode| inode.kind == FileKind::Directory);
            return is_directory.then_some(id);
        }
        let id = FileId::new(self.mdt, self.next_serial);
        self.next_serial += 1;
        let at = NameOf { parent, name: name.clone() };
        let inode = Inode { links: 2, ..self.inode(FileKind::Directory, 0o700, at) };
        self.inodes.insert(id, inode);
        self.link(parent, name, id);
        if let Some(parent) = self.inodes.get_mut(&parent) {
            parent.links += 1;
        }
        self.rebuilt.directories += 1;
        Some(id)
    }

    fn link(&mut self, parent: FileId, name: &Name, id: FileId) -> bool {
        if self.entries.contains_key(&(parent, name.clone())) {
            return false;
        }
        self.entries.insert((parent, name.clone()), id);
        if let Some(parent) = self.inodes.get_mut(&parent) {
            parent.entries += 1;
        }
        true
    }

    fn inode(&self, kind: FileKind, mode: u32, name: NameOf) -> Inode {
        Inode {
            kind,
            mode: Mode::new(mode),
            links: 1,
            names: vec![name],
            version: self.version,
            ..Inode::root(self.now)
        }
    }

    fn note(&mut self, note: String) {
        self.rebuilt.notes.push(note);
    }

    fn put<R: Record>(&mut self, key: Vec<u8>, record: &R) {
        self.writes.push(Write { key, value: Some(record.to_bytes()) });
    }

    fn finish(mut self) -> (Vec<Write>, Rebuilt) {
        for ((parent, name), id) in std::mem::take(&mut self.entries) {
            let kind = self.inodes.get(&id).map_or(FileKind::Regular, |inode| inode.kind);
            self.put(key::entry(parent, &name), &Entry { id, kind });
        }
        for (id, inode) in std::mem::take(&mut self.inodes) {
            self.put(key::inode(id), &inode);
        }
        (self.writes, self.rebuilt)
    }
}
