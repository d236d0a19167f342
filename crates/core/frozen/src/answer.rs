//! Calls of an MDT, answered from a tree. Whatever would change something is refused.

use crate::list::{AS_OF, Node, Tree};
use tieline_format::map::FederationMap;
use tieline_types::rules::{READ, Rights, SEARCH};
use tieline_types::{Caller, ErrorKind, FileId, FileKind, Layout, MdtIndex, Name, OstIndex};
use tieline_wire::locks::{CancelLockReply, LockOutcome, LockReply, TestLockReply};
use tieline_wire::meta::{
    AttributesReply, DirectoryEntry, EntryReply, ExtentPage, GetExtentsReply, GetLayoutReply,
    LeaseGrant, ListXattrsReply, LookupParentReply, OpenReply, ReadDirectory, ReadDirectoryReply,
    ReadSymlinkReply, UsageReply,
};
use tieline_wire::{Failure, Request, encode};

type Result<T> = std::result::Result<T, Failure>;

const ENTRIES_MAX: u32 = 4096;
const EXTENTS_MAX: u32 = 1024;

/// One question: who asks, and where the tree is mounted.
pub struct Asked<'a> {
    pub tree: &'a Tree,
    pub map: &'a FederationMap,
    pub mdt: MdtIndex,
    pub caller: &'a Caller,
}

