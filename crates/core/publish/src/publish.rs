//! Publishes a tree: stores what is in its files, and writes its catalogs from the deepest up.
//!
//! Only what is missing is stored, and a catalog in which nothing changed stays as it was. Nothing
//! here is seen by anybody before the manifest names it.

use crate::catalog::draft::{Before, Said, Written, below};
use crate::catalog::{Catalog, CatalogError, Draft, Piece};
use crate::hash::{self, Kind};
use crate::objects::Objects;
use crate::plan::{self, MARKER, MARKER_OWN};
use crate::row::{DIRECTORY_SIZE, Row, Seam};
use crate::tree::{Item, Tree};
use crate::xattrs;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use tieline_types::{Algorithm, Digest, Encoding, FileKind, Mode, Name, Time};

/// Larger files are cut into pieces of so many bytes.
pub const PIECE: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("catalog of `{path}`")]
    Catalog { path: String, source: CatalogError },
    #[error("`{path}`: {why}")]
    Entry { path: String, why: String },
}

/// The revision that is in place.
#[derive(Default)]
pub struct Former {
    /// Of each of its catalogs, by path.
    pub catalogs: BTreeMap<Vec<u8>, Before>,
}

impl Former {
    /// Of a root catalog; `fetch` gives the packed bytes of others, verified.
    pub fn read(
        root: Digest,
        fetch: &dyn Fn(&Digest) -> io::Result<Vec<u8>>,
    ) -> Result<Self, PublishError> {
        let mut former = Self::default();
        let mut todo = vec![(Vec::new(), root, None)];
        while let Some((path, digest, size)) = todo.pop() {
            let wrong = |source| PublishError::Catalog { path: shown(&path), source };
            let catalog = Catalog::unpack(&fetch(&digest)?, size).map_err(wrong)?;
            let number = |key: &str| {
                let said = catalog.property(key).map_err(wrong)?;
                Ok::<_, PublishError>(said.and_then(|said| said.parse().ok()))
            };
            let said = Said {
                revision: number("revision")?.unwrap_or_default(),
                modified: number("last_modified")?.unwrap_or_default(),
                previous: catalog.property("previous_revision").map_err(wrong)?.unwrap_or_default(),
                ttl: number("TTL")?,
            };
            let nested = catalog.nested_all();
            todo.extend(nested.map(|(path, digest, size)| (path.clone(), *digest, *size)));
            former.catalogs.insert(path, Before { digest, said });
        }
        Ok(former)
    }
}

/// What one publication has to do with.
pub struct Publisher<'p> {
    pub tree: &'p mut dyn Tree,
    pub objects: &'p Objects,
    pub former: Former,
    /// Directories that get a catalog although nobody asked for one.
    pub divided: BTreeSet<Vec<u8>>,
    /// Seconds since 1970.
    pub now: u64,
    pub ttl: u64,
    /// Called with bytes that were read.
    pub told: &'p mut dyn FnMut(u64),
}

/// What a directory's entries become, and which of them are directories themselves.
type Entries = (Vec<(Row, Vec<Piece>)>, Vec<Item>);

