//! Namespace operations: one per file, each a function over a [`View`] of a transaction.
//!
//! An operation reads, checks, and writes, in this order; it knows nothing of leases. Its reply's
//! [`LeaseGrant`] names the units that would make what it says cacheable; the service grants what
//! it can.

mod access_lists;
pub mod batch;
mod commit;
mod compact;
mod copy_range;
mod create;
mod extend_mirrors;
mod get_attributes;
mod get_extents;
mod get_layout;
mod get_xattr;
mod link;
mod list_deleted;
mod list_xattrs;
mod lookup;
mod lookup_parent;
mod make_directory;
mod make_node;
mod make_symlink;
mod open;
mod place;
mod read_directory;
pub mod read_files;
mod read_symlink;
pub mod read_tree;
mod record_sums;
mod release;
mod remove_directory;
mod remove_xattr;
mod rename;
mod report_trails;
mod reserve;
mod set_attributes;
mod set_layout;
mod set_project;
mod set_xattr;
mod split_mirror;
mod undelete;
mod unlink;
mod usage;

pub use open::check_kind as open_kind;
pub use release::release;

use crate::error::{Error, Result};
use crate::view::View;
use tieline_types::{FileId, Version};
use tieline_wire::meta::LeaseGrant;
use tieline_wire::{Op, Request};

/// Largest value of an extended attribute, as in Linux.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Entries in one page of a directory.
pub const ENTRIES_MAX: u32 = 4096;
/// Extents in one page, or in one commit.
pub const EXTENTS_MAX: usize = 1024;
/// Extents that an open brings along: of a file of 1 GiB all, so that a reader who begins at its
/// end, as those of ROOT files do, asks for no more.
pub const EXTENTS_AT_OPEN: usize = 256;

/// Messages of all rooms of the protocol that are answered here.
mod messages {
    pub use tieline_wire::ledger::ListDeletedReply;
    pub use tieline_wire::meta::*;
    pub use tieline_wire::mirrors::SplitMirrorReply;
    pub use tieline_wire::quotas::SetProjectReply;
    pub use tieline_wire::ranges::{CompactReply, CopyRangeReply};
    pub use tieline_wire::trees::ReportTrailsReply;
}

macro_rules! replies {
    ($( $kind:ident { $($lease:tt)* } )*) => {
        /// The reply of any operation, under its message's name.
        #[allow(clippy::enum_variant_names)]
        #[derive(Clone, PartialEq, Debug)]
        pub enum Reply { $( $kind(messages::$kind) ),* }

        impl Reply {
            pub fn encode(&self) -> Vec<u8> {
                match self { $( Self::$kind(reply) => tieline_wire::encode(reply) ),* }
            }

            /// The lease it grants, if it says anything that may be cached.
            pub fn lease_mut(&mut self) -> Option<&mut LeaseGrant> {
                match self { $( Self::$kind(_reply) => replies!(@lease _reply $($lease)*) ),* }
            }
        }

        $( impl From<messages::$kind> for Reply {
            fn from(reply: messages::$kind) -> Self { Self::$kind(reply) }
        } )*
    };
    (@lease $reply:ident) => { None };
    (@lease $reply:ident $($path:ident).+) => { Some(&mut $reply.$($path).+) };
}

replies! {
    EntryReply { lease }
    LookupParentReply {}
    AttributesReply { lease }
    ReadDirectoryReply { lease }
    CreateReply { open.lease }
    ChangeReply { lease }
    ReadSymlinkReply {}
    OpenReply { lease }
    GetExtentsReply { lease }
    PlaceReply {}
    GetXattrReply {}
    ListXattrsReply { lease }
    GetLayoutReply {}
    BatchReply { lease }
    ReserveReply {}
    UsageReply {}
    ListDeletedReply {}
    RecordSumsReply {}
    CopyRangeReply { lease }
    SplitMirrorReply { lease }
    CompactReply {}
    SetProjectReply {}
    ReportTrailsReply {}
}

