//! What is asked for, and what is answered.

use crate::{Belief, Known};
use tieline_types::{
    Attributes, FileId, FileKind, Gid, HandleId, Layout, LockMode, LockRange, Mode, Name, SetTime,
    Uid,
};

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

impl Access {
    /// May it be mapped to be written? Then it is without a word to us.
    pub fn may_map(self) -> bool {
        self.read && self.write
    }
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
