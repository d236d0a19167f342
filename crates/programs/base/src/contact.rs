//! First contact with a federation: fetching its map from any of its servers.
//!
//! Whoever has the federation's public key checks the map with it. Who has none may take the key
//! that the server names, which proves nothing and is said in the log.

use anyhow::{Context, anyhow};
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{MapCell, MapVerifier, Rule};
use tieline_format::Record;
use tieline_format::map::SignedMap;
use tieline_net::{CallError, Dialer, NoticeSink};
use tieline_types::{Caller, ClientId, FsName, Version};
use tieline_wire::federation::{GetMap, MapReply};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{CredentialKind, Hello, Notice, NoticeAnswer, PeerRole, Welcome};
use tieline_world::{Bulk, World};

/// This file in filters of log lines.
pub const LOGS: &str = module_path!();
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);
/// Who waits for longer is told for what.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Where and how to ask.
#[derive(Clone)]
pub struct Contact {
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub fs: FsName,
    pub addresses: Vec<String>,
    pub rule: Rule,
    /// For the server's log.
    pub description: String,
    pub patience: Duration,
}

impl Contact {
    /// The newest map that one of the servers has.
    ///
    /// It is fetched by a visitor: so nothing is left at an MDS that keeps sessions.
    pub async fn fetch(&self) -> anyhow::Result<MapReply> {
        let channel = self.channel();
        let root = Caller::root();
        let ask = |span| tieline_net::call(&*channel, &root, GetMap {}, Bulk::Empty, Some(span));
        let first = FIRST_WORD.min(self.patience);
        let left = self.patience - first;
        let mut reply = ask(first).await;
        if let Err(error @ CallError::Timeout { .. }) = &reply
            && !left.is_zero()
        {
            tracing::info!("{error}; waiting {} s more", left.as_secs());
            reply = ask(left).await;
        }
        channel.close(CLOSE_PATIENCE).await;
        let (reply, _) = reply.with_context(|| {
            format!("cannot fetch the map of /{} from {}", self.fs, self.addresses.join(", "))
        })?;
        Ok(reply)
    }

    /// A channel to these servers, as a visitor.
    pub fn channel(&self) -> Arc<dyn tieline_net::Channel> {
        self.dialer.dial(&self.addresses, self.hello(), Arc::new(Deaf))
    }

    /// A channel to other servers, whose welcome somebody hears.
    pub fn listening(
        &self,
        addresses: Vec<String>,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn tieline_net::Channel> {
        self.dialer.dial(&addresses, self.hello(), sink)
    }

    /// The newest map, believed if the key says so; without a key, the server's own is taken.
    pub async fn believe(
        &self,
        key: Option<MapVerifier>,
    ) -> anyhow::Result<(MapCell, MapVerifier)> {
        let reply = self.fetch().await?;
        self.judge(reply, key)
    }

    /// The map of a reply, believed as in [`Contact::believe`].
    pub fn judge(
        &self,
        reply: MapReply,
        key: Option<MapVerifier>,
    ) -> anyhow::Result<(MapCell, MapVerifier)> {
        let key = match (key, &reply.key) {
            (Some(key), _) => key,
            (None, Some(named)) => {
                tracing::warn!(
                    key = %named, fs = %self.fs,
                    "no key for this federation here: taking the one its server names; \
                     give mapkey= to be sure"
                );
                MapVerifier::from_hex(named)?
            }
            (None, None) => return Err(anyhow!("the server names no key: give mapkey=")),
        };
        let signed = SignedMap::from_bytes(&reply.signed)?;
        let cell = MapCell::new(key.clone(), signed)?;
        let found = cell.current().map.fs.clone();
        if found != self.fs {
            return Err(anyhow!("the map is that of /{found}, not of /{}", self.fs));
        }
        Ok((cell, key))
    }

    fn hello(&self) -> Hello {
        let mut id = [0; 16];
        self.world.dice.fill(&mut id);
        Hello {
            version_oldest: VERSION_OLDEST,
            version_newest: VERSION,
            role: PeerRole::Client,
            client: ClientId(id),
            session: None,
            fs: self.fs.clone(),
            credential: CredentialKind::None,
            flavor: self.rule.flavor,
            features: Hello::VISITOR,
            description: self.description.clone(),
            map: Version(0),
            wait_ms: None,
        }
    }
}

/// Nothing that is said unasked matters here.
struct Deaf;

#[async_trait::async_trait]
impl NoticeSink for Deaf {
    async fn notice(&self, _notice: Notice) -> NoticeAnswer {
        NoticeAnswer::default()
    }

    fn connected(&self, _welcome: &Welcome) {}

    fn disconnected(&self) {}

    fn renewed(&self, _sent: tokio::time::Instant) {}
}
