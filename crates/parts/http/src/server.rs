//! The server: answers what its [`Handler`] answers.
//!
//! * [`Server`]: listens until it is stopped or dropped; its connections end with it.
//! * `request`, `response`: what a handler gets and gives.
//! * [`content`]: preconditions and ranges, for whatever can be read at an offset.
//! * `places`: how many connections there are, and from whom.
//!
//! A handler may be dropped at any await, when its client goes away: what it leaves half done it
//! must find again by itself.
//!
//! Invariants: a request is given on only with a path that is one path; HEAD is answered as GET
//! without its body; no connection waits for its client longer than the [`Settings`] say.

pub mod content;
mod places;
mod request;
mod response;
mod settings;

pub use places::{Free, Place, Places};
pub use request::Request;
pub use response::Response;
pub use settings::Settings;

use crate::body::Sending;
use crate::error::Error;
use crate::stream::{Io, Stream, Waiting};
use crate::tls::{ClientCertificate, ServerTls};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline_world::{Connection, World};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Answers requests.
#[async_trait::async_trait]
pub trait Handler: Send + Sync {
    async fn answer(&self, request: Request) -> Response;
}

/// A server that listens. Dropping it closes the port and ends what is under way.
pub struct Server {
    address: String,
    stopping: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    task: AbortHandle,
}

/// What all connections share.
struct Shared {
    world: World,
    settings: Settings,
    tls: Option<ServerTls>,
    handler: Arc<dyn Handler>,
    stopping: watch::Receiver<bool>,
}

impl Server {
    /// Serves at `HOST:PORT`, port 0 for any free one; with TLS if there is one.
    pub async fn start(
        world: &World,
        address: &str,
        tls: Option<ServerTls>,
        settings: Settings,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: address.to_owned(), source };
        let listener = world.transport.listen(address).await.map_err(failed)?;
        let chosen = listener.address().map_err(failed)?;
        let (stopping, heard) = watch::channel(false);
        let (done, stopped) = watch::channel(false);
        let places = Places::new(settings.connections, settings.connections_per_peer);
        let (world, stops) = (world.clone(), heard.clone());
        let shared = Arc::new(Shared { world, settings, tls, handler, stopping: stops });
        let task = tokio::spawn(async move {
            let serve = |connection, place| live(shared.clone(), connection, place);
            places.accept(listener, "HTTP", heard, serve).await;
            // Nobody may wait for it.
            let _ = done.send(true);
        });
        Ok(Self { address: chosen, stopping, stopped, task: task.abort_handle() })
    }

    /// `HOST:PORT` with the port that was chosen.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Accepts nobody any more, ends connections between requests, and gives the others `patience`
    /// for the answer they are at. True if all came to their end.
    pub async fn stop(mut self, patience: Duration) -> bool {
        // Its task may have ended already.
        let _ = self.stopping.send(true);
        let stopped = self.stopped.wait_for(|stopped| *stopped);
        matches!(tokio::time::timeout(patience, stopped).await, Ok(Ok(_)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, for as long as it may be.
async fn live(shared: Arc<Shared>, connection: Connection, _place: Place) {
    let peer: Arc<str> = connection.peer.as_str().into();
    let most = shared.settings.life;
    let conversation = converse(shared, connection, peer.clone());
    match most {
        None => conversation.await,
        Some(most) => {
            if tokio::time::timeout(most, conversation).await.is_err() {
                tracing::debug!(%peer, "a connection for HTTP took too long");
            }
        }
    }
}

async fn converse(shared: Arc<Shared>, connection: Connection, peer: Arc<str>) {
    let mut stopping = shared.stopping.clone();
    let Settings { handshake, pace, .. } = shared.settings;
    let waiting = Waiting::default();
    let stream = Stream::new(connection, pace, waiting.clone());
    let (io, certificate): (Box<dyn Io>, _) = match &shared.tls {
        None => (Box::new(stream), None),
        Some(tls) => {
            let accepting = tokio::time::timeout(handshake, tls.accept(stream));
            let accepted = tokio::select! {
                biased;
                accepted = accepting => accepted,
                _ = stopping.wait_for(|stops| *stops) => return,
            };
            match accepted {
                Ok(Ok(secured)) => secured,
                Ok(Err(error)) => return tracing::debug!(%peer, %error, "no TLS with a client"),
                Err(_) => return tracing::debug!(%peer, "a client stalled in the TLS handshake"),
            }
        }
    };
    let certificate = certificate.map(Arc::new);
    // The first head is not to be waited for as long as those between requests.
    waiting.for_head(shared.settings.head, shared.settings.head);
    let caller = Caller { shared: shared.clone(), peer: peer.clone(), certificate, waiting };
    // Who has asked nothing yet is owed nothing when the server stops.
    let has_asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_asked.store(true, Ordering::Relaxed);
        let caller = caller.clone();
        async move { Ok::<_, Infallible>(caller.answer(request).await) }
    });
    let Settings { head_bytes, head_lines, .. } = shared.settings;
    let conversation = http1::Builder::new()
        .header_read_timeout(None)
        .auto_date_header(false)
        .max_header_size(head_bytes)
        .max_headers(head_lines)
        .max_buf_size(head_bytes.max(8192) * 4)
        .keep_alive(shared.settings.keeps_connections)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(conversation);
    let stops = async { stopping.wait_for(|stops| *stops).await.is_ok() };
    let ended = tokio::select! {
        biased;
        ended = &mut conversation => ended,
        _ = stops => {
            if !has_asked.load(Ordering::Relaxed) {
                return;
            }
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = ended {
        // Whoever asked went away or spoke something else: theirs to notice.
        tracing::debug!(%peer, %error, "a connection for HTTP ended");
    }
}

/// Who asks on a connection.
#[derive(Clone)]
struct Caller {
    shared: Arc<Shared>,
    peer: Arc<str>,
    certificate: Option<Arc<ClientCertificate>>,
    waiting: Waiting,
}

impl Caller {
    async fn answer(
        self,
        request: hyper::Request<hyper::body::Incoming>,
    ) -> hyper::Response<Sending> {
        self.waiting.free();
        let Self { shared, peer, certificate, waiting } = self;
        let is_head = request.method() == hyper::Method::HEAD;
        let has_tls = shared.tls.is_some();
        let chance = shared.world.random();
        let pace = shared.settings.pace;
        let asked = Request::new(request, peer, certificate, has_tls, pace, chance);
        let response = match asked {
            Ok(request) => shared.handler.answer(request).await,
            Err(refusal) => *refusal,
        };
        let settings = &shared.settings;
        let (idle, head) = (settings.idle, settings.head);
        response
            .finish(is_head, shared.world.clock.wall())
            .map(|body| body.then(move || waiting.for_head(idle, head)))
    }
}

#[cfg(test)]
mod tests;
