//! Files as doors see them (`tieline_files`), from servers: caches under leases, read-ahead,
//! write-back, replay.
//!
//! Doors see `Files`, operators [`Operator`]. Behind both ([`volume`]): which MDS holds a file
//! comes from its id and the federation map; names and attributes are believed under the leases
//! that MDSs grant and recall (`tieline_believed`); reads go to the OSS that has the chunk
//! ([`reader`]) with a window ahead when they are sequential; writes gather into chunks
//! ([`writer`]) that are sent while the program goes on, and become part of the file with a commit
//! at fsync or close.
//!
//! * [`told`]: what MDSs are asked ([`tieline_servers`]); [`hearing`], [`recall`]: what they say
//!   unasked, leases taken back.
//! * [`names`], [`inodes`], [`listing`], [`xattrs`]: the namespace; [`access_times`]: when files
//!   were read.
//! * [`file`], [`files`], [`open`], [`handles`]: files in use, with what is committed and what is
//!   not yet (`tieline_ranges`); [`opens`]: how MDSs know of them.
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
//! * [`tape`]: files that are brought back from tape when they are read.
//! * [`mirrors`]: copies made, checked and repaired, for operators.
//! * [`ranges`], [`adler`], [`space`]: holes and copies, checksums, what operators ask;
//!   [`vectored`]: many ranges at once; [`residency`]: where bytes are to be had; [`adopt`]:
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
mod listing;
mod locks;
mod migrate;
mod mirrors;
mod names;
mod open;
mod opens;
mod operator;
mod own;
mod pins;
mod promises;
mod ranges;
mod read_mode;
mod reader;
mod recall;
mod recover;
mod residency;
mod room;
mod send;
mod sessions;
pub mod settings;
mod shared;
mod space;
mod spooling;
mod tape;
#[cfg(test)]
mod tests;
mod told;
mod unsent;
mod unsynced;
mod vectored;
mod volume;
mod writer;
mod xattrs;

pub use migrate::{Migration, Step};
pub use operator::{LayoutInForce, Operator};
pub use settings::{AccessTimes, Offline, Parts, Settings};
pub use volume::Volume;

use tieline_files::{
    Access, Allocation, AllocationMode, At, AttributeChange, Belief, CacheListener, CopyEnd, Error,
    Found, FsSpace, Invalidation, Known, Listed, LockFound, NewFile, NewNode, OpenFile, Opened,
    Result, SeekTarget, Writing,
};
use tieline_types::{HandleId, LockWish};
