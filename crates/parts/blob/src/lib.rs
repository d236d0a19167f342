//! Chunk stores: where an OST keeps its objects.
//!
//! A backend declares what it can do ([`Abilities`]); the data room works with any set. Objects are
//! written whole and once. When a put is answered, the object survives this process; after
//! [`ChunkStore::sync`] also the machine.
//!
//! * [`DirChunks`]: a directory on any file system.
//! * [`DirectReader`]: such a directory, read by who has it mounted too.
//! * [`LateChunks`]: a store that is not there yet.
//! * [`MemoryChunks`]: for tests and simulated worlds.
//! * [`FaultyChunks`]: any other, failing as told.
//! * [`AdoptedTree`]: files that were there before us, read where they are.
//! * [`owner`]: whose objects a store holds, as its marker says.
//! * [`conformance`]: what every backend must do, as one suite.
//!
//! To add a backend: implement [`ChunkStore`], run the conformance suite on it, and give it a name
//! in the settings. Knows no protocol, no MDS, no client.
//!
//! Invariants: a half-written object is never readable; a put that is repeated with the same bytes
//! succeeds, with others it is refused, and only a repair replaces; what is read carries the checks
//! it was written with, so damage shows at the reader.

mod adopted;
pub mod conformance;
mod dir;
mod direct;
mod faulty;
mod late;
mod memory;
pub mod owner;
mod range;

pub use adopted::{
    AdoptedError, AdoptedFile, AdoptedFound, AdoptedPage, AdoptedTree, file_path, nanoseconds,
    object_path,
};
pub use dir::DirChunks;
pub use direct::DirectReader;
pub use faulty::{Faults, FaultyChunks};
pub use late::LateChunks;
pub use memory::MemoryChunks;
pub use owner::Identity;
pub use range::BlockRange;

use bytes::Bytes;
use std::io;
use tieline_format::object::ObjectTrailer;
use tieline_types::tree::Values;
use tieline_types::{ErrorKind, FileId, FileKind, GrantedId};
use tieline_world::Bulk;

/// Foreign names in a page.
pub const FOREIGN_MAX: usize = 256;

/// What a backend can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Reads a part without the whole.
    pub range: bool,
    /// Adds to an object that is there.
    pub append: bool,
    /// Publishes under a final name in one step.
    pub rename: bool,
    /// Hands out open files that the kernel can send from.
    pub sendfile: bool,
}

/// Room in a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    pub bytes_total: u64,
    pub bytes_free: u64,
    /// Objects take up whole multiples of this.
    pub unit: u64,
    pub objects_total: u64,
    pub objects_free: u64,
}

/// A range of an object, widened to whole blocks.
#[derive(Debug)]
pub struct Slice {
    /// Where the bytes start in the object: a multiple of the block size.
    pub offset: u64,
    pub bulk: Bulk,
    /// CRC32C per block of `bulk`.
    pub checks: Vec<u32>,
    /// Bytes of the whole object.
    pub object_length: u64,
    /// The file that it was written for.
    pub file: FileId,
    /// Of the whole object, if it was written with one.
    pub tree: Option<Values>,
}

/// Something that lies where only objects should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// Below the store.
    pub path: Vec<u8>,
    pub kind: FileKind,
}

/// A page of a store's objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listed {
    pub chunks: Vec<GrantedId>,
    /// At most [`FOREIGN_MAX`], each in the page that comes by it first.
    pub foreign: Vec<Foreign>,
}

/// A backend.
#[async_trait::async_trait]
pub trait ChunkStore: Send + Sync {
    fn abilities(&self) -> Abilities;

    /// For messages: `directory /data/ost0`.
    fn describe(&self) -> String;

    /// Writes a whole object. `trailer.checks` were verified against `data` by the caller.
    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error>;

    /// Writes a whole object in one step over whatever is there, which may be damaged. Readers of
    /// the old one read on.
    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error>;

    /// Reads a range, widened to whole blocks. A range beyond the end is cut; one that starts there
    /// is empty.
    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error>;

    /// Believes nothing any more of an object that was open or in memory: whoever reads it next
    /// has what is on the disk, under its name.
    fn forget(&self, chunk: GrantedId);

    /// What the object remembers, and its length. Looked for under its name, whatever is open or in
    /// memory.
    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error>;

    /// Deletes an object; says whether it was there.
    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error>;

    /// Makes objects survive the machine. An absent one is an error, the others are synced all the
    /// same.
    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error>;

    /// Up to `limit` objects after `after`, in the order of their ids.
    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error>;

    async fn space(&self) -> Result<Space, Error>;
}

/// What a backend can answer instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("chunk {chunk} is not in {store}")]
    Absent { chunk: GrantedId, store: String },
    #[error("chunk {chunk} is already in {store} with other bytes")]
    Different { chunk: GrantedId, store: String },
    #[error("{store} is full")]
    Full { store: String },
    #[error("{store} is read-only")]
    ReadOnly { store: String },
    #[error("chunk {chunk} in {store} is damaged: {reason}")]
    Damaged { chunk: GrantedId, store: String, reason: String },
    #[error("{store} is not there: {reason}")]
    Missing { store: String, reason: String },
    #[error("{store} is not what it was or should be: {reason}")]
    WrongStore { store: String, reason: String },
    /// The machine may forget these. Syncing them again would find nothing to do and succeed.
    #[error("{store} could not make {} chunks durable", .chunks.len())]
    NotDurable { chunks: Vec<GrantedId>, store: String, source: io::Error },
    #[error("chunk {chunk} cannot be opened at {path} in {store}")]
    Unopened { chunk: GrantedId, path: String, store: String, source: io::Error },
    #[error("{store} failed to {doing}")]
    Failed { store: String, doing: &'static str, source: io::Error },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent { .. } => ErrorKind::Gone,
            Self::Different { .. } => ErrorKind::Exists,
            Self::Full { .. } => ErrorKind::NoSpace,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Missing { .. }
            | Self::WrongStore { .. }
            | Self::NotDurable { .. }
            | Self::Unopened { .. }
            | Self::Failed { .. } => ErrorKind::StorageFault,
        }
    }

    /// Which store says so.
    pub fn store(&self) -> &str {
        match self {
            Self::Absent { store, .. }
            | Self::Different { store, .. }
            | Self::Full { store }
            | Self::ReadOnly { store }
            | Self::Damaged { store, .. }
            | Self::Missing { store, .. }
            | Self::WrongStore { store, .. }
            | Self::NotDurable { store, .. }
            | Self::Unopened { store, .. }
            | Self::Failed { store, .. } => store,
        }
    }
}
