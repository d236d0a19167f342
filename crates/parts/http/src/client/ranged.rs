//! What came for a request for ranges, judged.
//!
//! A server may answer with the one range, with several in parts, with several joined, or with all
//! of the file. [`RangedBody`] gives of each the bytes that were asked for, and each of them once.
//!
//! Invariants: every piece is of bytes that were asked for, and says where they belong; the end
//! comes only when none is missing.

use super::Response;
use crate::body::Received;
use crate::error::{Error, RangeFault};
use crate::multipart::{Event, MultipartError, PartReader};
use crate::range::{Asked, ContentRange, Ranges};
use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a part that nobody asked for: servers join ranges that are nearer than a part's head.
const GAP_MAX: u64 = 512;
/// What is read behind the last byte that is wanted, to keep the connection.
const REST_MAX: usize = 8 << 10;

/// What to do with an answer that is the whole file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WholeFile {
    /// Read it until all that was asked for has come, and take that.
    Cut,
    Refuse,
}

/// The bytes that were asked for, in the order in which the server sends them.
pub struct RangedBody {
    body: Received,
    form: Form,
    asked: Ranges,
    length: Option<u64>,
    /// What has not come of what was asked for, in the order of the bytes; `None` before anything
    /// is known of the file.
    missing: Option<Vec<Range<u64>>>,
    /// Bytes to hand on.
    pieces: VecDeque<(u64, Bytes)>,
}

enum Form {
    /// One run of bytes, of which the next belongs here.
    Run {
        offset: u64,
        is_whole: bool,
    },
    Parts(Box<PartReader>),
}

impl Response {
    /// Judges the answer to a request with ranges. Other answers than 200 and 206 are errors.
    pub async fn ranged(self, whole: WholeFile) -> Result<RangedBody, Error> {
        let peer = self.url.to_string();
        let header = |name| self.headers.get(name).and_then(|value| value.to_str().ok());
        let said = header(CONTENT_RANGE).and_then(ContentRange::parse);
        let parts = header(CONTENT_TYPE).and_then(PartReader::new);
        let Some(asked) = self.asked.clone() else {
            return Err(Error::Range { peer, why: RangeFault::Unread });
        };
        match self.status {
            StatusCode::PARTIAL_CONTENT => {
                let form = match parts {
                    Some(parts) => Form::Parts(Box::new(parts)),
                    None => Form::Run { offset: 0, is_whole: false },
                };
                let mut ranged = RangedBody::new(self.body, form, asked);
                if matches!(ranged.form, Form::Run { .. }) {
                    ranged.begin_run(said)?;
                }
                Ok(ranged)
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let length = said.and_then(|said| said.length);
                self.body.discard(REST_MAX as u64).await;
                Err(Error::Unsatisfiable { peer, length })
            }
            StatusCode::OK if whole == WholeFile::Cut => {
                let length = self.body.length();
                let form = Form::Run { offset: 0, is_whole: true };
                let mut ranged = RangedBody::new(self.body, form, asked);
                ranged.learn(length)?;
                if ranged.missing.as_ref().is_some_and(Vec::is_empty) {
                    return Err(Error::Unsatisfiable { peer, length });
                }
                Ok(ranged)
            }
            StatusCode::OK => Err(Error::Range { peer, why: RangeFault::Whole }),
            status => {
                self.success().await?;
                // 2xx, but none that carries the bytes.
                Err(Error::Status { peer, status, text: String::new(), retry_after: None })
            }
        }
    }
}

impl RangedBody {
    fn new(body: Received, form: Form, asked: Ranges) -> Self {
        Self { body, form, asked, length: None, missing: None, pieces: VecDeque::new() }
    }

