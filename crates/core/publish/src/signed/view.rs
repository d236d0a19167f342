//! One revision of a repository as a tree.
//!
//! A directory's entries are in the deepest catalog whose path leads to it. A file is found by the
//! spot where it was met; one that was met by an earlier process is looked for in all catalogs.

use super::fetched::Fetcher;
use super::ids::{self, Folder, Ids};
use crate::catalog::read::PIECE_MAX;
use crate::catalog::{Catalog, CatalogError, Piece};
use crate::hash::{self, Kind};
use crate::row::{Row, Seam};
use std::sync::Arc;
use tieline_servers::read_only::{Listed, Node, ReadOnlyTree, page};
use tieline_types::{
    Attributes, ChunkRef, Content, Digest, ErrorKind, Extent, FileId, FileKind, Gid, MdtIndex,
    Name, ObjectName, Origin, Place, RepositoryName, Uid, Version, XattrName,
};
use tieline_wire::Failure;
use tieline_wire::meta::{ExtentPage, Xattr};
use tokio::time::Instant;

/// Directories above one another, as far as a row is climbed up from.
const CLIMB_MAX: usize = 4096;

pub struct View {
    name: RepositoryName,
    pub mdt: MdtIndex,
    revision: u64,
    root: Arc<Catalog>,
    top: Arc<Folder>,
    files: u64,
    fetcher: Arc<Fetcher>,
    ids: Arc<Ids>,
}

type Result<T> = std::result::Result<T, Failure>;

impl View {
    pub async fn new(
        (name, mdt, revision): (RepositoryName, MdtIndex, u64),
        root: Arc<Catalog>,
        fetcher: Arc<Fetcher>,
        ids: Arc<Ids>,
    ) -> Result<Self> {
        let top = Arc::new(Folder { path: Vec::new(), serial: FileId::ROOT_SERIAL });
        let mut view = Self { name, mdt, revision, root, top, files: 0, fetcher, ids };
        view.files = view
            .ask(&view.root, |root| {
                let mut files = 0;
                for whose in ["self", "subtree"] {
                    for of in ["regular", "symlink", "special", "dir"] {
                        files += root.counter(&format!("{whose}_{of}"))?.unwrap_or_default();
                    }
                }
                root.row(hash::path_hash(b""))?.ok_or(CatalogError::Content("there is no root"))?;
                Ok(files)
            })
            .await?;
        Ok(view)
    }

