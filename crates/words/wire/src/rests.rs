//! What a request rests on, of what a client did by itself and has not told yet.

use crate::Request;
use tieline_types::FileId;

/// What a request rests on.
pub enum Rests {
    /// A name in a directory, and what it leads to.
    Name(FileId),
    /// All names in a directory, and what they lead to.
    Listing(FileId),
    /// One file.
    File(FileId),
    /// Anything; the directories that it changes.
    Names(Vec<FileId>),
    Nothing,
}

impl Rests {
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Lookup(r) => Self::Name(r.parent),
            Request::LookupParent(r) => Self::File(r.id),
            Request::GetAttributes(r) => Self::File(r.id),
            Request::SetAttributes(r) => Self::File(r.id),
            Request::ReadDirectory(r) => Self::Listing(r.id),
            Request::Create(r) => Self::Names(vec![r.parent]),
            Request::MakeDirectory(r) => Self::Names(vec![r.parent]),
            Request::MakeSymlink(r) => Self::Names(vec![r.parent]),
            Request::MakeNode(r) => Self::Names(vec![r.parent]),
            Request::Link(r) => Self::Names(vec![r.id, r.parent]),
            Request::Unlink(r) => Self::Names(vec![r.parent]),
            Request::RemoveDirectory(r) => Self::Names(vec![r.parent]),
            Request::Rename(r) => Self::Names(vec![r.from_parent, r.to_parent]),
            Request::ReadSymlink(r) => Self::File(r.id),
            Request::Open(r) => Self::File(r.id),
            Request::GetExtents(r) => Self::File(r.id),
            Request::Commit(r) => Self::File(r.id),
            Request::Place(r) => Self::File(r.id),
            Request::Release(r) => Self::File(r.id),
            Request::GetXattr(r) => Self::File(r.id),
            Request::ListXattrs(r) => Self::File(r.id),
            Request::SetXattr(r) => Self::File(r.id),
            Request::RemoveXattr(r) => Self::File(r.id),
            Request::GetLayout(r) => Self::File(r.id),
            Request::SetLayout(r) => Self::File(r.id),
            Request::Compact(r) => Self::File(r.id),
            Request::CopyRange(r) => Self::Names(vec![r.from, r.to]),
            Request::Lock(r) => Self::File(r.id),
            Request::GetCapability(r) => r.id.map_or(Self::Nothing, Self::File),
            Request::TestLock(_)
            | Request::CancelLock(_)
            | Request::AssertLocks(_)
            | Request::Usage(_)
            | Request::GetMap(_)
            | Request::EditMap(_)
            | Request::EditIdentities(_)
            | Request::ListIdentities(_)
            | Request::Prove(_)
            | Request::ReportBundle(_)
            | Request::ReadBundle(_)
            | Request::Batch(_)
            | Request::Reserve(_) => Self::Nothing,
            // Whatever it is about: everything that was done comes before it.
            _ => Self::Names(vec![]),
        }
    }
}
