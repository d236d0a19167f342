//! One connection: greeting, then requests until it ends.
//!
//! The connection's task reads frames and starts a task per request; replies go to the outbox in
//! the order in which they are ready. A request holds one of
//! [`super::ServerSettings::requests_max`] places until its reply is sent; without a free place
//! nothing more is read.
//!
//! Invariants: every request that was read is answered, cancelled or ended with the connection;
//! `connected` and `disconnected` of the service come in pairs, and the pairs of one session never
//! overlap; when `serve` returns, nothing of the connection is left running.

use super::lobby::Guest;
use super::parties::{Connected, Full, Party};
use super::request::{Asked, answer_request, reply_frame, unreadable, without_bulk};
use super::seats::Seat;
use super::{Notifier, Shared, refusal, refuse, stopped};
use crate::frames::{Frame, FrameReader, FrameWriter, InBulk, OutFrame, ReadError};
use crate::handshake::{self, HandshakeError};
use crate::outbox::{Holds, Outbox};
use crate::{Peer, Response};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{Guard, TOKEN_MAX};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, RequestNumber, SessionId};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{
    BodyError, Failure, FrameHeader, FrameKind, Hello, Op, Refusal, ServerTime, Welcome,
};
use tieline_world::{Bulk, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;

/// What the last frames of a connection that ends in good order may take.
const LINGER: Duration = Duration::from_secs(2);

/// Serves one connection to its end.
pub(super) async fn serve(
    connection: Connection,
    guest: Guest,
    shared: Arc<Shared>,
    mut stopping: watch::Receiver<bool>,
) {
    let (address, slows_at_losses) = (connection.peer, connection.slows_at_losses);
    let mut reader = FrameReader::new(connection.reader, shared.budget.clone());
    let mut writer = FrameWriter::new(connection.writer);
    reader.limit(handshake::BODY_MAX, TOKEN_MAX as u32);
    let greeting = greet((&mut reader, &mut writer), &shared, (&address, slows_at_losses));
    let greeted = tokio::select! {
        biased;
        () = stopped(&mut stopping) => return,
        greeted = tokio::time::timeout(shared.settings.hello_patience, greeting) => greeted,
        () = guest.pushed_out() => return tracing::debug!(address, "closed: newer ones came"),
    };
    let greeted = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(NotGreeted::Refused(refusal))) => {
            tracing::info!(peer = address, %refusal, "connection refused");
            shared.service.turned_away(&address, &refusal);
            let refused = refuse(&mut writer, &refusal);
            // A peer that does not read why is closed all the same.
            let _ = tokio::time::timeout(LINGER, refused).await;
            return;
        }
        Ok(Err(NotGreeted::Gone)) => return,
        Ok(Err(NotGreeted::Unreadable(error))) => {
            return tracing::warn!(peer = address, error = chain(&error), "closed: no hello came");
        }
        Err(_) => return tracing::info!(peer = address, "closed: no hello came in time"),
    };
    reader.unlimit(greeted.party.bodies.clone(), greeted.party.bulk.clone());
    drop(guest);
    let seat = tokio::select! {
        biased;
        () = stopped(&mut stopping) => return,
        seat = shared.seats.take(greeted.welcome.session) => seat,
    };
    if let Some(seat) = seat {
        Sitting::start(shared, greeted, reader, writer).run(seat, stopping).await;
    }
}

enum NotGreeted {
    Refused(Refusal),
    Unreadable(ReadError),
    /// The peer left without a word, as health checks do, or was killed before it had one.
    Gone,
}

impl From<ReadError> for NotGreeted {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::Gone,
            ReadError::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => Self::Gone,
            error => Self::Unreadable(error),
        }
    }
}

/// Who was welcomed, and to what.
struct Greeted {
    welcome: Welcome,
    hello: Hello,
    peer: Peer,
    /// When the proof ends.
    until: Option<Instant>,
    party: Arc<Party>,
    _places: (OwnedSemaphorePermit, Connected),
}

