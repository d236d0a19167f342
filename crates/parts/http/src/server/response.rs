//! What a handler gives.

use crate::body::{Body, Sending};
use crate::conditions::format_date;
use crate::error::Error;
use hyper::StatusCode;
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, TRAILER,
    TRANSFER_ENCODING,
};
use std::time::Duration;
use tieline_types::ErrorKind;

/// An answer. `Content-Length`, `Transfer-Encoding`, `Trailer` and `Date` are set when it is sent.
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Response {
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::empty() }
    }

    /// A line for people.
    pub fn text(status: StatusCode, text: &str) -> Self {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        Self::new(status).with(CONTENT_TYPE, kind).body(format!("{text}\n"))
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// With a header whose value is made of words and numbers of ours; one that cannot stand in a
    /// header is left out.
    pub fn with_text(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// What `HEAD` and certain statuses do not have is left away.
    pub(super) fn finish(self, is_head: bool, now: Duration) -> hyper::Response<Sending> {
        let Self { status, mut headers, body } = self;
        // How a body is framed is decided once, by what is sent.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        let is_bodiless = status.is_informational()
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED;
        if !headers.contains_key(DATE) {
            headers.extend(HeaderValue::from_str(&format_date(now)).ok().map(|now| (DATE, now)));
        }
        let body = if is_bodiless {
            Body::empty()
        } else if is_head {
            let length = body.length().filter(|_| body.trailers.is_empty());
            headers.extend(length.map(|length| (CONTENT_LENGTH, length.into())));
            Body::empty()
        } else {
            for name in &body.trailers {
                headers.append(TRAILER, name.clone().into());
            }
            body
        };
        let mut response = hyper::Response::new(Sending::new(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// What a client is told of a body that could not be read.
impl From<Error> for Response {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::FileTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
            ErrorKind::Disconnected | ErrorKind::Protocol => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::text(status, &error.to_string())
    }
}
