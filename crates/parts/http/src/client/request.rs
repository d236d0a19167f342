//! What is asked, and what is answered.

use crate::body::{Body, Received};
use crate::error::Error;
use crate::range::Ranges;
use crate::url::Url;
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Of an answer that is no success, this much is read for the message.
const TEXT_MAX: usize = 1 << 10;
/// A server that asks for more is as good as gone.
const RETRY_AFTER_MAX: u64 = 24 * 3600;

/// A request to be sent. Made by a method, then told more by the others.
pub struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    /// `Host`, `Range`, and what frames the body, are not set here.
    pub headers: HeaderMap,
    pub(super) body: RequestBody,
    pub(super) ranges: Option<Ranges>,
    pub(super) expects_continue: bool,
    pub(super) wants_trailers: bool,
    pub(super) patience: Option<Duration>,
    pub(super) via: Option<Url>,
    pub(super) redirects: bool,
}

/// A body that may have to be sent more than once.
#[derive(Clone)]
pub(super) enum RequestBody {
    Bytes(Bytes),
    Again(Arc<dyn Fn() -> Body + Send + Sync>),
    Once { slot: Arc<Mutex<Option<Body>>>, trailers: Vec<HeaderName> },
}

impl RequestBody {
    /// Where the next attempt takes it from.
    pub(super) fn slot(&self) -> Arc<Mutex<Option<Body>>> {
        match self {
            Self::Bytes(bytes) => Arc::new(Mutex::new(Some(bytes.clone().into()))),
            Self::Again(make) => Arc::new(Mutex::new(Some(make()))),
            Self::Once { slot, .. } => slot.clone(),
        }
    }

    pub(super) fn trailers(&self) -> Vec<HeaderName> {
        match self {
            Self::Bytes(_) => Vec::new(),
            Self::Again(make) => make().trailers,
            Self::Once { trailers, .. } => trailers.clone(),
        }
    }
}

impl Request {
    pub fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: RequestBody::Bytes(Bytes::new()),
            ranges: None,
            expects_continue: false,
            wants_trailers: false,
            patience: None,
            via: None,
            redirects: true,
        }
    }

    pub fn get(url: Url) -> Self {
        Self::new(Method::GET, url)
    }

    pub fn head(url: Url) -> Self {
        Self::new(Method::HEAD, url)
    }

    pub fn put(url: Url, body: impl Into<Bytes>) -> Self {
        Self::new(Method::PUT, url).bytes(body)
    }

    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Only these bytes. The answer is to be read by [`Response::ranged`].
    pub fn ranges(mut self, ranges: Ranges) -> Self {
        self.ranges = Some(ranges);
        self
    }

    /// A body in memory.
    pub fn bytes(mut self, body: impl Into<Bytes>) -> Self {
        self.body = RequestBody::Bytes(body.into());
        self
    }

    /// A body that can be made again, for another attempt.
    pub fn body_again(mut self, make: impl Fn() -> Body + Send + Sync + 'static) -> Self {
        self.body = RequestBody::Again(Arc::new(make));
        self
    }

    /// A body that is there once. A redirect is followed while none of it is sent: ask for that
    /// with [`Self::expect_continue`].
    pub fn body(mut self, body: Body) -> Self {
        let trailers = body.trailers.clone();
        self.body = RequestBody::Once { slot: Arc::new(Mutex::new(Some(body))), trailers };
        self
    }

    /// Sends the body when the server wants it, or has said nothing for 3 s.
    pub fn expect_continue(mut self) -> Self {
        self.expects_continue = true;
        self
    }

    /// Says that trailers are read.
    pub fn trailers(mut self) -> Self {
        self.wants_trailers = true;
        self
    }

    /// For all of it, the body of the answer included.
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// By this proxy, which sees all of it. Not for https.
    pub fn via(mut self, proxy: Url) -> Self {
        self.via = Some(proxy);
        self
    }

    /// Answers that lead elsewhere are answers.
    pub fn without_redirects(mut self) -> Self {
        self.redirects = false;
        self
    }

    /// The body can be sent once more.
    pub(super) fn has_body_again(&self) -> bool {
        match &self.body {
            RequestBody::Bytes(_) | RequestBody::Again(_) => true,
            RequestBody::Once { slot, .. } => {
                slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
            }
        }
    }

    /// Twice is as good as once (RFC 9110, 9.2.2, and WebDAV's).
    pub(super) fn can_be_repeated(&self) -> bool {
        let is_idempotent = match self.method.as_str() {
            "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "PROPFIND" => true,
            // MKCOL, MOVE and COPY say something else the second time.
            _ => false,
        };
        is_idempotent && !matches!(self.body, RequestBody::Once { .. })
    }

    pub(super) fn follows(&self, status: StatusCode) -> bool {
        let is_read = self.method == Method::GET || self.method == Method::HEAD;
        self.redirects
            && match status.as_u16() {
                301..=303 => is_read,
                307 | 308 => is_read || self.has_body_again(),
                _ => false,
            }
    }
}

/// The head of an answer, with its body to be read.
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Where it comes from, behind all redirects.
    pub url: Url,
    pub body: Received,
    pub(super) asked: Option<Ranges>,
}

impl Response {
    /// An answer with another status than 2xx is an error, with the first of its text.
    pub async fn success(self) -> Result<Self, Error> {
        if self.status.is_success() {
            return Ok(self);
        }
        let retry_after = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after
            .and_then(|text| text.trim().parse().ok())
            .map(|seconds: u64| Duration::from_secs(seconds.min(RETRY_AFTER_MAX)));
        let (status, peer) = (self.status, self.url.to_string());
        let text = beginning(self.body).await;
        Err(Error::Status { peer, status, text, retry_after })
    }
}

/// The first line of a text, for a message.
async fn beginning(mut body: Received) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < TEXT_MAX {
        // A message that ends early is a message.
        let Ok(Some(piece)) = body.next().await else { break };
        bytes.extend_from_slice(piece.get(..TEXT_MAX).unwrap_or(&piece));
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
