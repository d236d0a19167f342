//! What a handler gets.

use super::Response;
use crate::body::Incoming;
use crate::stream::{Pace, Paced};
use crate::tls::ClientCertificate;
use crate::url::{Path, UrlError, query_pairs};
use hyper::header::HOST;
use hyper::{HeaderMap, Method, StatusCode, Version};
use std::sync::Arc;

/// A request, with its body to be opened.
pub struct Request {
    /// GET also where it was HEAD: then [`Self::is_head`].
    pub method: Method,
    /// Only the head of the answer is sent: what costs to make its body can be left out, as long as
    /// its length is said.
    pub is_head: bool,
    pub path: Path,
    /// As it came, encoded. May hold a secret.
    pub query: Option<String>,
    pub headers: HeaderMap,
    /// `ADDRESS:PORT`.
    pub peer: Arc<str>,
    pub has_tls: bool,
    /// Was verified.
    pub certificate: Option<Arc<ClientCertificate>>,
    pub body: Incoming,
    /// Another number each time, for a boundary of parts.
    pub(super) chance: u64,
}

impl Request {
    /// The refusal is of what no handler shall see.
    pub(super) fn new(
        request: hyper::Request<hyper::body::Incoming>,
        peer: Arc<str>,
        certificate: Option<Arc<ClientCertificate>>,
        has_tls: bool,
        pace: Pace,
        chance: u64,
    ) -> Result<Self, Box<Response>> {
        let (head, body) = request.into_parts();
        let refused = |status, text: &str| Err(Box::new(Response::text(status, text)));
        let bad = |text: &str| refused(StatusCode::BAD_REQUEST, text);
        let hosts = head.headers.get_all(HOST).iter().count();
        if hosts > 1 || hosts == 0 && head.version == Version::HTTP_11 {
            return bad("a request names one host");
        }
        let is_star = head.method == Method::OPTIONS && head.uri.path() == "*";
        let raw = if is_star { "/" } else { head.uri.path() };
        if !raw.starts_with('/') {
            return bad("a request names a path");
        }
        let path = match Path::decode(raw) {
            Ok(path) => path,
            Err(UrlError::Long) => {
                return refused(StatusCode::URI_TOO_LONG, "the path is too long");
            }
            Err(error) => return bad(&format!("not a path: {error}")),
        };
        let is_head = head.method == Method::HEAD;
        let method = if is_head { Method::GET } else { head.method };
        let query = head.uri.query().map(str::to_owned);
        let body = Incoming { body, peer: peer.clone(), paced: Paced::new(pace) };
        let headers = head.headers;
        Ok(Self { method, is_head, path, query, headers, peer, has_tls, certificate, body, chance })
    }

    /// The names and values of the query, decoded.
    pub fn query_pairs(&self) -> Result<Vec<(String, String)>, UrlError> {
        query_pairs(self.query.as_deref().unwrap_or_default())
    }
}
