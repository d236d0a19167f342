//! A [`Body`] as hyper takes it.
//!
//! Counts what passes, since hyper would cut what is too long without a word. A [`Gate`] keeps the
//! body back until the other side wants it (`Expect: 100-continue`); [`Sent`] tells whoever waits
//! for the answer how far it is.

use super::{Body, BodyError, Content, Pieces};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep};

/// How far a body is.
#[derive(Default)]
pub(crate) struct Sent {
    has_ended: AtomicBool,
    ended: Notify,
    failure: Mutex<Option<BodyError>>,
}

impl Sent {
    /// All of it was given to the connection.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Until it is.
    pub(crate) async fn whole(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.is_whole() {
                return;
            }
            ended.await;
        }
    }

    /// Why it could not be made, if that was it.
    pub(crate) fn take_failure(&self) -> Option<BodyError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Keeps the cause; hyper gets a word for it.
    fn fail(&self, error: BodyError) -> BodyError {
        let text = error.to_string();
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        text.into()
    }
}

/// Keeps a body back until it is wanted, or a time has passed.
pub(crate) struct Gate {
    opened: oneshot::Receiver<()>,
    until: Pin<Box<Sleep>>,
}

impl Gate {
    pub(crate) fn new(until: Instant) -> (oneshot::Sender<()>, Self) {
        let (open, opened) = oneshot::channel();
        (open, Self { opened, until: Box::pin(tokio::time::sleep_until(until)) })
    }

    /// Whoever could open it is gone when the answer came without: the connection ends then.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.opened).poll(context) {
            return Poll::Ready(());
        }
        self.until.as_mut().poll(context)
    }
}

/// What is sent was announced otherwise.
#[derive(Debug, thiserror::Error)]
#[error("the body has {got} bytes where {length} were announced")]
struct Length {
    got: u64,
    length: u64,
}

/// Where a body is taken from when the first of it is sent, so that one that was not needed can be
/// sent elsewhere.
pub(crate) type Slot = Arc<Mutex<Option<Body>>>;

type Step = (Box<dyn Pieces>, Result<Option<Bytes>, BodyError>);

enum State {
    Slot(Slot),
    Whole(Bytes),
    /// What is held would complete the length: it goes when nothing comes behind it.
    Ready {
        pieces: Box<dyn Pieces>,
        held: Option<Bytes>,
    },
    Making {
        making: Pin<Box<dyn Future<Output = Step> + Send>>,
        held: Option<Bytes>,
    },
    Trailers(HeaderMap),
    Done,
}

/// A body on its way.
pub(crate) struct Sending {
    state: State,
    gate: Option<Gate>,
    length: Option<u64>,
    has_trailers: bool,
    got: u64,
    sent: Arc<Sent>,
    /// Called when it has ended or is dropped.
    behind: Option<Box<dyn FnOnce() + Send>>,
}

impl Sending {
    pub(crate) fn new(body: Body) -> Self {
        Self::from_slot(Arc::new(Mutex::new(Some(body))), None)
    }

    pub(crate) fn from_slot(slot: Slot, gate: Option<Gate>) -> Self {
        let (length, has_trailers) = {
            let body = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let body = body.as_ref();
            let has_trailers = body.is_some_and(|body| !body.trailers.is_empty());
            (body.map_or(Some(0), Body::length).filter(|_| !has_trailers), has_trailers)
        };
        let sent = Arc::new(Sent::default());
        let state = if length == Some(0) { State::Done } else { State::Slot(slot) };
        if length == Some(0) {
            sent.end();
        }
        Self { state, gate, length, has_trailers, got: 0, sent, behind: None }
    }

    pub(crate) fn sent(&self) -> Arc<Sent> {
        self.sent.clone()
    }

    pub(crate) fn then(mut self, behind: impl FnOnce() + Send + 'static) -> Self {
        self.behind = Some(Box::new(behind));
        self
    }

    fn start(&mut self, slot: &Slot) {
        let body = slot.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        self.state = match body.content {
            Content::Empty => State::Done,
            Content::Whole(bytes) => State::Whole(bytes),
            Content::Pieces { pieces, .. } => State::Ready { pieces, held: None },
        };
    }

    /// Counts a piece.
    fn count(&mut self, piece: &Bytes) -> Result<(), BodyError> {
        self.got += piece.len() as u64;
        match self.length {
            Some(length) if self.got > length => Err(self.wrong_length(length)),
            _ => Ok(()),
        }
    }

    fn wrong_length(&self, length: u64) -> BodyError {
        self.sent.fail(Length { got: self.got, length }.into())
    }

    /// What comes of a step: a frame, or `None` to go on.
    fn take(
        &mut self,
        (mut pieces, piece): Step,
        held: Option<Bytes>,
    ) -> Result<Option<Frame<Bytes>>, BodyError> {
        match piece {
            Err(error) => Err(self.sent.fail(error)),
            Ok(Some(piece)) => {
                self.count(&piece)?;
                let is_last = held.is_none() && self.length == Some(self.got);
                let (now, held) = if is_last { (None, Some(piece)) } else { (Some(piece), held) };
                self.state = State::Ready { pieces, held };
                Ok(now.filter(|piece| !piece.is_empty()).map(Frame::data))
            }
            Ok(None) => {
                if let Some(length) = self.length.filter(|length| self.got < *length) {
                    return Err(self.wrong_length(length));
                }
                if let Some(trailers) = pieces.trailers().filter(|_| self.has_trailers) {
                    self.state = State::Trailers(trailers);
                }
                if held.is_some() {
                    self.sent.end();
                }
                Ok(held.map(Frame::data))
            }
        }
    }
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(gate) = &mut this.gate {
            ready!(gate.poll(context));
            this.gate = None;
        }
        loop {
            match std::mem::replace(&mut this.state, State::Done) {
                State::Slot(slot) => this.start(&slot),
                State::Whole(bytes) => {
                    this.sent.end();
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                State::Ready { mut pieces, held } => {
                    let making = Box::pin(async move {
                        let piece = pieces.next().await;
                        (pieces, piece)
                    });
                    this.state = State::Making { making, held };
                }
                State::Making { mut making, held } => {
                    let Poll::Ready(step) = making.as_mut().poll(context) else {
                        this.state = State::Making { making, held };
                        return Poll::Pending;
                    };
                    match this.take(step, held) {
                        Ok(None) => {}
                        Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    }
                }
                State::Trailers(trailers) => {
                    this.sent.end();
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                State::Done => {
                    this.sent.end();
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Done) && self.gate.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            Some(length) => SizeHint::with_exact(length.saturating_sub(self.got)),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(behind) = self.behind.take() {
            behind();
        }
    }
}
