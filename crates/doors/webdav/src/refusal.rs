//! What somebody is told whose request cannot be answered: a status, and a sentence of what to do.
//!
//! Every kind of error of files has its status here, and nowhere else.

use tieline_files::Error;
use tieline_http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use tieline_http::server::Response;
use tieline_http::{Method, StatusCode};
use tieline_types::{ErrorKind, Retry};

/// When a client may ask again, if a server is away.
const AGAIN_SECONDS: u32 = 5;

/// See the module.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    text: String,
    advice: &'static str,
    asks_again: bool,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), advice: "", asks_again: false }
    }

    /// Not 405: whoever wants a third-party copy (COPY) takes that for a want of rights, and this
    /// for a reason to copy by himself.
    pub fn method(method: &Method) -> Self {
        let text = format!("{method} is not answered here: the header `Allow` says what is");
        Self::new(StatusCode::NOT_IMPLEMENTED, text)
    }

    /// For people: what is wrong, and what to do.
    pub fn text(&self) -> String {
        match self.advice {
            "" => self.text.clone(),
            advice => format!("{}: {advice}", self.text),
        }
    }

    /// Whoever asks is not let in: the MDSs say why.
    pub fn of_visitor(error: Error) -> Self {
        let advice = match error.kind() {
            ErrorKind::PermissionDenied => {
                "who administers the file system finds this denial in its logs, and can let you in \
                 (`tieline id add`, `tieline issuer add`)"
            }
            _ => "",
        };
        Self { advice, ..error.into() }
    }

    /// What failed is not the name that was asked for, but the directory it would be in (RFC 4918:
    /// 409).
    pub fn of_parent(error: Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotDirectory => Self::new(
                StatusCode::CONFLICT,
                format!("{error}: the directory above is not there: make it first (MKCOL)"),
            ),
            _ => error.into(),
        }
    }

    /// `challenges`: how somebody may show who he is.
    pub fn response(&self, challenges: &[HeaderValue]) -> Response {
        let mut response = Response::text(self.status, &self.text());
        if self.status == StatusCode::UNAUTHORIZED {
            for challenge in challenges {
                response.headers.append(WWW_AUTHENTICATE, challenge.clone());
            }
        }
        if self.asks_again {
            response = response.with(RETRY_AFTER, AGAIN_SECONDS.into());
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let (status, advice) = told(kind);
        let asks_again = kind.retry() != Retry::Never;
        Self { status, text: error.to_string(), advice, asks_again }
    }
}

/// A body that could not be read.
impl From<tieline_http::Error> for Refusal {
    fn from(error: tieline_http::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::FileTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, format!("{error}: nothing of it was kept, send all of it again"))
    }
}

/// The status of a kind, and what to do.
fn told(kind: ErrorKind) -> (StatusCode, &'static str) {
    use ErrorKind::*;
    match kind {
        NotFound | Stale => (StatusCode::NOT_FOUND, ""),
        Unauthenticated => (StatusCode::UNAUTHORIZED, "show a token or a ticket that holds now"),
        PermissionDenied | NotPermitted => (
            StatusCode::FORBIDDEN,
            "ask with a token whose scope has this path, or as a user who may: `tieline explain` \
             says who may and why",
        ),
        ReadOnly => (StatusCode::FORBIDDEN, "nothing can be changed there"),
        Exists => (StatusCode::PRECONDITION_FAILED, "it is there already"),
        IsDirectory => (StatusCode::METHOD_NOT_ALLOWED, "this is a directory, not a file"),
        NotDirectory => (StatusCode::CONFLICT, "something on the way is no directory"),
        NotEmpty => (StatusCode::CONFLICT, "delete what is in the directory first"),
        Busy | Conflict => (StatusCode::CONFLICT, "somebody is at it: try again"),
        NameTooLong => (StatusCode::URI_TOO_LONG, ""),
        InvalidArgument | SymlinkLoop => (StatusCode::BAD_REQUEST, ""),
        FileTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, ""),
        NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no room is left there: `tieline df`"),
        QuotaExceeded => {
            (StatusCode::INSUFFICIENT_STORAGE, "what its owner may use is used: `tieline quota`")
        }
        NotSupported => (StatusCode::NOT_IMPLEMENTED, ""),
        Timeout | Unreachable | Disconnected | SessionLost | WrongServer | Overloaded => {
            (StatusCode::SERVICE_UNAVAILABLE, "a server is away or busy: try again soon")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the door's log says more"),
    }
}
