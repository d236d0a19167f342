//! Why a token is refused, and what to do then.

use crate::TOKEN_MAX;
use tieline_types::{ErrorKind, Scope, Shown};

/// Of what stood in a token, in a message.
const SHOWN_MAX: usize = 120;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("a token has at most {TOKEN_MAX} bytes")]
    Large,
    #[error("this is no token (a JWT in three parts): {0}")]
    Form(&'static str),
    #[error("tokens are signed by RS256 or ES256 here, and this one by `{0}`")]
    Algorithm(String),
    #[error("the token's header asks for extensions that are not known here: `crit`")]
    Critical,
    #[error("the issuer `{0}` is not in the federation map: `tieline issuer list` shows who is")]
    Issuer(String),
    #[error(
        "no key of {issuer} in the federation map verifies this token (its `kid`: {key}): if it \
         signs with a new key, `tieline issuer add` with its keys of today"
    )]
    Signature { issuer: String, key: String },
    #[error("the token's claims cannot be read: {0}")]
    Claims(String),
    #[error("the token is of no WLCG profile 1: `wlcg.ver` is {0}")]
    Profile(String),
    #[error(
        "the token is for {told}, and here it is to be for {wanted}: get one for this audience"
    )]
    Audience { told: String, wanted: String },
    #[error("the token was over {0} s ago: get a new one")]
    Over(u64),
    #[error("the token holds in {0} s only: compare the clocks of its issuer and of the MDS")]
    Early(u64),
    #[error("the token's scope `{0}` is no path: storage.read:/PATH, without `..`")]
    Scope(String),
    #[error("the token has more than {max} paths, or one of more than {depth} names",
        max = Scope::ALLOWED_MAX, depth = Scope::DEPTH_MAX)]
    TooMany,
    #[error(
        "the token allows nothing here: get one with a scope storage.read:/PATH, \
         storage.create:/PATH or storage.modify:/PATH"
    )]
    Nothing,
    #[error(
        "`{subject}` of {issuer} is nobody here: `tieline issuer add` takes --user sub:SUBJECT=USER"
    )]
    Nobody { subject: String, issuer: String },
}

impl TokenError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Nobody has shown anything.
            Self::Large
            | Self::Form(_)
            | Self::Algorithm(_)
            | Self::Critical
            | Self::Issuer(_)
            | Self::Signature { .. }
            | Self::Claims(_)
            | Self::Profile(_)
            | Self::Audience { .. }
            | Self::Over(_)
            | Self::Early(_) => ErrorKind::Unauthenticated,
            Self::Scope(_) | Self::TooMany | Self::Nothing | Self::Nobody { .. } => {
                ErrorKind::PermissionDenied
            }
        }
    }
}

/// What others wrote, for people.
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_MAX).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{}{more}", Shown(short.as_bytes()))
}
