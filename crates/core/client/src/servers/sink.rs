//! Hears what one server says unasked.

use super::ServerKind;
use crate::volume::Shared;
use std::sync::Weak;
use std::time::Duration;
use tieline_believed::ServerNumber;
use tieline_net::{NoticeSink, Reading};
use tieline_types::{ErrorKind, Version};
use tieline_wire::{Notice, NoticeAnswer, Welcome};
use tokio::time::Instant;

/// Hears one server.
pub(super) struct ServerSink {
    pub shared: Weak<Shared>,
    pub number: ServerNumber,
    pub kind: ServerKind,
    /// Which of the connections to it.
    pub way: usize,
}

impl ServerSink {
    /// Fetches a map that this server says is newer.
    fn consider(&self, version: Version) {
        let Some(shared) = self.shared.upgrade() else { return };
        if version <= shared.servers.map.current().map.version {
            return;
        }
        let number = self.number;
        tokio::spawn(async move {
            let servers = &shared.servers;
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
        match notice {
            Notice::Recall(recall) => match self.shared.upgrade() {
                Some(shared) => shared.recalled(recall).await,
                None => NoticeAnswer::default(),
            },
            Notice::MapChanged(version) => {
                self.consider(version);
                NoticeAnswer::default()
            }
            Notice::FreeLocks(id) => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.free_locks(id).await;
                }
                NoticeAnswer::default()
            }
            Notice::Hold(millis) => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.servers.hold(self.number, Duration::from_millis(millis));
                }
                NoticeAnswer::default()
            }
        }
    }

    fn connected(&self, welcome: &Welcome) {
        if let Some(shared) = self.shared.upgrade() {
            shared.servers.hold_ended(self.number);
            shared.servers.can(self.number, welcome.features);
        }
        if self.kind == ServerKind::Oss
            && let Some(shared) = self.shared.upgrade()
        {
            // What a site's cache brings is large, and shared by many who each have connections.
            let fills = shared.settings.warms && shared.near.site.is_none();
            shared.servers.welcomed(self.number, welcome, fills.then_some(self.way));
            shared.welcomed_by_oss(self.number, welcome);
        }
        if self.kind == ServerKind::Mds
            && let Some(shared) = self.shared.upgrade()
        {
            shared.servers.keep_session(self.number, welcome);
            shared.welcomed(self.number, welcome);
        }
        self.consider(welcome.map);
    }

    fn disconnected(&self) {
        if self.kind == ServerKind::Mds
            && let Some(shared) = self.shared.upgrade()
        {
            shared.disconnected(self.number);
        }
    }

    fn renewed(&self, sent: Instant) {
        if self.kind == ServerKind::Mds
            && let Some(shared) = self.shared.upgrade()
        {
            shared.renewed(self.number, sent);
        }
    }

    fn told_time(&self, reading: Reading) {
        if self.kind == ServerKind::Mds
            && let Some(shared) = self.shared.upgrade()
        {
            shared.servers.told_time(self.number, reading);
        }
    }
}
