//! What an MDS and an OSS answer of a tree that nobody changes: as much at once as the real ones.

use crate::tree::{Kind, Tree};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tieline_foresight::bundles::{are_same, joined, of_run, signs, to_replace};
use tieline_format::mdt::{Bundle, BundleHead};
use tieline_types::checksum::{BLOCK, block_checks};
use tieline_types::{
    Attributes, ChunkRef, Content, ErrorKind, Extent, FileId, FileKind, Grant, GrantedId, Layout,
    MdtIndex, Mode, Name, ObjectName, OstIndex, OstPlace, Time, Uid, Version,
};
use tieline_wire::data::{ReadObject, ReadObjectReply};
use tieline_wire::meta::*;
use tieline_wire::trees::*;
use tieline_wire::{Call, Failure, Request};

/// Larger files have chunks.
const INLINE_MAX: u64 = 16 << 10;
const CHUNK: u64 = 4 << 20;
/// What an entry or a file takes in a page besides its bytes, roughly, as the MDS counts it.
const WEIGHT: usize = 150;
const PAGE: usize = 1000;
static ZEROES: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// An answer, and what it costs.
pub struct Answer {
    pub body: Vec<u8>,
    pub bulk: Bytes,
    /// Entries and files that were told.
    pub items: usize,
    /// As it is on the line.
    pub bytes: u64,
    /// Bytes of files, unpacked.
    pub contents: u64,
}

/// Of text and attributes a packed page has so many of a hundred bytes.
const PACKED: usize = 40;

pub struct Server {
    pub tree: Tree,
    /// By their roots, the one that was used last first.
    pub bundles: BTreeMap<FileId, Vec<(BundleHead, Bundle)>>,
    layout: Layout,
}

/// Numbers of the tree as ids of files, and back.
pub fn id(number: usize) -> FileId {
    FileId::new(MdtIndex(0), number as u64 + 1)
}

pub fn number(id: FileId) -> usize {
    id.serial() as usize - 1
}

fn done<C: Call>(reply: &C::Reply, items: usize) -> Result<Answer, Failure> {
    let body = tieline_wire::encode(reply);
    let bytes = body.len() as u64;
    Ok(Answer { body, bulk: Bytes::new(), items, bytes, contents: 0 })
}

/// The page itself travels unpacked here, and counts as if it were packed.
fn packed<T: minicbor::Encode<()>>(page: &T) -> (Packed, u64) {
    let length = tieline_wire::encode(page).len();
    (Packed::new(page), (length * PACKED / 100) as u64)
}

impl Server {
    pub fn new(tree: &Arc<Tree>) -> Self {
        Self { tree: (**tree).clone(), bundles: BTreeMap::new(), layout: Layout::default() }
    }

    pub fn answer(&mut self, request: Request) -> Result<Answer, Failure> {
        match request {
            Request::Lookup(Lookup { parent, name }) => {
                let names = &self.tree.nodes[number(parent)].names;
                done::<Lookup>(&self.entry(parent, names.get(&name).copied()), 1)
            }
            Request::GetAttributes(GetAttributes { id }) => {
                let lease = self.lease([self.unit(id)]);
                let attributes = self.attributes(id);
                done::<GetAttributes>(&AttributesReply { attributes, lease }, 1)
            }
            Request::ReadDirectory(page) => self.read_directory(&page),
            Request::ReadSymlink(_) => {
                done::<ReadSymlink>(&ReadSymlinkReply { target: b"elsewhere".to_vec() }, 1)
            }
            Request::Open(Open { id, .. }) => {
                let contents = weigh(&self.extents(id)) as u64;
                let reply = OpenReply {
                    has_limits: None,
                    attributes: self.attributes(id),
                    layout: self.layout.clone(),
                    stripe: vec![OstIndex(0)],
                    extents: self.extents(id),
                    lease: self.lease([self.unit(id)]),
                    capability: None,
                };
                done::<Open>(&reply, 1).map(|answer| Answer { contents, ..answer })
            }
            Request::GetExtents(GetExtents { id, .. }) => {
                let (page, lease) = (self.extents(id), self.lease([self.unit(id)]));
                let attributes = self.attributes(id);
                done::<GetExtents>(&GetExtentsReply { page, attributes, lease }, 1)
            }
            Request::ReadTree(tree) => self.read_tree(&tree),
            Request::ReadFiles(files) => self.read_files(&files),
            Request::ReportBundle(report) => self.report_bundle(&report),
            Request::ReadBundle(which) => self.read_bundle(which),
            Request::ReadObject(read) => Ok(read_object(&read)),
            Request::GetLayout(_) => {
                let (layout, stripe) = (self.layout.clone(), vec![OstIndex(0)]);
                done::<GetLayout>(&GetLayoutReply { layout, is_own: false, stripe }, 1)
            }
            Request::ListXattrs(ListXattrs { id }) => {
                let lease = self.lease([self.unit(id)]);
                done::<ListXattrs>(&ListXattrsReply { xattrs: vec![], lease }, 1)
            }
            _ => Err(Failure::new(ErrorKind::NotSupported, "replay")),
        }
    }

