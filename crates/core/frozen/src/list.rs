//! The list as a file: JSON, the root first, every directory before what is in it.
//!
//! ```json
//! { "frozen": 1, "repository": "sw.example.org", "entries": [
//!   { "path": "", "kind": "directory", "mode": 493, "mtime": 1700000000 },
//!   { "path": "bin", "kind": "directory", "mode": 493, "mtime": 1700000000 },
//!   { "path": "bin/run", "kind": "file", "mode": 493, "mtime": 1700000000, "size": 9,
//!     "chunks": [ { "length": 9, "digest": "…-sha1-zlib", "stored": 17 } ] },
//!   { "path": "run", "kind": "symlink", "mode": 511, "mtime": 1700000000, "target": "bin/run" }
//! ] }
//! ```
//!
//! A chunk lies at `data/ab/cd…`, as its digest is written, encoded as that covers it; or, if the
//! list says so, within a `pack`, from an `offset` on.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tieline_servers::read_only::Node;
use tieline_types::{
    Attributes, ChunkRef, Content, Digest, Extent, FileId, FileKind, Gid, MdtIndex, Mode, Name,
    ObjectName, Origin, Place, RepositoryName, Time, Uid, Version,
};

/// What the list is called beside its chunks.
pub const LIST: &str = "list.json";
/// The largest list that is read.
pub const LIST_MAX: u64 = 256 << 20;
/// The largest chunk: it is held whole to be judged.
const CHUNK_MAX: u64 = 64 << 20;
const VERSION: u32 = 1;
/// All of it is as of one version.
pub const AS_OF: Version = Version(1);

#[derive(Serialize, Deserialize)]
pub struct List {
    pub frozen: u32,
    pub repository: RepositoryName,
    pub entries: Vec<Entry>,
}

#[derive(Serialize, Deserialize, Clone)]
pub struct Entry {
    pub path: String,
    pub kind: Kind,
    pub mode: u32,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    #[serde(default)]
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Chunk>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Directory,
    File,
    Symlink,
}

#[derive(Serialize, Deserialize, Clone)]
pub struct Chunk {
    pub length: u64,
    pub digest: String,
    /// Bytes as they lie there, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    #[serde(default)]
    pub offset: u64,
}

/// A list that cannot be answered from.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("it is no list: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it is of version {0}, this build knows {VERSION}")]
    Version(u32),
    #[error("it is the list of {0}")]
    Other(RepositoryName),
    #[error("`{path}`: {why}")]
    Entry { path: String, why: &'static str },
}

/// The extents of all files of a list, if it can be answered from: for who tries what it reads.
pub fn look(
    bytes: &[u8],
    repository: &RepositoryName,
    mdt: MdtIndex,
) -> Result<Vec<Vec<Extent>>, ListError> {
    let tree = Tree::read(bytes, repository, mdt)?;
    Ok(tree.nodes.into_iter().map(|node| node.extents).collect())
}

/// A tree to be asked. Files are numbered in the order of the list.
pub struct Tree {
    pub nodes: Vec<Entered>,
}

pub struct Entered {
    pub attributes: Attributes,
    pub parent: usize,
    pub name: Option<Name>,
    pub names: BTreeMap<Name, usize>,
    pub target: Option<Vec<u8>>,
    pub extents: Vec<Extent>,
}

impl Tree {
    /// Of a list whose digest was looked at; its files' ids carry `mdt`.
    pub fn read(
        bytes: &[u8],
        repository: &RepositoryName,
        mdt: MdtIndex,
    ) -> Result<Self, ListError> {
        let list: List = serde_json::from_slice(bytes)?;
        if list.frozen != VERSION {
            return Err(ListError::Version(list.frozen));
        }
        if list.repository != *repository {
            return Err(ListError::Other(list.repository));
        }
        let mut tree = Self { nodes: Vec::with_capacity(list.entries.len()) };
        let mut known = BTreeMap::new();
        for entry in list.entries {
            let wrong = |why| ListError::Entry { path: entry.path.clone(), why };
            tree.add(&entry, repository, mdt, &known).map_err(wrong)?;
            known.insert(entry.path, tree.nodes.len() - 1);
        }
        if tree.nodes.is_empty() {
            return Err(ListError::Entry { path: String::new(), why: "there is no root" });
        }
        Ok(tree)
    }

