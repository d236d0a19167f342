//! Tokens that doors hand on: whose they are here, by the issuers of the signed map.
//!
//! The door is not believed about its user: what he sent is judged here, as a ticket is. A token is
//! good as often as it is shown, until its end; it is its issuer's to make it short.
//!
//! Knows no JSON and no signature: `tieline_tokens` does.

use super::Identities;
use super::delegations::Shown;
use std::sync::Arc;
use tieline_format::mdt::DelegatedBy;
use tieline_tokens::{Granted, Judged};
use tieline_types::{Issuer, TokenHolder, TokenUser};
use tieline_wire::Failure;

impl Identities {
    /// Judges what a user sent to a door.
    pub(super) fn tokened(&self, door: &Arc<str>, token: &[u8]) -> Result<Shown, Failure> {
        let current = self.map.current();
        let issuers = current.map.security.as_ref().map(|security| security.issuers());
        let judged = tieline_tokens::judge(token, issuers.unwrap_or_default(), self.clock.wall());
        let Judged { issuer, subject, user, granted: Granted { scope, .. }, left } = judged
            .map_err(|error| {
                let why = format!("a token that {door} hands on is refused: {error}");
                self.deny(error.kind(), Some(door), why)
            })?;
        let by =
            DelegatedBy::Token { issuer: issuer.url.clone(), subject, holder: user.holder.clone() };
        let principal = self.principal_of(user);
        Ok(Shown { principal, by, scope: Some(scope), lifetime: Some(left) })
    }

    fn principal_of(&self, user: &TokenUser) -> String {
        let current = self.map.current();
        let realm = current.map.security.as_ref().map(|security| security.realm.as_str());
        match realm.filter(|_| !user.principal.contains('@')) {
            Some(realm) => format!("{}@{realm}", user.principal),
            None => user.principal.clone(),
        }
    }

    /// Does the map still say that the holder of such a token is this principal?
    pub(super) fn still_tokened(
        &self,
        (issuer, holder): (&str, &TokenHolder),
        principal: &str,
    ) -> Result<(), String> {
        let current = self.map.current();
        let issuers = current.map.security.as_ref().map(|security| security.issuers());
        let is_it = |known: &&Issuer| known.url == issuer;
        let known = issuers.unwrap_or_default().iter().find(is_it);
        let known = known.ok_or_else(|| format!("{issuer} issues no tokens for us any more"))?;
        let is_his =
            |user: &&TokenUser| user.holder == *holder && self.principal_of(user) == principal;
        let rule = known.users.iter().find(is_his);
        rule.map(drop).ok_or_else(|| format!("{holder} of {issuer} is {principal} no more"))
    }
}