    /// Asks a catalog where waiting for it harms nobody.
    async fn ask<T: Send + 'static>(
        &self,
        catalog: &Arc<Catalog>,
        question: impl FnOnce(&Catalog) -> std::result::Result<T, CatalogError> + Send + 'static,
    ) -> Result<T> {
        let asked = catalog.clone();
        let answer = tokio::task::spawn_blocking(move || question(&asked)).await;
        let stopped = |_| Failure::new(ErrorKind::Internal, "a question to a repository's catalog");
        answer.map_err(stopped)?.map_err(|error| self.wrong(&catalog.prefix, &error))
    }

    fn wrong(&self, prefix: &[u8], why: &dyn std::fmt::Display) -> Failure {
        let path = String::from_utf8_lossy(prefix).into_owned();
        let detail = format!("catalog of {}{path} ({why}): have it published anew", self.name);
        let failure = Failure::new(ErrorKind::Corrupt, detail);
        tracing::warn!(%failure, "not believed");
        failure
    }

    /// The catalog that has the entries of a directory.
    async fn covering(&self, path: &[u8], until: Instant) -> Result<Arc<Catalog>> {
        let mut catalog = self.root.clone();
        loop {
            let from = catalog.prefix.len() + 1;
            let ends = (from..=path.len()).filter(|&end| end == path.len() || path[end] == b'/');
            let nested = ends.map(|end| &path[..end]).find_map(|path| catalog.nested(path));
            let Some((prefix, digest, size)) = nested else { return Ok(catalog) };
            catalog = self.fetcher.catalog(&self.name, (&digest, size, &prefix), until).await?;
        }
    }

    async fn find(&self, id: FileId, until: Instant) -> Result<Option<(Row, Arc<Folder>)>> {
        if id.is_root() {
            let root = self.ask(&self.root, |root| root.row(hash::path_hash(b""))).await?;
            return Ok(root.map(|row| (row, self.top.clone())));
        }
        if let Some(spot) = self.ids.get(id.serial()) {
            let catalog = self.covering(&spot.within.path, until).await?;
            let row = self.ask(&catalog, move |catalog| catalog.row(spot.path)).await?;
            return Ok(row.map(|row| (row, spot.within)));
        }
        self.search(id, until).await
    }

    /// Of a file that was met by an earlier process: in all catalogs.
    async fn search(&self, id: FileId, until: Instant) -> Result<Option<(Row, Arc<Folder>)>> {
        let (low, high) = ids::hashes(id.serial());
        let mut todo = vec![self.root.clone()];
        let mut next = Vec::new();
        while let Some(catalog) = todo.pop() {
            let found = self
                .ask(&catalog, move |catalog| {
                    let row = catalog.rows_between(low, high)?.into_iter().next();
                    row.map(|row| Ok((climb(catalog, &row)?, row))).transpose()
                })
                .await?;
            if let Some((way, row)) = found {
                let mut within = self.top.clone();
                for (hash, path) in way {
                    let serial = self.ids.meet(hash, &within, Some(path.clone()));
                    within = Arc::new(Folder { path, serial });
                }
                let path = row.kind == FileKind::Directory;
                let path = path.then(|| [&within.path[..], b"/", &row.name].concat());
                let met = self.ids.meet(row.path, &within, path);
                return Ok((met == id.serial()).then_some((row, within)));
            }
            for (prefix, digest, size) in catalog.nested_all() {
                next.push((prefix.clone(), *digest, *size));
            }
            if todo.is_empty()
                && let Some((prefix, digest, size)) = next.pop()
            {
                let key = (&digest, size, &prefix[..]);
                todo.push(self.fetcher.catalog(&self.name, key, until).await?);
            }
        }
        Ok(None)
    }

    /// As it is told; the row was met in a directory.
    async fn told(&self, row: &Row, within: &Arc<Folder>, until: Instant) -> Result<Node> {
        let is_root = row.name.is_empty();
        let serial = match row.group {
            _ if is_root => FileId::ROOT_SERIAL,
            0 => {
                let is_folder = row.kind == FileKind::Directory;
                let path = is_folder.then(|| [&within.path[..], b"/", &row.name].concat());
                self.ids.meet(row.path, within, path)
            }
            _ => {
                let (catalog, row) = (self.covering(&within.path, until).await?, row.clone());
                let first = self.ask(&catalog, move |catalog| catalog.first_of_group(&row)).await?;
                self.ids.meet(first, within, None)
            }
        };
        let id = FileId::new(self.mdt, serial);
        let mut attributes = Attributes::new(id, row.kind, row.mode, row.mtime);
        (attributes.uid, attributes.gid) = (Uid(row.uid), Gid(row.gid));
        (attributes.size, attributes.device) = (row.size, row.device);
        attributes.links = row.links;
        attributes.stored = if row.kind == FileKind::Regular { row.size } else { 0 };
        attributes.version = Version(self.revision);
        attributes.content = Some(content(row));
        attributes.has_xattrs = Some(!row.xattrs.is_empty());
        let wrong = |_| self.wrong(&within.path, &"a name that cannot be");
        let name = (!is_root).then(|| Name::new(row.name.clone()).map_err(wrong)).transpose()?;
        let parent = FileId::new(self.mdt, within.serial);
        Ok(Node { attributes, parent, name, target: row.target.clone() })
    }

    /// A directory that was told of.
    async fn folder(&self, id: FileId, until: Instant) -> Result<Arc<Folder>> {
        if id.is_root() {
            return Ok(self.top.clone());
        }
        let known = |ids: &Ids| ids.get(id.serial()).and_then(|spot| spot.folder);
        if let Some(folder) = known(&self.ids) {
            return Ok(folder);
        }
        self.search(id, until).await?;
        let stale = || Failure::new(ErrorKind::Stale, format!("directory {id}"));
        known(&self.ids).ok_or_else(stale)
    }

    fn extent(&self, (offset, length): (u64, u64), digest: Digest, kind: Kind) -> Extent {
        let place = Place {
            origin: Origin::Repository(self.name.clone()),
            object: ObjectName::Key(hash::key(&digest, kind)),
            offset: 0,
            length: None,
            is_stale: false,
            encoding: Some(digest.covers()),
        };
        let content = Content::Chunk(ChunkRef::of_content(digest, length, place));
        Extent { offset, length, content }
    }

    async fn extents_of(
        &self,
        row: Row,
        within: &Folder,
        (offset, limit, until): (u64, u32, Instant),
    ) -> Result<ExtentPage> {
        let path = || {
            let path = [&within.path[..], b"/", &row.name].concat();
            format!("{}{}", self.name, String::from_utf8_lossy(&path))
        };
        if row.is_external {
            let detail = format!("{}: its bytes are on servers for external data", path());
            return Err(Failure::new(ErrorKind::NotSupported, detail));
        }
        if row.size == 0 || offset >= row.size {
            return Ok(page(Vec::new(), true, row.size));
        }
        if !row.is_chunked {
            if row.size > PIECE_MAX {
                let detail = format!("{}: more than 64 MiB in one piece", path());
                return Err(Failure::new(ErrorKind::FileTooLarge, detail));
            }
            let none = || self.wrong(&within.path, &"a file without bytes");
            let digest = row.digest.ok_or_else(none)?;
            let whole = self.extent((0, row.size), digest, Kind::Whole);
            return Ok(page(vec![whole], true, row.size));
        }
        let catalog = self.covering(&within.path, until).await?;
        let size = row.size;
        let mut pieces = self
            .ask(&catalog, move |catalog| catalog.pieces(&row, offset, limit.saturating_add(1)))
            .await?;
        let is_end = pieces.len() <= limit as usize;
        pieces.truncate(limit as usize);
        let begins = pieces.first().is_some_and(|first| first.offset <= offset);
        let ends = pieces.last().is_some_and(|last| last.offset + last.length == size);
        if !begins || is_end && !ends {
            return Err(self.wrong(&within.path, &"the pieces of a file are not all of it"));
        }
        let extent =
            |piece: &Piece| self.extent((piece.offset, piece.length), piece.digest, Kind::Piece);
        Ok(page(pieces.iter().map(extent).collect(), is_end, size))
    }
}

