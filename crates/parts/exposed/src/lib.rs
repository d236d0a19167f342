//! Whole files under their logical names, in a directory that people and programs read without
//! us.
//!
//! A file is put together where it has no name ([`Staged`]), made durable, given owner and mode,
//! and only then linked into its place: under a name there is never a part of a file. Every way is
//! walked from the directory's own descriptor, name by name, without following a symbolic link, so
//! that nobody who can write there leads us out of it.
//!
//! * `tree`: what is done to names.
//! * `staged`: files without names yet.
//! * `mark`: how the directory is known to be ours.
//!
//! Knows no server, no chunk and no user: owners are numbers of this machine. Calls block.
//!
//! Invariants: nothing outside the directory is changed; what is in the way of a name is replaced
//! if it is a file or a link, and refused if it is a directory with something in it.

mod error;
mod mark;
mod staged;
mod tree;

pub use error::Error;
pub use mark::look;
pub use staged::Staged;
pub use tree::{ExposedTree, Found};

use tieline_types::Time;

/// Owner, mode and time of a file, for this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dress {
    /// `None`: as they come, since we may not give files away.
    pub owner: Option<(u32, u32)>,
    pub mode: u32,
    pub mtime: Time,
}

#[cfg(test)]
mod tests;
