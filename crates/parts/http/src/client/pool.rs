//! Connections: how many there are, and which are kept for the next request.
//!
//! Who wants one takes a place first, of its host and of all. A connection that is kept takes none:
//! it is used, or dropped for one that somebody needs. So no host has more connections than places,
//! nor have all.
//!
//! Invariants: a connection serves one request at a time; one that did not end its last in good
//! order is dropped; the youngest is used first, and what nobody used for the time that is set is
//! dropped.

use super::{Request, Settings};
use crate::body::Sending;
use crate::error::{Error, Phase};
use crate::stream::{Io, Stream, Waiting};
use crate::tls::ClientTls;
use crate::url::{Origin, Scheme};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tieline_world::Transport;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// For a connection that is dropped to say so.
const FAREWELL: Duration = Duration::from_secs(2);
/// For a connection to be ready again behind an answer: it has only to turn round.
const TURN_ROUND: Duration = Duration::from_millis(500);

pub(super) struct Pool {
    pub(super) settings: Settings,
    transport: Arc<dyn Transport>,
    tls: Mutex<ClientTls>,
    places: Arc<Semaphore>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    hosts: BTreeMap<Origin, Host>,
    kept: usize,
    is_swept: bool,
}

struct Host {
    places: Arc<Semaphore>,
    /// The youngest last.
    kept: Vec<Kept>,
}

struct Kept {
    connection: Connection,
    since: Instant,
}

/// A connection to a server, or to a proxy.
struct Connection {
    sender: SendRequest<Sending>,
    tls: Option<ClientTls>,
    /// Dropping it tells the task that drives the connection.
    _end: oneshot::Sender<()>,
}

/// The right to use a connection, with one.
pub(super) struct Lease {
    connection: Connection,
    was_kept: bool,
    origin: Origin,
    pool: Weak<Pool>,
    _places: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Lease {
    pub(super) fn was_kept(&self) -> bool {
        self.was_kept
    }

    pub(super) fn send(
        &mut self,
        message: hyper::Request<Sending>,
    ) -> impl Future<Output = hyper::Result<hyper::Response<hyper::body::Incoming>>> + use<> {
        self.connection.sender.send_request(message)
    }

    /// The exchange ended in good order.
    pub(super) fn give_back(self) {
        let Some(pool) = self.pool.upgrade() else { return };
        if !self.connection.sender.is_closed() {
            pool.keep(self.origin, self.connection);
        }
    }
}

impl Pool {
    pub(super) fn new(transport: Arc<dyn Transport>, tls: ClientTls, settings: Settings) -> Self {
        let places = Arc::new(Semaphore::new(settings.connections));
        Self { settings, transport, tls: Mutex::new(tls), places, inner: Mutex::default() }
    }

