//! What every door stands on: files, as they are asked for.
//!
//! * [`Files`]: what every door asks; [`nouns`]: in which words. [`CoherentCache`]: for a door that
//!   caches, too; [`Resume`]: for one whose requests outlive its process. Both are the mount's.
//!
//! Knows no message, no server, no lease, no path of bytes; and no protocol of a door.

mod coherent;
mod files;
pub mod nouns;
mod resume;

pub use coherent::{CacheListener, CoherentCache};
pub use files::Files;
pub use nouns::*;
pub use resume::{OpenFile, Resume, Unsent};
pub use tieline_believed::{Belief, Invalidation, Known};
pub use tieline_servers::Error;

pub type Result<T, E = Error> = std::result::Result<T, E>;
