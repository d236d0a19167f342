//! Sessions over frames: a state machine without sockets, and the loops that drive it.
//!
//! The client's side is a [`Channel`]: calls go out numbered, many at once, and their replies come
//! back in any order; a lost connection is made again, and requests that were not answered are sent
//! again under their numbers. The server's side is a [`Service`]: it answers requests, and may send
//! notices on the connection that the client made.
//!
//! * [`link`]: the client's state machine ([`link::State`]): events and time in, actions out.
//! * [`session`]: the loop that drives it ([`Session`]).
//! * [`kept`]: requests that outlive this process.
//! * [`server`]: accepts connections, greets, dispatches ([`Server`]).
//! * `handshake`: how both ends prove themselves, and get the keys of [`frames`].
//! * [`frames`]: frames over a stream, bulk beside them; `outbox`: what waits to be sent.
//!
//! Does not know what calls mean, only which of them are mutations.
//!
//! Invariants: a request gets exactly one outcome; memory for requests and bulk is bounded on both
//! sides; every wait ends with its deadline, its cancellation, or the session.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{Caller, ClientId, ErrorKind, Flavor, Grant, RequestNumber, SessionId, Time};
use tieline_wire::capability::Holder;
use tieline_wire::{
    Call, Envelope, Failure, Hello, Notice, NoticeAnswer, Op, Refusal, Request, Welcome,
};
use tieline_world::Bulk;

pub mod frames;
mod handshake;
pub mod kept;
pub mod link;
mod outbox;
pub mod server;
pub mod session;

pub use kept::{Held, Keeping, Unanswered};
pub use server::{Notifier, Server, ServerSettings};
pub use session::{Session, SessionSettings};

/// A way to one server. Cloned freely, shared by everyone who talks to that server.
#[async_trait::async_trait]
pub trait Channel: Send + Sync {
    /// Sends a request and waits for its outcome.
    ///
    /// Dropping the future cancels: the server is told, and the outcome of a mutation is unknown.
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError>;

    /// The session as the server last welcomed it; `None` before it did.
    fn standing(&self) -> Option<Standing>;

    /// The server in messages: as it calls itself, and where it is.
    fn server(&self) -> String {
        "the server".to_owned()
    }

    /// Frames sent that were answered: the round trips so far.
    fn round_trips(&self) -> u64;

    /// The machine slept or its networks changed: a dead connection is to be noticed now.
    fn doubt(&self) {}

    /// Connects, if that was not done yet: calls are to be expected.
    fn warm(&self) {}

    /// The shortest time in which the server answered lately; `None` before it did.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Ends the session in good order, giving back all it holds. Waits at most `patience`.
    async fn close(&self, patience: Duration);
}

/// A request on its way out.
pub struct Outgoing {
    pub caller: Caller,
    pub request: Request,
    pub bulk: Bulk,
    /// How long the caller waits, connecting included. `None`: as long as it takes.
    pub patience: Option<Duration>,
    /// Is put down beside a request that is kept.
    pub note: Vec<u8>,
}

/// What came back.
pub struct Incoming {
    pub op: Op,
    pub body: Bytes,
    pub bulk: Bytes,
    /// Of a request that is kept: to be dropped when its effect here is kept too, or of no use.
    pub held: Option<Held>,
}

/// What the server granted this session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub session: SessionId,
    pub grant: Grant,
    pub boot: u64,
    pub lease: Duration,
    /// As whom capabilities know us there.
    pub holder: Option<Holder>,
    pub is_connected: bool,
}

/// A call that brought no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server said no.
    #[error(transparent)]
    Refused(Failure),
    #[error("{server} did not answer within {} s{}", .patience.as_secs(), clause(.why))]
    Timeout {
        server: String,
        patience: Duration,
        /// What the last attempt to connect failed of, if there is no connection.
        why: Option<String>,
    },
    #[error("{server} refused the connection")]
    Handshake { server: String, source: Refusal },
    /// This end refused: it cannot prove itself for now, or does not believe who answered. The
    /// source says what to do.
    #[error("no connection to {server}")]
    Unproven { server: String, source: Refusal },
    #[error("session with {server} is closed")]
    Closed { server: String },
    /// The session expired at the server while requests were under way.
    #[error("session with {server} was lost")]
    SessionLost { server: String },
    #[error("{server} answered {op:?} with a body that cannot be read")]
    Body { server: String, op: Op, source: tieline_wire::BodyError },
}

fn clause(why: &Option<String>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}

impl CallError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(failure) => failure.kind,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Handshake { source, .. } | Self::Unproven { source, .. } => source.kind,
            Self::Closed { .. } => ErrorKind::Disconnected,
            Self::SessionLost { .. } => ErrorKind::SessionLost,
            Self::Body { .. } => ErrorKind::Protocol,
        }
    }
}