    fn lease(&self, units: impl IntoIterator<Item = FileId>) -> LeaseGrant {
        let units = units.into_iter().collect();
        LeaseGrant { as_of: Version(10), units, exclusive: None }
    }

    fn unit(&self, id: FileId) -> FileId {
        match self.tree.nodes[number(id)].kind {
            Kind::Directory => id,
            Kind::File { .. } | Kind::Symlink => self::id(self.tree.nodes[number(id)].parent),
        }
    }

    fn attributes(&self, id: FileId) -> Attributes {
        let node = &self.tree.nodes[number(id)];
        let (kind, size) = match node.kind {
            Kind::Directory => (FileKind::Directory, 4096),
            Kind::File { size } => (FileKind::Regular, size),
            Kind::Symlink => (FileKind::Symlink, 9),
        };
        let time = Time { seconds: 1000, nanos: 0 };
        // Else all without an end in their names would be programs.
        let mode = Mode::new(if kind == FileKind::Directory { 0o755 } else { 0o644 });
        Attributes {
            links: 1,
            size,
            version: Version(node.version),
            has_xattrs: Some(false),
            ..Attributes::new(id, kind, mode, time)
        }
    }

    fn entry(&self, parent: FileId, found: Option<usize>) -> EntryReply {
        let attributes = found.map(|number| self.attributes(id(number)));
        let own = attributes.iter().filter(|one| one.is_directory()).map(|one| one.id);
        let lease = self.lease([parent].into_iter().chain(own));
        EntryReply { attributes, junction: None, lease, target: None }
    }

    fn extents(&self, id: FileId) -> ExtentPage {
        let size = self.tree.size(number(id));
        let mut extents = vec![];
        if (1..=INLINE_MAX).contains(&size) {
            let content = Content::Inline(vec![0; size as usize]);
            extents.push(Extent { offset: 0, length: size, content });
        } else {
            for offset in (0..size).step_by(CHUNK as usize) {
                extents.push(self.chunk(id, offset, size));
            }
        }
        ExtentPage { extents, covered: u64::MAX }
    }

