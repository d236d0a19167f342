//! A body that comes.

use super::{BodyError, Pieces};
use crate::error::{Error, Phase};
use crate::stream::Paced;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::Body as _;
use std::error::Error as _;
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

/// A body that nobody reads yet.
///
/// A client's `Expect: 100-continue` is answered when it is opened; one that is never opened costs
/// the connection, unless it is empty.
pub struct Incoming {
    pub(crate) body: hyper::body::Incoming,
    pub(crate) peer: Arc<str>,
    pub(crate) paced: Paced,
}

impl Incoming {
    /// As the head says; `None` if it does not.
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Reads at most `most` bytes; refuses at once what says that it is larger.
    pub fn open(self, most: u64) -> Result<Received, Error> {
        if self.length().is_some_and(|length| length > most) {
            return Err(Error::TooLarge { peer: self.peer.to_string(), most });
        }
        Ok(Received::new(self.body, self.peer, self.paced).with_limit(most))
    }
}

/// A body that is being read.
pub struct Received {
    body: hyper::body::Incoming,
    peer: Arc<str>,
    paced: Paced,
    length: Option<u64>,
    got: u64,
    most: u64,
    /// For all of it.
    deadline: Option<(Instant, std::time::Duration)>,
    trailers: Option<HeaderMap>,
    has_ended: bool,
    /// An error was told: it has no good end any more.
    is_broken: bool,
    /// Called when it has ended in good order.
    behind: Option<Box<dyn FnOnce() + Send>>,
}

impl Received {
    pub(crate) fn new(body: hyper::body::Incoming, peer: Arc<str>, paced: Paced) -> Self {
        let length = body.size_hint().exact();
        let has_ended = body.is_end_stream();
        Self {
            body,
            peer,
            paced,
            length,
            got: 0,
            most: u64::MAX,
            deadline: None,
            trailers: None,
            has_ended,
            is_broken: false,
            behind: None,
        }
    }

    /// More than so many bytes are an error.
    pub fn with_limit(mut self, most: u64) -> Self {
        self.most = most;
        self
    }

    pub(crate) fn with_deadline(
        mut self,
        deadline: Option<(Instant, std::time::Duration)>,
    ) -> Self {
        self.deadline = deadline;
        self
    }

    /// What to do behind its end; at once if it is empty.
    pub(crate) fn then(mut self, behind: impl FnOnce() + Send + 'static) -> Self {
        if self.has_ended {
            behind();
        } else {
            self.behind = Some(Box::new(behind));
        }
        self
    }

    /// As the head says; `None` if it does not.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Where it comes from, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// What stood behind it, once it has ended.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    /// The next piece, not empty; `None` behind the last one, if nothing is missing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_broken {
            return Err(self.short());
        }
        let next = self.read_next().await;
        self.is_broken = next.is_err();
        next
    }

    async fn read_next(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.has_ended {
            let frame = match self.frame().await? {
                None => {
                    self.end();
                    break;
                }
                Some(frame) => frame,
            };
            match frame.into_data() {
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => {
                    self.got += piece.len() as u64;
                    if self.got > self.most {
                        return Err(Error::TooLarge {
                            peer: self.peer.to_string(),
                            most: self.most,
                        });
                    }
                    // So that the connection is free again before the last piece is worked on.
                    if self.body.is_end_stream() {
                        self.end();
                    }
                    return Ok(Some(piece));
                }
                Err(other) => self.trailers = other.into_trailers().ok(),
            }
        }
        Ok(None)
    }

    async fn frame(&mut self) -> Result<Option<hyper::body::Frame<Bytes>>, Error> {
        let begun = Instant::now();
        let stalled = begun + self.paced.left();
        let until = self.deadline.map_or(stalled, |(deadline, _)| stalled.min(deadline));
        let Ok(frame) = tokio::time::timeout_at(until, self.body.frame()).await else {
            let (phase, patience) = match self.deadline {
                Some((deadline, whole)) if deadline <= stalled => (Phase::Whole, whole),
                _ => (Phase::Body, self.paced.within()),
            };
            return Err(Error::Timeout { peer: self.peer.to_string(), phase, patience });
        };
        let frame = frame.transpose().map_err(|source| self.error(source))?;
        let bytes = frame.as_ref().and_then(|frame| frame.data_ref()).map_or(0, Bytes::len);
        self.paced.note(begun.elapsed(), bytes);
        Ok(frame)
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Some(behind) = self.behind.take() {
            behind();
        }
    }

    fn short(&self) -> Error {
        Error::Short { peer: self.peer.to_string(), got: self.got, length: self.length }
    }

    fn error(&self, source: hyper::Error) -> Error {
        let peer = self.peer.to_string();
        let cause = source.source().and_then(|source| source.downcast_ref::<io::Error>());
        match cause.map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => self.short(),
            Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Error::Protocol { peer, source }
            }
            _ if source.is_incomplete_message() => self.short(),
            _ => Error::Lost { peer, source },
        }
    }

    /// All of it.
    pub async fn whole(mut self, most: usize) -> Result<Bytes, Error> {
        self.most = self.most.min(most as u64);
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.next().await? else { return Ok(first) };
        let mut whole = BytesMut::from(first);
        whole.extend_from_slice(&second);
        while let Some(piece) = self.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// Reads to the end what is of no interest, so that the connection can be used again. Is it
    /// more than `most`, the connection ends.
    pub async fn discard(mut self, most: u64) {
        self.most = self.most.min(most);
        if self.length.is_none_or(|length| length <= most) {
            while let Ok(Some(_)) = self.next().await {}
        }
    }
}

/// Handed on, with what stands behind it.
#[async_trait::async_trait]
impl Pieces for Received {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        Ok(Self::next(self).await?)
    }

    fn trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }
}
