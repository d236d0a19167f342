//! PROPFIND: what is told of one file, or of all in a directory, as a stream of XML.

use crate::asked::{Asked, BODY_MAX};
use crate::get::joined_path;
use crate::listing::Listing;
use crate::properties::{DAV, Subject, response};
use crate::refusal::Refusal;
use crate::visitor::Visit;
use crate::{WebDav, drain};
use bytes::Bytes;
use tieline_files::{Entry, LastLink};
use tieline_http::StatusCode;
use tieline_http::body::{Body, BodyError, Pieces, Received};
use tieline_http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use tieline_http::server::{Request, Response};
use tieline_http::url::{Path, encoded};

const DEPTH: HeaderName = HeaderName::from_static("depth");
const XML: HeaderValue = HeaderValue::from_static("application/xml; charset=utf-8");
const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
                    <D:multistatus xmlns:D=\"DAV:\" xmlns:L=\"LCGDM:\">\n";
const TAIL: &str = "</D:multistatus>\n";
/// The refusal that clients know (RFC 4918, 9.1).
const FINITE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
                      <D:error xmlns:D=\"DAV:\"><D:propfind-finite-depth/></D:error>\n";
/// What is sent at once.
const PIECE: usize = 32 << 10;

/// How far below it is looked.
enum Depth {
    Itself,
    Below,
}

impl WebDav {
    pub(crate) async fn propfind(
        &self,
        request: Request,
        visit: Visit,
    ) -> Result<Response, Refusal> {
        let depth = request.headers.get(DEPTH).cloned();
        let path = request.path.clone();
        let body = asked_for(request.body.open(u64::MAX)?).await?;
        let depth = match depth.as_ref().map(HeaderValue::as_bytes) {
            Some(b"0") => Depth::Itself,
            Some(b"1") => Depth::Below,
            None => return Ok(infinite()),
            Some(text) if text.eq_ignore_ascii_case(b"infinity") => return Ok(infinite()),
            Some(_) => {
                let text = "`Depth` is 0, 1 or infinity";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
            }
        };
        let asked = Asked::parse(&body)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        let entry = self.paths.find(&visit.who, &joined_path(&path), LastLink::Followed).await?;
        let is_directory = entry.attributes.is_directory();
        let path = Path { ends_in_slash: is_directory, ..path };
        let first = self.first(&entry, &path, &asked).await;
        let listing = match depth {
            Depth::Below if is_directory => Some(Listing::open(&self.paths, visit, entry).await?),
            _ => None,
        };
        let told = Told { path: path.encode(), asked, first: Some(first), listing };
        Ok(Response::new(StatusCode::MULTI_STATUS)
            .with(CONTENT_TYPE, XML)
            .body(Body::pieces(told, None)))
    }

    /// Of what was asked for itself.
    async fn first(&self, entry: &Entry, path: &Path, asked: &Asked) -> String {
        let wants_space =
            ["quota-available-bytes", "quota-used-bytes"].iter().any(|name| asked.names(DAV, name));
        let space = match wants_space {
            // What is not known is told as not there.
            true => self.paths.files().statfs(entry.id()).await.ok(),
            false => None,
        };
        let name = path.names.last().map_or(&b"/"[..], Vec::as_slice);
        let subject = Subject { name, attributes: &entry.attributes, space };
        response(&path.encode(), &subject, asked)
    }
}

async fn asked_for(mut received: Received) -> Result<Vec<u8>, Refusal> {
    let mut body = Vec::new();
    while let Some(piece) = received.next().await? {
        if body.len() + piece.len() > BODY_MAX {
            drain(received).await;
            let text = format!("what is asked for is more than {BODY_MAX} bytes: ask for less");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn infinite() -> Response {
    Response::new(StatusCode::FORBIDDEN).with(CONTENT_TYPE, XML).body(FINITE)
}

/// The answer, as it is made.
struct Told {
    /// Encoded, with a slash at its end.
    path: String,
    asked: Asked,
    first: Option<String>,
    listing: Option<Listing>,
}

#[async_trait::async_trait]
impl Pieces for Told {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let mut text = String::new();
        match (self.first.take(), &self.listing) {
            (Some(first), None) => return Ok(Some(format!("{HEAD}{first}{TAIL}").into())),
            (Some(first), _) => text = format!("{HEAD}{first}"),
            (None, None) => return Ok(None),
            (None, _) => {}
        }
        while let Some(listing) = &mut self.listing
            && text.len() < PIECE
        {
            let Some((name, attributes)) = listing.next().await? else {
                self.listing = None;
                text += TAIL;
                break;
            };
            let slash = if attributes.is_directory() { "/" } else { "" };
            let href = format!("{}{}{slash}", self.path, encoded(name.as_bytes()));
            let subject = Subject { name: name.as_bytes(), attributes: &attributes, space: None };
            text += &response(&href, &subject, &self.asked);
        }
        Ok(Some(text.into()))
    }
}
