//! The client: asks servers, by connections that it keeps.
//!
//! * [`Client::send`]: one request, its redirects followed.
//! * `pool`: connections, how many, and which are kept.
//! * `request`: what is asked; `ranged`: judges what came for ranges.
//!
//! A request that can be repeated (its method says so, and its body can be made again) is sent on a
//! connection that was kept, and once more on a new one if that proves dead. All others get a new
//! connection: nobody would know whether they were carried out.
//!
//! Invariants: `Authorization`, `Cookie` and their like go to the origin that the caller named and
//! to no other; nothing leads from https to http; a body that was begun is never sent twice unless it
//! can be made again.

mod pool;
mod ranged;
mod request;
mod settings;

pub use ranged::{RangedBody, WholeFile};
pub use request::{Request, Response};
pub use settings::Settings;

use crate::body::{Gate, Received, Sending, Sent};
use crate::error::{Error, Phase, RedirectFault};
use crate::stream::Paced;
use crate::tls::ClientTls;
use crate::url::{Scheme, Url};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, LOCATION,
    PROXY_AUTHORIZATION, RANGE, TE, TRAILER, TRANSFER_ENCODING, USER_AGENT,
};
use hyper::{HeaderMap, Method, StatusCode};
use pool::{Lease, Pool};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_world::World;
use tokio::time::Instant;

/// For a server that does not answer `Expect: 100-continue`: then the body is sent.
const EXPECT_PATIENCE: Duration = Duration::from_secs(3);
/// Of an answer that only leads elsewhere this much is read to keep its connection.
const DISCARD_MAX: u64 = 16 << 10;

/// Asks servers. Cloned freely; all clones share their connections.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
}

/// Until when all of an exchange must be over, and how long that was.
type Deadline = Option<(Instant, Duration)>;

impl Client {
    pub fn new(world: &World, tls: ClientTls, settings: Settings) -> Self {
        Self { pool: Arc::new(Pool::new(world.transport.clone(), tls, settings)) }
    }

    /// Believes and shows something else from now on. Connections that are kept are dropped.
    pub fn replace_tls(&self, tls: ClientTls) {
        self.pool.replace_tls(tls);
    }

    /// Connections that wait for a request, and those at work.
    pub fn connections(&self) -> (usize, usize) {
        self.pool.counts()
    }

    /// Sends a request and waits for the head of its answer, whatever its status. Dropping the
    /// future ends the exchange, with its connection.
    pub async fn send(&self, request: Request) -> Result<Response, Error> {
        let deadline = request.patience.map(|patience| (Instant::now() + patience, patience));
        let peer = request.url.to_string();
        match deadline {
            None => self.follow(request, None).await,
            Some((until, patience)) => {
                let following = self.follow(request, deadline);
                let late = || Error::Timeout { peer, phase: Phase::Whole, patience };
                tokio::time::timeout_at(until, following).await.map_err(|_| late())?
            }
        }
    }

    async fn follow(&self, mut request: Request, deadline: Deadline) -> Result<Response, Error> {
        let most = self.pool.settings.redirects;
        let mut redirects = 0;
        loop {
            let response = self.exchange(&mut request, deadline).await?;
            if !request.follows(response.status) {
                return Ok(response);
            }
            let fault = |why| Error::Redirect { peer: request.url.to_string(), why };
            let to = target(&response, &request.url).map_err(fault)?;
            if redirects == most {
                return Err(fault(RedirectFault::Often(most)));
            }
            tracing::debug!(from = %request.url, %to, status = %response.status, "sent elsewhere");
            if to.origin != request.url.origin {
                forget_credentials(&mut request.headers);
            }
            request.url = to;
            redirects += 1;
            response.body.discard(DISCARD_MAX).await;
        }
    }

    /// One request, and again if the connection that was kept was dead, or the server knows no
    /// `Expect`.
    async fn exchange(&self, request: &mut Request, deadline: Deadline) -> Result<Response, Error> {
        let mut is_fresh = !request.can_be_repeated();
        loop {
            let lease = self.pool.lease(request, is_fresh).await?;
            let was_kept = lease.was_kept();
            let attempt = Attempt { request, deadline, settings: &self.pool.settings };
            match attempt.run(lease).await {
                Err(Error::Lost { peer, source }) if was_kept && request.can_be_repeated() => {
                    tracing::debug!(%peer, error = %source, "a kept connection was dead");
                    is_fresh = true;
                }
                Ok(response)
                    if response.status == StatusCode::EXPECTATION_FAILED
                        && request.expects_continue
                        && request.has_body_again() =>
                {
                    request.expects_continue = false;
                }
                result => return result,
            }
        }
    }
}

