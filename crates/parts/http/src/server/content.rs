//! Answers GET for whatever can be read at an offset: preconditions, one range, several, all.
//!
//! The answer is decided before its first byte: which status, how many bytes, in which parts. A
//! read that fails later ends the connection, so that nobody takes a part for the whole.
//!
//! Invariants: each byte is sent once, however often it was asked for; parts come in the order that
//! was asked for, and ranges that do not overlap are not joined.

use super::{Request, Response};
use crate::body::{Body, BodyError, Pieces};
use crate::conditions::{Verdict, Version, format_date, is_range_allowed, joined, judge};
use crate::multipart;
use crate::range::{ContentRange, RangeError, Ranges};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue, LAST_MODIFIED, RANGE,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What is asked of a [`Content`] at once: a few round trips of a fast line.
pub const READ_MAX: usize = 1 << 20;

/// Bytes that can be read at an offset.
#[async_trait::async_trait]
pub trait Content: Send + Sync {
    /// Reads from `offset` at most `length` bytes, at least one. Is asked for bytes below the
    /// length only that was said.
    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, BodyError>;
}

#[async_trait::async_trait]
impl Content for Bytes {
    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, BodyError> {
        let start = usize::try_from(offset).map_or(self.len(), |at| at.min(self.len()));
        Ok(self.slice(start..start.saturating_add(length).min(self.len())))
    }
}

/// What is said of the content.
#[derive(Clone, Debug)]
pub struct About {
    pub length: u64,
    pub kind: HeaderValue,
    pub version: Version,
}

/// The content became shorter while it was read.
#[derive(Debug, thiserror::Error)]
#[error("the content ends at {0}")]
struct Ended(u64);

/// The answer to a GET or HEAD.
pub fn answer(request: &Request, about: &About, content: Arc<dyn Content>) -> Response {
    match judge(&request.headers, true, Some(&about.version)) {
        Verdict::Proceed => {}
        Verdict::NotModified => {
            return with_version(Response::new(StatusCode::NOT_MODIFIED), about);
        }
        Verdict::Failed => {
            return Response::text(StatusCode::PRECONDITION_FAILED, "it is another version");
        }
    }
    let response = match wanted(request, about) {
        Wanted::All => Response::new(StatusCode::OK)
            .with(CONTENT_TYPE, about.kind.clone())
            .body(reading(content, [Segment::Read(0..about.length)], about.length)),
        Wanted::Nothing => return unsatisfiable(about),
        Wanted::These(ranges) => match <[_; 1]>::try_from(ranges) {
            Ok([range]) => one(about, content, range),
            Err(ranges) => several(request.chance, about, content, ranges),
        },
    };
    with_version(response, about).with(ACCEPT_RANGES, HeaderValue::from_static("bytes"))
}

enum Wanted {
    All,
    /// No range that there is, or more than anybody needs.
    Nothing,
    These(Vec<Range<u64>>),
}

fn wanted(request: &Request, about: &About) -> Wanted {
    let Some(value) = joined(&request.headers, &RANGE) else { return Wanted::All };
    if !is_range_allowed(&request.headers, &about.version) {
        return Wanted::All;
    }
    match Ranges::parse(&value).map(|ranges| ranges.resolve(about.length)) {
        Ok(ranges) if ranges.is_empty() => Wanted::Nothing,
        Ok(ranges) => Wanted::These(ranges),
        // All of it, instead of so many parts, would cost both sides more.
        Err(RangeError::Many) => Wanted::Nothing,
        // RFC 9110, 14.2: as if it were not there.
        Err(RangeError::Unit | RangeError::Syntax) => Wanted::All,
    }
}

fn with_version(mut response: Response, about: &About) -> Response {
    if let Some(tag) = &about.version.tag {
        response = response.with_text(ETAG, &tag.to_string());
    }
    match about.version.modified {
        Some(modified) => response.with_text(LAST_MODIFIED, &format_date(modified)),
        None => response,
    }
}

fn unsatisfiable(about: &About) -> Response {
    let content = ContentRange { range: None, length: Some(about.length) };
    Response::text(StatusCode::RANGE_NOT_SATISFIABLE, "there are no such bytes")
        .with_text(CONTENT_RANGE, &content.to_string())
}

fn one(about: &About, content: Arc<dyn Content>, range: Range<u64>) -> Response {
    let length = range.end - range.start;
    let said = ContentRange { range: Some(range.clone()), length: Some(about.length) };
    Response::new(StatusCode::PARTIAL_CONTENT)
        .with(CONTENT_TYPE, about.kind.clone())
        .with_text(CONTENT_RANGE, &said.to_string())
        .body(reading(content, [Segment::Read(range)], length))
}

fn several(
    chance: u64,
    about: &About,
    content: Arc<dyn Content>,
    ranges: Vec<Range<u64>>,
) -> Response {
    let boundary = format!("part-{chance:016x}");
    let kind = about.kind.to_str().unwrap_or("application/octet-stream");
    let (mut segments, mut length) = (Vec::with_capacity(2 * ranges.len() + 1), 0);
    for (number, range) in ranges.into_iter().enumerate() {
        let said = ContentRange { range: Some(range.clone()), length: Some(about.length) };
        let head = multipart::part_head(&boundary, kind, &said, number == 0);
        length += head.len() as u64 + (range.end - range.start);
        segments.extend([Segment::Text(head.into()), Segment::Read(range)]);
    }
    let closing = multipart::closing(&boundary);
    length += closing.len() as u64;
    segments.push(Segment::Text(closing.into()));
    Response::new(StatusCode::PARTIAL_CONTENT)
        .with_text(CONTENT_TYPE, &multipart::content_type(&boundary))
        .body(reading(content, segments, length))
}

/// Some of a body.
enum Segment {
    Text(Bytes),
    Read(Range<u64>),
}

fn reading(
    content: Arc<dyn Content>,
    segments: impl IntoIterator<Item = Segment>,
    length: u64,
) -> Body {
    Body::pieces(Reading { content, segments: segments.into_iter().collect() }, Some(length))
}

struct Reading {
    content: Arc<dyn Content>,
    segments: VecDeque<Segment>,
}

#[async_trait::async_trait]
impl Pieces for Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let range = match self.segments.pop_front() {
                None => return Ok(None),
                Some(Segment::Text(text)) => return Ok(Some(text)),
                Some(Segment::Read(range)) if range.is_empty() => continue,
                Some(Segment::Read(range)) => range,
            };
            let most = usize::try_from(range.end - range.start).unwrap_or(READ_MAX).min(READ_MAX);
            let bytes = self.content.read(range.start, most).await?;
            if bytes.is_empty() {
                return Err(Ended(range.start).into());
            }
            let bytes = bytes.slice(..bytes.len().min(most));
            self.segments.push_front(Segment::Read(range.start + bytes.len() as u64..range.end));
            return Ok(Some(bytes));
        }
    }
}