    pub fn node(&self, id: FileId) -> Option<&Entered> {
        self.nodes.get(usize::try_from(id.serial()).ok()?.checked_sub(FIRST)?)
    }

    /// As it is told to who asks.
    pub fn told(&self, known: &Entered) -> Node {
        let Entered { attributes, name, target, .. } = known;
        let above = self.nodes.get(known.parent).map(|above| above.attributes.id);
        let parent = above.unwrap_or(attributes.id);
        Node { attributes: attributes.clone(), parent, name: name.clone(), target: target.clone() }
    }

    fn add(
        &mut self,
        entry: &Entry,
        repository: &RepositoryName,
        mdt: MdtIndex,
        known: &BTreeMap<String, usize>,
    ) -> Result<(), &'static str> {
        let number = self.nodes.len();
        let (above, name) = match (entry.path.rsplit_once('/'), number) {
            (None, 0) if entry.path.is_empty() => (None, None),
            (_, 0) => return Err("the root is not first"),
            (Some((above, name)), _) => (Some(above), Some(name)),
            (None, _) => (Some(""), Some(entry.path.as_str())),
        };
        let parent = above.map_or(Some(0), |above| known.get(above).copied());
        let parent = parent.ok_or("its directory is not in the list before it")?;
        let name = name.map(Name::new).transpose().map_err(|_| "its name cannot be one")?;
        let kind = match entry.kind {
            Kind::Directory => FileKind::Directory,
            Kind::File => FileKind::Regular,
            Kind::Symlink => FileKind::Symlink,
        };
        if name.is_none() && kind != FileKind::Directory {
            return Err("the root is no directory");
        }
        let serial = (number + FIRST) as u64;
        let id = FileId::new(mdt, serial);
        let mut attributes = Attributes::new(
            id,
            kind,
            Mode::new(entry.mode),
            Time { seconds: entry.mtime, nanos: 0 },
        );
        (attributes.uid, attributes.gid) = (Uid(entry.uid), Gid(entry.gid));
        (attributes.version, attributes.has_xattrs) = (AS_OF, Some(false));
        let target = entry.target.as_ref().map(|target| target.as_bytes().to_vec());
        match (kind, &target) {
            (FileKind::Symlink, Some(target)) => attributes.size = target.len() as u64,
            (FileKind::Symlink, None) => return Err("a link has no target"),
            (_, Some(_)) => return Err("only links have a target"),
            (_, None) => attributes.size = entry.size,
        }
        let extents = extents(entry, repository)?;
        attributes.stored = extents.iter().map(|extent| extent.length).sum();
        if let Some(name) = &name {
            let above = self.nodes.get_mut(parent).ok_or("its directory is not there")?;
            if above.attributes.kind != FileKind::Directory {
                return Err("it lies in what is no directory");
            }
            if above.names.insert(name.clone(), number).is_some() {
                return Err("it is there twice");
            }
            above.attributes.links += u32::from(kind == FileKind::Directory);
        }
        self.nodes.push(Entered {
            attributes,
            parent,
            name,
            names: BTreeMap::new(),
            target,
            extents,
        });
        Ok(())
    }
}

/// The serial of the root.
const FIRST: usize = FileId::ROOT_SERIAL as usize;

fn extents(entry: &Entry, repository: &RepositoryName) -> Result<Vec<Extent>, &'static str> {
    let (mut extents, mut offset) = (Vec::with_capacity(entry.chunks.len()), 0_u64);
    for chunk in &entry.chunks {
        let digest: Digest = chunk.digest.parse().map_err(|_| "a chunk has no digest")?;
        let length = chunk.length;
        if length > CHUNK_MAX {
            return Err("a chunk has more than 64 MiB");
        }
        let place = Place {
            origin: Origin::Repository(repository.clone()),
            object: ObjectName::Key(chunk.pack.clone().unwrap_or_else(|| key(&digest))),
            offset: chunk.offset,
            length: chunk.stored,
            is_stale: false,
            encoding: Some(digest.covers()),
        };
        let content = Content::Chunk(ChunkRef::of_content(digest, length, place));
        let extent = Extent { offset, length, content };
        extent.validate().map_err(|_| "a chunk cannot be")?;
        offset = extent.end();
        extents.push(extent);
    }
    match (entry.kind, offset == entry.size) {
        (Kind::File, false) => Err("its chunks are not as long as it is"),
        (Kind::Directory | Kind::Symlink, _) if !extents.is_empty() => {
            Err("only files have chunks")
        }
        _ => Ok(extents),
    }
}

