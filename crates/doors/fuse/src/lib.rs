//! The FUSE door: our own session over /dev/fuse.
//!
//! It serves any `tieline_client::FileSystem` to the kernel, and translates only: requests to
//! calls, answers to replies, error kinds to errnos, invalidations to notifications. Who a
//! caller is it asks `tieline_people`. It knows no MDS, no OSS and no store.
//!
//! * [`abi`]: what the bytes mean. * [`init`]: what is negotiated. * [`attach`]: how a mount is
//!   made and taken away.
//! * [`session`]: event threads (whose turn it is: [`watch`]; where they run: [`beside`]), replies,
//!   waiting requests ([`pending`]) and their interrupts ([`process`]); [`taken`]: a session that
//!   an earlier process began, and what it had not answered ([`requests`]).
//! * [`ops`]: the translation, one file per group of requests; [`errno`]: of errors.
//! * [`answer`]: replies that may be cached rest on beliefs, and are written under the client's
//!   lock.
//! * [`notify`]: what the kernel shall forget, told by threads of its own. * [`nodes`], [`recent`],
//!   [`vain`]: what it knows; [`numbers`]: what programs are shown for it. * [`places`], [`moves`],
//!   [`scout`]: directories that others move while somebody stands in them.
//!
//! Invariants: every request gets exactly one reply, also when its code panics. A waiting caller
//! that is killed is gone at once, whatever a server does. Nothing is told to be cached longer than
//! the client believes it when the reply is written. What kernels lack is made up for or said in
//! docs/kernels.md.

mod abi;
mod answer;
mod attach;
mod beside;
mod buffer;
mod call;
mod cuts;
mod denials;
mod errno;
mod init;
mod kernel;
mod mount;
mod moves;
mod nodes;
mod notify;
mod numbers;
mod ops;
mod pending;
mod places;
mod process;
mod recent;
mod reply;
mod requests;
mod scout;
mod session;
mod taken;
mod unwind;
mod vain;
mod wait;
mod watch;

pub use abi::UID_UNSAID;
pub use attach::AttachError;
pub use call::WHO;
pub use denials::NAME as DENIALS;
pub use mount::{Error, Mount, MountOptions, Unmounted};
pub use scout::{Start, serve as serve_scout};
pub use taken::{Beginning, Give, HandOver, Taken};