/// The directories from below the root to the one that a row is in.
fn climb(
    catalog: &Catalog,
    row: &Row,
) -> std::result::Result<Vec<(hash::PathHash, Vec<u8>)>, CatalogError> {
    let (mut names, mut prefix, mut current) = (Vec::new(), &catalog.prefix[..], row.clone());
    // The way to a nested catalog is its own word; above its root nothing is asked.
    if row.seam == Seam::Root {
        prefix = parent_of(prefix);
    } else {
        loop {
            if names.len() > CLIMB_MAX {
                return Err(CatalogError::Content("a directory is below itself"));
            }
            let above = catalog.row(current.parent)?;
            let above = above.ok_or(CatalogError::Content("a row without a directory"))?;
            if above.seam == Seam::Root || above.name.is_empty() {
                break;
            }
            names.push(above.name.clone());
            current = above;
        }
    }
    let mut way = Vec::new();
    let mut path = Vec::new();
    let of_prefix = prefix.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    for name in of_prefix.map(<[u8]>::to_vec).chain(names.into_iter().rev()) {
        path = [&path[..], b"/", &name].concat();
        way.push((hash::path_hash(&path), path.clone()));
    }
    Ok(way)
}

fn parent_of(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or_default();
    path.get(..slash).unwrap_or_default()
}

/// Another number for other bytes, whichever revision they are in.
fn content(row: &Row) -> Version {
    let of = match &row.digest {
        Some(digest) => digest.as_bytes().to_vec(),
        // Pieces have no digest together; a time stands for them.
        None => [row.mtime.seconds.to_le_bytes(), row.size.to_le_bytes()].concat(),
    };
    let mut bytes = [0; 8];
    for (at, byte) in of.iter().enumerate() {
        bytes[at % 8] ^= byte.rotate_left((at / 8) as u32);
    }
    Version(u64::from_le_bytes(bytes) >> 1)
}

/// A view that is asked until then.
pub struct Until<'v> {
    pub view: &'v View,
    pub until: Instant,
}

#[async_trait::async_trait]
impl ReadOnlyTree for Until<'_> {
    fn as_of(&self) -> Version {
        Version(self.view.revision)
    }

    fn files(&self) -> u64 {
        self.view.files
    }

    async fn node(&self, id: FileId) -> Result<Option<Node>> {
        match self.view.find(id, self.until).await? {
            Some((row, within)) => Ok(Some(self.view.told(&row, &within, self.until).await?)),
            None => Ok(None),
        }
    }

    async fn child(&self, directory: &Node, name: &Name) -> Result<Option<Node>> {
        let folder = self.view.folder(directory.attributes.id, self.until).await?;
        let catalog = self.view.covering(&folder.path, self.until).await?;
        let hash = hash::path_hash(&[&folder.path[..], b"/", name.as_bytes()].concat());
        let row = self.view.ask(&catalog, move |catalog| catalog.row(hash)).await?;
        match row.filter(|row| row.name == name.as_bytes()) {
            Some(row) => Ok(Some(self.view.told(&row, &folder, self.until).await?)),
            None => Ok(None),
        }
    }

    async fn children(&self, directory: &Node, after: Option<&Name>, limit: u32) -> Result<Listed> {
        let folder = self.view.folder(directory.attributes.id, self.until).await?;
        let catalog = self.view.covering(&folder.path, self.until).await?;
        let parent = hash::path_hash(&folder.path);
        let after = after.map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let ask = move |catalog: &Catalog| catalog.children(parent, &after, limit + 1);
        let mut rows = self.view.ask(&catalog, ask).await?;
        let is_end = rows.len() <= limit as usize;
        rows.truncate(limit as usize);
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            let node = self.view.told(row, &folder, self.until).await?;
            entries.extend(node.name.clone().map(|name| (name, node)));
        }
        Ok(Listed { entries, is_end })
    }

    async fn extents(&self, file: &Node, offset: u64, limit: u32) -> Result<ExtentPage> {
        let Some((row, within)) = self.view.find(file.attributes.id, self.until).await? else {
            return Ok(page(Vec::new(), true, 0));
        };
        self.view.extents_of(row, &within, (offset, limit, self.until)).await
    }

    async fn xattrs(&self, of: &Node) -> Result<Vec<Xattr>> {
        let found = self.view.find(of.attributes.id, self.until).await?;
        let all = found.map(|(row, _)| row.xattrs).unwrap_or_default();
        let named = |(name, value)| Some(Xattr { name: XattrName::new(name).ok()?, value });
        Ok(all.into_iter().filter_map(named).collect())
    }
}
