//! The task behind a session: carries events to the state machine and does what it says.
//!
//! One task per session owns the machine, the connection's reader and the callers that wait. Frames
//! are sent by the outbox's task; notices are handled in tasks of their own, so that a handler may
//! call on the same session.
//!
//! Invariants: an event of one connection never reaches the machine after that connection was given
//! up; when the driver ends, so do its connection and its tasks.

use super::reach::reach;
use super::{Handed, Message, View};
use crate::frames::{Budget, Frame, FrameReader, FrameWriter, OutFrame, ReadError};
use crate::handshake::{self, Dialed, HandshakeError};
use crate::link::{Action, CallId, Event, State};
use crate::outbox::Outbox;
use crate::{CallError, Incoming, NoticeSink};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tieline_auth::Guard;
use tieline_auth::gss::Tickets;
use tieline_types::{ErrorKind, Flavor, RequestNumber};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{FrameKind, Hello, NoticeAnswer, PeerRole, Refusal, Welcome};
use tieline_world::Transport;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What one attempt to connect and be welcomed may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Of it, what the first packets may take: the kernel repeats a lost one at ever longer distances,
/// a new attempt sends one at once.
const REACH_PATIENCE: Duration = Duration::from_millis(2_500);

pub(super) struct Driver {
    transport: Arc<dyn Transport>,
    guard: Arc<Guard>,
    state: State,
    sink: Arc<dyn NoticeSink>,
    inbox: mpsc::UnboundedReceiver<Message>,
    view: Arc<View>,
    waiting: BTreeMap<CallId, Waiting>,
    line: Line,
    /// Why we could not prove ourselves, as the log was told.
    unproven: Option<Refusal>,
    /// Looks whether a better address answers.
    trial: Option<Trial>,
    /// Counts connections: a notice's answer goes to the connection it came on.
    epoch: u64,
    notices: JoinSet<(u64, RequestNumber, NoticeAnswer)>,
    closing: Vec<oneshot::Sender<()>>,
    /// Set by the goodbye: when to stop waiting for the server to close.
    finish_by: Option<Instant>,
}

type Trial = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

type Outcome = oneshot::Sender<Result<Incoming, CallError>>;

/// A caller that waits, and its place among the requests at once.
struct Waiting {
    outcome: Outcome,
    /// `None` for what an earlier process left.
    _place: Option<OwnedSemaphorePermit>,
}

/// The way to the server.
enum Line {
    None,
    Connecting(Pin<Box<dyn Future<Output = Attempt> + Send>>),
    Up(Box<Up>),
}

struct Up {
    reader: FrameReader,
    outbox: Outbox,
    sender: JoinHandle<io::Result<()>>,
    progress: Arc<AtomicU64>,
    seen: Moved,
    terms: Terms,
}

/// What was agreed of a connection, and when it has to be agreed anew.
#[derive(Clone)]
struct Terms {
    role: PeerRole,
    address: String,
    own: Option<IpAddr>,
    /// Our rule at that time.
    flavor: Flavor,
    /// Shortly before the proof ends.
    renew_at: Option<Instant>,
}

/// What moved on a connection so far: bytes in and out, and how often nothing was left to send.
#[derive(Clone, Copy, Default)]
struct Moved {
    received: u64,
    sent: u64,
    drained: u64,
}

/// What came of an attempt.
enum Attempt {
    Welcomed(Box<Welcomed>),
    Refused(Refusal),
    /// The same in clear, though our rule wants a proof: whoever is on the way may have said it.
    Doubted(Refusal),
    /// We refused ourselves, before the server could.
    Unproven(Refusal),
    Failed(Failed),
}

struct Welcomed {
    welcome: Welcome,
    hello_sent: Instant,
    reader: FrameReader,
    writer: FrameWriter,
    terms: Terms,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("handshake failed")]
    Handshake(#[source] HandshakeError),
    #[error("answer to hello cannot be read")]
    Unreadable(#[source] tieline_wire::BodyError),
    #[error("server chose protocol version {0}, which we did not offer")]
    Version(u16),
    #[error("server answered hello with {0:?}")]
    Unexpected(FrameKind),
    #[error("no answer within {} s", CONNECT_PATIENCE.as_secs())]
    Late,
}

impl Failed {
    /// With what it came from, as one clause.
    fn why(&self) -> String {
        let mut why = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            why = format!("{why}: {error}");
            cause = error.source();
        }
        why
    }
}

