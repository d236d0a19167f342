//! Ranges of chunks from wherever they are nearest.
//!
//! [`Source`] is the seam: it gives what it has of a range, or nothing. Sources stack
//! ([`stack`]): what the first has not is asked of the next, and what came from far is offered to
//! those that were asked before, when it was judged ([`judge`]). [`Chunks`] is the whole of them:
//!
//! * [`memory`]: what is here, and what is on its way, each range once;
//! * [`node`]: the cache of this node;
//! * [`whole`]: storage that others write to, which gives whole chunks, each brought once:
//!   [`direct`] (mounted here) and [`site`] (the cache of all nodes);
//!   Behind them others that have whole chunks, such as repositories ([`Near::further`]);
//! * [`osts`]: the OSSs of a chunk's places, the nearest first ([`costs`]), several at once
//!   ([`race`]), each range with what leads to the digest of its chunk ([`proven`]), put together
//!   where all copies are damaged ([`patched`]).
//!
//! Beside them: [`capabilities`], what is shown to OSSs; [`poor`], OSTs that failed puts;
//! [`paths`], what ways cost, for people who ask; [`near`], what an operator plugs in.
//!
//! Knows no MDS but by [`Metadata`], no directory of any cache, and no file but by its id.
//!
//! Invariants: a range is handed on only if it agrees with what the metadata says of its chunk;
//! bytes in memory are bounded; whoever wants bytes waits for them once, wherever that is.

mod capabilities;
mod chunks;
pub mod costs;
mod direct;
mod judge;
mod memory;
mod near;
mod node;
mod osts;
mod patched;
mod paths;
mod poor;
mod proven;
pub mod race;
mod site;
mod source;
mod stack;
#[cfg(test)]
mod tests;
mod whole;
mod whose;

pub use capabilities::Capabilities;
pub use chunks::Chunks;
pub use memory::{Flight, Memory, Room, Segment, sweep};
pub use near::{DirectAccess, Near, NodeCache, SiteCache, SiteClaim, SiteLook};
pub use osts::{Metadata, Osts};
pub use paths::PathCost;
pub use poor::PoorOsts;
pub use source::{Fault, Outcome, Piece, Proof, Source, Wish};
pub use stack::Stack;
pub use whose::Whose;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