impl Publisher<'_> {
    /// Writes all catalogs; gives that of the root.
    pub fn run(&mut self) -> Result<Written, PublishError> {
        let root = self.tree.root()?;
        let items = self.listed(b"")?;
        self.catalog(b"", &root, items, 0)
    }

    /// The catalog of a directory, whose entries these are.
    fn catalog(
        &mut self,
        path: &[u8],
        item: &Item,
        items: Vec<Item>,
        depth: usize,
    ) -> Result<Written, PublishError> {
        let wrong = |source| PublishError::Catalog { path: shown(path), source };
        let mut draft = Draft::new(path).map_err(wrong)?;
        let seam = if path.is_empty() { Seam::None } else { Seam::Root };
        let row = self.directory_row(path, item, &items, seam)?;
        draft.add(&[(row, Vec::new())]).map_err(wrong)?;
        let mut groups = 0;
        self.fill(&mut draft, path, items, (depth, &mut groups))?;
        let before = self.former.catalogs.remove(path);
        let now = Said {
            revision: before.as_ref().map_or(1, |before| before.said.revision + 1),
            modified: self.now,
            previous: match &before {
                Some(before) => hash::text(&before.digest),
                None => "0".repeat(40),
            },
            ttl: path.is_empty().then_some(self.ttl),
        };
        // Another time to live makes another root.
        let same = before.filter(|before| before.said.ttl == now.ttl);
        let written = draft.finish(same.as_ref(), &now).map_err(wrong)?;
        if let Some(packed) = &written.packed {
            self.objects.put_packed(packed, Kind::Catalog)?;
        }
        Ok(written)
    }

    /// All that lies below a directory, as far as its catalog goes.
    fn fill(
        &mut self,
        draft: &mut Draft,
        path: &[u8],
        items: Vec<Item>,
        (depth, groups): (usize, &mut u32),
    ) -> Result<(), PublishError> {
        if depth > plan::DEPTH_MAX {
            return Err(plan::too_deep(path).into());
        }
        let wrong = |source| PublishError::Catalog { path: shown(path), source };
        let (mut rows, directories) = self.entries(path, items, groups)?;
        let mut below_here = Vec::new();
        for item in directories {
            let (path, _) = below(path, &item.name);
            let items = self.listed(&path)?;
            let is_own = plan::is_marked(&items);
            let seam = if is_own { Seam::Mountpoint } else { Seam::None };
            rows.push((self.directory_row(&path, &item, &items, seam)?, Vec::new()));
            below_here.push((path, item, is_own));
        }
        draft.add(&rows).map_err(wrong)?;
        drop(rows);
        for (path, item, is_own) in below_here {
            // Listed again: all of them at once may be too much to hold.
            let items = self.listed(&path)?;
            if !is_own {
                self.fill(draft, &path, items, (depth + 1, groups))?;
                continue;
            }
            let catalog = self.catalog(&path, &item, items, depth + 1)?;
            let wrong = |source| PublishError::Catalog { path: shown(&path), source };
            draft.nest(&path, &catalog).map_err(wrong)?;
        }
        Ok(())
    }

    /// What lies in a directory, by name, with the markers of a catalog that nobody asked for.
    fn listed(&mut self, path: &[u8]) -> Result<Vec<Item>, PublishError> {
        let mut items = self.tree.list(path)?;
        if self.divided.contains(path) && !plan::is_marked(&items) {
            items.retain(|item| item.name != MARKER && item.name != MARKER_OWN);
            items.extend([MARKER, MARKER_OWN].map(marker));
        }
        for item in &items {
            if let Err(error) = Name::new(item.name.clone()) {
                return Err(entry(path, &item.name, error.to_string()));
            }
        }
        items.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(items)
    }

    /// Stores what is in files; names of one file in one directory stay one.
    fn entries(
        &mut self,
        path: &[u8],
        items: Vec<Item>,
        groups: &mut u32,
    ) -> Result<Entries, PublishError> {
        let mut names: BTreeMap<u64, u32> = BTreeMap::new();
        let is_shared = |item: &Item| item.kind == FileKind::Regular && item.links > 1;
        for item in items.iter().filter(|item| is_shared(item)) {
            *names.entry(item.file).or_default() += 1;
        }
        let mut shared: BTreeMap<u64, (Row, Vec<Piece>)> = BTreeMap::new();
        let (mut rows, mut directories) = (Vec::new(), Vec::new());
        for item in items {
            if item.kind == FileKind::Directory {
                directories.push(item);
                continue;
            }
            let links = names.get(&item.file).copied().filter(|_| is_shared(&item)).unwrap_or(1);
            let (own, hashed) = below(path, &item.name);
            if let Some((row, pieces)) = shared.get(&item.file).filter(|_| links > 1) {
                let row = Row { path: hashed, name: item.name, ..row.clone() };
                rows.push((row, pieces.clone()));
                continue;
            }
            let (mut row, pieces) = self.file(&own, &item)?;
            (row.path, row.parent, row.links) = (hashed, hash::path_hash(path), links);
            if links > 1 {
                *groups += 1;
                row.group = *groups;
                shared.insert(item.file, (row.clone(), pieces.clone()));
            }
            rows.push((row, pieces));
        }
        Ok((rows, directories))
    }

    fn directory_row(
        &self,
        path: &[u8],
        item: &Item,
        items: &[Item],
        seam: Seam,
    ) -> Result<Row, PublishError> {
        check(path, item)?;
        let directories = items.iter().filter(|item| item.kind == FileKind::Directory).count();
        let parent = path.iter().rposition(|&byte| byte == b'/').map(|slash| &path[..slash]);
        Ok(Row {
            path: hash::path_hash(path),
            parent: parent.map_or((0, 0), hash::path_hash),
            links: 2 + directories as u32,
            size: DIRECTORY_SIZE,
            seam,
            ..row_of(item)
        })
    }

    /// What is not a directory.
    fn file(&mut self, path: &[u8], item: &Item) -> Result<(Row, Vec<Piece>), PublishError> {
        check(path, item)?;
        let mut row = row_of(item);
        if item.kind != FileKind::Regular {
            return Ok((row, Vec::new()));
        }
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("reading `{}`: {error}", shown(path)))
        };
        let mut stream = match item.file {
            NOT_THERE => Box::new(io::empty()),
            _ => self.tree.open(path)?,
        };
        let (mut pieces, mut bytes) = (Vec::new(), piece(&mut *stream).map_err(named)?);
        row.size = 0;
        loop {
            (self.told)(bytes.len() as u64);
            let is_last = bytes.len() < PIECE;
            let next = if is_last { Vec::new() } else { piece(&mut *stream).map_err(named)? };
            let (offset, length) = (row.size, bytes.len() as u64);
            row.size += length;
            if pieces.is_empty() && next.is_empty() {
                row.digest = Some(self.objects.put(&bytes, Kind::Whole)?);
                return Ok((row, pieces));
            }
            let digest = self.objects.put(&bytes, Kind::Piece)?;
            pieces.push(Piece { offset, length, digest });
            if next.is_empty() {
                row.is_chunked = true;
                return Ok((row, pieces));
            }
            bytes = next;
        }
    }
}