/// Where a chunk lies.
pub fn key(digest: &Digest) -> String {
    let hex: String = digest.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (folder, rest) = hex.split_at(2);
    format!("data/{folder}/{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> RepositoryName {
        "sw.example.org".parse().unwrap()
    }

    fn read(entries: &str) -> Result<Tree, ListError> {
        let text = format!(
            "{{\"frozen\": 1, \"repository\": \"sw.example.org\", \"entries\": [{entries}]}}"
        );
        Tree::read(text.as_bytes(), &name(), MdtIndex(3))
    }

    const ROOT: &str = r#"{"path": "", "kind": "directory", "mode": 493, "mtime": 7}"#;

    #[test]
    fn a_tree_is_what_its_list_says() {
        let chunk = r#"{"length": 9, "digest": "a9993e364706816aba3e25717850c26c9cd0d89d-sha1"}"#;
        let tree = read(&format!(
            r#"{ROOT}, {{"path": "bin", "kind": "directory", "mode": 493, "mtime": 7}},
            {{"path": "bin/run", "kind": "file", "mode": 493, "mtime": 7, "size": 9,
              "chunks": [{chunk}]}},
            {{"path": "run", "kind": "symlink", "mode": 511, "mtime": 7, "target": "bin/run"}}"#
        ));
        let tree = tree.unwrap();
        let root = tree.node(FileId::root_of(MdtIndex(3))).unwrap();
        assert_eq!((root.names.len(), root.attributes.links), (2, 3));
        let run = &tree.nodes[2];
        assert_eq!((run.attributes.id, run.attributes.size), (FileId::new(MdtIndex(3), 3), 9));
        let Content::Chunk(chunk) = &run.extents[0].content else { panic!("it has a chunk") };
        let key = "data/a9/993e364706816aba3e25717850c26c9cd0d89d".to_owned();
        assert_eq!(chunk.places[0].object, ObjectName::Key(key));
        assert!(tree.node(FileId::new(MdtIndex(3), 5)).is_none());
        assert!(tree.node(FileId(0)).is_none());
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let file =
            |rest: &str| format!(r#"{ROOT}, {{"path": "f", "mode": 1, "mtime": 0, {rest}}}"#);
        for wrong in [
            String::new(),
            ROOT.replace("directory", "file"),
            format!("{ROOT}, {ROOT}"),
            file(r#""kind": "file", "size": 9"#),
            file(r#""kind": "file", "size": 1, "chunks": [{"length": 1, "digest": "x"}]"#),
            file(r#""kind": "symlink""#),
            file(r#""kind": "directory", "target": "x""#),
            file(r#""kind": "directory""#).replace("\"f\"", "\"a/f\""),
            file(r#""kind": "directory""#).replace("\"f\"", "\"..\""),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
        let other =
            Tree::read(br#"{"frozen":1,"repository":"b.org","entries":[]}"#, &name(), MdtIndex(0));
        assert!(matches!(other, Err(ListError::Other(_))));
    }

    proptest! {
        #[test]
        fn whatever_is_read_nothing_breaks(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = Tree::read(&bytes, &name(), MdtIndex(0));
        }

        #[test]
        fn entries_of_any_shape_are_read_or_refused(
            path in "[a-c/.]{0,6}",
            (size, length, stored) in any::<(u64, u64, u64)>(),
        ) {
            let digest = "a9993e364706816aba3e25717850c26c9cd0d89d-sha1-zlib";
            let _ = read(&format!(
                r#"{ROOT}, {{"path": "{path}", "kind": "file", "mode": 1, "mtime": 0,
                "size": {size}, "chunks": [{{"length": {length}, "digest": "{digest}",
                "stored": {stored}}}]}}"#
            ));
        }
    }
}
