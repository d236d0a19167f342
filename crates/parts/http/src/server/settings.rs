//! What limits a server.

use crate::stream::Pace;
use std::time::Duration;

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who comes when there are so many waits.
    pub connections: usize,
    /// Who has so many is refused. Compared are addresses without ports.
    pub connections_per_peer: usize,
    pub handshake: Duration,
    /// For a head: from the connection's start, or from the first byte behind another request.
    pub head: Duration,
    pub head_bytes: usize,
    pub head_lines: usize,
    /// Between requests.
    pub idle: Duration,
    /// Of bodies, both ways.
    pub pace: Pace,
    /// How long a connection may be there at all, whatever it does.
    pub life: Option<Duration>,
    /// More than one request may come on a connection.
    pub keeps_connections: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 1024,
            // A farm behind one address translator is many clients.
            connections_per_peer: 256,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(15),
            head_bytes: 64 << 10,
            head_lines: 128,
            idle: Duration::from_secs(60),
            pace: Pace::default(),
            life: None,
            keeps_connections: true,
        }
    }
}
