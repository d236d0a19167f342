//! Exposed pools at this server: who files are given to, and what other servers ask.

use crate::identities::Identities;
use crate::node::Node;
use std::sync::Arc;
use tieline_data::{ChunkService, Owners};
use tieline_format::map::{FederationMap, Junction};
use tieline_machine::users::{group_of_machine, user_of_machine};
use tieline_net::{Reply, Response};
use tieline_telemetry::health::Health;
use tieline_tend::parked;
use tieline_types::{FileId, Gid, IdentityKind, MdtIndex, Name, Uid};
use tieline_wire::exposed::{ArrangeExposed, ListExposed, StageFile, Step};
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

/// Whose a name in an exposed directory is: MDTs are mounted in the roots of others.
pub fn owner_of(map: &FederationMap, path: &[Name]) -> MdtIndex {
    let mut owner = MdtIndex(0);
    for name in path {
        let mounted = map.junctions_in(FileId::root_of(owner)).find(|one| one.name == *name);
        let Some(junction) = mounted else { break };
        owner = junction.mdt;
    }
    owner
}

/// Are all names that an MDT has changed in an exposed directory its own? It may make the
/// directories above its root, too.
pub fn is_its(map: &FederationMap, arrange: &ArrangeExposed) -> bool {
    let way = way_of(map, arrange.mdt);
    let is_own = |path: &[Name]| {
        let is_parked = path.first().and_then(parked).is_some_and(|id| id.mdt() == arrange.mdt);
        path.is_empty() || is_parked || owner_of(map, path) == arrange.mdt
    };
    arrange.steps.iter().all(|step| match step {
        Step::MakeDirectory { path, .. } if way.starts_with(path) => true,
        step => step.paths().all(|path| is_own(path)),
    })
}

/// Where an MDT is mounted.
fn way_of(map: &FederationMap, mdt: MdtIndex) -> Vec<Name> {
    let above = |junction: &&'_ Junction| map.junction_of(junction.parent.mdt());
    let junctions = std::iter::successors(map.junction_of(mdt), above);
    let mut way: Vec<Name> =
        junctions.take(map.junctions.len()).map(|junction| junction.name.clone()).collect();
    way.reverse();
    way
}

/// Only MDSs ask, each for its own.
pub fn is_exposing(request: &Request) -> bool {
    matches!(request, Request::StageFile(_) | Request::ArrangeExposed(_) | Request::ListExposed(_))
}

pub fn refused() -> Failure {
    let detail = "only the MDS of a file has it exposed".to_owned();
    Failure::new(tieline_types::ErrorKind::NotPermitted, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Gid, Mode, Time, Version};
    use tieline_wire::exposed::Dress;

    fn path(text: &str) -> Vec<Name> {
        text.split('/').filter(|name| !name.is_empty()).map(|name| name.parse().unwrap()).collect()
    }

    /// MDT0001 is mounted at /fnal, MDT0002 at /fnal/deep.
    fn map() -> FederationMap {
        let mounted = |parent: u16, name: &str, mdt: u16| Junction {
            parent: FileId::root_of(MdtIndex(parent)),
            name: name.parse().unwrap(),
            mdt: MdtIndex(mdt),
        };
        FederationMap {
            fs: "extenci".parse().unwrap(),
            version: Version(1),
            mdts: vec![],
            junctions: vec![mounted(0, "fnal", 1), mounted(1, "deep", 2)],
            osts: vec![],
            pools: vec![],
            security: None,
            invitations: None,
            repositories: None,
        }
    }

    #[test]
    fn names_are_of_the_mdt_that_is_mounted_next_above() {
        let map = map();
        for (text, owner) in
            [("", 0), ("a", 0), ("a/fnal", 0), ("fnal", 1), ("fnal/a", 1), ("fnal/deep/a", 2)]
        {
            assert_eq!(owner_of(&map, &path(text)), MdtIndex(owner), "{text}");
        }
    }

    #[test]
    fn an_mdt_has_its_own_names_changed_only() {
        let may = |mdt: u16, step: Step| {
            let (ost, pool, mdt) =
                (tieline_types::OstIndex(0), "p".parse().unwrap(), MdtIndex(mdt));
            let (boot, is_marked, steps) = (1, true, vec![step]);
            is_its(&map(), &ArrangeExposed { ost, pool, mdt, boot, is_marked, steps })
        };
        let remove = |text| Step::Remove { path: path(text) };
        let dress = Dress {
            uid: Uid(0),
            gid: Gid(0),
            mode: Mode::new(0o755),
            mtime: Time::default(),
            is_directory: true,
        };
        let make = |text| Step::MakeDirectory { path: path(text), dress };
        let rename = |from, to| Step::Move { from: path(from), path: path(to) };
        let parked = format!(".tieline-moved-{}", FileId::new(MdtIndex(1), 7));
        assert!(may(0, remove("a")) && may(1, remove("fnal/a")) && may(2, make("fnal/deep/a")));
        assert!(!may(1, remove("a")) && !may(0, remove("fnal/a")) && !may(1, make("fnal/deep/a")));
        assert!(may(2, make("fnal")) && !may(2, remove("fnal")) && !may(2, make("a")));
        assert!(may(1, rename("fnal/a", &parked)) && may(1, rename(&parked, "fnal/b")));
        assert!(!may(2, rename(&parked, "fnal/deep/b")), "it is another MDT's");
        assert!(may(0, remove(&parked)), "who empties the top");
        assert!(!may(1, rename("a", "fnal/a")) && !may(1, rename("fnal/a", "a")));
        assert!(may(1, remove("")), "nothing is done");
    }
}