/// What woke the driver.
enum Woken {
    Message(Option<Message>),
    Attempt(Attempt),
    Frame(Result<Frame, ReadError>),
    Notice(u64, RequestNumber, NoticeAnswer),
    /// A better address answers, or none.
    Tried(Option<String>),
    /// The connection must be agreed anew.
    Terms(&'static str),
    Tick,
}

impl Driver {
    pub(super) fn new(
        (transport, guard): (Arc<dyn Transport>, Arc<Guard>),
        state: State,
        sink: Arc<dyn NoticeSink>,
        inbox: mpsc::UnboundedReceiver<Message>,
        view: Arc<View>,
    ) -> Self {
        Self {
            transport,
            guard,
            state,
            sink,
            inbox,
            view,
            waiting: BTreeMap::new(),
            line: Line::None,
            unproven: None,
            trial: None,
            epoch: 0,
            notices: JoinSet::new(),
            closing: Vec::new(),
            finish_by: None,
        }
    }

    /// Takes over requests that an earlier process left.
    pub(super) fn wait_for(&mut self, left: Vec<(CallId, Outcome)>) {
        for (id, outcome) in left {
            self.waiting.insert(id, Waiting { outcome, _place: None });
        }
    }

    pub(super) async fn run(mut self) {
        // What was restored asks for a connection.
        self.event(Event::Moved);
        while !self.is_over() {
            match self.woken().await {
                Woken::Message(None) => break,
                Woken::Message(Some(message)) => self.message(message),
                Woken::Attempt(attempt) => self.attempt_ended(attempt),
                Woken::Frame(Ok(frame)) => self.frame(frame),
                Woken::Frame(Err(error)) => self.connection_lost(error),
                Woken::Notice(epoch, number, answer) if epoch == self.epoch => {
                    self.event(Event::NoticeHandled(number, answer));
                }
                Woken::Notice(..) => {}
                Woken::Tried(address) => {
                    self.trial = None;
                    if let Some(address) = address {
                        self.event(Event::Better(address));
                    }
                }
                Woken::Terms(why) => self.renew(why),
                Woken::Tick => self.tick(),
            }
        }
        self.drop_line();
        for done in self.closing.drain(..) {
            let _ = done.send(());
        }
    }

    /// Was goodbye said, and is the connection gone or late?
    fn is_over(&self) -> bool {
        let is_gone = matches!(self.line, Line::None);
        self.finish_by.is_some_and(|finish_by| is_gone || finish_by <= Instant::now())
    }

    async fn woken(&mut self) -> Woken {
        let tick = self.state.next_tick().into_iter().chain(self.finish_by).min();
        let sleep = until(tick);
        let terms = self.line.terms_end(&self.guard);
        tokio::select! {
            biased;
            message = self.inbox.recv() => Woken::Message(message),
            woken = self.line.next() => woken,
            Some(handled) = self.notices.join_next() => match handled {
                Ok((epoch, number, answer)) => Woken::Notice(epoch, number, answer),
                // A handler that panicked answers nothing; the server's patience ends it.
                Err(_) => Woken::Tick,
            },
            why = terms => Woken::Terms(why),
            address = tried(&mut self.trial) => Woken::Tried(address),
            () = sleep => Woken::Tick,
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Call(handed) => {
                let Handed { id, outgoing, deadline, outcome, place } = *handed;
                self.waiting.insert(id, Waiting { outcome, _place: Some(place) });
                self.event(Event::Call(id, Box::new(outgoing), deadline));
            }
            Message::Warm => self.event(Event::Warm),
            Message::Cancel(id) => {
                self.waiting.remove(&id);
                self.event(Event::Cancelled(id));
            }
            Message::Doubt => self.event(Event::Doubt),
            Message::Close(finish_by, done) => {
                self.finish_by.get_or_insert(finish_by);
                self.closing.push(done);
                self.event(Event::Close);
            }
        }
    }

