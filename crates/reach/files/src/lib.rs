//! What every door stands on: files as they are asked for, and ways to them.
//!
//! * [`Files`]: what every door asks; [`nouns`]: in which words. [`CoherentCache`]: for a door
//!   that caches, too; [`Resume`]: for one whose requests outlive its process. Both are the
//!   mount's.
//! * [`Who`]: for whom, and within which scope. [`Paths`]: from a path to a file; [`Held`]: one
//!   that is open until it is dropped.
//! * [`Stream`]: a file from end to end; [`Upload`]: one that is seen when all of it is there.
//!   [`Pages`]: bytes with the checks of their pages; [`ranges`]: how many of them at once.
//! * [`memory`]: files in memory, for tests of doors.
//!
//! Knows no message, no server, no lease, no cache; and no protocol of a door.

mod coherent;
mod files;
mod held;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
pub mod nouns;
mod pages;
mod paths;
pub mod ranges;
mod resume;
mod stream;
#[cfg(test)]
mod tests;
mod upload;
mod who;

pub use coherent::{CacheListener, CoherentCache};
pub use files::Files;
pub use held::Held;
pub use nouns::*;
pub use pages::Pages;
pub use paths::{DEPTH_MAX, Entry, LINKS_MAX, LastLink, PATH_BYTES_MAX, Paths, STEPS_MAX};
pub use ranges::check_ranges;
pub use resume::{OpenFile, Resume, Unsent};
pub use stream::Stream;
pub use tieline_believed::{Belief, Invalidation, Known};
pub use tieline_servers::Error;
pub use upload::{NewUpload, Upload};
pub use who::Who;

pub type Result<T, E = Error> = std::result::Result<T, E>;
