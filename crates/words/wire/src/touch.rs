//! What each request touches, and what it does there.
//!
//! Invariant: no request is left out: a new one does not compile before somebody has said what it
//! touches, and what nobody may ask who acts for another is not asked.

use crate::Request;
use crate::meta::{Create, Link, Open, Rename};
use tieline_types::{FileId, Name, TapeWish};

/// One place, and what is done there.
pub enum Touch<'r> {
    /// Its attributes are told: it may be on the way to what is allowed.
    Seen(FileId),
    SeenName(FileId, &'r Name),
    /// By whoever may do anything there.
    Used(FileId),
    Read(FileId),
    /// The same, or it is one's own.
    ReadOwn(FileId),
    /// As well: who makes a file fills it.
    Changed(FileId),
    New(FileId, &'r Name),
    /// A name goes away, or leads elsewhere.
    Taken(FileId, &'r Name),
    Opened(&'r Open),
    Created(&'r Create),
    Linked(&'r Link),
    Moved(&'r Rename),
}

/// `None`: it is not for who acts for another. `reads_all`: he may read whatever is there.
pub fn touched(request: &Request, reads_all: bool) -> Option<Vec<Touch<'_>>> {
    use Request as R;
    use Touch::*;
    Some(match request {
        R::Lookup(r) => vec![SeenName(r.parent, &r.name)],
        R::LookupParent(r) => vec![Seen(r.id)],
        R::GetAttributes(r) => vec![Seen(r.id)],
        // Whoever reads a file sets when.
        R::SetAttributes(r) if r.is_access == Some(true) => vec![ReadOwn(r.id)],
        R::SetAttributes(r) => vec![Changed(r.id)],
        R::ReadDirectory(r) => vec![Read(r.id)],
        R::Create(r) => vec![Created(r)],
        R::MakeDirectory(r) => vec![New(r.parent, &r.name)],
        R::MakeSymlink(r) => vec![New(r.parent, &r.name)],
        R::MakeNode(r) => vec![New(r.parent, &r.name)],
        R::Link(r) => vec![Linked(r)],
        R::Unlink(r) => vec![Taken(r.parent, &r.name)],
        R::RemoveDirectory(r) => vec![Taken(r.parent, &r.name)],
        R::Rename(r) => vec![Moved(r)],
        R::ReadSymlink(r) => vec![Seen(r.id)],
        R::Open(r) => vec![Opened(r)],
        R::GetExtents(r) => vec![ReadOwn(r.id)],
        R::Commit(r) => vec![Changed(r.id)],
        R::Place(r) => vec![Changed(r.id)],
        R::GetXattr(r) => vec![ReadOwn(r.id)],
        R::ListXattrs(r) => vec![ReadOwn(r.id)],
        R::SetXattr(r) => vec![Changed(r.id)],
        R::RemoveXattr(r) => vec![Changed(r.id)],
        R::GetLayout(r) => vec![Used(r.id)],
        R::SetLayout(r) => vec![Changed(r.id)],
        R::RecordSums(r) => vec![Read(r.id)],
        R::CopyRange(r) => vec![ReadOwn(r.from), Changed(r.to)],
        R::Compact(r) => vec![Changed(r.id)],
        R::ExtendMirrors(r) => vec![Changed(r.id)],
        R::SplitMirror(r) => vec![Changed(r.id)],
        R::AskTape(r) if r.wish == TapeWish::Restore => vec![ReadOwn(r.id)],
        R::AskTape(r) => vec![Changed(r.id)],
        R::GetTape(r) => vec![ReadOwn(r.id)],
        R::GiveUpBytes(r) => vec![Changed(r.id)],
        R::ListDeleted(r) => vec![Read(r.directory)],
        R::Lock(r) => vec![Used(r.id)],
        R::TestLock(r) => vec![Used(r.id)],
        R::AssertLocks(r) => r.locks.iter().map(|lock| Used(lock.id)).collect(),
        R::ResyncFile(r) => vec![Changed(r.id)],
        R::GetCapability(r) => {
            let of = |id| {
                let read = r.is_read.then_some(ReadOwn(id));
                let changed = r.is_write.then_some(Changed(id));
                [Used(id)].into_iter().chain(read).chain(changed)
            };
            r.id.into_iter().flat_map(of).collect()
        }
        R::Promise(r) => vec![Changed(r.id)],
        // Directories are told whole there, with files that have names elsewhere.
        R::ReadTree(r) if reads_all => r.roots.iter().map(|&id| Read(id)).collect(),
        R::ReadFiles(r) if reads_all => r.ids.iter().map(|&id| Read(id)).collect(),
        // The session's own affairs, and what everybody is told. Of a batch, each item is looked
        // at.
        R::Usage(_)
        | R::Release(_)
        | R::CancelLock(_)
        | R::ReportPlace(_)
        | R::GetQuota(_)
        | R::Batch(_) => vec![],
        // Who decides by himself, and tells later, would have told somebody that it was done.
        R::Reserve(_) => return None,
        // From anywhere to anywhere.
        R::Undelete(_)
        | R::ReadTree(_)
        | R::ReadFiles(_)
        | R::ReportBundle(_)
        | R::ReadBundle(_) => return None,
        // Administrators come themselves.
        R::SetProject(_)
        | R::SetQuota(_)
        | R::ListQuotas(_)
        | R::ReclaimShares(_)
        | R::DumpMdt(_)
        | R::CheckMdt(_)
        | R::RenewCapabilityKey(_)
        | R::ListChores(_) => return None,
        // Not an MDT's.
        R::GetMap(_)
        | R::EditMap(_)
        | R::EditIdentities(_)
        | R::ListIdentities(_)
        | R::Prove(_)
        | R::CapabilityNews(_)
        | R::QuotaShares(_)
        | R::QuotaNews(_)
        | R::Drain(_)
        | R::PutChunk(_)
        | R::ReadObject(_)
        | R::SyncFile(_)
        | R::DeleteChunks(_)
        | R::OstStatus(_)
        | R::StatObject(_)
        | R::ListObjects(_)
        | R::FetchChunk(_)
        | R::VerifyObject(_)
        | R::ListAdopted(_)
        | R::ChecksumAdopted(_)
        | R::Fill(_)
        | R::GrantRoom(_)
        | R::StageFile(_)
        | R::ArrangeExposed(_)
        | R::ListExposed(_)
        | R::DriveTape(_) => return None,
    })
}
