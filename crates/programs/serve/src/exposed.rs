//! Exposed pools at this server: who files are given to, and what other servers ask.

use crate::identities::Identities;
use crate::node::Node;
use std::sync::Arc;
use tieline_data::{ChunkService, Owners};
use tieline_machine::users::{group_of_machine, user_of_machine};
use tieline_net::{Reply, Response};
use tieline_telemetry::health::Health;
use tieline_types::{Gid, IdentityKind, Uid};
use tieline_wire::exposed::{ArrangeExposed, ListExposed, StageFile};
use tieline_wire::{Failure, Request};

/// Identities by their names among the users and groups of this machine.
pub struct SiteOwners {
    identities: Arc<Identities>,
    may_give: bool,
}

impl SiteOwners {
    pub fn new(identities: Arc<Identities>) -> Self {
        Self { identities, may_give: rustix::process::geteuid().is_root() }
    }
}

#[async_trait::async_trait]
impl Owners for SiteOwners {
    async fn local(&self, uid: Uid, gid: Gid) -> (Option<u32>, Option<u32>) {
        let table = self.identities.table();
        if self.identities.map.current().map.security.is_none() {
            // Where nobody proves who he is numbers are the same everywhere, as at mounts.
            return (Some(uid.0), Some(gid.0));
        }
        let name = |kind, number: u32| {
            table.identity(kind, number).map(|identity| identity.name.to_string())
        };
        let user = name(IdentityKind::User, uid.0);
        let group = name(IdentityKind::Group, gid.0);
        // A directory may be asked, which takes its time.
        let looked = tokio::task::spawn_blocking(move || {
            let user = user.and_then(|user| user_of_machine(&user)).map(|(uid, _)| uid);
            (user, group.and_then(|group| group_of_machine(&group)))
        });
        let (user, group) = looked.await.unwrap_or_default();
        // Root's are root's, whom no table has.
        (user.or((uid.0 == 0).then_some(0)), group.or((gid.0 == 0).then_some(0)))
    }

    fn may_give(&self) -> bool {
        self.may_give
    }
}

impl Node {
    /// What an MDS has this server do where a pool is exposed.
    pub(crate) async fn call_exposed(
        &self,
        chunks: &Arc<ChunkService>,
        request: Request,
    ) -> Option<Response> {
        Some(match request {
            Request::StageFile(message) => self.stage(chunks, message).await,
            Request::ArrangeExposed(message) => self.arrange(chunks, message).await,
            Request::ListExposed(message) => self.list_exposed(chunks, message).await,
            _ => return None,
        })
    }

    async fn stage(&self, chunks: &Arc<ChunkService>, message: StageFile) -> Response {
        let at = self.peers.exposed_at(&message.pool)?;
        Ok(Reply::new::<StageFile>(&chunks.stage(message, at, &*self.peers).await?))
    }

    async fn arrange(&self, chunks: &Arc<ChunkService>, message: ArrangeExposed) -> Response {
        let at = self.peers.exposed_at(&message.pool)?;
        let owners = self.peers.owners()?;
        Ok(Reply::new::<ArrangeExposed>(&chunks.arrange(message, at, &**owners).await?))
    }

    async fn list_exposed(&self, chunks: &Arc<ChunkService>, message: ListExposed) -> Response {
        let at = self.peers.exposed_at(&message.pool)?;
        Ok(Reply::new::<ListExposed>(&chunks.list_exposed(message, at).await?))
    }
}

/// Tells `/health` what is wrong with the directories of exposed pools here.
pub fn tell_health(chunks: &ChunkService, health: &Health) {
    for (pool, trouble) in chunks.exposed_troubles() {
        let subject = format!("exposed {pool}");
        match trouble {
            Some(trouble) => health.degrade(&subject, trouble),
            None => health.recover(&subject),
        }
    }
}

/// Only MDSs ask, each for its own.
pub fn is_exposing(request: &Request) -> bool {
    matches!(request, Request::StageFile(_) | Request::ArrangeExposed(_) | Request::ListExposed(_))
}

pub fn refused() -> Failure {
    let detail = "only the MDS of a file has it exposed".to_owned();
    Failure::new(tieline_types::ErrorKind::NotPermitted, detail)
}
