//! Users who prove themselves beside their machine.
//!
//! Under Kerberos a machine's word for its users is not taken. Who a caller is, a program finds out
//! by [`Volume::taken_for`] and [`Volume::show`]; from then on the caller carries the number of
//! the proof ([`Caller::proof`]). Another MDS, or one that was started anew, does not know that
//! number and says so: then the ticket is shown there too, and the request sent again.
//!
//! What every MDS knows is asked of any: a site that is cut off has one of its own
//! ([`Shared::anywhere`]).
//!
//! Knows no Kerberos: tokens come from [`Credentials`].
//!
//! Invariant: a request is sent again after a proof once only.

use super::{Server, Servers};
use crate::volume::Shared;
use crate::{Error, Result, Volume};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tieline_net::CallError;
use tieline_types::{Caller, ErrorKind, MdtIndex, Retry, SessionId};
use tieline_wire::Request;
use tieline_wire::identity::{ListIdentities, ListIdentitiesReply, Prove, ProveReply};
use tieline_world::Bulk;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// An MDS that took so long is not waited for alone any more.
const ALONE: Duration = Duration::from_secs(2);

/// Where tokens come from.
#[async_trait::async_trait]
pub trait Credentials: Send + Sync {
    /// A token that shows, in a session with the server at these addresses, whom a number stands
    /// for. `None`: it stands for nobody any more.
    async fn token(&self, proof: u64, session: SessionId, addresses: &[String]) -> Option<Vec<u8>>;

    /// Could nobody say, the last time, whether there is a token? Then the next time there may be.
    fn is_silent(&self, proof: u64) -> bool;
}

impl Volume {
    /// From where users' proofs come; only the first call counts.
    pub fn set_credentials(&self, credentials: Arc<dyn Credentials>) {
        let _ = self.shared().servers.credentials.set(credentials);
    }

    /// Whom an MDT's server takes a caller for who proves nothing.
    pub async fn taken_for(&self, mdt: MdtIndex, stated: &Caller) -> Result<ProveReply> {
        taken_for(self.shared().clone(), mdt, stated.clone()).await
    }

    /// The same, by another MDT's server if that one is away.
    pub async fn taken_anywhere(&self, mdt: MdtIndex, stated: &Caller) -> Result<ProveReply> {
        let stated = stated.clone();
        let ask = move |shared, mdt| taken_for(shared, mdt, stated.clone());
        self.shared().anywhere(mdt, ask).await
    }

    /// Shows an MDT's server, or another's if that one is away, whom a number stands for.
    pub async fn show(&self, mdt: MdtIndex, proof: u64) -> Result<ProveReply> {
        let show = move |shared: Arc<Shared>, mdt| async move {
            let server = shared.servers.mds(mdt)?;
            shared.servers.show(&server, proof).await
        };
        self.shared().anywhere(mdt, show).await
    }

    /// A page of the table of identities, of which every MDS has a copy.
    pub async fn identities(&self, have: u64, from: u32) -> Result<ListIdentitiesReply> {
        let ask = move |shared: Arc<Shared>, mdt| async move {
            let message = ListIdentities { have, from };
            Ok(shared.servers.ask_now(&Caller::root(), mdt, message).await?.reply)
        };
        self.shared().anywhere(MdtIndex(0), ask).await
    }

    /// Is the server of an MDT out of reach, as far as we know?
    pub fn is_away(&self, mdt: MdtIndex) -> bool {
        self.shared().is_away(mdt)
    }
}

async fn taken_for(shared: Arc<Shared>, mdt: MdtIndex, stated: Caller) -> Result<ProveReply> {
    let is_stranger = stated.proof == Some(Caller::STRANGER);
    let stated = Caller { proof: is_stranger.then_some(Caller::STRANGER), ..stated };
    let message = Prove { proof: 0, token: None };
    Ok(shared.servers.ask_now(&stated, mdt, message).await?.reply)
}

impl Shared {
    /// Asks the server of `first`, and when that is away or slow, those of all other MDTs beside
    /// it: the first answer counts, and a refusal is one.
    pub(crate) async fn anywhere<T, F>(
        self: &Arc<Self>,
        first: MdtIndex,
        ask: impl Fn(Arc<Self>, MdtIndex) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        asked.spawn(ask(self.clone(), first));
        let mut failure = None;
        if !self.is_away(first)
            && let Ok(Some(outcome)) = timeout(ALONE, asked.join_next()).await
        {
            match judged(outcome) {
                Ok(outcome) => return outcome,
                Err(error) => failure = Some(error),
            }
        }
        let believed = self.servers.map.current();
        for mdt in believed.map.mdts.iter().map(|entry| entry.mdt).filter(|&mdt| mdt != first) {
            asked.spawn(ask(self.clone(), mdt));
        }
        while let Some(outcome) = asked.join_next().await {
            match judged(outcome) {
                Ok(outcome) => return outcome,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::local(ErrorKind::Unreachable, "all MDSs")))
    }
}

/// What counts as an answer; else why there is none.
fn judged<T>(joined: Result<Result<T>, tokio::task::JoinError>) -> Result<Result<T>, Error> {
    match joined {
        Ok(Err(error)) if error.kind().retry() != Retry::Never => Err(error),
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(Error::local(ErrorKind::Internal, "task of the client")),
    }
}

impl Servers {
    /// Shows a server the tickets of all for whom a request is made. Says whether it knows them
    /// now. A caller whose ticket cannot be looked for is not denied: that is an error of its own.
    pub(super) async fn show_all(
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

    async fn show(&self, server: &Server, proof: u64) -> Result<ProveReply> {
        let nobody = || Error::local(ErrorKind::PermissionDenied, "a ticket");
        let credentials = self.credentials.get().ok_or_else(nobody)?;
        if server.channel(0)?.channel.standing().is_none() {
            self.greet(server).await?;
        }
        let standing = server.channel(0)?.channel.standing().ok_or_else(nobody)?;
        let token = credentials.token(proof, standing.session, &server.addresses).await;
        let message = Prove { proof, token: Some(token.ok_or_else(nobody)?) };
        let deadline = Instant::now() + self.wait_at(server);
        Ok(self.once(server, &Caller::root(), message, Bulk::Empty, deadline).await?.0)
    }
}

/// Is it this ticket that is not taken, rather than this machine or its connection?
fn is_about_ticket(error: &Error) -> bool {
    let is_answer = matches!(error, Error::Local { .. } | Error::Call(CallError::Refused(_)));
    is_answer && error.kind().retry() == Retry::Never
}
