//! MDSs, which say who somebody is: by what his machine states, or by what he shows.
//!
//! What every MDS knows is asked of any, one first: a site that is cut off has one of its own.

use crate::Unknown;
use std::sync::Arc;
use std::time::Duration;
use tieline_identities::{IdentityTable, Pages, Step};
use tieline_servers::{Error, Result, Servers};
use tieline_types::{Caller, ErrorKind, MdtIndex};
use tieline_wire::identity::{Prove, ProveReply};

/// How long a door that begins waits to hear whether its machine is believed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// Who has the last word.
#[async_trait::async_trait]
pub trait Judges: Send + Sync {
    /// Whom they take a caller for who proves nothing.
    async fn taken(&self, stated: &Caller) -> Result<ProveReply, Unknown>;

    /// Whom a number stands for: it is shown to them by
    /// [`Credentials`](tieline_servers::Credentials).
    async fn shown(&self, proof: u64) -> Result<ProveReply, Unknown>;

    /// Is the one that is asked first out of reach, as far as we know?
    fn is_away(&self) -> bool;
}

/// MDSs, the one of this MDT first.
pub(crate) struct AnyMds {
    pub servers: Arc<Servers>,
    pub first: MdtIndex,
}

#[async_trait::async_trait]
impl Judges for AnyMds {
    async fn taken(&self, stated: &Caller) -> Result<ProveReply, Unknown> {
        Ok(taken_anywhere(&self.servers, self.first, stated).await?)
    }

    async fn shown(&self, proof: u64) -> Result<ProveReply, Unknown> {
        let show = |mdt| {
            let servers = self.servers.clone();
            async move {
                let server = servers.mds(mdt)?;
                servers.show(&server, proof).await
            }
        };
        Ok(self.servers.anywhere(self.first, show).await?)
    }

    fn is_away(&self) -> bool {
        self.servers.is_away(self.first)
    }
}

impl From<Error> for Unknown {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), why: error.to_string() }
    }
}

/// Whom an MDT's server takes a caller for who proves nothing.
pub async fn taken_for(servers: &Servers, mdt: MdtIndex, stated: &Caller) -> Result<ProveReply> {
    let is_stranger = stated.proof == Some(Caller::STRANGER);
    let stated = Caller { proof: is_stranger.then_some(Caller::STRANGER), ..stated.clone() };
    servers.ask_mds(&stated, mdt, Prove { proof: 0, token: None, delegation: None }).await
}

/// The same, by another MDT's server if that one is away.
async fn taken_anywhere(
    servers: &Arc<Servers>,
    first: MdtIndex,
    stated: &Caller,
) -> Result<ProveReply> {
    let ask = |mdt| {
        let (servers, stated) = (servers.clone(), stated.clone());
        async move { taken_for(&servers, mdt, &stated).await }
    };
    servers.anywhere(first, ask).await
}

/// Do the servers take this machine's word for its users? `None`: nobody answers.
pub async fn are_believed(servers: &Arc<Servers>, first: MdtIndex) -> Option<bool> {
    if servers.map.current().map.security.is_none() {
        return Some(true);
    }
    let root = Caller::root();
    let told = tokio::time::timeout(ANSWER_PATIENCE, taken_anywhere(servers, first, &root));
    match told.await {
        Ok(Ok(told)) => Some(told.is_believed),
        Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => Some(false),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Whose these connections are, if they are one user's: him as an identity. `here` is who runs us.
pub async fn owner(servers: &Arc<Servers>, first: MdtIndex, here: &Caller) -> Option<Caller> {
    if here.is_root() {
        return None;
    }
    let told = taken_anywhere(servers, first, here).await.ok()?;
    let is_user = told.principal.is_some_and(|name| !name.contains('/'));
    (is_user && !told.is_believed).then_some(told.caller)
}

/// The table of identities, of which every MDS has a copy, if it is newer than `have`.
pub async fn table_of(servers: &Arc<Servers>, have: Option<u64>) -> Result<Option<IdentityTable>> {
    let mut pages = Pages::newer_than(have);
    loop {
        let wanted = pages.wanted();
        let ask = |mdt| {
            let (servers, wanted) = (servers.clone(), wanted.clone());
            async move { servers.ask_mds(&Caller::root(), mdt, wanted).await }
        };
        match pages.take(servers.anywhere(MdtIndex(0), ask).await?) {
            Step::More(more) => pages = more,
            Step::Same => return Ok(None),
            Step::Whole(table) => return Ok(Some(table)),
        }
    }
}
