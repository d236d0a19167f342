//! What every door stands on: paths and files, caches under leases, read-ahead, write-back, replay.
//!
//! Doors see [`FileSystem`]. Behind it ([`volume`]): which MDS holds a file comes from its id and
//! the federation map; names and attributes are believed under the leases that MDSs grant and
//! recall (`tieline_believed`); reads go to the OSS that has the chunk ([`reader`]) with a window
//! ahead when they are sequential; writes gather into chunks ([`writer`]) that are sent while the
//! program goes on, and become part of the file with a commit at fsync or close.
//!
//! * [`told`]: what MDSs are asked ([`tieline_servers`]); [`hearing`], [`recall`]: what they say
//!   unasked, leases taken back.
//! * [`names`], [`inodes`], [`listing`], [`xattrs`]: the namespace; [`access_times`]: when files
//!   were read.
//! * [`file`], [`files`], [`open`], [`handles`]: files in use, with what is committed and what is
//!   not yet (`tieline_ranges`).
//! * [`bulk`]: whole directories and trees, and small files, before they are asked for.
//! * [`own`], [`journal`]: what is decided here under exclusive leases, and how MDSs come to know.
//! * [`send`], [`commit`], [`background`]: how written bytes leave; [`deferred`]: when a close does
//!   not wait for it; [`late`]: what was lost then; [`spooling`]: where that goes; [`unsent`]: what
//!   is still here; [`unsynced`]: what no OST made durable yet.
//! * [`compact`]: what makes many small extents few; [`migrate`]: what moves them elsewhere.
//!   [`locks`]: advisory locks.
//! * [`read_mode`]: how files are to be read (what will be read: `tieline_foresight`).
//! * [`recover`], [`sessions`]: what outlives this process, and how the next one goes on.
//! * [`door`]: what a door's own cache has of files' bytes.
//! * [`mirrors`]: copies made, checked and repaired, for operators.
//! * [`ranges`], [`adler`], [`space`]: holes and copies, checksums, what operators ask; [`adopt`]:
//!   files that were there before us.
//!
//! Knows no kernel, no FUSE, no HTTP; no store and no blob.
//!
//! Invariants: nothing is answered from the cache without a lease; what was fsynced is durable at
//! its OSTs and its MDT; memory for caches and dirty bytes is bounded; every wait ends after
//! [`Settings::wait`] at the latest.

mod above;
mod access_times;
mod adler;
pub mod adopt;
mod asking;
mod away;
mod background;
mod bringing;
mod bulk;
mod commit;
mod compact;
mod declared;
mod deferred;
mod deleted;
mod door;
mod file;
mod files;
mod handles;
mod hearing;
mod inodes;
mod journal;
mod late;
mod listing;
mod locks;
mod migrate;
mod mirrors;
mod names;
mod open;
mod own;
mod pins;
mod promises;
mod ranges;
mod read_mode;
mod reader;
mod recall;
mod recover;
mod room;
mod send;
mod sessions;
pub mod settings;
mod shared;
mod space;
mod spooling;
#[cfg(test)]
mod tests;
mod told;
mod unsent;
mod unsynced;
mod volume;
mod writer;
mod xattrs;

pub use migrate::{Migration, Step};
pub use settings::{AccessTimes, Offline, Parts, Settings};
pub use tieline_believed::{Belief, Invalidation, Known};
pub use tieline_bytes::{DirectAccess, Near, NodeCache, PathCost, SiteCache, SiteClaim, SiteLook};
pub use tieline_foresight::mode::ReadMode;
pub use tieline_owed::{cause, spool};
pub use tieline_servers::Error;
pub use tieline_types::{HandleId, LockWish};
pub use unsent::Unsent;
pub use volume::Volume;

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_types::{
    Attributes, Caller, ErrorKind, FileId, FileKind, Gid, Layout, LockKind, LockMode, LockRange,
    Mode, Name, OstIndex, SetTime, Uid, XattrName,
};
use tieline_wire::federation::MapEdit;
use tieline_wire::ledger::ListDeletedReply;
use tieline_wire::meta::{ExtentPage, LayoutChange, OstUsage, RenameMode, XattrMode};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A mounted file system, as doors see it. Shared by all of a door's threads.
///
/// Futures may be dropped at any await point: the call is then given up, and a mutation may or may
/// not have happened.
#[async_trait::async_trait]
pub trait FileSystem: Send + Sync {
    /// The directory that is mounted.
    fn root(&self) -> FileId;

