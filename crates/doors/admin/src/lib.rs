//! `/metrics` and `/health` over HTTP, for the site's monitoring.
//!
//! * [`serve`]: listens, and answers until the [`Handle`] is dropped.
//! * [`answer`]: which path gets what; knows no connection.
//!
//! One request per connection, few connections at once, each for a short time: whoever watches
//! must not be able to disturb what is watched. There is nothing here to change, so everybody who
//! reaches the port may ask; where it listens is the operator's choice.
//!
//! Invariants: the address is answered as long as the handle lives; no more than
//! [`CONNECTIONS_MAX`] connections, none longer than [`CONNECTION_PATIENCE`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod answer;

use std::sync::Arc;
use std::time::Duration;
use tieline_http::server::{Handler, Request, Response, Server, Settings};
use tieline_telemetry::health::Health;
use tieline_world::World;

/// A monitoring system, its twin, and some people.
const CONNECTIONS_MAX: usize = 16;
/// For the request's head to come.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);
/// For all of it.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(30);

/// What the program says of itself.
pub struct Subject {
    pub health: Health,
    /// Such as `mds of extenci MDT0000 at uf`.
    pub role: String,
    /// More to tell in `/health`, under `details`; asked at each request, must not block.
    pub details: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// The listening door. Dropping it closes the port and ends what is under way.
pub struct Handle(Server);

/// Why the door did not open.
#[derive(Debug, thiserror::Error)]
#[error("no metrics and health")]
pub struct Error(#[from] tieline_http::Error);

/// Serves at `HOST:PORT`; port 0 for any free one.
pub async fn serve(world: &World, address: &str, subject: Subject) -> Result<Handle, Error> {
    let settings = Settings {
        connections: CONNECTIONS_MAX,
        connections_per_peer: CONNECTIONS_MAX,
        head: HEADER_PATIENCE,
        life: Some(CONNECTION_PATIENCE),
        keeps_connections: false,
        ..Settings::default()
    };
    let server = Server::start(world, address, None, settings, Arc::new(subject)).await?;
    tracing::info!(address = %server.address(), "serving metrics and health");
    Ok(Handle(server))
}

impl Handle {
    /// `HOST:PORT` with the port that was chosen.
    pub fn address(&self) -> &str {
        self.0.address()
    }
}

#[async_trait::async_trait]
impl Handler for Subject {
    async fn answer(&self, request: Request) -> Response {
        answer::answer(&request, self)
    }
}

#[cfg(test)]
mod tests;
