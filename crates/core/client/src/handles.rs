//! Open files and directories by number.

use crate::file::File;
use crate::listing::Listing;
use crate::shared::lock;
use crate::{Access, Error, HandleId, OpenFile, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tieline_foresight::ahead::Pattern;
use tieline_keep::{Keep, Kept};
use tieline_owed::late::Seen;
use tieline_owed::records::{KeptHandle, cause_number, first_number, put_handle, put_lost};
use tieline_types::{Caller, ErrorKind, FileId};
use tokio::time::Instant;

/// How long what an earlier process had under way may not be known yet.
const FIRST_MOMENTS: Duration = Duration::from_secs(3);

/// An open file: rights were found at open and belong to it.
pub(crate) struct FileHandle {
    pub file: Arc<File>,
    pub caller: Caller,
    pub access: Access,
    pub pattern: Mutex<Pattern>,
    /// One looks at a time what lies ahead.
    pub looking: tokio::sync::Mutex<()>,
    /// The directory that it was opened in, if that is known.
    pub directory: Option<FileId>,
    /// The last reads that waited in vain, and when that ended.
    pub in_vain: Mutex<VecDeque<(Instant, Range<u64>)>>,
    /// Losses of the file that it need not be told of.
    pub seen: Seen,
    /// Why nothing is read and written through it any more, with the record of that.
    pub lost: OnceLock<(String, Option<Kept>)>,
}

impl FileHandle {
    /// A lock on the file was lost: whoever holds this handle may have believed in it.
    pub fn check_locks(&self) -> Result<()> {
        match self.lost.get() {
            Some((why, _)) => Err(Error::local(ErrorKind::LockLost, why.clone())),
            None => Ok(()),
        }
    }
}

#[derive(Clone)]
enum Open {
    File(Arc<FileHandle>),
    Directory(Arc<Listing>),
}

pub(crate) struct Handles {
    /// With their records.
    table: Mutex<BTreeMap<u64, (Open, Option<Kept>)>>,
    last: AtomicU64,
    keep: Keep,
    /// Files that are being opened to be written, and how often.
    begun: Mutex<BTreeMap<FileId, u32>>,
    since: Instant,
}

/// An open to write that is under way: what it cuts is cut before there is a handle.
pub(crate) struct Begun<'h> {
    handles: &'h Handles,
    id: FileId,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut begun = lock(&self.handles.begun);
        if let Some(count) = begun.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                begun.remove(&self.id);
            }
        }
    }
}

/// As records have it.
pub(crate) fn bits_of(access: Access) -> u8 {
    let Access { read, write, append, truncate, unnoted, runs } = access;
    let all = [read, write, append, truncate, unnoted, runs];
    all.iter().rev().fold(0, |bits, &one| bits << 1 | u8::from(one))
}

pub(crate) fn access_of(bits: u8) -> Access {
    let has = |place: u8| bits >> place & 1 != 0;
    let (read, write, append, truncate) = (has(0), has(1), has(2), has(3));
    Access { read, write, append, truncate, unnoted: has(4), runs: has(5) }
}

impl Handles {
    pub fn new(keep: Keep) -> Self {
        let (last, begun, since) =
            (AtomicU64::new(first_number(&keep)), Mutex::default(), Instant::now());
        Self { table: Mutex::default(), last, keep, begun, since }
    }

