//! Bearer tokens: JWTs of the WLCG profile (1.0 to 1.3), judged by pinned keys.
//!
//! [`judge`] says who holds a token, what may be done for him, and until when; [`keys`] reads what
//! an issuer publishes (a JWK set), for the verb that pins it.
//!
//! * `jws`: the three parts of a token and its signature: RS256 and ES256, no other.
//! * `claims`: what it claims, and whether that holds here and now.
//! * `scope`: its paths, compared by components elsewhere ([`tieline_types::Scope`]).
//!
//! Does not know: who a user is to the file system, sockets, where keys come from. It asks nobody:
//! a token whose issuer is not known is refused without a look at anything but its name.
//!
//! Invariants: nothing of a token counts before its signature was verified; `none` and shared
//! secrets are no signatures; a token without an end, or that allows nothing by paths, is refused;
//! a token is at most [`TOKEN_MAX`] bytes; no message shows a token or its signature.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod claims;
mod error;
mod jwks;
mod jws;
mod scope;
#[cfg(test)]
mod tests;

pub use error::TokenError;
pub use jwks::{JWKS_MAX, KeysError, keys};
pub use scope::Granted;

use std::time::Duration;
use tieline_types::{Issuer, TokenUser};

/// Of a token as it is sent. Tokens with many groups take some KiB.
pub const TOKEN_MAX: usize = 16 << 10;

/// What a good token says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged<'a> {
    pub issuer: &'a Issuer,
    /// Who holds it, as the issuer names him.
    pub subject: String,
    /// Whom he is here.
    pub user: &'a TokenUser,
    pub granted: Granted,
    /// It holds for so long yet.
    pub left: Duration,
}

/// Judges a token at a time (since 1970).
pub fn judge<'a>(
    token: &[u8],
    issuers: &'a [Issuer],
    now: Duration,
) -> Result<Judged<'a>, TokenError> {
    let parts = jws::Parts::split(token)?;
    let name = claims::issuer_of(&parts.payload)?;
    let issuer = issuers.iter().find(|issuer| issuer.url == name);
    let issuer = issuer.ok_or_else(|| TokenError::Issuer(error::shown(&name)))?;
    parts.verify(issuer)?;
    judge_claims(&parts.payload, issuer, now)
}

/// Judges the claims of a token whose signature was verified.
#[doc(hidden)]
pub fn judge_claims<'a>(
    payload: &[u8],
    issuer: &'a Issuer,
    now: Duration,
) -> Result<Judged<'a>, TokenError> {
    let claims = claims::Claims::parse(payload)?;
    let left = claims.check(issuer, now)?;
    let granted = scope::granted(&claims.scope, &issuer.base)?;
    let user = issuer.rule(&claims.sub, &claims.groups);
    let user = user.ok_or_else(|| TokenError::Nobody {
        subject: error::shown(&claims.sub),
        issuer: issuer.url.clone(),
    })?;
    Ok(Judged { issuer, subject: claims.sub, user, granted, left })
}
