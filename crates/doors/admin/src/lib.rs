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

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::health::Health;
use tieline_world::{Connection, Listener, Transport};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// A monitoring system, its twin, and some people.
const CONNECTIONS_MAX: usize = 16;
/// For the request's head to come.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);
/// For all of it.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(30);
/// After an accept failed, as when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What the program says of itself.
pub struct Subject {
    pub health: Health,
    /// Such as `mds of extenci MDT0000 at uf`.
    pub role: String,
    /// More to tell in `/health`, under `details`; asked at each request, must not block.
    pub details: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// The listening door. Dropping it closes the port and ends what is under way.
pub struct Handle {
    address: String,
    task: AbortHandle,
}

/// Why the door did not open.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen at {address} for metrics and health")]
    Listen { address: String, source: io::Error },
}

/// Serves at `HOST:PORT`; port 0 for any free one.
pub async fn serve(
    transport: &dyn Transport,
    address: &str,
    subject: Subject,
) -> Result<Handle, Error> {
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let listener = transport.listen(address).await.map_err(failed)?;
    let chosen = listener.address().map_err(failed)?;
    let task = tokio::spawn(accept(listener, Arc::new(subject))).abort_handle();
    tracing::info!(address = %chosen, "serving metrics and health");
    Ok(Handle { address: chosen, task })
}

impl Handle {
    /// `HOST:PORT` with the port that was chosen.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts for ever. What it spawned ends with it.
async fn accept(mut listener: Box<dyn Listener>, subject: Arc<Subject>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    // The semaphore is never closed.
    while let Ok(place) = places.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok(connection) => {
                let subject = subject.clone();
                connections.spawn(async move {
                    converse(connection, subject).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections for metrics and health");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(connection: Connection, subject: Arc<Subject>) {
    let Connection { reader, writer, peer, .. } = connection;
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let response = answer::answer(request.method(), request.uri().path(), &subject);
        async move { Ok::<_, Infallible>(response) }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(tokio::io::join(reader, writer)), service);
    match tokio::time::timeout(CONNECTION_PATIENCE, conversation).await {
        Ok(Ok(())) => {}
        // Whoever asked went away or spoke something else: theirs to notice.
        Ok(Err(error)) => tracing::debug!(%peer, %error, "metrics or health not delivered"),
        Err(_) => tracing::debug!(%peer, "metrics or health not taken in time"),
    }
}

#[cfg(test)]
mod tests;
