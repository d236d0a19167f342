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
use tieline_servers::{Deaf, Greeting};
use tieline_types::{Caller, FsName, Version};
use tieline_wire::federation::{GetMap, MapReply};
use tieline_wire::{Hello, PeerRole};
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

    /// The newest map, believed if the key says so; without a key, the server's own is taken. With
    /// the key that signs it today.
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
        let today = cell.current().key.clone();
        if today != key {
            tracing::warn!(
                fs = %self.fs, given = %key.to_hex(), today = %today.to_hex(),
                "the federation has another key by now, which the given one leads to: write that \
                 of today in its place (docs/keys.md)"
            );
        }
        let found = cell.current().map.fs.clone();
        if found != self.fs {
            return Err(anyhow!("the map is that of /{found}, not of /{}", self.fs));
        }
        Ok((cell, today))
    }

    fn hello(&self) -> Hello {
        let greeting = Greeting {
            role: PeerRole::Client,
            client: Greeting::client(&self.world),
            fs: self.fs.clone(),
            rule: self.rule,
            description: self.description.clone(),
            is_visitor: true,
            wait: None,
        };
        greeting.hello(Version(0))
    }
}
