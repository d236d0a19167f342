//! Who is at the other end, what is said to whom, and who signed the map.
//!
//! * [`MapSigner`], [`MapVerifier`]: the federation's key (Ed25519, RFC 8032) over the federation
//!   map.
//! * [`MapCell`]: the newest map this process believes.
//! * [`Mechanism`]: how two ends of a connection prove themselves in the handshake: [`gss`] is
//!   Kerberos, with all its foreign code; [`seeded`] has its shape, for tests.
//! * [`Guard`]: which flavor a connection must have, and whether a proof suffices.
//! * [`seal`]: the protection of what a proven connection carries.
//! * [`capability`]: what an MDS lets a client do at OSSs: signed there, judged here.
//! * [`ScratchKdc`]: a real KDC in a folder, for tests and development federations.
//!
//! Knows no socket: mechanisms take tokens in and give tokens out.

pub mod capability;
mod cell;
pub mod gss;
mod guard;
mod map;
mod mechanism;
mod scratch;
pub mod seal;
pub mod seeded;
mod trouble;

pub use cell::{BelievedMap, MapCell};
pub use guard::{
    Answering, Dialing, Guard, GuardParts, Kerberos, Prover, SERVICE_HOST, SERVICE_MDS,
    SERVICE_OSS, SeededProver, Serves, address_of, host, principal_at, proof_binding,
};
pub use map::{MapError, MapSigner, MapVerifier};
pub use mechanism::{BINDING, Mechanism, Proof, SECRET, Step, TOKEN_MAX};
pub use scratch::{ScratchError, ScratchKdc};
pub use trouble::Trouble;

use tieline_types::Flavor;

/// The weakest flavor an end accepts. Each end states its own and the stricter one holds, so nobody
/// can be talked down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    pub flavor: Flavor,
}
