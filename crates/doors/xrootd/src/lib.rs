//! The door for root://: files to be read, for whoever has a Kerberos ticket.
//!
//! The protocol is XRootD's, version 5.1.1, as far as its readers use it: names, attributes,
//! listings, reads (plain, of many ranges, by pages with checks), checksums, space, settings. What
//! would change something is refused.
//!
//! * [`server`]: listens, and counts connections. [`session`]: one of them, from its handshake to
//!   its end; [`login`]: who is there. [`input`], [`output`]: its two directions.
//! * [`wire`]: heads and numbers; [`request`]: what is asked; [`answer`]: what is told;
//!   [`refusal`]: errors as the protocol numbers them. None of these does I/O.
//! * [`ops`]: one file per kind of request. [`stat`]: attributes as text; [`checksums`]: those that
//!   are known or on their way; [`handles`]: what one connection has open.
//! * [`budget`]: how many bytes are in memory on their way to clients.
//!
//! Requests on one connection are answered as they come to an end, not in turn. Bytes on their way
//! are bounded for all and for each, so that somebody who does not read keeps nobody waiting.
//!
//! Knows no MDS, no OSS, no Kerberos: who comes is proved by `tieline_people::visitors`.
//!
//! Invariants: nothing is done for anybody before he is known; no frame is larger than
//! [`request::PAYLOAD_MAX`]; every wait for a client has an end.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::panic))]

pub mod answer;
mod budget;
mod checksums;
mod handles;
mod input;
mod login;
mod ops;
mod output;
pub mod refusal;
pub mod request;
pub mod server;
mod session;
mod stat;
#[cfg(test)]
mod tests;
pub mod wire;

pub use server::{Offer, Server, Settings};
