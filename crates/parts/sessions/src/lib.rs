//! What an MDT remembers of its clients' sessions, in memory.
//!
//! * [`OpenTable`]: which files a session may have open; [`Holders`]: what it has of files at all.
//! * [`CallerTable`]: as whom it asks.
//! * [`WalkTable`]: which ids it holds, since it was told of them.
//! * [`WriterTable`]: which files it writes, so that it is asked before others look.
//! * [`Sweep`]: how it goes through units that others hold.
//! * [`Suspended`]: who let recalls run out, and is given no leases for a while.
//! * [`Parties`]: how many sessions, and answers, whoever opened them has.
//! * [`Grace`]: who was there before a start, and is not back yet.
//!
//! Knows sessions, ids and time; no stores, messages, rights or leases.
//!
//! Invariant: every table is bounded for each session, and what is of a session goes with it.

mod callers;
mod grace;
mod holders;
mod opens;
mod parties;
mod suspended;
mod sweep;
mod walks;
mod writers;

pub use callers::CallerTable;
pub use grace::Grace;
pub use holders::Holders;
pub use opens::OpenTable;
pub use parties::{NoPlace, Parties, Party, Place};
pub use suspended::Suspended;
pub use sweep::Sweep;
pub use walks::WalkTable;
pub use writers::WriterTable;
