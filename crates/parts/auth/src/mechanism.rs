//! How two ends prove themselves, and what the proof is worth.

use crate::trouble::Trouble;
use std::time::Duration;
use tieline_wire::CredentialKind;

/// Bytes of the secret that both ends of a handshake come to share.
pub const SECRET: usize = 64;
/// Bytes of the digest that a handshake is bound to.
pub const BINDING: usize = 32;
/// The longest token: tickets of a directory with many groups are large.
pub const TOKEN_MAX: usize = 64 << 10;

/// What came of one step.
#[derive(Debug)]
pub struct Step {
    /// To be sent to the other end.
    pub token: Option<Vec<u8>>,
    /// The handshake is over, on our side.
    pub proof: Option<Proof>,
}

/// What a finished handshake shows.
#[derive(Clone)]
pub struct Proof {
    /// Who is at the other end.
    pub peer: String,
    /// Who we are to it.
    pub own: String,
    /// Known to both ends, and to nobody else.
    pub secret: [u8; SECRET],
    /// How long it holds; without an end for `None`.
    pub lifetime: Option<Duration>,
}

/// Secrets are not for logs.
impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proof of {} to {}, for {:?}", self.peer, self.own, self.lifetime)
    }
}

/// One end's side of one handshake: tokens in, tokens out.
pub trait Mechanism: Send {
    fn kind(&self) -> CredentialKind;

    /// Must steps be taken where waiting harms nobody?
    fn may_block(&self) -> bool {
        false
    }

    /// The next step, given the other end's last token (none at the beginning). `binding` is what
    /// the handshake belongs to: both ends must say the same.
    fn step(&mut self, token: Option<&[u8]>, binding: &[u8; BINDING]) -> Result<Step, Trouble>;
}
