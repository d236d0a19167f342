//! Capabilities: how an MDS signs them ([`Issuer`]), and how an OSS judges them ([`Checker`]).
//!
//! A capability says which file, which rights, for whom and until when, and is signed with a key
//! that its MDS made when it started and makes anew every hour (Ed25519, RFC 8032). OSSs ask the
//! MDS for the public halves every few seconds, and with them for what was taken back: so who has
//! stolen an OSS can read what it holds, but can grant nothing at another.
//!
//! Who may use a capability is a [`Holder`]: a digest of the principal that proved to be at the
//! other end and of the number of that client. Every server computes it for each connection, and
//! never hears it from the client.
//!
//! Knows no socket; asks no clock but tokio's.
//!
//! Invariants: no capability holds for longer than [`LIFE_MAX`]; what is taken back holds for no
//! capability whose rights were looked at before; all tables are bounded.

mod checker;
mod issuer;

pub use checker::{Admitted, Checker, Refused, Wish};
pub use issuer::{Issuer, Serial};

use crate::seal::Transcript;
use std::time::Duration;
use tieline_types::ClientId;
use tieline_wire::capability::Holder;

/// No capability holds longer.
pub const LIFE_MAX: Duration = Duration::from_secs(300);
/// What is signed begins with this, so that a signature is good for nothing else.
const PREFIX: &[u8] = b"tieline 1 capability";

/// Who is at the other end of a connection, for capabilities; nobody if nothing was proven.
pub fn holder_of(client: ClientId, principal: Option<&str>) -> Option<Holder> {
    let mut transcript = Transcript::new();
    transcript.add(&client.0);
    transcript.add(principal?.as_bytes());
    let mut holder = Holder([0; 16]);
    holder.0.iter_mut().zip(transcript.digest()).for_each(|(byte, of)| *byte = of);
    Some(holder)
}

/// A server, in whichever process of it.
pub fn server_holder(principal: &str) -> Holder {
    holder_of(ClientId([0; 16]), Some(principal)).unwrap_or(Holder([0; 16]))
}

fn signed_bytes(capability: &[u8]) -> Vec<u8> {
    [PREFIX, capability].concat()
}

#[cfg(test)]
mod tests;
