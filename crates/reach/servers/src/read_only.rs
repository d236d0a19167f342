//! Calls of an MDT, answered from a tree that nobody changes: whatever would is refused.
//!
//! Where names and bytes of the tree come from is the tree's own ([`ReadOnlyTree`]); who may see
//! them is decided here, by their modes.

use tieline_format::map::FederationMap;
use tieline_types::rules::{READ, Rights, SEARCH};
use tieline_types::{
    Attributes, Caller, ErrorKind, Extent, FileId, FileKind, Layout, MdtIndex, Name, OstIndex,
    Version,
};
use tieline_wire::locks::{CancelLockReply, LockOutcome, LockReply, TestLockReply};
use tieline_wire::meta::{
    AttributesReply, DirectoryEntry, EntryReply, ExtentPage, GetExtentsReply, GetLayoutReply,
    GetXattrReply, LeaseGrant, ListXattrsReply, LookupParentReply, OpenReply, ReadDirectory,
    ReadDirectoryReply, ReadSymlinkReply, UsageReply, Xattr,
};
use tieline_wire::{Failure, Request, encode};

type Result<T> = std::result::Result<T, Failure>;

const ENTRIES_MAX: u32 = 4096;
const EXTENTS_MAX: u32 = 1024;

/// What is known of a file.
#[derive(Clone, Debug)]
pub struct Node {
    pub attributes: Attributes,
    /// The directory above; the root's is itself.
    pub parent: FileId,
    /// `None`: it is the root.
    pub name: Option<Name>,
    pub target: Option<Vec<u8>>,
}

/// Entries of a directory, in the order of their names.
pub struct Listed {
    pub entries: Vec<(Name, Node)>,
    pub is_end: bool,
}

/// A tree as of one version.
#[async_trait::async_trait]
pub trait ReadOnlyTree: Send + Sync {
    fn as_of(&self) -> Version;
    fn files(&self) -> u64;
    /// `None`: no file has this id.
    async fn node(&self, id: FileId) -> Result<Option<Node>>;
    async fn child(&self, directory: &Node, name: &Name) -> Result<Option<Node>>;
    async fn children(&self, directory: &Node, after: Option<&Name>, limit: u32) -> Result<Listed>;
    /// The extents of a regular file that end beyond an offset.
    async fn extents(&self, file: &Node, offset: u64, limit: u32) -> Result<ExtentPage>;

    async fn xattrs(&self, _: &Node) -> Result<Vec<Xattr>> {
        Ok(Vec::new())
    }
}

/// One question: who asks, and where the tree is mounted.
pub struct Asked<'a> {
    pub tree: &'a dyn ReadOnlyTree,
    pub map: &'a FederationMap,
    pub mdt: MdtIndex,
    pub caller: &'a Caller,
}