/// Can a catalog say all of it?
fn check(path: &[u8], item: &Item) -> Result<(), PublishError> {
    let why = "an extended attribute, or its value, has more than 255 bytes, or there are more \
               than 255: catalogs cannot say that";
    let wrong = || PublishError::Entry { path: shown(path), why: why.into() };
    xattrs::write(&item.xattrs).map(drop).ok_or_else(wrong)
}

/// The number of a file that is in no tree.
const NOT_THERE: u64 = 0;

/// A file that nobody made, and that is empty.
fn marker(name: &[u8]) -> Item {
    Item {
        name: name.to_vec(),
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: 0,
        device: 0,
        mtime: Time::default(),
        file: NOT_THERE,
        links: 1,
        target: None,
        xattrs: xattrs::Xattrs::new(),
    }
}

/// As many bytes as a piece has, or those that are left.
fn piece(stream: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(PIECE as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a row has of an entry, before it is known where it is and what its bytes are.
fn row_of(item: &Item) -> Row {
    let size = match item.kind {
        FileKind::Symlink => item.target.as_ref().map_or(0, Vec::len) as u64,
        FileKind::Regular => item.size,
        _ => 0,
    };
    let is_device = matches!(item.kind, FileKind::CharDevice | FileKind::BlockDevice);
    Row {
        path: (0, 0),
        parent: (0, 0),
        kind: item.kind,
        mode: Mode::new(item.mode),
        links: 1,
        group: 0,
        digest: None,
        hashed: (Algorithm::Sha1, Encoding::Zlib),
        size,
        device: if is_device { item.device } else { 0 },
        mtime: item.mtime,
        name: item.name.clone(),
        target: item.target.clone(),
        uid: item.uid,
        gid: item.gid,
        xattrs: item.xattrs.clone(),
        seam: Seam::None,
        is_chunked: false,
        is_external: false,
    }
}

fn entry(path: &[u8], name: &[u8], why: String) -> PublishError {
    PublishError::Entry { path: shown(&[path, b"/", name].concat()), why }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path).into_owned() }
}
