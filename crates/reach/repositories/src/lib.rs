//! What repositories keep: files that others serve, and the chunks in them.
//!
//! Which repositories there are, and where, the federation map says. A [`Shelf`] gives what lies
//! under a key: [`Directory`] on storage that is mounted here, [`Web`] has those behind HTTP.
//! [`Repositories`] asks the shelves of one repository in their order, those that failed lately
//! last, and is a source of chunks ([`tieline_bytes::Source`]): it brings them whole, as they are
//! encoded there, to be judged by whoever asks.
//!
//! Knows nothing of what the files mean: no list, no catalog, no name.
//!
//! Invariants: no more is read than is asked for; nothing is waited for beyond the time that is
//! given; what a key may name is below its shelf.

mod directory;
mod shelves;
mod source;
mod web;

pub use directory::Directory;
pub use shelves::{Opener, Repositories, Shelf, Trouble, Want};
pub use web::Web;
