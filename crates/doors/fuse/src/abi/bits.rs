//! Flags, as the kernel numbers them.

/// What either end can do, told in the opening handshake. The upper half travels in a field of its
/// own.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// The upper half of the flags is there.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
}

/// Which fields of a SETATTR are meant.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// In GETATTR.
pub mod get {
    pub const HANDLE: u32 = 1 << 0;
}

/// In replies to OPEN.
pub mod opened {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
}

/// In WRITE.
pub mod write {
    /// From the page cache (mmap): the kernel guessed the handle, and says no flags of it.
    pub const CACHE: u32 = 1 << 0;
    /// Whoever writes may not keep setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// In GETLK, SETLK and SETLKW: it is `flock`.
pub const LOCK_FLOCK: u32 = 1 << 0;
/// In RELEASE: the open file may hold a lock.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// In FSYNC.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// In an entry's invalidation: ask again at the next use, but do not drop what stands on it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// Set in the number of an INTERRUPT: the rest is the number of what it interrupts.
pub const INTERRUPT_UNIQUE: u64 = 1;
/// Set in the number of a request that was read before, by a process that is gone.
pub const RESENT_UNIQUE: u64 = 1 << 63;
/// Extension of a request: a group that the caller is also in.
pub const EXTENSION_GROUPS: u32 = 32;

/// What a notification is about: in its header where a reply has its error.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
}
