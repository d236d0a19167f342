//! GET and HEAD: a file, or ranges of it; a directory's names as a page of links.

use crate::WebDav;
use crate::content::FileContent;
use crate::digests::{Wanted, joined};
use crate::listing::Listing;
use crate::properties::{escaped, kind_of, version};
use crate::refusal::Refusal;
use crate::visitor::Visit;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_files::{Access, Entry, Held, LastLink};
use tieline_http::StatusCode;
use tieline_http::body::{Body, BodyError, Pieces};
use tieline_http::conditions::{Version, is_range_allowed};
use tieline_http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RANGE};
use tieline_http::range::Ranges;
use tieline_http::server::content::{About, answer};
use tieline_http::server::{Request, Response};
use tieline_http::url::{Path, encoded};
use tieline_types::{Attributes, Doing};

impl WebDav {
    pub(crate) async fn get(&self, request: Request, visit: Visit) -> Result<Response, Refusal> {
        let path = joined_path(&request.path);
        let entry = self.paths.find(&visit.who, &path, LastLink::Followed).await?;
        if entry.attributes.is_directory() {
            return self.page(&request, visit, entry).await;
        }
        if request.is_head {
            return self.head(&request, &visit, &entry).await;
        }
        let wanted = Wanted::of(&request);
        let (files, access) =
            (self.paths.files().clone(), Access { read: true, ..Access::default() });
        let held = Held::open(files.clone(), &visit.who, &entry, access).await?;
        let digests = self.digests.of((&files, &visit.who), &entry, wanted).await;
        let about = about(&entry, &held.attributes);
        let ranges = ranges(&request, about.length, &about.version);
        let content = FileContent::new((files, held), visit, &self.ahead, &ranges).await?;
        let response = private(answer(&request, &about, Arc::new(content)));
        Ok(wanted.tell(response, &digests))
    }

    /// What is told of a file to whoever may do anything with it: who only makes files looks after
    /// what he made.
    async fn head(
        &self,
        request: &Request,
        visit: &Visit,
        entry: &Entry,
    ) -> Result<Response, Refusal> {
        let who = &visit.who;
        let is_his = who.scope.as_ref().is_none_or(|scope| scope.allows_any(&entry.way));
        if !is_his {
            who.may(&entry.way, Doing::Read)?;
        }
        let wanted = Wanted::of(request);
        let files = self.paths.files();
        let digests = match wanted.algorithms().is_empty() {
            true => vec![],
            false => {
                let access = Access { read: true, ..Access::default() };
                match Held::open(files.clone(), who, entry, access).await {
                    Ok(_held) => self.digests.of((files, who), entry, wanted).await,
                    // Who put it was told before.
                    Err(_) if entry.attributes.uid == who.caller.uid => {
                        self.digests.remembered(&entry.attributes, wanted)
                    }
                    Err(_) => vec![],
                }
            }
        };
        let about = about(entry, &entry.attributes);
        let response = private(answer(request, &about, Arc::new(Bytes::new())));
        Ok(wanted.tell(response, &digests))
    }

    /// For people with a browser.
    async fn page(
        &self,
        request: &Request,
        visit: Visit,
        entry: Entry,
    ) -> Result<Response, Refusal> {
        let response = Response::new(StatusCode::OK)
            .with(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        if request.is_head {
            return Ok(response);
        }
        let path = Path { ends_in_slash: true, ..request.path.clone() }.encode();
        let listing = Listing::open(&self.paths, visit, entry).await?;
        let page = Page { path, listing: Some(listing), has_begun: false };
        Ok(response.body(Body::pieces(page, None)))
    }
}

fn about(entry: &Entry, attributes: &Attributes) -> About {
    About {
        length: attributes.size,
        kind: HeaderValue::from_static(kind_of(entry)),
        version: version(attributes),
    }
}

/// Whoever keeps it asks each time whether it may be given out again.
fn private(response: Response) -> Response {
    response.with(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"))
}

/// The path that was asked for, as `Paths` takes it.
pub fn joined_path(path: &Path) -> Vec<u8> {
    path.names.iter().flat_map(|name| [&b"/"[..], name].concat()).collect()
}

/// The ranges that the answer will have, in their order; all of the file if none are asked for.
fn ranges(request: &Request, length: u64, version: &Version) -> Vec<Range<u64>> {
    let wanted = joined(&request.headers, &RANGE)
        .filter(|_| is_range_allowed(&request.headers, version))
        .and_then(|text| Ranges::parse(&text).ok());
    match wanted {
        Some(wanted) => wanted.resolve(length),
        None => std::iter::once(0..length).collect(),
    }
}

/// Links to all that is in a directory.
struct Page {
    path: String,
    listing: Option<Listing>,
    has_begun: bool,
}

/// What is sent at once.
const PIECE: usize = 16 << 10;

#[async_trait::async_trait]
impl Pieces for Page {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let Some(listing) = &mut self.listing else { return Ok(None) };
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            let title = escaped(&self.path);
            text += &format!("<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n<pre>\n");
        }
        while text.len() < PIECE {
            let Some((name, attributes)) = listing.next().await? else {
                self.listing = None;
                text += "</pre>\n";
                break;
            };
            let slash = if attributes.is_directory() { "/" } else { "" };
            let (link, shown) =
                (encoded(name.as_bytes()), escaped(&String::from_utf8_lossy(name.as_bytes())));
            text += &format!("<a href=\"{}{link}{slash}\">{shown}{slash}</a>\n", self.path);
        }
        Ok(Some(text.into()))
    }
}
