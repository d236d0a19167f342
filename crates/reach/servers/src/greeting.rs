//! How every connection begins: what is the same in each first frame of one end.

use std::time::Duration;
use tieline_auth::Rule;
use tieline_types::{ClientId, FsName, Version};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{CredentialKind, Hello, PeerRole};
use tieline_world::World;

/// Who we are, for every server.
#[derive(Clone)]
pub struct Greeting {
    pub role: PeerRole,
    pub client: ClientId,
    pub fs: FsName,
    pub rule: Rule,
    /// For servers' logs: `mount /extenci on wn17`.
    pub description: String,
    /// We ask a few things and keep nothing: no MDS makes a session for that.
    pub is_visitor: bool,
    /// How long we wait for an answer: an MDS keeps our session so long. `None`: as it likes.
    pub wait: Option<Duration>,
}

impl Greeting {
    /// A client that nobody was before.
    pub fn client(world: &World) -> ClientId {
        let mut id = [0; 16];
        world.dice.fill(&mut id);
        ClientId(id)
    }

    /// The first frame of a new session, from who has this map (0: none).
    pub fn hello(&self, map: Version) -> Hello {
        let wait_ms = self.wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        Hello {
            version_oldest: VERSION_OLDEST,
            version_newest: VERSION,
            role: self.role,
            client: self.client,
            session: None,
            fs: self.fs.clone(),
            credential: CredentialKind::None,
            flavor: self.rule.flavor,
            features: if self.is_visitor { Hello::VISITOR } else { 0 },
            description: self.description.clone(),
            map,
            wait_ms,
        }
    }
}
