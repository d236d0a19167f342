//! `multipart/byteranges` (RFC 9110, 14.6): several ranges in one body, read and written.
//!
//! [`PartReader`] is fed with pieces of a body, and says what they hold; it keeps one line at most.
//! Since each part says how long it is, nothing is searched in the data.
//!
//! Invariants: each part has its range; lines, heads and the number of parts are bounded; a body
//! that ends before the last boundary is an error.

use crate::range::{ContentRange, RANGES_MAX};
use bytes::Bytes;
use std::ops::Range;

/// One line, of a part's head or a boundary.
const LINE_MAX: usize = 4 << 10;
/// Lines of one part's head, and before the first part.
const LINES_MAX: usize = 32;
/// RFC 2046, 5.1.1.
const BOUNDARY_MAX: usize = 70;

/// What stands next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A part begins: all its bytes will be these.
    Part { range: Range<u64>, length: Option<u64> },
    /// Bytes of the part, where they belong in the whole.
    Data { offset: u64, bytes: Bytes },
}

/// What is wrong with a body of several parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MultipartError {
    #[error("a part does not begin with a boundary")]
    Boundary,
    #[error("a line or a head is too long")]
    Long,
    #[error("a part does not say its range")]
    Range,
    #[error("there are more than {RANGES_MAX} parts")]
    Many,
    #[error("it ends early")]
    Short,
}

enum State {
    Preamble {
        lines: usize,
    },
    Head {
        lines: usize,
        content: Option<ContentRange>,
    },
    Data {
        offset: u64,
        left: u64,
    },
    /// The line break behind the data, then the boundary.
    Behind {
        is_blank_seen: bool,
    },
    Done,
}

/// Reads a body of several parts.
pub struct PartReader {
    /// With the dashes before it.
    delimiter: String,
    state: State,
    unread: Bytes,
    line: Vec<u8>,
    parts: usize,
}

impl PartReader {
    /// For the value of `Content-Type`; `None` if it is of another kind.
    pub fn new(content_type: &str) -> Option<Self> {
        let boundary = boundary(content_type)?;
        Some(Self {
            delimiter: format!("--{boundary}"),
            state: State::Preamble { lines: 0 },
            unread: Bytes::new(),
            line: Vec::new(),
            parts: 0,
        })
    }

    /// Takes the next piece of the body. To be called when [`Self::next`] says `None`.
    pub fn feed(&mut self, piece: Bytes) {
        if self.unread.is_empty() {
            self.unread = piece;
        } else {
            self.unread = [&self.unread[..], &piece[..]].concat().into();
        }
    }

    /// All parts are read; what comes still is nothing.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The body is over.
    pub fn end(&self) -> Result<(), MultipartError> {
        if self.is_done() { Ok(()) } else { Err(MultipartError::Short) }
    }

    /// What comes next; `None` if more must be fed before, or all is done.
    #[expect(clippy::should_implement_trait, reason = "more may come after `None`")]
    pub fn next(&mut self) -> Result<Option<Event>, MultipartError> {
        loop {
            if let State::Data { offset, left } = &mut self.state {
                if *left > 0 {
                    let count = self.unread.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    if count == 0 {
                        return Ok(None);
                    }
                    let bytes = self.unread.split_to(count);
                    let event = Event::Data { offset: *offset, bytes };
                    (*offset, *left) = (*offset + count as u64, *left - count as u64);
                    return Ok(Some(event));
                }
                self.state = State::Behind { is_blank_seen: false };
            }
            if self.is_done() {
                self.unread.clear();
                return Ok(None);
            }
            let Some(line) = self.take_line()? else { return Ok(None) };
            if let Some(event) = self.read_line(&line)? {
                return Ok(Some(event));
            }
        }
    }

    fn read_line(&mut self, line: &str) -> Result<Option<Event>, MultipartError> {
        match &mut self.state {
            State::Preamble { lines } => {
                *lines += 1;
                let is_too_much = *lines > LINES_MAX;
                if !self.take_delimiter(line)? && is_too_much {
                    return Err(MultipartError::Long);
                }
            }
            State::Behind { is_blank_seen: false } if line.is_empty() => {
                self.state = State::Behind { is_blank_seen: true };
            }
            State::Behind { .. } => {
                if !self.take_delimiter(line)? {
                    return Err(MultipartError::Boundary);
                }
            }
            State::Head { content, .. } if line.is_empty() => {
                let content = content.take().ok_or(MultipartError::Range)?;
                let range = content.range.ok_or(MultipartError::Range)?;
                self.state = State::Data { offset: range.start, left: range.end - range.start };
                return Ok(Some(Event::Part { range, length: content.length }));
            }
            State::Head { lines, content } => {
                *lines += 1;
                if *lines > LINES_MAX {
                    return Err(MultipartError::Long);
                }
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-range")
                {
                    *content = Some(ContentRange::parse(value).ok_or(MultipartError::Range)?);
                }
            }
            State::Data { .. } | State::Done => {}
        }
        Ok(None)
    }

    /// Is the line a boundary? Then goes behind it.
    fn take_delimiter(&mut self, line: &str) -> Result<bool, MultipartError> {
        let Some(rest) = line.strip_prefix(&self.delimiter) else { return Ok(false) };
        if rest.starts_with("--") {
            self.state = State::Done;
            return Ok(true);
        }
        match rest.trim_end_matches([' ', '\t']) {
            "" if self.parts == RANGES_MAX => Err(MultipartError::Many),
            "" => {
                self.parts += 1;
                self.state = State::Head { lines: 0, content: None };
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A line without its end; `None` if it has not come whole. Of the last boundary whatever is
    /// behind it is not waited for.
    fn take_line(&mut self) -> Result<Option<String>, MultipartError> {
        let end = self.unread.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(self.unread.len(), |at| at + 1);
        self.line.extend_from_slice(&self.unread.split_to(count));
        let is_boundary = matches!(self.state, State::Preamble { .. } | State::Behind { .. });
        let behind = self.line.strip_prefix(self.delimiter.as_bytes());
        if !is_boundary || !behind.is_some_and(|behind| behind.starts_with(b"--")) {
            if self.line.len() > LINE_MAX {
                return Err(MultipartError::Long);
            }
            if end.is_none() {
                return Ok(None);
            }
        }
        let line = std::mem::take(&mut self.line);
        Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// The boundary in `multipart/byteranges; boundary="..."`.
fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/byteranges") {
        return None;
    }
    let named = parameters.split(';').filter_map(|parameter| parameter.trim().split_once('='));
    let mut values = named.filter(|(name, _)| name.eq_ignore_ascii_case("boundary"));
    let value = values.next()?.1;
    let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
    let is_fine = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let is_boundary = !value.is_empty() && value.len() <= BOUNDARY_MAX;
    (is_boundary && value.bytes().all(is_fine) && !value.ends_with(' ')).then_some(value)
}

/// The `Content-Type` of a body of several parts.
pub fn content_type(boundary: &str) -> String {
    format!("multipart/byteranges; boundary={boundary}")
}

/// What stands before the bytes of a part.
pub fn part_head(boundary: &str, kind: &str, content: &ContentRange, is_first: bool) -> String {
    let start = if is_first { "" } else { "\r\n" };
    format!("{start}--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {content}\r\n\r\n")
}

/// What stands behind the last part.
pub fn closing(boundary: &str) -> String {
    format!("\r\n--{boundary}--\r\n")
}

#[cfg(test)]
mod tests;