/// Where an answer leads.
fn target(response: &Response, from: &Url) -> Result<Url, RedirectFault> {
    let location = response.headers.get(LOCATION).ok_or(RedirectFault::Nowhere)?;
    let location = String::from_utf8_lossy(location.as_bytes());
    let to = from.join(&location).map_err(RedirectFault::Url)?;
    if from.origin.scheme == Scheme::Https && to.origin.scheme == Scheme::Http {
        return Err(RedirectFault::Insecure(to.to_string()));
    }
    Ok(to)
}

fn forget_credentials(headers: &mut HeaderMap) {
    let names = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];
    names.iter().for_each(|name| drop(headers.remove(name)));
    headers.remove("x-amz-security-token");
}

/// A request on one connection.
struct Attempt<'a> {
    request: &'a Request,
    deadline: Deadline,
    settings: &'a Settings,
}

impl Attempt<'_> {
    async fn run(self, mut lease: Lease) -> Result<Response, Error> {
        let Request { url, body, expects_continue, .. } = self.request;
        let peer = url.to_string();
        // A body that is not made again waits in its slot until the first of it is sent.
        let slot = body.slot();
        let is_empty = slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .is_none_or(|body| body.length() == Some(0) && body.trailers.is_empty());
        let expects = *expects_continue && !is_empty;
        let (open, gate) = match expects.then(|| Gate::new(Instant::now() + EXPECT_PATIENCE)) {
            Some((open, gate)) => (Some(open), Some(gate)),
            None => (None, None),
        };
        let trailers = body.trailers();
        let sending = Sending::from_slot(slot, gate);
        let sent = sending.sent();
        let mut message = hyper::Request::new(sending);
        *message.method_mut() = self.request.method.clone();
        *message.uri_mut() = self.target()?;
        *message.headers_mut() = self.headers(is_empty, expects, &trailers);
        if let Some(open) = open {
            let open = Mutex::new(Some(open));
            hyper::ext::on_informational(&mut message, move |answer| {
                let open = open.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(open) = open.filter(|_| answer.status() == StatusCode::CONTINUE) {
                    // The gate may have opened by itself.
                    let _ = open.send(());
                }
            });
        }
        let exchange = lease.send(message);
        tokio::pin!(exchange);
        let patience = self.settings.head;
        let answer = tokio::select! {
            biased;
            answer = &mut exchange => answer,
            () = late(&sent, patience) => {
                return Err(Error::Timeout { peer, phase: Phase::Head, patience });
            }
        };
        let (head, incoming) = match answer {
            Ok(answer) => answer.into_parts(),
            Err(source) => return Err(failure(peer, &sent, source)),
        };
        let paced = Paced::new(self.settings.pace);
        let received = Received::new(incoming, peer.into(), paced).with_deadline(self.deadline);
        // A connection that is still to take of the body is of no use.
        let body = received.then(move || {
            if sent.is_whole() {
                lease.give_back();
            }
        });
        Ok(Response {
            status: head.status,
            headers: head.headers,
            url: url.clone(),
            body,
            asked: self.request.ranges.clone(),
        })
    }

    /// A proxy is told the whole URL.
    fn target(&self) -> Result<hyper::Uri, Error> {
        let url = &self.request.url;
        let text = if self.request.via.is_some() { url.to_text() } else { url.target() };
        text.parse().map_err(|_| Error::Url {
            text: url.to_string(),
            source: crate::url::UrlError::Control,
        })
    }

    fn headers(&self, is_empty: bool, expects: bool, trailers: &[HeaderName]) -> HeaderMap {
        let request = self.request;
        let mut headers = request.headers.clone();
        // How a body is framed is decided once, by what is sent.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        // hyper says nothing of a body that is not there; of an upload it is worth saying.
        if is_empty && matches!(request.method, Method::PUT | Method::POST | Method::PATCH) {
            headers.insert(CONTENT_LENGTH, 0.into());
        }
        let value = |text: &str| HeaderValue::from_str(text).ok();
        headers.extend(value(&request.url.origin.authority()).map(|value| (HOST, value)));
        if !headers.contains_key(USER_AGENT) {
            headers.extend(value(&self.settings.user_agent).map(|value| (USER_AGENT, value)));
        }
        if let Some(ranges) = &request.ranges {
            headers.extend(value(&ranges.to_string()).map(|value| (RANGE, value)));
        }
        if expects {
            headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        if request.wants_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        for name in trailers {
            headers.append(TRAILER, name.clone().into());
        }
        headers
    }
}

/// The answer's time begins when the request is whole: how long that takes is limited by how it
/// goes on.
async fn late(sent: &Sent, patience: Duration) {
    sent.whole().await;
    tokio::time::sleep(patience).await;
}

fn failure(peer: String, sent: &Sent, source: hyper::Error) -> Error {
    if let Some(source) = sent.take_failure() {
        return Error::Body { peer, source };
    }
    if source.is_parse() { Error::Protocol { peer, source } } else { Error::Lost { peer, source } }
}

#[cfg(test)]
mod tests;