impl Asked<'_> {
    /// The reply's bytes.
    pub async fn answer(&self, request: &Request) -> Result<Vec<u8>> {
        Ok(match request {
            Request::Lookup(call) => encode(&self.lookup(call.parent, &call.name).await?),
            Request::LookupParent(call) => encode(&self.parent(call.id).await?),
            Request::GetAttributes(call) => encode(&self.attributes(call.id).await?),
            // That a file was read is noted nowhere.
            Request::SetAttributes(call) if call.is_access == Some(true) => {
                encode(&self.attributes(call.id).await?)
            }
            Request::ReadDirectory(call) => encode(&self.list(call).await?),
            Request::ReadSymlink(call) => {
                let target = self.node(call.id).await?.target;
                let none = || refused(ErrorKind::InvalidArgument, "only symlinks have a target");
                encode(&ReadSymlinkReply { target: target.ok_or_else(none)? })
            }
            Request::Open(call) if call.is_write || call.writes == Some(true) => {
                return Err(read_only());
            }
            Request::Open(call) => {
                let node = self.file(call.id).await?;
                let wishes: &[u32] = if call.is_read { &[READ] } else { &[READ, SEARCH] };
                if !wishes.iter().any(|&wish| self.may(&node, wish)) {
                    return Err(denied(call.id));
                }
                encode(&OpenReply {
                    layout: Layout::default(),
                    stripe: Vec::<OstIndex>::new(),
                    extents: self.tree.extents(&node, 0, EXTENTS_MAX).await?,
                    lease: self.lease(&node),
                    attributes: node.attributes,
                    capability: None,
                    has_limits: None,
                })
            }
            Request::GetExtents(call) => {
                let node = self.file(call.id).await?;
                let limit = call.limit.clamp(1, EXTENTS_MAX);
                encode(&GetExtentsReply {
                    page: self.tree.extents(&node, call.offset, limit).await?,
                    lease: self.lease(&node),
                    attributes: node.attributes,
                })
            }
            Request::GetXattr(call) => {
                let node = self.node(call.id).await?;
                let all = self.tree.xattrs(&node).await?;
                let found = all.into_iter().find(|xattr| xattr.name == call.name);
                let none = || refused(ErrorKind::NoAttribute, "extended attributes");
                encode(&GetXattrReply { value: found.ok_or_else(none)?.value })
            }
            Request::ListXattrs(call) => {
                let node = self.node(call.id).await?;
                let xattrs = self.tree.xattrs(&node).await?;
                encode(&ListXattrsReply { xattrs, lease: self.lease(&node) })
            }
            Request::GetLayout(call) => {
                self.node(call.id).await?;
                let layout = Layout::default();
                encode(&GetLayoutReply { layout, is_own: false, stripe: Vec::new() })
            }
            // What nobody changes need not be held: whoever asks has his lock.
            Request::Lock(call) => {
                self.node(call.id).await?;
                encode(&LockReply { outcome: LockOutcome::Granted, idles: None })
            }
            Request::TestLock(_) => encode(&TestLockReply { found: None }),
            Request::CancelLock(_) => encode(&CancelLockReply { was_waiting: false }),
            Request::Usage(_) => {
                encode(&UsageReply { osts: Vec::new(), inodes: self.tree.files() })
            }
            other if other.op().is_mutation() => return Err(read_only()),
            other => {
                let what = format!("{} of a repository", other.op().name());
                return Err(refused(ErrorKind::NotSupported, &what));
            }
        })
    }

    async fn attributes(&self, id: FileId) -> Result<AttributesReply> {
        let node = self.node(id).await?;
        Ok(AttributesReply { lease: self.lease(&node), attributes: node.attributes })
    }

    async fn lookup(&self, parent: FileId, name: &Name) -> Result<EntryReply> {
        let directory = self.directory(parent).await?;
        if !self.may(&directory, SEARCH) {
            return Err(denied(parent));
        }
        let found = self.tree.child(&directory, name).await?;
        let is_directory = |node: &&Node| node.attributes.is_directory();
        let below = found.as_ref().filter(is_directory).map(|node| node.attributes.id);
        Ok(EntryReply {
            junction: None,
            lease: self.lease_of([parent].into_iter().chain(below)),
            target: found.as_ref().and_then(|node| node.target.clone()),
            attributes: found.map(|node| node.attributes),
        })
    }

    /// The root's is where the map mounts it.
    async fn parent(&self, id: FileId) -> Result<LookupParentReply> {
        let node = self.node(id).await?;
        let (parent, name) = match (node.name, self.map.junction_of(self.mdt)) {
            (None, Some(junction)) => (junction.parent, Some(junction.name.clone())),
            (name, _) => (node.parent, name),
        };
        Ok(LookupParentReply { parent, name, others: None })
    }

    async fn list(&self, call: &ReadDirectory) -> Result<ReadDirectoryReply> {
        let directory = self.directory(call.id).await?;
        if !self.may(&directory, READ) {
            return Err(denied(call.id));
        }
        let limit = call.limit.clamp(1, ENTRIES_MAX);
        let listed = self.tree.children(&directory, call.after.as_ref(), limit).await?;
        let mut lease = self.lease_of([call.id]);
        let mut entries = Vec::with_capacity(listed.entries.len());
        for (name, node) in listed.entries {
            let (id, kind) = (node.attributes.id, node.attributes.kind);
            if call.is_plus && kind == FileKind::Directory {
                lease.units.push(id);
            }
            let target = node.target.filter(|_| call.is_plus);
            let attributes = call.is_plus.then_some(node.attributes);
            entries.push(DirectoryEntry { name, id, kind, attributes, target });
        }
        lease.units.sort_unstable();
        Ok(ReadDirectoryReply { entries, is_end: listed.is_end, lease })
    }

    async fn node(&self, id: FileId) -> Result<Node> {
        let unknown = || refused(ErrorKind::Stale, &format!("file {id}"));
        if id.mdt() != self.mdt {
            return Err(unknown());
        }
        self.tree.node(id).await?.ok_or_else(unknown)
    }

    async fn directory(&self, id: FileId) -> Result<Node> {
        let node = self.node(id).await?;
        match node.attributes.is_directory() {
            true => Ok(node),
            false => Err(refused(ErrorKind::NotDirectory, &format!("file {id}"))),
        }
    }

    async fn file(&self, id: FileId) -> Result<Node> {
        let node = self.node(id).await?;
        match node.attributes.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(refused(ErrorKind::IsDirectory, &format!("file {id}"))),
            _ => Err(refused(ErrorKind::InvalidArgument, &format!("file {id} has no bytes"))),
        }
    }

    fn may(&self, node: &Node, wish: u32) -> bool {
        let of = &node.attributes;
        let rights = Rights { kind: of.kind, mode: of.mode, uid: of.uid, gid: of.gid, acls: None };
        rights.allow(self.caller, wish)
    }

    /// What is told of a file holds as long as what is told of its directory.
    fn lease(&self, node: &Node) -> LeaseGrant {
        let is_directory = node.attributes.is_directory();
        self.lease_of([if is_directory { node.attributes.id } else { node.parent }])
    }

    fn lease_of(&self, units: impl IntoIterator<Item = FileId>) -> LeaseGrant {
        let mut units: Vec<FileId> = units.into_iter().collect();
        units.sort_unstable();
        units.dedup();
        LeaseGrant { as_of: self.tree.as_of(), units, exclusive: None }
    }
}

/// What reaches to the file's end, or only as far as its last extent, for there are more.
pub fn page(extents: Vec<Extent>, is_end: bool, size: u64) -> ExtentPage {
    let covered = match extents.last() {
        Some(last) if !is_end => last.end(),
        _ => size,
    };
    ExtentPage { extents, covered }
}

fn refused(kind: ErrorKind, what: &str) -> Failure {
    Failure::new(kind, what)
}

fn read_only() -> Failure {
    refused(ErrorKind::ReadOnly, "a repository: it is changed where it is published")
}

fn denied(id: FileId) -> Failure {
    refused(ErrorKind::PermissionDenied, &format!("file {id}"))
}