    /// A file is about to be opened to be written.
    pub fn begin(&self, id: FileId) -> Begun<'_> {
        *lock(&self.begun).entry(id).or_default() += 1;
        Begun { handles: self, id }
    }

    /// May programs hold the file open to be written, or be about to? What an earlier process was
    /// asked for is asked again in the first moments of this one.
    pub fn may_be_written(&self, id: FileId) -> bool {
        let is_open = |(open, _): &(Open, Option<Kept>)| match open {
            Open::File(open) => open.file.id == id && open.access.write,
            Open::Directory(_) => false,
        };
        self.since.elapsed() < FIRST_MOMENTS
            || lock(&self.begun).contains_key(&id)
            || lock(&self.table).values().any(is_open)
    }

    pub fn add_file(&self, file: FileHandle) -> HandleId {
        let number = self.number();
        let kept = put_handle(&self.keep, number, || KeptHandle {
            id: file.file.id,
            caller: file.caller.clone(),
            access: bits_of(file.access),
            is_directory: false,
            cause: cause_number(),
        });
        self.add(number, Open::File(Arc::new(file)), kept)
    }

    pub fn add_directory(&self, listing: Listing) -> HandleId {
        let number = self.number();
        let kept = put_handle(&self.keep, number, || KeptHandle {
            id: listing.id(),
            caller: listing.caller().clone(),
            access: 0,
            is_directory: true,
            cause: cause_number(),
        });
        self.add(number, Open::Directory(Arc::new(listing)), kept)
    }

    /// One that an earlier process opened.
    pub fn restore_file(&self, handle: HandleId, file: FileHandle, kept: Kept) {
        self.add(handle.0, Open::File(Arc::new(file)), Some(kept));
    }

    pub fn restore_directory(&self, handle: HandleId, listing: Listing, kept: Kept) {
        self.add(handle.0, Open::Directory(Arc::new(listing)), Some(kept));
    }

    /// Files that programs may write to, with the accesses that they have.
    pub fn written_files(&self) -> Vec<(Arc<File>, Access)> {
        let table = lock(&self.table);
        let written = |(open, _): &(Open, Option<Kept>)| match open {
            Open::File(open) if open.access.write => Some((open.file.clone(), open.access)),
            _ => None,
        };
        table.values().filter_map(written).collect()
    }

    /// May programs store into a mapping of the file?
    pub fn may_map(&self, id: FileId) -> bool {
        let may = |(open, _): &(Open, Option<Kept>)| match open {
            Open::File(open) => open.file.id == id && open.access.may_map(),
            Open::Directory(_) => false,
        };
        lock(&self.table).values().any(may)
    }

    pub fn open_files(&self) -> Vec<OpenFile> {
        let table = lock(&self.table);
        let open = |(&number, (open, _)): (&u64, &(Open, Option<Kept>))| match open {
            Open::File(open) => Some(OpenFile {
                handle: HandleId(number),
                id: open.file.id,
                caller: open.caller.clone(),
                access: open.access,
            }),
            Open::Directory(_) => None,
        };
        table.iter().filter_map(open).collect()
    }

    /// Who opened a file, by each of its handles or by this one.
    pub fn openers(&self, id: FileId, handle: Option<HandleId>) -> Vec<Caller> {
        let opener = |(open, _): &(Open, Option<Kept>)| match open {
            Open::File(open) if open.file.id == id => Some(open.caller.clone()),
            Open::File(_) | Open::Directory(_) => None,
        };
        let table = lock(&self.table);
        match handle {
            Some(HandleId(number)) => table.get(&number).and_then(opener).into_iter().collect(),
            None => table.values().filter_map(opener).collect(),
        }
    }

    pub fn file(&self, handle: HandleId) -> Result<Arc<FileHandle>> {
        match lock(&self.table).get(&handle.0) {
            Some((Open::File(file), _)) => Ok(file.clone()),
            _ => Err(bad(handle)),
        }
    }

    /// One through which bytes may be read and written.
    pub fn usable(&self, handle: HandleId) -> Result<Arc<FileHandle>> {
        let open = self.file(handle)?;
        open.check_locks()?;
        Ok(open)
    }

    /// No bytes go through the handles of a file any more that are open now.
    pub fn lose(&self, id: FileId, why: &str) {
        for (number, (open, _)) in lock(&self.table).iter() {
            if let Open::File(open) = open
                && open.file.id == id
            {
                open.lost.get_or_init(|| (why.to_owned(), put_lost(&self.keep, *number, why)));
            }
        }
    }

    /// The same of one handle, as an earlier process put it down.
    pub fn restore_lost(&self, handle: HandleId, why: String, kept: Kept) {
        if let Ok(open) = self.file(handle) {
            open.lost.get_or_init(|| (why, Some(kept)));
        }
    }

    /// Is one of a file's handles lost?
    pub fn is_lost(&self, id: FileId) -> bool {
        let is_lost = |(open, _): &(Open, Option<Kept>)| match open {
            Open::File(open) => open.file.id == id && open.lost.get().is_some(),
            Open::Directory(_) => false,
        };
        lock(&self.table).values().any(is_lost)
    }

    pub fn directory(&self, handle: HandleId) -> Result<Arc<Listing>> {
        match lock(&self.table).get(&handle.0) {
            Some((Open::Directory(listing), _)) => Ok(listing.clone()),
            _ => Err(bad(handle)),
        }
    }

    /// Closes a handle; gives the file back that it was of.
    pub fn remove(&self, handle: HandleId) -> Option<Arc<FileHandle>> {
        let (open, _kept) = lock(&self.table).remove(&handle.0)?;
        match open {
            Open::File(file) => Some(file),
            Open::Directory(_) => None,
        }
    }

    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn add(&self, number: u64, open: Open, kept: Option<Kept>) -> HandleId {
        lock(&self.table).insert(number, (open, kept));
        HandleId(number)
    }
}

/// Did an earlier process open it?
pub(crate) fn is_of_before(keep: &Keep, handle: HandleId) -> bool {
    handle.0 <= first_number(keep)
}

fn bad(handle: HandleId) -> Error {
    Error::local(ErrorKind::BadHandle, format!("handle {}", handle.0))
}