/// A typed call over any channel.
pub async fn call<C: Call>(
    channel: &dyn Channel,
    caller: &Caller,
    message: C,
    bulk: Bulk,
    patience: Option<Duration>,
) -> Result<(C::Reply, Bytes), CallError> {
    let (caller, request) = (caller.clone(), message.into());
    let outgoing = Outgoing { caller, request, bulk, patience, note: Vec::new() };
    let incoming = channel.exchange(outgoing).await?;
    Ok((read_reply::<C>(channel, &incoming)?, incoming.bulk))
}

/// The reply in what came back for a call.
pub fn read_reply<C: Call>(
    channel: &dyn Channel,
    incoming: &Incoming,
) -> Result<C::Reply, CallError> {
    tieline_wire::decode(&incoming.body).map_err(|source| CallError::Body {
        server: channel.server(),
        op: C::OP,
        source,
    })
}

/// Who hears what a server says unasked, and how the connection fares.
#[async_trait::async_trait]
pub trait NoticeSink: Send + Sync {
    /// Called from a task of its own; answer soon.
    async fn notice(&self, notice: Notice) -> NoticeAnswer;

    /// The server welcomed us. If `welcome.boot` or the session is new, leases of before are gone.
    fn connected(&self, welcome: &Welcome);

    /// The connection was lost; it is being made again.
    fn disconnected(&self);

    /// Everything sent before this moment (tokio's clock) was received: leases count from `sent`.
    fn renewed(&self, sent: tokio::time::Instant);

    /// The server said what time it is there.
    fn told_time(&self, _reading: Reading) {}
}

/// What a server's clock said, between two moments of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    pub asked: tokio::time::Instant,
    pub heard: tokio::time::Instant,
    pub told: Time,
}

/// Who is at the other end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its address, for messages.
    pub address: String,
    /// Who it proved to be; nobody knows under flavor null.
    pub principal: Option<Arc<str>>,
    pub flavor: Flavor,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.principal {
            Some(principal) => write!(f, "{principal} at {}", self.address),
            None => f.write_str(&self.address),
        }
    }
}

/// What a server does. One service answers all calls that come to one port.
#[async_trait::async_trait]
pub trait Service: Send + Sync {
    /// Greets a connection: a new session, or the old one resumed. The flavor was agreed already.
    async fn welcome(&self, hello: &Hello, peer: &Peer) -> Result<Welcome, Refusal>;

    /// Somebody at `address` said hello and was refused: by the rules of flavors, for want of a
    /// proof, or by [`Service::welcome`].
    fn turned_away(&self, _address: &str, _refusal: &Refusal) {}

    /// The session's connection stands; notices may be sent through `notifier` until
    /// [`Service::disconnected`].
    fn connected(&self, session: SessionId, notifier: Notifier);

    /// Answers one request. Cancelled requests are dropped at an await point; the deadline is
    /// enforced by the caller.
    async fn call(&self, context: CallContext, request: Request, bulk: Bytes) -> Response;

    /// Any frame came: the session lives.
    fn heard(&self, session: SessionId);

    /// What time it is, for peers who stamp files as this server would.
    fn now(&self) -> Option<Time> {
        None
    }

    /// The connection is gone, and none of its requests is at work any more; the session may come
    /// back, but not before this returns.
    fn disconnected(&self, session: SessionId);

    /// The client said goodbye: the session is over. Comes after [`Service::disconnected`].
    async fn goodbye(&self, session: SessionId);
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct CallContext {
    pub session: SessionId,
    pub number: RequestNumber,
    pub envelope: Envelope,
    /// Who the connection's other end proved to be; nobody knows under flavor null.
    pub principal: Option<Arc<str>>,
    /// From where it came.
    pub address: Arc<str>,
    /// The number by which it calls itself.
    pub client: ClientId,
    /// How long the client still waits.
    pub patience: Option<Duration>,
}

/// The answer to a request.
pub type Response = Result<Reply, Failure>;

/// An encoded reply and the bytes beside it.
#[derive(Debug, Default)]
pub struct Reply {
    pub body: Vec<u8>,
    pub bulk: Bulk,
}

impl Reply {
    pub fn new<C: Call>(reply: &C::Reply) -> Self {
        Self { body: tieline_wire::encode(reply), bulk: Bulk::Empty }
    }
}

/// A channel to somewhere, made on demand.
pub trait Dialer: Send + Sync {
    /// A channel that keeps itself connected to one of `addresses` until it is closed or dropped.
    fn dial(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel>;

    /// The same, for a process that may be followed by another: keeps its requests, and sends those
    /// again that an earlier process left. Their answers come in the same order.
    fn dial_kept(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
        _keeping: Keeping,
        _unanswered: Vec<Unanswered>,
    ) -> (Arc<dyn Channel>, Vec<Answer>) {
        (self.dial(addresses, hello, sink), Vec::new())
    }
}

/// The outcome of a request that an earlier process left.
pub type Answer = tokio::sync::oneshot::Receiver<Result<Incoming, CallError>>;