    fn attempt_ended(&mut self, attempt: Attempt) {
        self.line = Line::None;
        match attempt {
            Attempt::Welcomed(welcomed) => {
                let Welcomed { welcome, hello_sent, reader, writer, terms } = *welcomed;
                let (outbox, progress) = (Outbox::default(), writer.progress());
                let sender = tokio::spawn(outbox.clone().send_all(writer));
                let (seen, address) = (Moved::default(), terms.address.clone());
                let mut up = Up { reader, outbox, sender, progress, seen, terms };
                up.seen = up.moved();
                self.line = Line::Up(Box::new(up));
                self.unproven = None;
                self.epoch += 1;
                self.event(Event::Reached(address));
                tracing::info!(server = %welcome.server, session = %welcome.session,
                    flavor = welcome.flavor.name(), is_resumed = welcome.is_resumed, "connected");
                self.event(Event::Connected(welcome, hello_sent));
            }
            Attempt::Refused(refusal) => {
                tracing::warn!(server = self.state.server(), %refusal, "connection refused");
                self.event(Event::Refused(refusal));
            }
            Attempt::Unproven(refusal) => {
                // A KDC that is away is asked again each second.
                if self.unproven.as_ref() != Some(&refusal) {
                    tracing::warn!(server = self.state.server(), %refusal, "no connection");
                    self.unproven = Some(refusal.clone());
                }
                self.event(Event::Unproven(refusal));
            }
            Attempt::Doubted(refusal) => {
                tracing::warn!(server = self.state.server(), %refusal,
                    "connection refused, by nobody who proved who he is");
                self.event(Event::Doubted(refusal));
            }
            Attempt::Failed(failed) => {
                let why = failed.why();
                tracing::debug!(server = self.state.server(), why, "not connected");
                self.event(Event::Failed(why));
            }
        }
    }

    fn frame(&mut self, frame: Frame) {
        if let Line::Up(up) = &mut self.line {
            // A whole frame says all that its bytes could say of the server's life.
            up.seen.received = up.reader.received();
        }
        self.event(Event::Frame(frame));
    }

    fn connection_lost(&mut self, error: ReadError) {
        if self.finish_by.is_none() {
            tracing::info!(server = self.state.server(), %error, "connection lost");
        }
        self.drop_line();
        self.event(Event::Lost);
    }

    /// Makes the connection again; what is under way is asked again there.
    fn renew(&mut self, why: &'static str) {
        tracing::info!(server = self.state.server(), why, "connecting anew");
        self.drop_line();
        self.event(Event::Lost);
    }

    fn tick(&mut self) {
        if let Line::Up(up) = &mut self.line
            && up.has_moved()
        {
            self.state.handle(Event::Moved, Instant::now());
        }
        self.event(Event::Tick);
    }

    /// Lets the machine decide, does what it says, and shows callers how things are before any of
    /// them hears of it.
    fn event(&mut self, event: Event) {
        self.state.handle(event, Instant::now());
        self.view.show(&self.state);
        while let Some(action) = self.state.next_action() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect { addresses, after, hello } => {
                let (transport, guard) = (self.transport.clone(), self.guard.clone());
                let attempt = attempt(transport, guard, addresses, after, hello);
                self.line = Line::Connecting(Box::pin(attempt));
            }
            Action::Try { addresses } => {
                let transport = self.transport.clone();
                self.trial.get_or_insert_with(|| Box::pin(try_out(transport, addresses)));
            }
            Action::Send(frame) => {
                if let Line::Up(up) = &self.line {
                    up.outbox.push(frame);
                }
            }
            Action::Cancel(number) => {
                if let Line::Up(up) = &self.line
                    && !up.outbox.withdraw(number)
                {
                    up.outbox.push(OutFrame::bare(FrameKind::Cancel, number));
                }
            }
            Action::Complete(id, result) => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    // A caller that just left has sent its cancellation.
                    let _ = waiting.outcome.send(result);
                }
            }
            Action::Notice(number, notice) => {
                let (sink, epoch) = (self.sink.clone(), self.epoch);
                self.notices.spawn(async move { (epoch, number, sink.notice(notice).await) });
            }
            Action::CloseConnection { why } => {
                tracing::info!(server = self.state.server(), why, "connection closed");
                self.drop_line();
            }
            Action::Connected(welcome) => self.sink.connected(&welcome),
            Action::Disconnected => self.sink.disconnected(),
            Action::Renewed(sent) => self.sink.renewed(sent),
            Action::Told(reading) => self.sink.told_time(reading),
            Action::Finish => self.finish(),
        }
    }

    /// Sends what is left, the goodbye last, and waits for the server to close.
    fn finish(&mut self) {
        match &self.line {
            Line::Up(up) => up.outbox.close(),
            Line::None | Line::Connecting(_) => self.line = Line::None,
        }
    }

    fn drop_line(&mut self) {
        if let Line::Up(up) = std::mem::replace(&mut self.line, Line::None) {
            up.outbox.abandon();
            up.sender.abort();
        }
    }
}

