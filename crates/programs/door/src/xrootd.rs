//! root://, plugged in.

use crate::offered::{Face, Offered};
use crate::settings::Check;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tieline_types::ByteSize;
use tieline_xrootd::{Offer, Server, Settings};

/// `[xrootd]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XrootdText {
    /// `HOST:PORT` for clients.
    #[serde(default = "listen_default")]
    pub listen: String,
    /// `HOST:PORT` that clients are told when they ask where a file is: by default where they came
    /// to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Clients at once; who comes then waits.
    #[serde(default = "connections_default")]
    pub connections: usize,
    /// The same of one address.
    #[serde(default = "per_peer_default")]
    pub connections_per_address: usize,
    /// For bytes that are on their way to clients, beside 2 MiB for each of them.
    #[serde(default = "memory_default")]
    pub memory: String,
    /// What clients are told who ask for the site's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// Of settings that hold.
pub struct XrootdPlan(Settings);

fn listen_default() -> String {
    "[::]:1094".to_owned()
}

fn connections_default() -> usize {
    1024
}

fn per_peer_default() -> usize {
    256
}

fn memory_default() -> String {
    "256 MiB".to_owned()
}

impl XrootdText {
    pub(crate) fn validate(&self, user: Option<&str>, check: &mut Check) -> Option<XrootdPlan> {
        check.listen("xrootd.listen", &self.listen, user);
        if let Some(address) = &self.address {
            check.address("xrootd.address", address);
        }
        let counts = [
            ("connections", self.connections),
            ("connections_per_address", self.connections_per_address),
        ];
        for (key, count) in counts {
            check.holds(count > 0, &format!("xrootd.{key}"), || "nobody could come".to_owned());
        }
        let memory = check.parse::<ByteSize>("xrootd.memory", &self.memory, "such as \"256 MiB\"");
        Some(XrootdPlan(Settings {
            listen: self.listen.clone(),
            address: self.address.clone(),
            connections: self.connections,
            connections_per_peer: self.connections_per_address,
            bytes: usize::try_from(memory?.0).unwrap_or(usize::MAX),
            site: self.site.clone().unwrap_or_else(|| "sitename".to_owned()),
        }))
    }
}

impl XrootdPlan {
    pub(crate) async fn open(&self, offered: Offered) -> anyhow::Result<Box<dyn Face>> {
        let Offered { world, fs, paths, visitors } = offered;
        let listen = &self.0.listen;
        let server = Server::start(Offer { world, fs, paths, visitors }, self.0.clone()).await;
        let server = server.with_context(|| format!("xrootd.listen: cannot listen at {listen}"))?;
        Ok(Box::new(Root(server)))
    }
}

struct Root(Server);

#[async_trait::async_trait]
impl Face for Root {
    fn protocol(&self) -> &'static str {
        "root"
    }

    fn address(&self) -> String {
        self.0.address().to_owned()
    }

    async fn stop(self: Box<Self>, patience: Duration) -> bool {
        self.0.stop(patience).await
    }
}
