//! What every door asks of files.
//!
//! Files are named by id; a door that has paths finds them ([`crate::Paths`]). Rights are decided
//! by whoever answers, and belong to handles from their open on.

use crate::nouns::{
    Access, Allocation, At, AttributeChange, CopyEnd, Found, FsSpace, Listed, LockFound, NewFile,
    NewNode, Opened, SeekTarget, Writing,
};
use crate::{Known, Pages, Result};
use bytes::Bytes;
use std::ops::Range;
use tieline_types::{
    Caller, ContentVersion, FileId, HandleId, LockKind, LockWish, Mode, Name, RenameMode,
    Residency, XattrMode, XattrName,
};

/// A file system, as every door sees it. Shared by all of a door's threads.
///
/// Futures may be dropped at any await point: the call is then given up, and a mutation may or may
/// not have happened.
#[async_trait::async_trait]
pub trait Files: Send + Sync {
    /// The directory that is mounted.
    fn root(&self) -> FileId;

    async fn lookup(&self, caller: &Caller, parent: FileId, name: &Name) -> Result<Found>;
    /// The root of what is mounted under a name, if only the map can tell of it now: nobody is
    /// heard who has that directory. Else names are looked up.
    fn mounted_at(&self, parent: FileId, name: &Name) -> Option<FileId>;
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

    async fn create(&self, caller: &Caller, at: At<'_>, new: NewFile) -> Result<(Known, Opened)>;
    /// A file without a name, as if it were made in `parent`: it goes with its last handle, unless
    /// [`Files::link`] or [`Files::put_in_place`] gives it one.
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
    /// Gives a file that was made without a name its first, as its bytes are committed: durable
    /// when this returns. If it `replaces`, what has that name goes in the same step, as by a
    /// rename.
    async fn put_in_place(
        &self,
        caller: &Caller,
        id: FileId,
        at: At<'_>,
        replaces: bool,
    ) -> Result<Known>;
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
    /// The bytes of many ranges, in their order, each as [`Files::read`] gives them. All are on
    /// their way before any is waited for. As many and as much as [`crate::check_ranges`] lets.
    async fn read_ranges(&self, handle: HandleId, ranges: &[Range<u64>])
    -> Result<Vec<Vec<Bytes>>>;
    /// The same as [`Files::read`], with a check of each page.
    async fn read_pages(&self, handle: HandleId, offset: u64, length: u32) -> Result<Pages> {
        Ok(Pages::of(offset, self.read(handle, offset, length).await?))
    }
    /// All of that range will be read through the handle, in order, and nothing beyond it.
    fn announce(&self, handle: HandleId, range: Range<u64>);
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
    /// Adler-32 of the whole file: combined from its chunks' where extents are whole chunks, else
    /// read.
    async fn adler32(&self, caller: &Caller, id: FileId) -> Result<u32>;
    /// Which bytes the file has, all of them committed that were written here.
    async fn content_version(&self, caller: &Caller, id: FileId) -> Result<ContentVersion>;
    /// Where its committed bytes are to be had, as far as is known here.
    async fn residency(&self, caller: &Caller, id: FileId) -> Result<Residency>;
}