/// Dropping a session drops its connection, also when the runtime drops the driver.
impl Drop for Driver {
    fn drop(&mut self) {
        self.drop_line();
    }
}

impl Up {
    fn moved(&self) -> Moved {
        Moved {
            received: self.reader.received(),
            sent: self.progress.load(Ordering::Relaxed),
            drained: self.outbox.drained(),
        }
    }

    /// Did bytes come, or leave against a resistance, since it was last asked?
    fn has_moved(&mut self) -> bool {
        let now = self.moved();
        let before = std::mem::replace(&mut self.seen, now);
        now.received != before.received
            || (now.sent != before.sent && now.drained == before.drained)
    }
}

impl Line {
    async fn next(&mut self) -> Woken {
        match self {
            Self::None => std::future::pending().await,
            Self::Connecting(attempt) => Woken::Attempt(attempt.await),
            Self::Up(up) => Woken::Frame(up.reader.next().await),
        }
    }

    /// Waits until the connection's terms do not hold any more.
    fn terms_end(&self, guard: &Arc<Guard>) -> impl Future<Output = &'static str> + use<> {
        let terms = match self {
            Self::Up(up) => Some(up.terms.clone()),
            Self::None | Self::Connecting(_) => None,
        };
        let guard = guard.clone();
        async move {
            let Some(terms) = terms else { return std::future::pending().await };
            tokio::select! {
                biased;
                () = rule_changed(&guard, &terms) => "the rule for the connection changed",
                () = until(terms.renew_at) => "its proof ends soon",
            }
        }
    }
}

/// The best of these addresses that answers. It hears nothing more than that somebody is there.
async fn try_out(transport: Arc<dyn Transport>, addresses: Vec<String>) -> Option<String> {
    let reached = reach(&transport, &addresses, REACH_PATIENCE).await;
    reached.ok().map(|(address, _)| address)
}

