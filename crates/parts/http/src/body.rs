//! Bodies: what is sent, and what comes.
//!
//! A [`Body`] to send is bytes, or [`Pieces`] that are made when the connection takes them. A body
//! that comes is [`Received`]: the next piece is read when it is asked for, so a slow reader makes
//! the sender wait. One can be handed on as the other.
//!
//! Invariants: a body that ends before or after its length is an error at both ends; nothing is
//! read beyond the limit that the reader names; at most a few pieces are held.

mod received;
mod sending;

pub use received::{Incoming, Received};
pub(crate) use sending::{Gate, Sending, Sent};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::HeaderName;
use tokio::sync::mpsc;

/// Why a body could not be made.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Pieces that wait between who makes a body and the connection.
const WAITING_MAX: usize = 2;

/// Makes a body, piece by piece.
#[async_trait::async_trait]
pub trait Pieces: Send {
    /// The next piece; `None` at the end. Empty ones are passed over.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError>;

    /// What stands behind the body, asked for at its end. Only what [`Body::with_trailers`]
    /// announced is sent.
    fn trailers(&mut self) -> Option<HeaderMap> {
        None
    }
}

/// A body to be sent.
#[derive(Default)]
pub struct Body {
    pub(crate) content: Content,
    /// What will stand behind it.
    pub(crate) trailers: Vec<HeaderName>,
}

#[derive(Default)]
pub(crate) enum Content {
    #[default]
    Empty,
    Whole(Bytes),
    Pieces {
        pieces: Box<dyn Pieces>,
        length: Option<u64>,
    },
}

impl Body {
    pub fn empty() -> Self {
        Self::default()
    }

    /// Made piece by piece. Without a length it is sent in chunks; with one, more or fewer bytes
    /// are an error.
    pub fn pieces(pieces: impl Pieces + 'static, length: Option<u64>) -> Self {
        let content = Content::Pieces { pieces: Box::new(pieces), length };
        Self { content, trailers: Vec::new() }
    }

    /// A body for what a task sends. Ends in good order by [`BodySender::end`] only.
    pub fn channel(length: Option<u64>) -> (BodySender, Self) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (BodySender { sender }, Self::pieces(Channel { receiver }, length))
    }

    /// Announces what will stand behind the body, which is sent in chunks then.
    pub fn with_trailers(mut self, names: Vec<HeaderName>) -> Self {
        self.trailers = names;
        self
    }

    /// `None`: known when it ends.
    pub fn length(&self) -> Option<u64> {
        match &self.content {
            Content::Empty => Some(0),
            Content::Whole(bytes) => Some(bytes.len() as u64),
            Content::Pieces { length, .. } => *length,
        }
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        let content = if bytes.is_empty() { Content::Empty } else { Content::Whole(bytes) };
        Self { content, trailers: Vec::new() }
    }
}

/// Sends a body's pieces from elsewhere.
pub struct BodySender {
    sender: mpsc::Sender<Message>,
}

enum Message {
    Piece(Bytes),
    End,
    Failed(BodyError),
}

/// Nobody reads the body any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nobody reads the body any more")]
pub struct Unread;

/// Dropped without an end.
#[derive(Debug, thiserror::Error)]
#[error("who made the body left it unfinished")]
struct Unfinished;

impl BodySender {
    /// Waits until the connection has room.
    pub async fn send(&self, piece: Bytes) -> Result<(), Unread> {
        self.sender.send(Message::Piece(piece)).await.map_err(|_| Unread)
    }

    /// That was all.
    pub async fn end(self) -> Result<(), Unread> {
        self.sender.send(Message::End).await.map_err(|_| Unread)
    }

    /// The reader gets no good end.
    pub async fn fail(self, error: impl Into<BodyError>) {
        // Who does not read any more need not know.
        let _ = self.sender.send(Message::Failed(error.into())).await;
    }
}

struct Channel {
    receiver: mpsc::Receiver<Message>,
}

#[async_trait::async_trait]
impl Pieces for Channel {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self.receiver.recv().await {
            Some(Message::Piece(piece)) => Ok(Some(piece)),
            Some(Message::End) => Ok(None),
            Some(Message::Failed(error)) => Err(error),
            None => Err(Unfinished.into()),
        }
    }
}