/// Runs one request of the namespace.
pub async fn run<'a>(view: &mut View<'a>, request: &'a Request) -> Result<Reply> {
    Ok(match request {
        Request::Lookup(r) => lookup::run(view, r).await?.into(),
        Request::LookupParent(r) => lookup_parent::run(view, r).await?.into(),
        Request::GetAttributes(r) => get_attributes::run(view, r).await?.into(),
        Request::SetAttributes(r) => set_attributes::run(view, r).await?.into(),
        Request::ReadDirectory(r) => read_directory::run(view, r).await?.into(),
        Request::Create(r) => create::run(view, r).await?.into(),
        Request::MakeDirectory(r) => make_directory::run(view, r).await?.into(),
        Request::MakeSymlink(r) => make_symlink::run(view, r).await?.into(),
        Request::MakeNode(r) => make_node::run(view, r).await?.into(),
        Request::Link(r) => link::run(view, r).await?.into(),
        Request::Unlink(r) => unlink::run(view, r).await?.into(),
        Request::RemoveDirectory(r) => remove_directory::run(view, r).await?.into(),
        Request::Rename(r) => rename::run(view, r).await?.into(),
        Request::ReadSymlink(r) => read_symlink::run(view, r).await?.into(),
        Request::Open(r) => open::run(view, r).await?.into(),
        Request::GetExtents(r) => get_extents::run(view, r).await?.into(),
        Request::Commit(r) => commit::run(view, r).await?.into(),
        Request::Place(r) => place::run(view, r).await?.into(),
        Request::Release(r) => release::run(view, r).await?.into(),
        Request::GetXattr(r) => get_xattr::run(view, r).await?.into(),
        Request::ListXattrs(r) => list_xattrs::run(view, r).await?.into(),
        Request::SetXattr(r) => set_xattr::run(view, r).await?.into(),
        Request::RemoveXattr(r) => remove_xattr::run(view, r).await?.into(),
        Request::GetLayout(r) => get_layout::run(view, r).await?.into(),
        Request::SetLayout(r) => set_layout::run(view, r).await?.into(),
        Request::Batch(r) => batch::run(view, r).await?.into(),
        Request::Reserve(r) => reserve::run(view, r).await?.into(),
        Request::Usage(r) => usage::run(view, r).await?.into(),
        Request::CopyRange(r) => copy_range::run(view, r).await?.into(),
        Request::Compact(r) => compact::run(view, r).await?.into(),
        Request::ExtendMirrors(r) => extend_mirrors::run(view, r).await?.into(),
        Request::SplitMirror(r) => split_mirror::run(view, r).await?.into(),
        // Answered by the service: the work behind them is no transaction.
        Request::ReportPlace(_) | Request::ResyncFile(_) => {
            return Err(Error::NotServed { op: request.op().name() });
        }
        Request::ListDeleted(r) => list_deleted::run(view, r).await?.into(),
        Request::Undelete(r) => undelete::run(view, r).await?.into(),
        Request::SetProject(r) => set_project::run(view, r).await?.into(),
        Request::ReportTrails(r) => report_trails::run(view, r).await?.into(),
        // Limits stand in memory.
        Request::GetQuota(_)
        | Request::SetQuota(_)
        | Request::ListQuotas(_)
        | Request::Promise(_) => {
            return Err(Error::NotServed { op: request.op().name() });
        }
        Request::RecordSums(r) => record_sums::run(view, r).await?.into(),
        // Locks are not in the store; what is told in bulk is signed for OSSs, too.
        Request::ReadTree(_)
        | Request::ReadFiles(_)
        | Request::Lock(_)
        | Request::TestLock(_)
        | Request::CancelLock(_)
        | Request::AssertLocks(_)
        | Request::GetCapability(_)
        | Request::CapabilityNews(_)
        | Request::QuotaShares(_)
        | Request::QuotaNews(_)
        | Request::ReclaimShares(_)
        | Request::DumpMdt(_)
        | Request::CheckMdt(_)
        | Request::GetMap(_)
        | Request::EditMap(_)
        | Request::EditIdentities(_)
        | Request::ListIdentities(_)
        | Request::Prove(_)
        | Request::PutChunk(_)
        | Request::ReadObject(_)
        | Request::SyncFile(_)
        | Request::DeleteChunks(_)
        | Request::OstStatus(_)
        | Request::StatObject(_)
        | Request::ListObjects(_)
        | Request::FetchChunk(_)
        | Request::VerifyObject(_)
        | Request::ListAdopted(_)
        | Request::ChecksumAdopted(_)
        | Request::Fill(_)
        | Request::GrantRoom(_)
        | Request::Drain(_) => return Err(Error::NotServed { op: request.op().name() }),
    })
}