async fn tried(trial: &mut Option<Trial>) -> Option<String> {
    match trial {
        Some(trial) => trial.await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits for a map with another rule.
async fn rule_changed(guard: &Guard, terms: &Terms) {
    let Some(mut changes) = guard.changes() else { return std::future::pending().await };
    loop {
        if guard.dialing_flavor(terms.role, &terms.address, terms.own) != terms.flavor {
            return;
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn attempt(
    transport: Arc<dyn Transport>,
    guard: Arc<Guard>,
    addresses: Vec<String>,
    after: Duration,
    hello: Hello,
) -> Attempt {
    tokio::time::sleep(after).await;
    let greeting = async {
        let greet = |tickets| greet(&transport, &guard, &addresses, &hello, tickets);
        let is_unproven = |refusal: &Refusal| refusal.kind == ErrorKind::Unauthenticated;
        let mut first = greet(Tickets::Kept).await;
        // Some servers tell only by refusing that they want a proof.
        if let Ok(Attempt::Refused(refusal) | Attempt::Unproven(refusal)) = &first
            && is_unproven(refusal)
            && guard.ask()
        {
            first = greet(Tickets::Kept).await;
        }
        // Our ticket may be of a key that the server has no more, and nothing in it says so.
        if let Ok(Attempt::Refused(refusal) | Attempt::Doubted(refusal)) = &first
            && is_unproven(refusal)
            && let Some(address) = addresses.first().filter(|address| guard.freshens(address))
        {
            tracing::info!(?addresses, %refusal, "refused: trying a fresh ticket");
            let second = greet(Tickets::Fresh).await;
            if !matches!(second, Ok(Attempt::Welcomed(_))) {
                guard.freshened_in_vain(address);
            }
            return match second {
                // That there is none says less than what was wrong with the other.
                Ok(Attempt::Unproven(_)) | Err(_) => first,
                second => second,
            };
        }
        first
    };
    match tokio::time::timeout(CONNECT_PATIENCE, greeting).await {
        Ok(Ok(attempt)) => attempt,
        Ok(Err(failed)) => Attempt::Failed(failed),
        Err(_) => Attempt::Failed(Failed::Late),
    }
}

async fn greet(
    transport: &Arc<dyn Transport>,
    guard: &Guard,
    addresses: &[String],
    hello: &Hello,
    tickets: Tickets,
) -> Result<Attempt, Failed> {
    let reached = reach(transport, addresses, REACH_PATIENCE).await;
    let (address, connection) = reached.map_err(Failed::Connect)?;
    let address = address.as_str();
    let own = tieline_auth::address_of(&connection.local);
    let mut reader = FrameReader::new(connection.reader, Budget::unlimited());
    let mut writer = FrameWriter::new(connection.writer);
    let ends = (address, own, tickets);
    let dialed = handshake::dial(guard, hello, ends, &mut reader, &mut writer).await;
    let dialed = match dialed {
        // Waiting mends nothing here: whoever calls shall hear why.
        Err(error @ HandshakeError::Trouble(_)) => {
            return Ok(Attempt::Unproven(own_refusal(&error)));
        }
        Err(error @ HandshakeError::Heard(_)) => {
            return Ok(Attempt::Doubted(own_refusal(&error)));
        }
        dialed => dialed.map_err(Failed::Handshake)?,
    };
    let Dialed { proven, answer, hello: said, hello_sent } = dialed;
    // Where nothing has to be proven, there is nothing better than what is said.
    let is_doubtful = proven.peer.is_none() && said.flavor > Flavor::Null;
    let refused = if is_doubtful { Attempt::Doubted } else { Attempt::Refused };
    match answer.header.kind {
        FrameKind::Welcome => {
            let welcome: Welcome =
                tieline_wire::decode(&answer.body).map_err(Failed::Unreadable)?;
            if !(hello.version_oldest..=hello.version_newest).contains(&welcome.version) {
                return Err(Failed::Version(welcome.version));
            }
            if let Err(trouble) = handshake::check_flavor(proven.flavor, said.flavor) {
                return Ok(refused(own_refusal(&trouble.into())));
            }
            let flavor = guard.dialing_flavor(said.role, address, own);
            let renew_at = proven.until.map(|until| renewal(hello_sent, until));
            let terms =
                Terms { role: said.role, address: address.to_owned(), own, flavor, renew_at };
            let welcome = Welcome { flavor: proven.flavor, ..welcome };
            let welcomed = Welcomed { welcome, hello_sent, reader, writer, terms };
            Ok(Attempt::Welcomed(Box::new(welcomed)))
        }
        FrameKind::Refused => {
            let refusal: Refusal =
                tieline_wire::decode(&answer.body).map_err(Failed::Unreadable)?;
            Ok(refused(refusal))
        }
        kind => Err(Failed::Unexpected(kind)),
    }
}

/// A proof is made again when nine tenths of it are over.
fn renewal(from: Instant, until: Instant) -> Instant {
    from + until.saturating_duration_since(from).mul_f64(0.9)
}

/// What we refuse ourselves, in the form in which a server would.
fn own_refusal(error: &HandshakeError) -> Refusal {
    Refusal {
        kind: error.kind(),
        detail: error.to_string(),
        version_oldest: VERSION_OLDEST,
        version_newest: VERSION,
    }
}