impl Asked<'_> {
    /// The reply's bytes.
    pub fn answer(&self, request: &Request) -> Result<Vec<u8>> {
        Ok(match request {
            Request::Lookup(call) => encode(&self.lookup(call.parent, &call.name)?),
            Request::LookupParent(call) => encode(&self.parent(call.id)?),
            Request::GetAttributes(call) => {
                let node = self.node(call.id)?;
                let (attributes, lease) = (node.attributes.clone(), self.lease(node));
                encode(&AttributesReply { attributes, lease })
            }
            // That a file was read is noted nowhere.
            Request::SetAttributes(call) if call.is_access == Some(true) => {
                let node = self.node(call.id)?;
                let (attributes, lease) = (node.attributes.clone(), self.lease(node));
                encode(&AttributesReply { attributes, lease })
            }
            Request::ReadDirectory(call) => encode(&self.list(call)?),
            Request::ReadSymlink(call) => {
                let target = self.node(call.id)?.target.clone();
                let none = || refused(ErrorKind::InvalidArgument, "only symlinks have a target");
                encode(&ReadSymlinkReply { target: target.ok_or_else(none)? })
            }
            Request::Open(call) if call.is_write || call.writes == Some(true) => {
                return Err(read_only());
            }
            Request::Open(call) => {
                let node = self.file(call.id)?;
                let wishes: &[u32] = if call.is_read { &[READ] } else { &[READ, SEARCH] };
                if !wishes.iter().any(|&wish| self.may(node, wish)) {
                    return Err(denied(call.id));
                }
                encode(&OpenReply {
                    attributes: node.attributes.clone(),
                    layout: Layout::default(),
                    stripe: Vec::<OstIndex>::new(),
                    extents: page(node, 0, EXTENTS_MAX),
                    lease: self.lease(node),
                    capability: None,
                    has_limits: None,
                })
            }
            Request::GetExtents(call) => {
                let node = self.file(call.id)?;
                encode(&GetExtentsReply {
                    page: page(node, call.offset, call.limit.clamp(1, EXTENTS_MAX)),
                    attributes: node.attributes.clone(),
                    lease: self.lease(node),
                })
            }
            Request::GetXattr(call) => {
                self.node(call.id)?;
                return Err(refused(ErrorKind::NoAttribute, "extended attributes"));
            }
            Request::ListXattrs(call) => {
                let lease = self.lease(self.node(call.id)?);
                encode(&ListXattrsReply { xattrs: Vec::new(), lease })
            }
            Request::GetLayout(call) => {
                self.node(call.id)?;
                let layout = Layout::default();
                encode(&GetLayoutReply { layout, is_own: false, stripe: Vec::new() })
            }
            // What never changes need not be held: whoever asks has his lock.
            Request::Lock(call) => {
                self.node(call.id)?;
                encode(&LockReply { outcome: LockOutcome::Granted, idles: None })
            }
            Request::TestLock(_) => encode(&TestLockReply { found: None }),
            Request::CancelLock(_) => encode(&CancelLockReply { was_waiting: false }),
            Request::Usage(_) => {
                encode(&UsageReply { osts: Vec::new(), inodes: self.tree.nodes.len() as u64 })
            }
            other if other.op().is_mutation() => return Err(read_only()),
            other => {
                let what = format!("{} of a repository", other.op().name());
                return Err(refused(ErrorKind::NotSupported, &what));
            }
        })
    }

    fn lookup(&self, parent: FileId, name: &Name) -> Result<EntryReply> {
        let directory = self.directory(parent)?;
        if !self.may(directory, SEARCH) {
            return Err(denied(parent));
        }
        let found = directory.names.get(name).and_then(|&number| self.tree.nodes.get(number));
        let is_directory = |node: &&Node| node.attributes.kind == FileKind::Directory;
        let below = found.filter(is_directory).map(|node| node.attributes.id);
        Ok(EntryReply {
            attributes: found.map(|node| node.attributes.clone()),
            junction: None,
            lease: lease([parent].into_iter().chain(below)),
            target: found.and_then(|node| node.target.clone()),
        })
    }

    /// The root's is where the map mounts it.
    fn parent(&self, id: FileId) -> Result<LookupParentReply> {
        let node = self.node(id)?;
        let above = self.tree.nodes.get(node.parent).map(|above| above.attributes.id);
        let (parent, name) = match (&node.name, self.map.junction_of(self.mdt)) {
            (None, Some(junction)) => (junction.parent, Some(junction.name.clone())),
            (name, _) => (above.unwrap_or(id), name.clone()),
        };
        Ok(LookupParentReply { parent, name, others: None })
    }

    fn list(&self, call: &ReadDirectory) -> Result<ReadDirectoryReply> {
        let directory = self.directory(call.id)?;
        if !self.may(directory, READ) {
            return Err(denied(call.id));
        }
        let limit = call.limit.clamp(1, ENTRIES_MAX) as usize;
        let after = call.after.as_ref();
        let rest =
            directory.names.iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
        let mut reply =
            ReadDirectoryReply { entries: vec![], is_end: true, lease: lease([call.id]) };
        for (name, &number) in rest {
            let Some(node) = self.tree.nodes.get(number) else { continue };
            if reply.entries.len() == limit {
                reply.is_end = false;
                break;
            }
            let (id, kind) = (node.attributes.id, node.attributes.kind);
            let attributes = call.is_plus.then(|| node.attributes.clone());
            let target = node.target.clone().filter(|_| call.is_plus);
            if call.is_plus && kind == FileKind::Directory {
                reply.lease.units.push(id);
            }
            reply.entries.push(DirectoryEntry { name: name.clone(), id, kind, attributes, target });
        }
        reply.lease.units.sort_unstable();
        Ok(reply)
    }

    fn node(&self, id: FileId) -> Result<&Node> {
        let found = self.tree.node(id).filter(|_| id.mdt() == self.mdt);
        found.ok_or_else(|| refused(ErrorKind::Stale, &format!("file {id}")))
    }

    fn directory(&self, id: FileId) -> Result<&Node> {
        let node = self.node(id)?;
        let is_one = node.attributes.kind == FileKind::Directory;
        is_one
            .then_some(node)
            .ok_or_else(|| refused(ErrorKind::NotDirectory, &format!("file {id}")))
    }

    fn file(&self, id: FileId) -> Result<&Node> {
        let node = self.node(id)?;
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
        let above = self.tree.nodes.get(node.parent).filter(|_| !node.attributes.is_directory());
        lease([above.unwrap_or(node).attributes.id])
    }
}

fn lease(units: impl IntoIterator<Item = FileId>) -> LeaseGrant {
    let mut units: Vec<FileId> = units.into_iter().collect();
    units.sort_unstable();
    units.dedup();
    LeaseGrant { as_of: AS_OF, units, exclusive: None }
}

fn page(node: &Node, offset: u64, limit: u32) -> ExtentPage {
    let mut rest = node.extents.iter().filter(|extent| extent.end() > offset);
    let extents: Vec<_> = rest.by_ref().take(limit as usize).cloned().collect();
    let covered = match (rest.next(), extents.last()) {
        (Some(_), Some(last)) => last.end(),
        _ => node.attributes.size,
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
