//! Namespace operations: one per file, each a function over a [`View`] of a transaction.
//!
//! An operation reads, checks, and writes, in this order; it knows nothing of leases. Its reply's
//! [`LeaseGrant`] names the units that would make what it says cacheable; the service grants what
//! it can.

mod access_lists;
mod ask_tape;
pub mod batch;
mod commit;
mod compact;
mod copy_range;
mod create;
mod extend_mirrors;
mod get_attributes;
mod get_extents;
mod get_layout;
mod get_tape;
mod get_xattr;
mod give_up_bytes;
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
mod read_bundle;
mod read_directory;
pub mod read_files;
mod read_symlink;
pub mod read_tree;
mod record_sums;
mod release;
mod remove_directory;
mod remove_xattr;
mod rename;
mod report_bundle;
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

use crate::delegation;
use crate::error::{Error, Result};
use crate::view::View;
use crate::walked;
use tieline_types::{FileId, Version};
pub use tieline_wire::TreeReply as Reply;
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

macro_rules! run {
    ($( $name:ident $room:ident )*) => {
        /// Runs one request of the namespace, in its room.
        pub async fn run<'a>(view: &mut View<'a>, request: &'a Request) -> Result<Reply> {
            delegation::check(view, request).await?;
            walked::check(view, request).await?;
            let reply = match request {
                $( Request::$name(message) => Reply::$name($room::run(view, message).await?), )*
                // What is no transaction is answered by the service, or by others.
                _ => return Err(Error::NotServed { op: request.op().name() }),
            };
            walked::note(view, &reply);
            Ok(reply)
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
