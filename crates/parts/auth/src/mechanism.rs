//! How two ends prove themselves, and which flavor they agree on.

use tieline_wire::{CredentialKind, Flavor, Hello};

/// What a mechanism wants next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this token and wait for the other end's.
    Token(Vec<u8>),
    /// Proven: the other end is who this says (`null` says nothing).
    Done { peer: Option<String> },
}

/// One end's side of one handshake: tokens in, tokens out.
pub trait Mechanism: Send {
    fn kind(&self) -> CredentialKind;

    /// The next step, given the other end's last token (none at the beginning).
    fn step(&mut self, token: Option<&[u8]>) -> Result<Step, RuleError>;
}

/// Flavor `null`: nothing is proven.
pub struct NullMechanism;

impl Mechanism for NullMechanism {
    fn kind(&self) -> CredentialKind {
        CredentialKind::None
    }

    fn step(&mut self, _token: Option<&[u8]>) -> Result<Step, RuleError> {
        Ok(Step::Done { peer: None })
    }
}

/// The weakest flavor an end accepts. Each end states its own and the stricter one holds, so nobody
/// can be talked down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    pub flavor: Flavor,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("flavor {} is not in this build, which has null only", .0.name())]
    NotBuilt(Flavor),
    #[error("flavor {} needs a credential, and the peer has none", .0.name())]
    NoCredential(Flavor),
}

impl Rule {
    /// The flavor of a connection that begins with `hello`.
    pub fn agree(self, hello: &Hello) -> Result<Flavor, RuleError> {
        let flavor = self.flavor.max(hello.flavor);
        match (flavor, hello.credential) {
            (Flavor::Null, _) => Ok(flavor),
            (_, CredentialKind::None) => Err(RuleError::NoCredential(flavor)),
            (_, CredentialKind::Kerberos | CredentialKind::Test) => {
                Err(RuleError::NotBuilt(flavor))
            }
        }
    }
}
