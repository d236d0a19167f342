//! Accepts connections, greets, dispatches.

use std::sync::Arc;
use std::time::Duration;
use tieline_wire::{Notice, NoticeAnswer};
use tieline_world::Listener;

#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Requests of one connection that are answered at the same time; further ones wait unread.
    pub requests_max: usize,
    /// Connections at once; further ones are refused.
    pub connections_max: usize,
    /// Bytes of bulk, received or to be sent, that all connections may hold in memory together.
    pub bulk_bytes_max: usize,
    /// A connection that does not send its hello in this time is closed.
    pub hello_patience: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            requests_max: 256,
            connections_max: 4096,
            bulk_bytes_max: 512 << 20,
            hello_patience: Duration::from_secs(10),
        }
    }
}

/// Sends notices to one session's connection.
#[derive(Clone)]
pub struct Notifier {}

impl Notifier {
    /// Sends a notice and waits for its answer, at most `patience`. `None`: no answer, or the connection is gone.
    pub async fn notify(&self, _notice: Notice, _patience: Duration) -> Option<NoticeAnswer> {
        todo!("net room")
    }
}

/// A listening server. Dropping it stops accepting; connections end when their clients leave.
pub struct Server {}

impl Server {
    /// Serves until the returned handle is dropped or [`Server::stop`] is called.
    pub fn start(
        _listener: Box<dyn Listener>,
        _service: Arc<dyn crate::Service>,
        _settings: ServerSettings,
    ) -> Self {
        todo!("net room")
    }

    /// Ends all connections.
    pub fn stop(&self) {
        todo!("net room")
    }
}
