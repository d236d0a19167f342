//! What must come before a request that is not decided here.
//!
//! A question waits for what was done to the files it is about; a change of one file too. A change
//! of names waits for everything: what loses its name may have been changed anywhere.

use super::Queue;
use crate::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::Cache;
use tieline_types::FileId;
use tieline_wire::{Op, Request};

/// A change is under way at the MDS: until this is dropped nothing is decided here about its files.
pub(crate) struct Busy {
    queue: Arc<Queue>,
    files: Vec<FileId>,
}

/// What a request rests on.
enum Rests {
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

impl Queue {
    /// Waits until a request can be sent. A change keeps its files busy until the answer was
    /// learned.
    pub async fn before(
        self: &Arc<Self>,
        cache: &Cache,
        request: &Request,
        patience: Duration,
    ) -> Result<Option<Busy>> {
        let rests = Rests::of(request);
        let files = match &rests {
            Rests::Nothing | Rests::Name(_) | Rests::Listing(_) => vec![],
            Rests::File(file) => vec![*file],
            Rests::Names(directories) => directories.clone(),
        };
        // What a place changes of a file nobody sees.
        let is_change = request.op().is_mutation() && request.op() != Op::Place;
        let busy = is_change.then(|| self.busy(files));
        let number = match rests {
            Rests::Nothing => 0,
            Rests::Names(_) => self.last(),
            Rests::File(file) => self.last_on(file),
            Rests::Name(directory) | Rests::Listing(directory) => {
                let tables = cache.lock();
                let line = self.lock();
                if !tables.is_alone(directory) {
                    // What was done to what is in it is not in the cache any more.
                    line.last()
                } else if matches!(rests, Rests::Listing(_)) {
                    line.last_on(directory)
                } else {
                    // Names that were changed here are in the cache: the others are as the MDS
                    // says.
                    line.last_rights(directory)
                }
            }
        };
        if number > 0 {
            self.drain(number, patience).await?;
        }
        Ok(busy)
    }

    fn busy(self: &Arc<Self>, files: Vec<FileId>) -> Busy {
        self.lock().begin(&files);
        Busy { queue: self.clone(), files }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.queue.lock().end(&self.files);
    }
}

impl Rests {
    fn of(request: &Request) -> Self {
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
            | Request::ReportTrails(_)
            | Request::Batch(_)
            | Request::Reserve(_) => Self::Nothing,
            // Whatever it is about: everything that was done comes before it.
            _ => Self::Names(vec![]),
        }
    }
}
