//! What can go wrong with an exchange, with whom, and whether to try again.

use crate::body::BodyError;
use crate::multipart::MultipartError;
use crate::tls::TlsError;
use crate::url::UrlError;
use hyper::StatusCode;
use std::fmt;
use std::io;
use std::time::Duration;
use tieline_types::{ErrorKind, Retry};

/// What was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Others use all connections that may be had.
    Turn,
    Connect,
    Handshake,
    Head,
    Body,
    /// All of it, as the caller limited it.
    Whole,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Turn => "a free connection",
            Self::Connect => "a connection",
            Self::Handshake => "the TLS handshake",
            Self::Head => "the head of the answer",
            Self::Body => "more of the body",
            Self::Whole => "the whole answer",
        })
    }
}

/// An exchange that failed. `peer` is a URL without its query, or a client's address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a URL: {text}")]
    Url { text: String, source: UrlError },
    #[error("no connection to {peer}")]
    Connect { peer: String, source: io::Error },
    /// It speaks no TLS, or is not believed, or does not believe us.
    #[error("no secure connection to {peer}")]
    Secure { peer: String, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("waited {} s for {phase}, with {peer}", .patience.as_secs())]
    Timeout { peer: String, phase: Phase, patience: Duration },
    #[error("the connection with {peer} broke")]
    Lost { peer: String, source: hyper::Error },
    #[error("{peer} does not speak HTTP/1.1 as it should")]
    Protocol { peer: String, source: hyper::Error },
    #[error("the body from {peer} ended after {got} bytes{}", of(.length))]
    Short { peer: String, got: u64, length: Option<u64> },
    #[error("the body from {peer} is larger than the {most} bytes that are taken")]
    TooLarge { peer: String, most: u64 },
    /// What we wanted to send.
    #[error("the body for {peer} could not be made")]
    Body { peer: String, source: BodyError },
    #[error("{peer} answered {status}{}", clause(.text))]
    Status { peer: String, status: StatusCode, text: String, retry_after: Option<Duration> },
    #[error("{peer} sends us elsewhere: {why}")]
    Redirect { peer: String, why: RedirectFault },
    #[error("{peer} has none of the bytes that were asked for{}", of(.length))]
    Unsatisfiable { peer: String, length: Option<u64> },
    #[error("{peer} answered with other bytes than were asked for: {why}")]
    Range { peer: String, why: RangeFault },
    #[error("cannot listen at {address}")]
    Listen { address: String, source: io::Error },
}

/// Why a redirect is not followed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RedirectFault {
    #[error("more than {0} times")]
    Often(usize),
    #[error("without saying where")]
    Nowhere,
    #[error("to what is no URL: {0}")]
    Url(UrlError),
    #[error("from https to http, at {0}")]
    Insecure(String),
}

/// What is wrong with the answer to a request for ranges.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeFault {
    #[error("a part without a range that can be read")]
    Unread,
    #[error("bytes {0} to {1}")]
    Other(u64, u64),
    #[error("its length is not said, and was needed")]
    NoLength,
    #[error("it says two lengths")]
    Lengths,
    #[error("it is in several parts, and {0}")]
    Parts(MultipartError),
    #[error("it is all of it")]
    Whole,
}

fn of(length: &Option<u64>) -> String {
    length.map_or_else(String::new, |length| format!(" of {length}"))
}

fn clause(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Url { .. } => ErrorKind::InvalidArgument,
            Self::Connect { .. } => ErrorKind::Unreachable,
            Self::Secure { .. } | Self::Tls(_) => ErrorKind::Unauthenticated,
            Self::Timeout { phase: Phase::Turn, .. } => ErrorKind::Overloaded,
            Self::Timeout { phase: Phase::Connect | Phase::Handshake, .. } => {
                ErrorKind::Unreachable
            }
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Lost { .. } | Self::Short { .. } => ErrorKind::Disconnected,
            Self::Protocol { .. } | Self::Redirect { .. } | Self::Range { .. } => {
                ErrorKind::Protocol
            }
            Self::TooLarge { .. } => ErrorKind::FileTooLarge,
            Self::Body { .. } => ErrorKind::StorageFault,
            Self::Status { status, .. } => kind_of(*status),
            Self::Unsatisfiable { .. } => ErrorKind::InvalidArgument,
            Self::Listen { .. } => ErrorKind::Internal,
        }
    }

    /// The same request may succeed later, or on another connection.
    pub fn is_worth_trying_again(&self) -> bool {
        self.kind().retry() != Retry::Never
    }

    /// How long the other side asks us to wait before.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What a status that is no success means here.
pub fn kind_of(status: StatusCode) -> ErrorKind {
    match status.as_u16() {
        400 | 416 | 422 => ErrorKind::InvalidArgument,
        401 | 407 => ErrorKind::Unauthenticated,
        403 => ErrorKind::PermissionDenied,
        404 | 410 => ErrorKind::NotFound,
        405 | 501 | 505 => ErrorKind::NotSupported,
        408 | 504 => ErrorKind::Timeout,
        409 | 423 => ErrorKind::Busy,
        // What was there is not what the condition said; of a new name: it is taken.
        412 => ErrorKind::Exists,
        413 => ErrorKind::FileTooLarge,
        414 | 431 => ErrorKind::NameTooLong,
        425 | 429 | 503 => ErrorKind::Overloaded,
        502 => ErrorKind::Unreachable,
        507 => ErrorKind::NoSpace,
        300..400 => ErrorKind::Protocol,
        500..600 => ErrorKind::Internal,
        _ => ErrorKind::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_whether_to_try_again() {
        let peer = || "http://there/".to_owned();
        let status = |code: u16| Error::Status {
            peer: peer(),
            status: StatusCode::from_u16(code).unwrap(),
            text: String::new(),
            retry_after: None,
        };
        for code in [408, 429, 502, 503, 504] {
            assert!(status(code).is_worth_trying_again(), "{code}");
        }
        for code in [301, 400, 401, 403, 404, 412, 416, 500, 507] {
            assert!(!status(code).is_worth_trying_again(), "{code}");
        }
        let short = Error::Short { peer: peer(), got: 3, length: Some(9) };
        assert!(short.is_worth_trying_again());
        assert_eq!(short.to_string(), "the body from http://there/ ended after 3 bytes of 9");
    }
}
