//! Who is at the other end, and who signed the map.
//!
//! * [`MapSigner`], [`MapVerifier`]: the federation's key (Ed25519, RFC 8032) over the federation
//!   map.
//! * [`MapCell`]: the newest map this process believes.
//! * [`Mechanism`]: how two ends of a connection prove themselves in the handshake. `null` proves
//!   nothing; Kerberos will stand beside it here, and all its foreign code with it.
//!
//! Knows no socket: mechanisms take tokens in and give tokens out.

mod cell;
mod map;
mod mechanism;

pub use cell::{BelievedMap, MapCell};
pub use map::{MapError, MapSigner, MapVerifier};
pub use mechanism::{Mechanism, NullMechanism, Rule, RuleError, Step};
