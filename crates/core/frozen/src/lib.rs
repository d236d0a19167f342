//! The second answerer of "which chunks?": a frozen list, which is a tree in one file.
//!
//! The file ([`list`]) has the names, the attributes and the chunks of a tree; the chunks lie
//! beside it, named by their content ([`freeze()`] makes both). Whoever asks the address
//! `repository:NAME` ([`Frozen::at`]) is answered from it, if it has the digest that the federation
//! map names. It grants leases, never takes one back, and refuses every change.
//!
//! Knows no socket and no client: below the question "which chunks?" nothing knows of it either.
//!
//! Invariants: nothing is answered from a list that has not the digest of the map; what it says is
//! checked whole before that; memory for one is bounded.

mod freeze;
mod held;
mod list;

pub use freeze::{Made, freeze};
pub use held::Frozen;
pub use list::{ListError, look};
