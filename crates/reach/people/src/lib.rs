//! Who a caller is to the file system, and as whom its owners are shown here.
//!
//! A door has somebody before it who wants something. Whatever the door speaks, it asks [`People`]
//! who that is; what comes back is a [`Caller`](tieline_types::Caller), by which servers judge.
//!
//! * [`people`]: what a door asks. * [`users`]: the answer, by the machine's ids, by a ticket, or
//!   by what servers take a stranger for.
//! * [`judges`]: MDSs, which have the last word; [`word`]: what they said of those who show
//!   nothing.
//! * [`tickets`]: users' caches of tickets, looked into by processes that are these users
//!   ([`tickets::reading`]); tokens from them go to servers by
//!   [`Credentials`](tieline_servers::Credentials).
//! * [`programs`]: programs of this machine, which mean a cache by their environment or by the job
//!   they belong to: what only doors need that serve this machine's own processes.
//! * [`idmap`]: identities as uids and gids of this machine.
//! * [`visitors`]: who comes to a door of another protocol, and is proved at MDSs by what he sent.
//!
//! Who may speak for whom, servers decide by the map (`tieline_identities::machines`); here it is
//! only found out ([`judges::are_believed`]).
//!
//! Knows no door, no mount, and nothing of files: whoever has [`Servers`](tieline_servers::Servers)
//! can ask.
//!
//! Invariants: nobody is somebody else because a KDC or a server is silent; no cache is opened with
//! other rights than its user's.

#[cfg(test)]
mod fake;
pub mod idmap;
pub mod judges;
mod people;
pub mod programs;
pub mod tickets;
mod users;
pub mod visitors;
mod word;

pub use people::{Asking, People, Unknown, learned, show};
pub use users::{Served, Users};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
