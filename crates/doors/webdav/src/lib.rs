//! The door for HTTP and WebDAV: files of the federation for `curl`, davix, gfal, rclone.
//!
//! Whoever comes shows a token or a ticket with each request; the MDSs say who that is and within
//! which scope he may act ([`tieline_people::visitors`]). What he then may is what he may on a
//! mount: the same calls, judged at the same place.
//!
//! * [`WebDav`]: answers requests; [`methods`]: which there are, each in a file of its own: `get`
//!   (GET and HEAD), `propfind`, `put`, `change` (MKCOL, DELETE, MOVE).
//! * `visitor`: who asks; [`spnego`]: how clients wrap their tickets; `refusal`: what he is told if
//!   it cannot be, one place for all errors.
//! * `content`: a file's bytes for ranges; `digests`: its checksums; `listing`: its names.
//! * [`asked`]: what a PROPFIND asks for, as XML.
//!
//! Does not know: connections, TLS and their limits (`parts/http`), servers, tokens, Kerberos.
//!
//! Invariants: nobody is answered who is not known, but for OPTIONS; a file that is put is seen
//! whole or not at all; no answer's size depends on memory: listings and files stream; what is read
//! ahead for all clients together is bounded.
//!
//! RFCs: 9110 (HTTP), 4918 (WebDAV: class 1 without COPY and PROPPATCH), 3230 and 9530 (digests).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

pub mod asked;
mod change;
mod content;
mod digests;
mod get;
mod listing;
pub mod methods;
mod properties;
mod propfind;
mod put;
mod refusal;
pub mod spnego;
#[cfg(test)]
mod tests;
mod visitor;

use content::Ahead;
use methods::Verb;
use refusal::Refusal;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::Paths;
use tieline_http::StatusCode;
use tieline_http::body::Received;
use tieline_http::header::{ALLOW, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use tieline_http::server::{Handler, Request, Response};
use tieline_people::visitors::Visitors;
use tieline_telemetry::metrics::METRICS;

/// What such a door answers with.
pub struct WebDav {
    paths: Paths,
    visitors: Arc<dyn Visitors>,
    /// For people, and as realm of challenges: the file system's name.
    name: String,
    ahead: Ahead,
    digests: digests::Digests,
}

const DAV: HeaderName = HeaderName::from_static("dav");
/// So long is taken what nobody wants.
const DRAIN: Duration = Duration::from_secs(5);

impl WebDav {
    pub fn new(paths: Paths, visitors: Arc<dyn Visitors>, name: String) -> Arc<Self> {
        let (ahead, digests) = (Ahead::default(), digests::Digests::default());
        Arc::new(Self { paths, visitors, name, ahead, digests })
    }

    async fn respond(&self, request: Request) -> Response {
        let Some(verb) = Verb::of(&request.method) else {
            let response = Refusal::method(&request.method).response(&self.challenges());
            return finish_unread(request, response.with(ALLOW, methods::allow())).await;
        };
        if verb == Verb::Options {
            let response = Response::new(StatusCode::OK)
                .with(ALLOW, methods::allow())
                .with(DAV, HeaderValue::from_static("1, 3"));
            return finish_unread(request, response).await;
        }
        let (method, path) = (request.method.clone(), request.path.clone());
        let peer = request.peer.clone();
        let visit = match self.who(&request).await {
            Ok(visit) => visit,
            Err(refusal) => {
                let response = refusal.response(&self.challenges());
                tracing::info!(%peer, %method, %path, why = refusal.text(), "refused");
                return finish_unread(request, response).await;
            }
        };
        let told = visit.answer.clone();
        let answer = match verb {
            Verb::Get => self.get(request, visit).await,
            Verb::Propfind => self.propfind(request, visit).await,
            Verb::Put => self.put(request, visit).await,
            Verb::Mkcol => self.make_collection(request, visit).await,
            Verb::Delete => self.delete(request, visit).await,
            Verb::Move => self.rename(request, visit).await,
            Verb::Options => Ok(Response::new(StatusCode::OK)),
        };
        let mut response = answer.unwrap_or_else(|refusal| {
            tracing::info!(%peer, %method, %path, why = refusal.text(), "refused");
            refusal.response(&self.challenges())
        });
        response.headers.extend(told.map(|told| (WWW_AUTHENTICATE, told)));
        response
    }
}

/// Reads what was sent with a request that needs none of it, unless its sender waits to be asked.
async fn finish_unread(request: Request, response: Response) -> Response {
    let waits = request.headers.contains_key(tieline_http::header::EXPECT);
    if !waits && let Ok(body) = request.body.open(u64::MAX) {
        drain(body).await;
    }
    response
}

/// Takes for a while what somebody goes on to send who is refused: were the connection closed on
/// him, he would not hear why.
async fn drain(mut body: Received) {
    let taking = async { while let Ok(Some(_)) = body.next().await {} };
    // Who sends for longer hears that it broke.
    let _ = tokio::time::timeout(DRAIN, taking).await;
}

#[async_trait::async_trait]
impl Handler for WebDav {
    async fn answer(&self, request: Request) -> Response {
        let name = Verb::of(&request.method).map_or("other", |verb| verb.name(request.is_head));
        let response = self.respond(request).await;
        let (status, number) = (response.status, response.status.as_u16().to_string());
        let is_error = status.is_client_error() || status.is_server_error();
        let outcome = if is_error { number.as_str() } else { "ok" };
        METRICS.door_requests.with_label_values(&["https", name, outcome]).inc();
        response
    }
}
