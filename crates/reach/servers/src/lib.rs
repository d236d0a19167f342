//! How anybody finds, proves himself to, and asks a server.
//!
//! Which server holds an MDT or an OST is what the newest federation map says ([`Servers`]). A
//! server that does not hold it (any more) or cannot be reached makes us look for a newer map once,
//! and try again. Channels are dialled when they are first needed: one per MDS, a few per OSS.
//!
//! * [`greeting`]: how every connection begins, whoever makes it; [`deaf`]: for who hears nothing.
//! * [`servers`]: the table of them; [`asking`]: requests and what is tried again; [`maps`]: newer
//!   maps; [`proofs`]: users who prove themselves; [`delegations`]: a door's users; [`anywhere`]:
//!   what any MDS may be asked; [`waits`]: how long is waited for whom.
//! * [`server`]: one of them, with its [`ways`], whose [`turns`] it is, its [`pace`] and its
//!   [`clock`]; [`abilities`]: what it can do.
//! * [`answerer`]: who answers in this process, in place of a server.
//! * [`sink`]: what servers say unasked, and who hears it ([`Hearer`]); [`records`]: what outlives
//!   this process.
//! * [`channels`]: for who needs one channel to each; [`by_key`]: one question at a time.
//!
//! Knows nothing of what replies mean: no lease, no file, no cache.
//!
//! Invariants: a mutation is sent again only if it surely did not happen, or may happen twice;
//! every call ends after [`Parts::wait`], or when the absence that its server announced is over.

mod abilities;
mod answerer;
mod anywhere;
mod asking;
pub mod by_key;
mod channels;
mod clock;
mod deaf;
mod delegations;
mod error;
mod greeting;
mod maps;
mod pace;
mod proofs;
pub mod read_only;
mod records;
mod server;
mod servers;
mod sink;
pub mod turns;
mod waits;
mod ways;

pub use answerer::{Answerer, Beside, Find, Holds};
pub use channels::Channels;
pub use deaf::Deaf;
pub use delegations::{Delegations, SpokenFor, Wish};
pub use error::Error;
pub use greeting::Greeting;
pub use proofs::Credentials;
pub use records::{LeftAnswer, Records};
pub use server::{PUT_GRAIN, PUT_GRAINS_MAX, PUT_GRAINS_MIN, Server};
pub use servers::{Parts, Servers};
pub use sink::Hearer;
pub use waits::silence;
pub use ways::{FAR_FROM, Ways};

use std::sync::{Mutex, MutexGuard, PoisonError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