    async fn lookup(&self, caller: &Caller, parent: FileId, name: &Name) -> Result<Found>;
    /// The directory that `directory` is in; the mounted root's is itself.
    async fn parent(&self, caller: &Caller, directory: FileId) -> Result<FileId>;
    /// The names that lead from the mounted root to a directory now, outermost first.
    async fn way_to(&self, caller: &Caller, directory: FileId) -> Result<Vec<Name>>;
    async fn attributes(&self, caller: &Caller, id: FileId) -> Result<Known>;
    async fn set_attributes(
        &self,
        caller: &Caller,
        id: FileId,
        handle: Option<HandleId>,
        change: AttributeChange,
    ) -> Result<Known>;

    /// Who opened a file, by each of its handles or by this one. Rights belong to handles.
    fn openers(&self, id: FileId, handle: Option<HandleId>) -> Vec<Caller>;

    async fn create(&self, caller: &Caller, at: At<'_>, new: NewFile) -> Result<(Known, Opened)>;
    /// A file without a name, as if it were made in `parent`: it goes with its last handle, unless
    /// [`FileSystem::link`] gives it one.
    async fn create_nameless(
        &self,
        caller: &Caller,
        parent: FileId,
        new: NewFile,
    ) -> Result<(Known, Opened)>;
    async fn make_directory(
        &self,
        caller: &Caller,
        at: At<'_>,
        mode: Mode,
        umask: Mode,
    ) -> Result<Known>;
    async fn make_symlink(&self, caller: &Caller, at: At<'_>, target: &[u8]) -> Result<Known>;
    async fn make_node(&self, caller: &Caller, at: At<'_>, node: NewNode) -> Result<Known>;
    async fn link(&self, caller: &Caller, id: FileId, at: At<'_>) -> Result<Known>;
    async fn unlink(&self, caller: &Caller, at: At<'_>) -> Result<()>;
    async fn remove_directory(&self, caller: &Caller, at: At<'_>) -> Result<()>;
    async fn rename(
        &self,
        caller: &Caller,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<()>;
    async fn read_symlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>>;

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Opened>;
    /// Bytes from `offset`, in pieces, fewer than asked only at the file's end. Holes are zeroes.
    async fn read(&self, handle: HandleId, offset: u64, length: u32) -> Result<Vec<Bytes>>;
    /// Takes all of `data`, as the handle was opened: with [`Access::append`] the offset is the
    /// file's end, whatever `offset` says.
    async fn write(&self, handle: HandleId, offset: u64, data: Bytes) -> Result<()> {
        self.write_as(handle, offset, Writing::default(), data).await
    }
    /// The same, as it is said with the write. What is appended through a handle that was not
    /// opened so is committed, and the door forgets the file's bytes: it took them for elsewhere.
    async fn write_as(
        &self,
        handle: HandleId,
        offset: u64,
        how: Writing,
        data: Bytes,
    ) -> Result<()>;
    /// Commits what was written through any handle of the file, and reports what went wrong
    /// earlier: each `close(2)`.
    async fn flush(&self, handle: HandleId) -> Result<()>;
    /// Makes data and metadata of the file durable.
    async fn sync(&self, handle: HandleId, is_data_only: bool) -> Result<()>;
    /// The last `close(2)` of the handle. Never fails; what is still dirty is committed in the
    /// background, and `fcntl` locks are freed that belonged to the open file itself.
    async fn release(&self, handle: HandleId);
    async fn allocate(&self, handle: HandleId, change: Allocation) -> Result<()>;
    /// `SEEK_DATA` and `SEEK_HOLE`.
    async fn seek(&self, handle: HandleId, offset: u64, target: SeekTarget) -> Result<u64>;
    /// Copies a range; shares whole chunks where it can. Says how many bytes.
    async fn copy_range(&self, from: CopyEnd, to: CopyEnd, length: u64) -> Result<u64>;

    /// Takes a lock, or changes one that is held. Dropped while it waits, it leaves none behind.
    async fn lock(&self, handle: HandleId, wish: LockWish, waits: bool) -> Result<()>;
    /// Frees a range, after what was written is committed. The wish's mode says nothing.
    async fn unlock(&self, handle: HandleId, wish: LockWish) -> Result<()>;
    /// Who is in the way of a lock?
    async fn test_lock(&self, handle: HandleId, wish: LockWish) -> Result<Option<LockFound>>;
    /// Frees all that an owner holds on the file: a process at `close(2)`, an open file at its
    /// last.
    async fn drop_locks(&self, handle: HandleId, kind: LockKind, owner: u64);

    async fn open_directory(&self, caller: &Caller, id: FileId) -> Result<HandleId>;
    /// Entries after position `from`: 0 at first, then any entry's `next`, which stays good while
    /// names come and go. Reading from 0 again lists anew. Without `.` and `..`; none at the end.
    async fn read_directory(
        &self,
        handle: HandleId,
        from: u64,
        limit: usize,
        is_plus: bool,
    ) -> Result<Vec<Listed>>;
    async fn sync_directory(&self, handle: HandleId) -> Result<()>;
    async fn release_directory(&self, handle: HandleId);

    async fn xattr(&self, caller: &Caller, id: FileId, name: &XattrName) -> Result<Vec<u8>>;
    async fn xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<XattrName>>;
    async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &XattrName) -> Result<()>;

    async fn statfs(&self, id: FileId) -> Result<FsSpace>;

    // What operators ask.
    async fn layout(&self, caller: &Caller, id: FileId) -> Result<LayoutInForce>;
    async fn set_layout(
        &self,
        caller: &Caller,
        id: FileId,
        change: Option<LayoutChange>,
    ) -> Result<()>;
    /// Every extent of a file from `offset`, a page at a time.
    async fn extents(&self, caller: &Caller, id: FileId, offset: u64) -> Result<ExtentPage>;
    /// Adler-32 of the whole file: combined from its chunks' where extents are whole chunks, else
    /// read.
    async fn adler32(&self, caller: &Caller, id: FileId) -> Result<u32>;
    async fn usage(&self) -> Result<Vec<OstUsage>>;
    fn map(&self) -> Arc<FederationMap>;
    async fn edit_map(&self, caller: &Caller, edit: MapEdit) -> Result<()>;
    /// What was deleted from a directory and can be brought back, a page at a time.
    async fn deleted(
        &self,
        _caller: &Caller,
        _directory: FileId,
        _after: Option<FileId>,
    ) -> Result<ListDeletedReply> {
        Err(Error::local(ErrorKind::NotSupported, "listing of deleted files"))
    }
    /// Gives a deleted file a name again.
    async fn undelete(
        &self,
        _caller: &Caller,
        _id: FileId,
        _from: FileId,
        _to: At<'_>,
    ) -> Result<Known> {
        Err(Error::local(ErrorKind::NotSupported, "undelete"))
    }

    // Coherence with a door that caches too.
    /// Tells the door what to forget from now on.
    fn listen(&self, listener: Arc<dyn CacheListener>);
    /// Calls `write` with how long the belief may be cached now (zero if it was overtaken), while
    /// no recall can pass: what `write` sends is ordered with what the listener is told.
    fn settle(&self, belief: &Belief, write: &mut dyn FnMut(Duration));

    // Going on where an earlier process was killed.
    /// What a request of the door does is remembered under its number until it is answered; what
    /// an earlier process did for it is found again.
    fn cause(&self, _number: u64, _is_resent: bool) -> Option<Arc<cause::Cause>> {
        None
    }
    /// Files that programs have open, as an earlier process opened them.
    fn open_files(&self) -> Vec<OpenFile> {
        Vec::new()
    }

    /// What programs were promised and no server has yet.
    fn unsent(&self) -> Unsent {
        Unsent::default()
    }

    /// Commits everything dirty, gives all leases back, ends the sessions. Waits at most
    /// `patience`, and for nobody who is owed nothing.
    async fn close(&self, patience: Duration);
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub parent: FileId,
    pub name: &'a Name,
}

/// What a name leads to.
#[derive(Clone, Debug)]
pub struct Found {
    /// `None`: nothing has that name.
    pub attributes: Option<Attributes>,
    /// Of the name.
    pub entry: Belief,
    /// Of the attributes.
    pub belief: Belief,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeChange {
    pub mode: Option<Mode>,
    pub uid: Option<Uid>,
    pub gid: Option<Gid>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

#[derive(Clone, Debug)]
pub struct NewFile {
    pub mode: Mode,
    pub umask: Mode,
    pub is_exclusive: bool,
    pub access: Access,
    pub layout: Option<Layout>,
}

#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    pub kind: FileKind,
    pub mode: Mode,
    pub umask: Mode,
    pub device: u32,
}

/// A file that is open.
#[derive(Clone, Debug)]
pub struct OpenFile {
    pub handle: HandleId,
    pub id: FileId,
    pub caller: Caller,
    pub access: Access,
}

/// What a handle was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
    /// Reading is not noted (`O_NOATIME`).
    pub unnoted: bool,
    /// A program is started: it is read by who may execute it.
    pub runs: bool,
}

/// What a door knows of one write. `None`: as the handle was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Writing {
    /// It goes to the file's end.
    pub appends: Option<bool>,
    /// Setuid and setgid end with it: whoever writes may not keep them.
    pub ends_setid: Option<bool>,
}

#[derive(Clone, Debug)]
pub struct Opened {
    pub handle: HandleId,
    pub attributes: Attributes,
    /// What the door cached of the bytes before is still right.
    pub keeps_cache: bool,
    /// The door's own cache would ask for more than its readers want: reads are to come as they
    /// are.
    pub is_direct: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    pub offset: u64,
    pub length: u64,
    pub mode: AllocationMode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationMode {
    /// Extends the file; space is not set aside, holes stay holes. It counts as a write anyhow.
    Extend,
    /// Like `Extend`, but the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// `FALLOC_FL_PUNCH_HOLE`.
    Punch,
    /// `FALLOC_FL_ZERO_RANGE`, extending the file or not.
    Zero { keeps_size: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    Data,
    Hole,
}

#[derive(Clone, Copy, Debug)]
pub struct CopyEnd {
    pub handle: HandleId,
    pub offset: u64,
}

/// A lock that is in somebody's way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockFound {
    pub range: LockRange,
    pub mode: LockMode,
    /// 0 if it is held on another client.
    pub process: u32,
}

/// One entry of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: Name,
    pub id: FileId,
    pub kind: FileKind,
    /// With `is_plus`, unless another MDT has them.
    pub known: Option<Known>,
    /// Of the name.
    pub entry: Belief,
    /// Position after this entry.
    pub next: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsSpace {
    pub bytes_total: u64,
    pub bytes_free: u64,
    pub inodes_total: u64,
    pub inodes_free: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutInForce {
    pub layout: Layout,
    pub is_own: bool,
    pub stripe: Vec<OstIndex>,
}

/// A door's own cache: the kernel's, for the mount.
pub trait CacheListener: Send + Sync {
    /// Forget; call `done` when it is forgotten. Returns at once: the work is done by threads of
    /// the listener's own.
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>);
}