    fn chunk(&self, id: FileId, offset: u64, size: u64) -> Extent {
        let length = CHUNK.min(size - offset);
        let version = self.tree.nodes[number(id)].version;
        let serial = (id.serial() << 16) + (version << 10) + offset / CHUNK;
        let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(length), serial };
        let (ost, object) = (OstIndex(0), ObjectName::Chunk(chunk));
        let places = vec![OstPlace { ost, object, offset: 0, length, is_stale: false }.into()];
        let (digest, adler32, checks) = (None, None, None);
        let chunk = chunk.into();
        let content =
            Content::Chunk(ChunkRef { chunk, length, skip: 0, places, digest, adler32, checks });
        Extent { offset, length, content }
    }

    fn told(&self, name: &Name, number: usize) -> DirectoryEntry {
        let attributes = self.attributes(id(number));
        let target = (attributes.kind == FileKind::Symlink).then(|| b"elsewhere".to_vec());
        let (id, kind) = (attributes.id, attributes.kind);
        DirectoryEntry { name: name.clone(), id, kind, attributes: Some(attributes), target }
    }

    fn read_directory(&self, page: &ReadDirectory) -> Result<Answer, Failure> {
        let names = self.tree.nodes[number(page.id)].names.iter();
        let after = |name: &Name| page.after.as_ref().is_none_or(|after| name > after);
        let mut rest = names.filter(|(name, _)| after(name)).peekable();
        let mut entries = vec![];
        while entries.len() < PAGE
            && let Some((name, &number)) = rest.next()
        {
            entries.push(self.told(name, number));
        }
        let (is_end, lease) = (rest.peek().is_none(), self.lease([page.id]));
        let count = entries.len();
        done::<ReadDirectory>(&ReadDirectoryReply { entries, is_end, lease }, count)
    }

    fn file_bytes(&self, id: FileId) -> FileBytes {
        FileBytes { layout: 0, stripe: vec![OstIndex(0)], extents: self.extents(id) }
    }

    fn read_tree(&self, tree: &ReadTree) -> Result<Answer, Failure> {
        let roots = tree.roots.iter().map(|&id| (id, tree.depth, None));
        let mut queue: VecDeque<(FileId, u32, Option<&Name>)> = roots.collect();
        if let Some(first) = queue.front_mut() {
            first.2 = tree.after.as_ref();
        }
        let mut page = TreePage { layouts: vec![self.layout.clone()], ..TreePage::default() };
        let (mut entries, mut bytes) = (tree.entries as usize, tree.bytes as usize);
        let (mut contents, mut told_contents) = (tree.bytes as usize / 2, 0);
        let mut units = BTreeSet::new();
        let mut items = 0;
        while let Some((id, depth, after)) = queue.pop_front() {
            if entries == 0 || bytes == 0 {
                page.is_cut = true;
                break;
            }
            units.insert(id);
            let bundles = self.bundles.get(&id).filter(|_| after.is_none()).map(|known| {
                let one = |(head, _): &(BundleHead, Bundle)| BundleSigns {
                    number: head.number,
                    signs: head.signs.clone(),
                };
                known.iter().map(one).collect()
            });
            let attributes = self.attributes(id);
            let mut told = TreeDirectory { attributes, entries: vec![], is_end: true, bundles };
            let mut below = vec![];
            for (name, &child) in &self.tree.nodes[number(id)].names {
                if after.is_some_and(|after| name <= after) {
                    continue;
                }
                if entries == 0 || bytes == 0 {
                    told.is_end = false;
                    break;
                }
                let entry = self.told(name, child);
                let is_wanted = entry.kind == FileKind::Regular
                    && self.tree.size(child) <= tree.contents_max
                    && contents > 0;
                let file = is_wanted.then(|| self.file_bytes(entry.id));
                let weight = file.as_ref().map_or(0, |file| weigh(&file.extents));
                contents = contents.saturating_sub(weight);
                told_contents += weight as u64;
                bytes = bytes.saturating_sub(WEIGHT + name.as_bytes().len());
                (entries, items) = (entries - 1, items + 1);
                if entry.kind == FileKind::Directory {
                    units.insert(entry.id);
                    below.push(entry.id);
                }
                told.entries.push(TreeEntry { entry, file, xattrs: None });
            }
            page.is_cut |= !told.is_end;
            page.directories.push(told);
            if depth > 0 {
                below.into_iter().rev().for_each(|id| queue.push_front((id, depth - 1, None)));
            }
        }
        let lease = self.lease(units);
        let (page, bytes) = packed(&page);
        let reply = ReadTreeReply { lease, page, capabilities: None, has_limits: None };
        let contents = told_contents;
        done::<ReadTree>(&reply, items).map(|answer| Answer { bytes, contents, ..answer })
    }

    fn report_bundle(&mut self, report: &ReportBundle) -> Result<Answer, Failure> {
        let known = self.bundles.entry(report.root).or_default();
        let mut new = of_run(&report.directories, &report.files);
        let (by, used) = (Uid(0), Time { seconds: 0, nanos: 0 });
        let mut number = known.len() as u32;
        if let Some(at) = known.iter().position(|(_, one)| are_same(one, &new)) {
            let (head, old) = known.remove(at);
            (number, new) = (head.number, joined(&old, &new));
        } else {
            let heads: Vec<BundleHead> = known.iter().map(|(head, _)| head.clone()).collect();
            if let Some(at) = to_replace(&heads, by) {
                number = known.remove(at).0.number;
            }
        }
        known.insert(0, (BundleHead { number, by, used, signs: signs(&new) }, new));
        done::<ReportBundle>(&ReportBundleReply { number: Some(number) }, 1)
    }

    fn read_bundle(&self, which: ReadBundle) -> Result<Answer, Failure> {
        let known = self.bundles.get(&which.root).into_iter().flatten();
        let found =
            known.filter(|(head, _)| head.number == which.number).map(|(_, one)| one).next();
        let mut list = BundleList::default();
        if let Some(bundle) = found {
            list.directories = bundle.directories.iter().map(|one| one.id).collect();
            let size = |id| self.tree.size(number(id));
            let files = bundle.files.iter().map(|one| SizedFile { id: one.id, size: size(one.id) });
            list.files = files.collect();
        }
        let items = list.files.len() + list.directories.len();
        let (list, bytes) = packed(&list);
        let answer = done::<ReadBundle>(&ReadBundleReply { list }, items);
        answer.map(|answer| Answer { bytes, ..answer })
    }

    fn read_files(&self, files: &ReadFiles) -> Result<Answer, Failure> {
        let mut page = FilesPage { layouts: vec![self.layout.clone()], ..FilesPage::default() };
        let mut units = BTreeSet::new();
        let (mut bytes, mut contents) = (files.bytes as usize, 0);
        for &id in &files.ids {
            if bytes == 0 {
                break;
            }
            page.count += 1;
            let (unit, told) = (self.unit(id), self.file_bytes(id));
            units.insert(unit);
            let weight = weigh(&told.extents);
            contents += weight as u64;
            bytes = bytes.saturating_sub(WEIGHT + weight);
            page.files.push(ToldFile { attributes: self.attributes(id), unit, bytes: told });
        }
        let (lease, items) = (self.lease(units), page.files.len());
        let (page, bytes) = packed(&page);
        let reply = ReadFilesReply { lease, page, capabilities: None, has_limits: None };
        done::<ReadFiles>(&reply, items).map(|answer| Answer { bytes, contents, ..answer })
    }
}

fn weigh(page: &ExtentPage) -> usize {
    let one = |extent: &Extent| match &extent.content {
        Content::Inline(bytes) => 20 + bytes.len(),
        Content::Chunk(_) | Content::Hole => 100,
    };
    page.extents.iter().map(one).sum()
}

fn read_object(read: &ReadObject) -> Answer {
    let ObjectName::Chunk(chunk) = &read.object else {
        return Answer { body: vec![], bulk: Bytes::new(), items: 0, bytes: 0, contents: 0 };
    };
    let length = chunk.grant.0;
    let block = BLOCK as u64;
    let offset = read.offset / block * block;
    let end = (read.offset + u64::from(read.length)).div_ceil(block) * block;
    let bulk = Bytes::from_static(&ZEROES).slice(offset as usize..end.min(length) as usize);
    let checks = block_checks(&bulk);
    let reply = ReadObjectReply { offset, checks, object_length: length, proof: None };
    let bytes = bulk.len() as u64;
    Answer { body: tieline_wire::encode(&reply), bulk, items: 1, bytes, contents: bytes }
}