    pub(super) fn replace_tls(&self, tls: ClientTls) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
        let mut inner = self.lock();
        inner.hosts.values_mut().for_each(|host| host.kept.clear());
        inner.kept = 0;
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        let at_work = self.settings.connections.saturating_sub(self.places.available_permits());
        (self.lock().kept, at_work)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a request: one that was kept unless it must be new.
    pub(super) async fn lease(
        self: &Arc<Self>,
        request: &Request,
        is_fresh: bool,
    ) -> Result<Lease, Error> {
        let origin = match &request.via {
            None => &request.url.origin,
            Some(_) if request.url.origin.scheme == Scheme::Https => {
                let text = "https goes by no proxy that sees all of it";
                let source = io::Error::new(io::ErrorKind::Unsupported, text);
                return Err(Error::Secure { peer: request.url.to_string(), source });
            }
            Some(proxy) => &proxy.origin,
        };
        let peer = request.url.to_string();
        let patience = self.settings.turn;
        let turn = tokio::time::timeout(patience, self.places(origin));
        let places = turn.await.map_err(|_| Error::Timeout {
            peer: peer.clone(),
            phase: Phase::Turn,
            patience,
        })?;
        let kept = if is_fresh { None } else { self.take_ready(origin).await };
        let was_kept = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                self.make_room(origin);
                self.connect(origin, &peer).await?
            }
        };
        let (origin, pool) = (origin.clone(), Arc::downgrade(self));
        Ok(Lease { connection, was_kept, origin, pool, _places: places })
    }

    async fn places(&self, origin: &Origin) -> (OwnedSemaphorePermit, OwnedSemaphorePermit) {
        let of_host = {
            let most = self.settings.connections_per_host;
            let mut inner = self.lock();
            let host = inner.hosts.entry(origin.clone()).or_insert_with(|| Host {
                places: Arc::new(Semaphore::new(most)),
                kept: Vec::new(),
            });
            host.places.clone()
        };
        // The host's first: who waits for a slow host takes no place from others.
        let of_host = of_host.acquire_owned().await;
        let of_all = self.places.clone().acquire_owned().await;
        match (of_host, of_all) {
            (Ok(of_host), Ok(of_all)) => (of_host, of_all),
            // The semaphores are never closed.
            _ => std::future::pending().await,
        }
    }

    async fn take_ready(&self, origin: &Origin) -> Option<Connection> {
        loop {
            let mut connection = self.take(origin)?;
            let ready = tokio::time::timeout(TURN_ROUND, connection.sender.ready());
            if matches!(ready.await, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }

    fn take(&self, origin: &Origin) -> Option<Connection> {
        let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut inner = self.lock();
        loop {
            let kept = inner.hosts.get_mut(origin)?.kept.pop()?;
            inner.kept -= 1;
            let is_young = kept.since.elapsed() < self.settings.idle;
            let is_same = kept.connection.tls.as_ref().is_none_or(|its| its.is_same(&tls));
            if is_young && is_same && !kept.connection.sender.is_closed() {
                return Some(kept.connection);
            }
        }
    }

    /// Drops kept connections for a new one that somebody has the places for.
    fn make_room(&self, origin: &Origin) {
        let mut inner = self.lock();
        let free = self.places.available_permits();
        let at_work = self.settings.connections.saturating_sub(free);
        if let Some(host) = inner.hosts.get_mut(origin) {
            let most = self.settings.connections_per_host;
            let at_work = most.saturating_sub(host.places.available_permits());
            let spare = (host.kept.len() + at_work).saturating_sub(most).min(host.kept.len());
            host.kept.drain(..spare);
            inner.kept -= spare;
        }
        while inner.kept > 0 && inner.kept + at_work > self.settings.connections {
            let hosts = inner.hosts.values_mut().filter(|host| !host.kept.is_empty());
            let oldest = hosts.min_by_key(|host| host.kept.first().map(|kept| kept.since));
            let Some(host) = oldest else { break };
            host.kept.remove(0);
            inner.kept -= 1;
        }
    }

    async fn connect(&self, origin: &Origin, peer: &str) -> Result<Connection, Error> {
        let Settings { connect, handshake, pace, head_bytes, head_lines, .. } = self.settings;
        let stream = self.transport.connect(&origin.address(), connect).await;
        let stream = stream.map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => {
                Error::Timeout { peer: peer.to_owned(), phase: Phase::Connect, patience: connect }
            }
            _ => Error::Connect { peer: peer.to_owned(), source },
        })?;
        let stream = Stream::new(stream, pace, Waiting::default());
        let (io, tls): (Box<dyn Io>, _) = match origin.scheme {
            Scheme::Http => (Box::new(stream), None),
            Scheme::Https => {
                let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
                (tls.connect(&origin.host, stream, peer, handshake).await?, Some(tls))
            }
        };
        let (sender, connection) = http1::Builder::new()
            .max_header_size(head_bytes)
            .max_headers(head_lines)
            .max_buf_size(head_bytes.max(8192) * 4)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|source| Error::Lost { peer: peer.to_owned(), source })?;
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            tokio::pin!(connection);
            tokio::select! {
                biased;
                // Whoever asks on it is told of errors.
                _ = &mut connection => return,
                _ = ended => {}
            }
            let _ = tokio::time::timeout(FAREWELL, connection).await;
        });
        Ok(Connection { sender, tls, _end: end })
    }

    fn keep(self: &Arc<Self>, origin: Origin, connection: Connection) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(host) = inner.hosts.get_mut(&origin) else { return };
        host.kept.push(Kept { connection, since: Instant::now() });
        inner.kept += 1;
        if !inner.is_swept {
            inner.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.settings.idle));
        }
    }
}

/// Drops what nobody used for so long, until nothing is kept any more.
async fn sweep(pool: Weak<Pool>, idle: Duration) {
    loop {
        tokio::time::sleep((idle / 4).max(Duration::from_millis(100))).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut inner = pool.lock();
        let mut kept = 0;
        for host in inner.hosts.values_mut() {
            let is_of_use =
                |one: &Kept| one.since.elapsed() < idle && !one.connection.sender.is_closed();
            host.kept.retain(is_of_use);
            kept += host.kept.len();
        }
        // Hosts that nobody asks any more are forgotten.
        inner.hosts.retain(|_, host| !host.kept.is_empty() || Arc::strong_count(&host.places) > 1);
        inner.kept = kept;
        if inner.hosts.is_empty() {
            inner.is_swept = false;
            return;
        }
    }
}
