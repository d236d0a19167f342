//! Who a caller is for the servers, and what any of them can be asked.
//!
//! A program finds out whom a machine's word stands for by [`Volume::taken_for`], and shows tickets
//! by [`Volume::show`]; from then on the caller carries the number of the proof.
//!
//! What every MDS knows is asked of any: a site that is cut off has one of its own
//! ([`Shared::anywhere`]).

use crate::shared::Shared;
use crate::{Credentials, Error, Result, Volume};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tieline_servers::{Delegations, SpokenFor, Wish};
use tieline_types::{Caller, ErrorKind, MdtIndex, Retry};
use tieline_wire::identity::{ListIdentities, ListIdentitiesReply, Prove, ProveReply};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// An MDS that took so long is not waited for alone any more.
const ALONE: Duration = Duration::from_secs(2);

impl Volume {
    /// From where users' proofs come; only the first call counts.
    pub fn set_credentials(&self, credentials: Arc<dyn Credentials>) {
        self.shared().servers.set_credentials(credentials);
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

    /// Speaks for a user who came to this door, from now on. The volume's credentials are these
    /// delegations ([`Volume::set_credentials`]).
    pub async fn speak(&self, delegations: &Delegations, wish: Wish) -> Result<SpokenFor> {
        delegations.speak(&self.shared().servers, wish).await
    }

    /// A page of the table of identities, of which every MDS has a copy.
    pub async fn identities(&self, have: u64, from: u32) -> Result<ListIdentitiesReply> {
        let ask = move |shared: Arc<Shared>, mdt| async move {
            let message = ListIdentities { have, from };
            Ok(shared.ask_now(&Caller::root(), mdt, message).await?.reply)
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
    let message = Prove { proof: 0, token: None, delegation: None };
    Ok(shared.ask_now(&stated, mdt, message).await?.reply)
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