async fn greet(
    (reader, writer): (&mut FrameReader, &mut FrameWriter),
    shared: &Shared,
    (address, slows_at_losses): (&str, bool),
) -> Result<Greeted, NotGreeted> {
    let frame = reader.next().await.map_err(NotGreeted::from)?;
    let no = |kind, detail: String| NotGreeted::Refused(refusal(kind, detail));
    if frame.header.kind != FrameKind::Hello {
        return Err(no(ErrorKind::Protocol, format!("{:?} before hello", frame.header.kind)));
    }
    let mut hello: Hello = tieline_wire::decode(&frame.body)
        .map_err(|error| no(ErrorKind::Protocol, format!("hello cannot be read: {error}")))?;
    hello.description = hello.description.chars().take(Hello::DESCRIPTION_MAX).collect();
    let version = version_for(&hello).ok_or_else(|| {
        let (oldest, newest) = (hello.version_oldest, hello.version_newest);
        let detail = format!(
            "you speak versions {oldest} to {newest}, this server {VERSION_OLDEST} to {VERSION}"
        );
        no(ErrorKind::VersionMismatch, detail)
    })?;
    let from = tieline_auth::address_of(address);
    let ends = (reader, writer);
    let proven = handshake::answer(&shared.guard, &hello, &frame.body, from, ends).await;
    let proven = proven.map_err(|error| match error {
        HandshakeError::Read(error) => error.into(),
        error => no(error.kind(), chain(&error)),
    })?;
    let place = shared.places.clone().try_acquire_owned().map_err(|_| {
        tracing::warn!(peer = address, "too many connections: refused");
        no(ErrorKind::Overloaded, "this server has too many connections".to_owned())
    })?;
    let peer = Peer {
        address: address.to_owned(),
        principal: proven.peer.map(Into::into),
        flavor: proven.flavor,
    };
    let party = shared.parties.of(&peer);
    let of_party = party.connection(hello.client).map_err(|full| {
        let party = &party.name;
        match full {
            Full::Further => tracing::debug!(peer = address, %party, "no further connection"),
            Full::All => tracing::warn!(peer = address, %party, "too many connections: refused"),
        }
        let detail = format!(
            "{party} has as many connections to this server as one may have: close some of them, \
             let its nodes come as principals of their own, or raise the server's limit of open \
             files"
        );
        no(ErrorKind::Overloaded, detail)
    })?;
    let welcome = shared.service.welcome(&hello, &peer).await.map_err(NotGreeted::Refused)?;
    let features = welcome.features | if slows_at_losses { Welcome::SLOWS_AT_LOSSES } else { 0 };
    let welcome = Welcome { version, flavor: peer.flavor, features, ..welcome };
    Ok(Greeted { welcome, hello, peer, until: proven.until, party, _places: (place, of_party) })
}

/// The newest version that both ends speak.
fn version_for(hello: &Hello) -> Option<u16> {
    let newest = hello.version_newest.min(VERSION);
    (newest >= hello.version_oldest.max(VERSION_OLDEST)).then_some(newest)
}

/// A connection whose session was welcomed.
struct Sitting {
    shared: Arc<Shared>,
    peer: Arc<str>,
    address: Arc<str>,
    session: SessionId,
    /// What was agreed, and with whom.
    greeted: Greeted,
    reader: FrameReader,
    outbox: Outbox,
    sender: JoinHandle<std::io::Result<()>>,
    notifier: Notifier,
    places: Arc<Semaphore>,
    requests: JoinSet<RequestNumber>,
    running: BTreeMap<RequestNumber, Running>,
}

struct Running {
    op: Op,
    task: AbortHandle,
}

