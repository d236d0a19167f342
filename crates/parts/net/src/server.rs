//! Accepts connections, greets, dispatches.
//!
//! One task accepts; who was accepted waits in the `lobby` until it is known and welcomed;
//! each connection has a task ([`connection`]) that reads and dispatches, a task
//! that sends, and one task per request. A session sits on one connection at a time ([`seats`]): a
//! newer connection takes the seat over, after the older one has ended in every respect.
//!
//! Whoever comes as one principal, over however many connections, is one party ([`parties`]).
//!
//! Invariants: connections, requests, and bodies and bulk in memory, of requests and of replies
//! that nobody has read yet, are bounded, of all and of each party; a peer that does not speak the
//! protocol costs its own connection only; when the server stops, all its tasks end.

use std::sync::Arc;
use std::time::Duration;
use tieline_auth::Guard;
use tieline_types::{ErrorKind, RequestNumber};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{FrameKind, Refusal};
use tieline_world::{Bulk, Listener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::Service;
use crate::frames::{Budget, FrameWriter, OutFrame};

mod connection;
mod lobby;
mod notifier;
mod parties;
mod request;
mod seats;

use lobby::Lobby;
pub use notifier::Notifier;
use parties::Parties;
use seats::Seats;

/// After an error of `accept` (too many open files, mostly) there is nothing to do but to wait a
/// little.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Requests of one connection that are answered at the same time; further ones wait unread.
    /// More than any client has under way, so that its answers to notices are never stuck behind
    /// its requests.
    pub requests_max: usize,
    /// Requests of one party ([`parties`]) that are answered at the same time; further ones are
    /// refused. A farm of a thousand nodes may come as one, and each node has a dozen under way.
    pub requests_of_one_max: usize,
    /// Sessions connected at once, of which one party has three quarters at most, and half of those
    /// for the first connections of its clients; further ones are refused.
    pub connections_max: usize,
    /// Connections at once that were not welcomed yet; a newer one closes the oldest.
    pub unknown_max: usize,
    /// Bytes of bulk, received or to be sent, that all connections may hold in memory together; one
    /// party has three quarters at most.
    pub bulk_bytes_max: usize,
    /// What long bodies of requests, with what is made of them, may take of memory together; and
    /// those of one party. No less than the longest body takes.
    pub body_bytes_max: usize,
    pub body_bytes_of_one_max: usize,
    /// What long bodies of replies that were not sent yet may take of memory together; and those of
    /// one party. What finds no room is made again when there is some, or refused.
    pub reply_bytes_max: usize,
    pub reply_bytes_of_one_max: usize,
    /// A connection that does not send its hello in this time is closed.
    pub hello_patience: Duration,
    /// A connection on which nothing comes for this long is closed: many pings of any client.
    pub silence_max: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            requests_max: 256,
            requests_of_one_max: 16_384,
            connections_max: 16_384,
            unknown_max: 512,
            bulk_bytes_max: 512 << 20,
            body_bytes_max: 192 << 20,
            body_bytes_of_one_max: 64 << 20,
            reply_bytes_max: 192 << 20,
            reply_bytes_of_one_max: 64 << 20,
            hello_patience: Duration::from_secs(10),
            silence_max: Duration::from_secs(60),
        }
    }
}

/// A listening server. Stopping or dropping it ends all connections.
pub struct Server {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// What all connections of a server share.
struct Shared {
    service: Arc<dyn Service>,
    settings: ServerSettings,
    budget: Budget,
    seats: Seats,
    guard: Arc<Guard>,
    lobby: Lobby,
    parties: Parties,
    places: Arc<Semaphore>,
}

impl Server {
    /// Serves until the returned handle is dropped or [`Server::stop`] is called.
    pub fn start(
        listener: Box<dyn Listener>,
        service: Arc<dyn Service>,
        guard: Arc<Guard>,
        settings: ServerSettings,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let budget = Budget::new(settings.bulk_bytes_max);
        let shared = Arc::new(Shared {
            lobby: Lobby::new(settings.unknown_max),
            parties: Parties::new(&settings, &budget),
            places: Arc::new(Semaphore::new(settings.connections_max)),
            seats: Seats::default(),
            service,
            settings,
            budget,
            guard,
        });
        tokio::spawn(async move {
            accept(listener, shared, stopping).await;
            // Nobody may be left to hear it.
            let _ = end.send(true);
        });
        Self { stop, ended }
    }

    /// Ends all connections.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until the last connection of a stopped server has ended and the address is free again.
    pub async fn ended(&self) {
        // An error says that the task is gone, which is an end too.
        let _ = self.ended.clone().wait_for(|&is_ended| is_ended).await;
    }
}

/// Waits for the server's stop: said, or by dropping it.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error says that the server was dropped.
    let _ = stopping.wait_for(|&is_stopped| is_stopped).await;
}

async fn accept(
    mut listener: Box<dyn Listener>,
    shared: Arc<Shared>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stopping) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(connection) => {
                let guest = shared.lobby.enter();
                connections.spawn(connection::serve(
                    connection,
                    guest,
                    shared.clone(),
                    stopping.clone(),
                ));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn refusal(kind: ErrorKind, detail: impl Into<String>) -> Refusal {
    Refusal { kind, detail: detail.into(), version_oldest: VERSION_OLDEST, version_newest: VERSION }
}

/// Says no. A peer that is gone does not hear it, which changes nothing.
async fn refuse(writer: &mut FrameWriter, refusal: &Refusal) {
    let body = tieline_wire::encode(refusal);
    let frame = OutFrame::new(FrameKind::Refused, RequestNumber(0), body, Bulk::Empty);
    if writer.write(&frame).await.is_ok() {
        let _ = writer.shutdown().await;
    }
}
