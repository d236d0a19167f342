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
use tieline_wire::{Answerer, Op, Request};

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

macro_rules! run {
    ($( $name:ident $room:ident )*) => {
        /// Runs one request of the namespace, in its room.
        pub async fn run<'a>(view: &mut View<'a>, request: &'a Request) -> Result<Reply> {
            Ok(match request {
                $( Request::$name(message) => $room::run(view, message).await?.into(), )*
                // What is no transaction is answered by the service, or by others.
                _ => return Err(Error::NotServed { op: request.op().name() }),
            })
        }
    };
}

tieline_wire::tree_calls!(run);

/// Is it a request this room answers?
pub fn is_served(op: Op) -> bool {
    matches!(op.answerer(), Answerer::Tree | Answerer::Mdt)
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
