//! What servers say unasked, and who hears it.

use crate::Servers;
use crate::server::ServerKind;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_net::{NoticeSink, Reading};
use tieline_types::{ErrorKind, FileId, ServerNumber, Version};
use tieline_wire::notice::Recall;
use tieline_wire::{Notice, NoticeAnswer, Welcome};
use tokio::time::Instant;

/// Who hears what concerns more than the way to a server.
#[async_trait::async_trait]
pub trait Hearer: Send + Sync {
    /// An MDS takes leases back.
    async fn recalled(&self, recall: Recall) -> NoticeAnswer;
    /// An MDS takes idle locks of a file back.
    async fn free_locks(&self, id: FileId);
    /// There is a connection to an MDS.
    fn welcomed(&self, number: ServerNumber, welcome: &Welcome);
    /// There is a connection to an OSS.
    fn welcomed_by_oss(&self, number: ServerNumber, welcome: &Welcome);
    /// There is no connection to an MDS any more.
    fn disconnected(&self, number: ServerNumber);
    /// An MDS answered something that was sent then.
    fn renewed(&self, number: ServerNumber, sent: Instant);
    /// There is a newer map.
    fn map_changed(&self, before: &FederationMap, now: &FederationMap);
    /// Has an MDS been out of reach for so long that nobody waits for it alone?
    fn is_away(&self, number: ServerNumber) -> bool;
}

/// Hears one server.
pub(crate) struct ServerSink {
    pub servers: Weak<Servers>,
    pub number: ServerNumber,
    pub kind: ServerKind,
    /// Which of the connections to it.
    pub way: usize,
}

impl ServerSink {
    /// Who hears it, if it is an MDS.
    fn mds_hearer(&self) -> Option<Arc<dyn Hearer>> {
        let servers = self.servers.upgrade().filter(|_| self.kind == ServerKind::Mds)?;
        servers.hearer.upgrade()
    }

    /// Fetches a map that this server says is newer.
    fn consider(&self, version: Version) {
        let Some(servers) = self.servers.upgrade() else { return };
        if version <= servers.map.current().map.version {
            return;
        }
        let number = self.number;
        tokio::spawn(async move {
            let Some(server) = servers.numbered(number) else { return };
            match servers.look_for_map(&server).await {
                Ok(true) => {
                    let version = servers.map.current().map.version;
                    tracing::info!(%version, "federation map changed");
                }
                Ok(false) => {}
                // What the map says of connections may have ended ours: the next one tells of it.
                Err(error) if error.kind() == ErrorKind::Disconnected => {
                    tracing::debug!(%error, "newer federation map cannot be had yet");
                }
                Err(error) => tracing::warn!(%error, "newer federation map cannot be had"),
            }
        });
    }
}

#[async_trait::async_trait]
impl NoticeSink for ServerSink {
    async fn notice(&self, notice: Notice) -> NoticeAnswer {
        let Some(servers) = self.servers.upgrade() else { return NoticeAnswer::default() };
        match (notice, servers.hearer.upgrade()) {
            (Notice::Recall(recall), Some(hearer)) => return hearer.recalled(recall).await,
            (Notice::FreeLocks(id), Some(hearer)) => hearer.free_locks(id).await,
            (Notice::Recall(_) | Notice::FreeLocks(_), None) => {}
            (Notice::MapChanged(version), _) => self.consider(version),
            (Notice::Hold(millis), _) => servers.hold(self.number, Duration::from_millis(millis)),
        }
        NoticeAnswer::default()
    }

    fn connected(&self, welcome: &Welcome) {
        if let Some(servers) = self.servers.upgrade() {
            servers.hold_ended(self.number);
            servers.can(self.number, welcome.features);
            let hearer = servers.hearer.upgrade();
            servers.welcomed_by(self.number, welcome, servers.fills.then_some(self.way));
            match self.kind {
                ServerKind::Oss => {
                    hearer.inspect(|hearer| hearer.welcomed_by_oss(self.number, welcome));
                }
                ServerKind::Mds => {
                    servers.keep_session(self.number, welcome);
                    hearer.inspect(|hearer| hearer.welcomed(self.number, welcome));
                }
            }
        }
        self.consider(welcome.map);
    }

    fn disconnected(&self) {
        if let Some(hearer) = self.mds_hearer() {
            hearer.disconnected(self.number);
        }
    }

    fn renewed(&self, sent: Instant) {
        if let Some(hearer) = self.mds_hearer() {
            hearer.renewed(self.number, sent);
        }
    }

    fn told_time(&self, reading: Reading) {
        if self.kind == ServerKind::Mds
            && let Some(servers) = self.servers.upgrade()
        {
            servers.told_time(self.number, reading);
        }
    }
}
