//! The methods that are answered.

use tieline_http::Method;
use tieline_http::header::HeaderValue;

/// HEAD is a GET whose body is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Options,
    Get,
    Propfind,
    Put,
    Mkcol,
    Delete,
    Move,
}

impl Verb {
    pub fn of(method: &Method) -> Option<Self> {
        Some(match method.as_str() {
            "OPTIONS" => Self::Options,
            "GET" => Self::Get,
            "PROPFIND" => Self::Propfind,
            "PUT" => Self::Put,
            "MKCOL" => Self::Mkcol,
            "DELETE" => Self::Delete,
            "MOVE" => Self::Move,
            _ => return None,
        })
    }

    /// For counts.
    pub fn name(self, is_head: bool) -> &'static str {
        match self {
            Self::Options => "OPTIONS",
            Self::Get if is_head => "HEAD",
            Self::Get => "GET",
            Self::Propfind => "PROPFIND",
            Self::Put => "PUT",
            Self::Mkcol => "MKCOL",
            Self::Delete => "DELETE",
            Self::Move => "MOVE",
        }
    }
}

/// What stands in `Allow`.
pub fn allow() -> HeaderValue {
    HeaderValue::from_static("OPTIONS, GET, HEAD, PROPFIND, PUT, MKCOL, DELETE, MOVE")
}