/// The file whose record a mutation is most likely to write: mutations of one file queue up rather
/// than collide.
pub fn primary(request: &Request) -> FileId {
    match request {
        Request::SetAttributes(r) => r.id,
        Request::Create(r) => r.parent,
        Request::MakeDirectory(r) => r.parent,
        Request::MakeSymlink(r) => r.parent,
        Request::MakeNode(r) => r.parent,
        Request::Link(r) => r.parent,
        Request::Unlink(r) => r.parent,
        Request::RemoveDirectory(r) => r.parent,
        Request::Rename(r) => r.from_parent,
        Request::Commit(r) => r.id,
        Request::CopyRange(r) => r.to,
        Request::Compact(r) => r.id,
        Request::Place(r) => r.id,
        Request::Release(r) => r.id,
        Request::SetXattr(r) => r.id,
        Request::RemoveXattr(r) => r.id,
        Request::SetLayout(r) => r.id,
        Request::Undelete(r) => r.parent,
        Request::ExtendMirrors(r) => r.id,
        Request::SplitMirror(r) => r.id,
        Request::RecordSums(r) => r.id,
        Request::SetProject(r) => r.ids.first().copied().unwrap_or_default(),
        _ => FileId::default(),
    }
}

/// Is it a request this room answers?
pub fn is_served(op: Op) -> bool {
    match op {
        Op::Lookup
        | Op::LookupParent
        | Op::GetAttributes
        | Op::SetAttributes
        | Op::ReadDirectory
        | Op::Create
        | Op::MakeDirectory
        | Op::MakeSymlink
        | Op::MakeNode
        | Op::Link
        | Op::Unlink
        | Op::RemoveDirectory
        | Op::Rename
        | Op::ReadSymlink
        | Op::Open
        | Op::GetExtents
        | Op::Commit
        | Op::Place
        | Op::Release
        | Op::GetXattr
        | Op::ListXattrs
        | Op::SetXattr
        | Op::RemoveXattr
        | Op::GetLayout
        | Op::SetLayout
        | Op::Usage
        | Op::Lock
        | Op::TestLock
        | Op::CancelLock
        | Op::RecordSums
        | Op::CopyRange
        | Op::Compact
        | Op::AssertLocks
        | Op::ReportPlace
        | Op::ExtendMirrors
        | Op::SplitMirror
        | Op::ResyncFile
        | Op::ListDeleted
        | Op::Undelete
        | Op::DumpMdt
        | Op::CheckMdt
        | Op::ReadTree
        | Op::ReportTrails
        | Op::ReadFiles
        | Op::Batch
        | Op::Reserve
        | Op::GetCapability
        | Op::GetQuota
        | Op::SetQuota
        | Op::ListQuotas
        | Op::SetProject
        | Op::Promise
        | Op::ReclaimShares => true,
        Op::GetMap
        | Op::EditMap
        | Op::EditIdentities
        | Op::ListIdentities
        | Op::Prove
        | Op::CapabilityNews
        | Op::QuotaShares
        | Op::QuotaNews
        | Op::PutChunk
        | Op::ReadObject
        | Op::SyncFile
        | Op::DeleteChunks
        | Op::OstStatus
        | Op::StatObject
        | Op::ListObjects
        | Op::FetchChunk
        | Op::VerifyObject
        | Op::ListAdopted
        | Op::ChecksumAdopted
        | Op::Fill
        | Op::GrantRoom
        | Op::Drain => false,
    }
}

/// Units under which a reply may be cached, if they are granted.
fn lease(view: &View<'_>, units: impl IntoIterator<Item = FileId>) -> LeaseGrant {
    let mut units: Vec<FileId> = units.into_iter().collect();
    units.sort_unstable();
    units.dedup();
    LeaseGrant { as_of: Version(view.version().0), units, exclusive: None }
}

#[cfg(test)]
mod tests;