    /// Bytes of the whole file, if the server said so.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next bytes, and where they belong in the file; `None` when all have come.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, Error> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            if self.missing.as_ref().is_some_and(Vec::is_empty) {
                self.finish().await;
                return Ok(None);
            }
            match &mut self.form {
                Form::Run { offset, .. } => {
                    let Some(bytes) = self.body.next().await? else { return Err(self.short()) };
                    let at = *offset;
                    *offset += bytes.len() as u64;
                    self.take(at, &bytes);
                }
                Form::Parts(reader) => match reader.next() {
                    Ok(Some(Event::Part { range, length })) => self.begin_part(range, length)?,
                    Ok(Some(Event::Data { offset, bytes })) => self.take(offset, &bytes),
                    Ok(None) if reader.is_done() => return Err(self.short()),
                    Ok(None) => match self.body.next().await? {
                        Some(bytes) => reader.feed(bytes),
                        None => return Err(self.fault(RangeFault::Parts(MultipartError::Short))),
                    },
                    Err(error) => return Err(self.fault(RangeFault::Parts(error))),
                },
            }
        }
    }

    /// All bytes, where they are one run: as of one range.
    pub async fn run(mut self) -> Result<Bytes, Error> {
        let mut all = BytesMut::new();
        let mut expected = None;
        while let Some((offset, bytes)) = self.next().await? {
            if expected.is_some_and(|expected| expected != offset) {
                return Err(self.fault(RangeFault::Other(offset, offset + bytes.len() as u64)));
            }
            expected = Some(offset + bytes.len() as u64);
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }

    /// What is known of the file now says which bytes can come.
    fn learn(&mut self, length: Option<u64>) -> Result<(), Error> {
        if self.missing.is_some() {
            let is_same = length.is_none() || self.length.is_none() || length == self.length;
            return if is_same { Ok(()) } else { Err(self.fault(RangeFault::Lengths)) };
        }
        let wanted = match length {
            Some(length) => self.asked.resolve(length),
            None => {
                let known = |asked: &Asked| match *asked {
                    Asked::Between { first, last } => Some(first..last.saturating_add(1)),
                    Asked::From(_) | Asked::Last(_) => None,
                };
                let known: Option<_> = self.asked.asked().iter().map(known).collect();
                known.ok_or_else(|| self.fault(RangeFault::NoLength))?
            }
        };
        self.length = length;
        self.missing = Some(joined(wanted));
        Ok(())
    }

    /// The answer is one range.
    fn begin_run(&mut self, said: Option<ContentRange>) -> Result<(), Error> {
        let said = said.and_then(|said| Some((said.range?, said.length)));
        let (range, length) = said.ok_or_else(|| self.fault(RangeFault::Unread))?;
        self.learn(length)?;
        let missing = self.missing.as_deref().unwrap_or_default();
        let is_asked = missing.first().is_some_and(|first| first.start == range.start)
            && missing.last().is_some_and(|last| last.end == range.end)
            && unasked(missing, &range) <= GAP_MAX * missing.len() as u64;
        let count = range.end - range.start;
        let is_length = self.body.length().is_none_or(|length| length == count);
        if !is_asked || !is_length {
            return Err(self.fault(RangeFault::Other(range.start, range.end)));
        }
        self.form = Form::Run { offset: range.start, is_whole: false };
        Ok(())
    }

    fn begin_part(&mut self, range: Range<u64>, length: Option<u64>) -> Result<(), Error> {
        self.learn(length)?;
        let missing = self.missing.as_deref().unwrap_or_default();
        let surplus = unasked(missing, &range);
        if surplus > GAP_MAX || surplus == range.end - range.start {
            return Err(self.fault(RangeFault::Other(range.start, range.end)));
        }
        Ok(())
    }

    /// Takes of these bytes what is missing.
    fn take(&mut self, at: u64, bytes: &Bytes) {
        let Some(missing) = &mut self.missing else { return };
        let end = at + bytes.len() as u64;
        let mut left = Vec::with_capacity(missing.len());
        for range in missing.drain(..) {
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from >= to {
                left.push(range);
                continue;
            }
            // Within the piece, whose length is a usize.
            let piece = bytes.slice((from - at) as usize..(to - at) as usize);
            self.pieces.push_back((from, piece));
            let around = [range.start..from, to..range.end];
            left.extend(around.into_iter().filter(|range| !range.is_empty()));
        }
        *missing = left;
    }

    /// All has come: what is behind it is read if it is little, so that the connection is kept.
    async fn finish(&mut self) {
        if matches!(self.form, Form::Run { is_whole: true, .. }) {
            return;
        }
        let mut rest = 0;
        while rest < REST_MAX {
            // Nothing of it is wanted.
            let Ok(Some(bytes)) = self.body.next().await else { return };
            rest += bytes.len();
        }
    }

    fn short(&self) -> Error {
        let left = self.missing.iter().flatten().map(|range| range.end - range.start).sum::<u64>();
        let wanted = |length| self.asked.resolve(length).iter().map(|r| r.end - r.start).sum();
        let length: Option<u64> = self.length.map(wanted);
        let got = length.map_or(0, |length| length.saturating_sub(left));
        Error::Short { peer: self.body.peer().to_owned(), got, length }
    }

    fn fault(&self, why: RangeFault) -> Error {
        Error::Range { peer: self.body.peer().to_owned(), why }
    }
}

/// In the order of the bytes, and those that touch as one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

/// How many bytes of `range` are in none of these, which do not overlap.
fn unasked(wanted: &[Range<u64>], range: &Range<u64>) -> u64 {
    let common =
        |one: &Range<u64>| range.end.min(one.end).saturating_sub(range.start.max(one.start));
    (range.end - range.start).saturating_sub(wanted.iter().map(common).sum())
}