/// Why a connection ends.
enum End {
    Stopped,
    Replaced,
    Goodbye,
    Silent,
    /// What was agreed does not hold any more; the client comes back and agrees anew.
    Terms(&'static str),
    Unsent(String),
    Unreadable(ReadError),
    Violation(String),
}

impl Sitting {
    fn start(
        shared: Arc<Shared>,
        greeted: Greeted,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> Self {
        let outbox = Outbox::default();
        let welcome = &greeted.welcome;
        let body = tieline_wire::encode(welcome);
        let number = RequestNumber(0);
        // Before `connected`, so that no notice comes before the welcome.
        outbox.push(OutFrame::new(FrameKind::Welcome, number, body, Bulk::Empty));
        let notifier = Notifier::new(outbox.clone());
        METRICS.sessions.inc();
        shared.service.connected(welcome.session, notifier.clone());
        Self {
            places: Arc::new(Semaphore::new(shared.settings.requests_max)),
            shared,
            peer: greeted.peer.to_string().into(),
            address: greeted.peer.address.as_str().into(),
            session: welcome.session,
            greeted,
            reader,
            sender: tokio::spawn(outbox.clone().send_all(writer)),
            outbox,
            notifier,
            requests: JoinSet::new(),
            running: BTreeMap::new(),
        }
    }

    async fn run(mut self, mut seat: Seat, mut stopping: watch::Receiver<bool>) {
        let end = self.read(&mut seat, &mut stopping).await;
        self.log(&end);
        // Nothing of the old connection may be at work when the session's next one begins.
        self.requests.shutdown().await;
        self.notifier.close();
        METRICS.sessions.dec();
        self.shared.service.disconnected(self.session);
        if let End::Goodbye = end {
            self.shared.service.goodbye(self.session).await;
            self.outbox.close();
            // A peer that does not read its last frames has no use for them.
            let _ = tokio::time::timeout(LINGER, &mut self.sender).await;
        }
        self.outbox.abandon();
        self.sender.abort();
        drop(seat);
    }

    fn log(&self, end: &End) {
        let (peer, session) = (&*self.peer, self.session);
        match end {
            End::Stopped | End::Goodbye => tracing::debug!(peer, %session, "session closed"),
            End::Terms(why) => tracing::info!(peer, %session, why, "closed, to be agreed anew"),
            End::Replaced => tracing::info!(peer, %session, "closed: the client came back"),
            End::Silent => tracing::info!(peer, %session, "closed: nothing came for too long"),
            End::Unsent(why) => tracing::info!(peer, %session, why, "connection lost in sending"),
            End::Unreadable(error @ ReadError::Broken(_)) => {
                tracing::warn!(peer, %session, error = chain(error), "closed: tampered with");
            }
            End::Unreadable(error @ ReadError::Malformed(_)) => {
                tracing::warn!(peer, %session, error = chain(error), "closed: not our protocol");
            }
            End::Unreadable(error) => {
                tracing::info!(peer, %session, error = chain(error), "connection lost");
            }
            End::Violation(what) => tracing::warn!(peer, %session, what, "closed: violation"),
        }
    }

    /// Reads and dispatches until the connection ends.
    async fn read(&mut self, seat: &mut Seat, stopping: &mut watch::Receiver<bool>) -> End {
        let mut silent_at = Instant::now() + self.shared.settings.silence_max;
        let mut received = 0;
        let terms = terms_end(self.shared.guard.clone(), &self.greeted);
        tokio::pin!(terms);
        loop {
            let places = self.places.clone();
            tokio::select! {
                biased;
                () = stopped(stopping) => return End::Stopped,
                () = seat.left() => return End::Replaced,
                why = &mut terms => return End::Terms(why),
                Some(ended) = self.requests.join_next_with_id() => self.request_ended(ended),
                // The stream ends for us, too, when it does for the sending task.
                sent = &mut self.sender => return End::Unsent(why_unsent(sent)),
                // Only with a free place is anything read.
                frame = next_with_place(&mut self.reader, &places) => match frame {
                    Ok((frame, place)) => {
                        self.shared.service.heard(self.session);
                        silent_at = Instant::now() + self.shared.settings.silence_max;
                        if let Err(end) = self.dispatch(frame, place) {
                            return end;
                        }
                    }
                    Err(error) => return End::Unreadable(error),
                },
                () = tokio::time::sleep_until(silent_at) => {
                    // A frame that takes long is not silence, and neither is what we do not read.
                    let is_reading = places.available_permits() > 0;
                    if is_reading && self.reader.received() == received {
                        return End::Silent;
                    }
                    received = self.reader.received();
                    silent_at = Instant::now() + self.shared.settings.silence_max;
                }
            }
        }
    }

    fn dispatch(&mut self, frame: Frame, place: OwnedSemaphorePermit) -> Result<(), End> {
        let number = frame.header.number;
        match frame.header.kind {
            FrameKind::Request => self.request(frame, place)?,
            FrameKind::Cancel => self.cancel(number),
            // With its place: who pings and reads no answer is not read either.
            FrameKind::Ping => {
                let holds = Holds::new([place], Default::default());
                let told = self.shared.service.now().map(|now| ServerTime { now });
                let body = told.map_or_else(Vec::new, |told| tieline_wire::encode(&told));
                let pong = OutFrame::new(FrameKind::Pong, number, body, Bulk::Empty);
                self.outbox.push_holding(pong, holds);
            }
            FrameKind::Pong => {}
            FrameKind::NoticeAnswer => match tieline_wire::decode(&frame.body) {
                Ok(answer) => self.notifier.answered(number, answer),
                Err(error) => {
                    return Err(End::Violation(format!("answer to a notice: {error}")));
                }
            },
            FrameKind::Goodbye => return Err(End::Goodbye),
            kind @ (FrameKind::Hello
            | FrameKind::Welcome
            | FrameKind::Refused
            | FrameKind::Reply
            | FrameKind::Notice
            | FrameKind::Token) => return Err(End::Violation(format!("{kind:?} from a client"))),
        }
        Ok(())
    }

    fn request(&mut self, frame: Frame, place: OwnedSemaphorePermit) -> Result<(), End> {
        let header = frame.header;
        if self.running.contains_key(&header.number) {
            return Err(End::Violation(format!("request {} is under way", header.number)));
        }
        METRICS.bulk_received_bytes.inc_by(header.bulk_length.into());
        let Some(op) = Op::from_number(header.op) else {
            let failure = unreadable(&BodyError::UnknownCall(header.op));
            self.answer(header, Err(failure), place);
            return Ok(());
        };
        let (bulk, held) = match frame.bulk {
            InBulk::Here(bulk, held) => (bulk, held),
            InBulk::Skipped => {
                self.answer(header, Err(without_bulk(op)), place);
                return Ok(());
            }
        };
        let Some(of_party) = self.greeted.party.request() else {
            let detail = format!(
                "{} has as many requests under way at this server as one may have: ask again when \
                 some are answered",
                self.greeted.party.name
            );
            self.answer(header, Err(Failure::new(ErrorKind::Overloaded, detail)), place);
            return Ok(());
        };
        let principal = self.greeted.peer.principal.clone();
        let client = self.greeted.hello.client;
        let address = self.address.clone();
        let party = self.greeted.party.clone();
        let (body, held) = (frame.body, [held, frame.room]);
        let places = [place, of_party];
        let asked =
            Asked { header, body, op, principal, address, client, party, bulk, held, places };
        let (shared, peer) = (self.shared.clone(), self.peer.clone());
        let work = answer_request(shared, peer, self.session, self.outbox.clone(), asked);
        let task = self.requests.spawn(work);
        self.running.insert(header.number, Running { op, task });
        Ok(())
    }

    fn cancel(&mut self, number: RequestNumber) {
        if let Some(running) = self.running.remove(&number) {
            running.task.abort();
            METRICS.requests.with_label_values(&[running.op.name(), "Cancelled"]).inc();
        }
    }

    fn request_ended(&mut self, ended: Result<(tokio::task::Id, RequestNumber), JoinError>) {
        match ended {
            Ok((_, number)) => {
                self.running.remove(&number);
            }
            Err(error) if error.is_panic() => self.request_panicked(error.id()),
            // Cancelled, and removed then.
            Err(_) => {}
        }
    }

    /// The client would wait for ever: say what happened.
    fn request_panicked(&mut self, id: tokio::task::Id) {
        let found = self.running.iter().find(|(_, running)| running.task.id() == id);
        let Some((&number, running)) = found else { return };
        let (op, peer) = (running.op, &*self.peer);
        tracing::error!(peer, session = %self.session, request = %number, ?op, "request panicked");
        self.running.remove(&number);
        let failure = Failure::new(ErrorKind::Internal, "the server failed in this request");
        METRICS.requests.with_label_values(&[op.name(), "Internal"]).inc();
        self.outbox.push(reply_frame(number, op.number(), Err(failure)));
    }

    /// Answers without asking the service.
    fn answer(&self, header: FrameHeader, response: Response, place: OwnedSemaphorePermit) {
        let holds = Holds::new([place], Default::default());
        self.outbox.push_holding(reply_frame(header.number, header.op, response), holds);
    }
}

/// Waits until what was agreed does not hold any more.
fn terms_end(guard: Arc<Guard>, greeted: &Greeted) -> impl Future<Output = &'static str> + use<> {
    let (hello, flavor, until) = (greeted.hello.clone(), greeted.peer.flavor, greeted.until);
    let from = tieline_auth::address_of(&greeted.peer.address);
    let changed = async move {
        let Some(mut changes) = guard.changes() else { return std::future::pending().await };
        while guard.answering_flavor(&hello, from) == flavor {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    async move {
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = changed => "the rule for the connection changed",
            () = over => "the proof ended",
        }
    }
}

fn why_unsent(sent: Result<std::io::Result<()>, JoinError>) -> String {
    match sent {
        Ok(Ok(())) => "closed".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Waits for a place, then for a frame. Dropped in between, it loses neither.
async fn next_with_place(
    reader: &mut FrameReader,
    places: &Arc<Semaphore>,
) -> Result<(Frame, OwnedSemaphorePermit), ReadError> {
    let place = places.clone().acquire_owned().await;
    // The places of a connection are never closed.
    let place = place.map_err(|_| ReadError::Closed)?;
    Ok((reader.next().await?, place))
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is killed with bytes unread resets its connections.
    #[test]
    fn who_was_killed_before_a_hello_has_left_and_who_sends_half_of_one_has_not() {
        let of = |kind: io::ErrorKind| NotGreeted::from(ReadError::Io(kind.into()));
        assert!(matches!(of(io::ErrorKind::ConnectionReset), NotGreeted::Gone));
        assert!(matches!(NotGreeted::from(ReadError::Closed), NotGreeted::Gone));
        assert!(matches!(of(io::ErrorKind::UnexpectedEof), NotGreeted::Unreadable(_)));
    }
}
