//! Users who prove themselves beside their machine.
//!
//! Under Kerberos a machine's word for its users is not taken: a caller carries the number of a
//! proof ([`Caller::proof`]). A server that does not know that number, because it was started anew
//! or never met it, says so: then the ticket is shown there, and the request sent again.
//!
//! Knows no Kerberos: tokens come from [`Credentials`].
//!
//! Invariant: a request is sent again after a proof once only.

use crate::{Error, Result, Server, Servers};
use std::collections::BTreeSet;
use std::sync::Arc;
use tieline_net::CallError;
use tieline_types::{Caller, ErrorKind, MdtIndex, Retry, SessionId};
use tieline_wire::Request;
use tieline_wire::identity::{Delegation, Prove, ProveReply};
use tieline_world::Bulk;
use tokio::time::Instant;

/// Where tokens come from.
#[async_trait::async_trait]
pub trait Credentials: Send + Sync {
    /// A token that shows, in a session with the server at these addresses, whom a number stands
    /// for. `None`: it stands for nobody any more.
    async fn token(&self, proof: u64, session: SessionId, addresses: &[String]) -> Option<Vec<u8>>;

    /// How a door shows whom a number stands for, if it is one. Asked before tokens are.
    fn delegation(&self, proof: u64) -> Option<Delegation> {
        let _ = proof;
        None
    }

    /// Could nobody say, the last time, whether there is a token? Then the next time there may be.
    fn is_silent(&self, proof: u64) -> bool;
}

impl Servers {
    /// From where users' proofs come; only the first call counts.
    pub fn set_credentials(&self, credentials: Arc<dyn Credentials>) {
        let _ = self.credentials.set(credentials);
    }

    /// Shows a server the tickets of all for whom a request is made. Says whether it knows them
    /// now. A caller whose ticket cannot be looked for is not denied: that is an error of its own.
    pub(crate) async fn show_all(
        &self,
        server: &Server,
        caller: &Caller,
        request: &Request,
    ) -> Result<bool> {
        let mut proofs: BTreeSet<u64> = caller.shown_proof().into_iter().collect();
        if let Request::Batch(batch) = request {
            proofs.extend(batch.items.iter().filter_map(|item| item.caller.shown_proof()));
        }
        if proofs.is_empty() {
            return Ok(false);
        }
        // One that cannot be shown keeps nobody else's from being known.
        let mut are_known = true;
        for proof in proofs {
            if let Err(error) = self.show(server, proof).await {
                tracing::info!(%error, proof, "a user's ticket is not shown again");
                are_known = false;
            }
        }
        let credentials = self.credentials.get();
        let is_silent = |proof| credentials.is_some_and(|known| known.is_silent(proof));
        if !are_known && caller.shown_proof().is_some_and(is_silent) {
            let what = "whether there is a ticket for this server (does a KDC answer?)";
            return Err(Error::local(ErrorKind::Unreachable, what));
        }
        Ok(are_known)
    }

    /// Those of these proofs that an MDT's server does not take, or that nobody can show. Of a
    /// server that cannot be asked nothing is said.
    pub async fn unshown(&self, mdt: MdtIndex, proofs: &BTreeSet<u64>) -> BTreeSet<u64> {
        let Ok(server) = self.mds(mdt) else { return BTreeSet::new() };
        let mut unshown = BTreeSet::new();
        for &proof in proofs {
            if let Err(error) = self.show(&server, proof).await
                && is_about_ticket(&error)
            {
                unshown.insert(proof);
            }
        }
        unshown
    }

    /// Shows a server whom a number stands for.
    pub async fn show(&self, server: &Server, proof: u64) -> Result<ProveReply> {
        let nobody = || Error::local(ErrorKind::PermissionDenied, "a ticket");
        let credentials = self.credentials.get().ok_or_else(nobody)?;
        if server.channel(0)?.channel.standing().is_none() {
            self.greet(server).await?;
        }
        let standing = server.channel(0)?.channel.standing().ok_or_else(nobody)?;
        let (mut token, delegation) = (None, credentials.delegation(proof));
        if delegation.is_none() {
            token = credentials.token(proof, standing.session, &server.addresses).await;
            if token.is_none() {
                return Err(nobody());
            }
        }
        let message = Prove { proof, token, delegation };
        let deadline = Instant::now() + self.wait_at(server);
        Ok(self.once(server, &Caller::root(), message, Bulk::Empty, deadline).await?.0)
    }
}

/// Is it this ticket that is not taken, rather than this machine or its connection?
fn is_about_ticket(error: &Error) -> bool {
    let is_answer = matches!(error, Error::Local { .. } | Error::Call(CallError::Refused(_)));
    is_answer && error.kind().retry() == Retry::Never
}
