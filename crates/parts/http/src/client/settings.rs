//! What limits a client.

use crate::stream::Pace;
use std::time::Duration;

/// Limits of a client, for all its servers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Until a connection stands; TLS has its own.
    pub connect: Duration,
    pub handshake: Duration,
    /// From the end of the request to the end of the answer's head.
    pub head: Duration,
    /// For a connection to become free, where all that may be are in use.
    pub turn: Duration,
    /// Of bodies, both ways.
    pub pace: Pace,
    pub head_bytes: usize,
    pub head_lines: usize,
    /// Connections to one host, and in all.
    pub connections_per_host: usize,
    pub connections: usize,
    /// How long one is kept that nobody uses.
    pub idle: Duration,
    /// So many in a row are followed.
    pub redirects: usize,
    pub user_agent: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            turn: Duration::from_secs(60),
            pace: Pace::default(),
            head_bytes: 64 << 10,
            head_lines: 128,
            connections_per_host: 16,
            connections: 64,
            // Less than what servers keep theirs: most dead ones are never met.
            idle: Duration::from_secs(30),
            redirects: 8,
            user_agent: concat!("tieline/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}
