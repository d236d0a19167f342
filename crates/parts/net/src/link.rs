//! The client's state machine: events and time in, actions out. No sockets, no clock, no tasks.
//!
//! [`State::handle`] takes an [`Event`] and the time; [`State::next_action`] gives what is to be
//! done, in order; [`State::next_tick`] says when [`Event::Tick`] is wanted. The loop that drives
//! it is [`crate::session`].
//!
//! A connection is made at the first call, or when one is to be expected, and kept from then on. A
//! call gets its number when it is first sent. After a lost connection the unanswered calls are
//! sent again: under their numbers if the server kept the session, else under new ones, and
//! mutations that the old session may have applied end with [`CallError::SessionLost`]. A server
//! that answers so itself has ended the session: it is given up with its connection. A refusal by
//! nobody who proved who he is, though our rule wants that, is no more than an attempt that failed.
//!
//! Invariants: a call completes exactly once; numbers of a session only grow; `answered_below` in
//! an envelope is never above a number that may be sent again; nothing is sent outside a connection
//! that was welcomed.

use crate::frames::{Frame, InBulk, OutFrame};
use crate::kept::{Held, Keeping, Unanswered};
use crate::{CallError, Incoming, Outgoing, Reading, SessionSettings, Standing};
use std::collections::VecDeque;
use std::time::Duration;
use tieline_types::{ErrorKind, RequestNumber, Retry};
use tieline_wire::{
    BodyError, Envelope, Failure, FrameKind, Hello, Notice, NoticeAnswer, Op, Refusal, ServerTime,
    Welcome,
};
use tieline_world::Bulk;
use tokio::time::Instant;

mod backoff;
mod better;
mod calls;
mod nearness;
mod notices;

use backoff::Backoff;
use better::Better;
use calls::Calls;
use nearness::Nearness;

/// A call, for as long as it is under way. Other than its number, it stays when a session is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u64);

/// What happened.
pub enum Event {
    Call(CallId, Box<Outgoing>, Option<Instant>),
    /// Calls are to be expected.
    Warm,
    /// This one of the addresses answered.
    Reached(String),
    /// This better one answered an [`Action::Try`].
    Better(String),
    /// Nobody waits for the call any more.
    Cancelled(CallId),
    /// The connection that was asked for stands, and the server welcomed us. The hello was sent at
    /// the given time.
    Connected(Welcome, Instant),
    Refused(Refusal),
    /// The same, by nobody who proved who he is, though our rule wants it.
    Doubted(Refusal),
    /// We refused ourselves, before the server could.
    Unproven(Refusal),
    /// A frame came on the connection.
    Frame(Frame),
    /// A notice was handled.
    NoticeHandled(RequestNumber, NoticeAnswer),
    /// Bytes moved on the connection, though no frame may be complete.
    Moved,
    /// The connection is gone.
    Lost,
    /// It could not be made, for a reason.
    Failed(String),
    Tick,
    /// The machine slept or its networks changed: the connection may be dead without a word.
    Doubt,
    /// End the session in good order.
    Close,
}

/// What is to be done.
pub enum Action {
    /// Connect to one of these addresses, the best first, after a pause and say hello.
    Connect {
        addresses: Vec<String>,
        after: Duration,
        hello: Hello,
    },
    /// See whether one of these answers, beside the connection, and come back with
    /// [`Event::Better`] if so.
    Try {
        addresses: Vec<String>,
    },
    Send(OutFrame),
    /// Take a request back if it still waits to be sent; else send the cancellation.
    Cancel(RequestNumber),
    Complete(CallId, Result<Incoming, CallError>),
    /// Handle a notice and come back with [`Event::NoticeHandled`].
    Notice(RequestNumber, Notice),
    /// The connection is of no further use. Nothing more is expected from it.
    CloseConnection {
        why: &'static str,
    },
    /// Tell the sink.
    Connected(Welcome),
    Disconnected,
    Renewed(Instant),
    Told(Reading),
    /// A goodbye was sent: let the server close the connection.
    Finish,
}

/// One client's side of one session.
pub struct State {
    settings: SessionSettings,
    hello: Hello,
    phase: Phase,
    backoff: Backoff,
    better: Better,
    standing: Option<Standing>,
    server: String,
    calls: Calls,
    round_trips: u64,
    nearness: Nearness,
    keeping: Option<Keeping>,
    /// What the last attempt to connect failed of.
    trouble: Option<String>,
    /// Why we could not prove ourselves then, if it was that.
    unproven: Option<Refusal>,
    /// The server said that it will be away until then.
    held_until: Option<Instant>,
    actions: VecDeque<Action>,
}

enum Phase {
    /// Nobody called yet, or the server does not want us.
    Idle,
    Connecting,
    Up(Up),
    Closed,
}

/// A connection that stands.
struct Up {
    sent: Instant,
    heard: Instant,
    ping: Option<Ping>,
    ping_number: u64,
    /// When the server was last asked what time it is there, if it has not said.
    asks_time: Option<Instant>,
    asked_time: Instant,
    notices: usize,
}

struct Ping {
    number: RequestNumber,
    sent: Instant,
    /// There is reason to think that nobody answers.
    is_doubt: bool,
}

/// The ping that only asks for the time: nothing is made of its absence.
const TIME: RequestNumber = RequestNumber(0);
/// Clocks run apart by some milliseconds in this time. Who is idle pings more often anyway.
const TIME_EVERY: Duration = Duration::from_secs(30);
/// Calls wait so much longer than was announced: connecting takes its time.
const HOLD_GRACE: Duration = Duration::from_secs(60);

impl State {
    /// `addresses` are tried in turn; `seed` decides the jitter of pauses.
    pub fn new(settings: SessionSettings, addresses: Vec<String>, hello: Hello, seed: u64) -> Self {
        Self {
            server: addresses.join(" or "),
            backoff: Backoff::new(&settings, addresses, seed),
            better: Better::default(),
            settings,
            hello,
            phase: Phase::Idle,
            standing: None,
            calls: Calls::new(),
            round_trips: 0,
            nearness: Nearness::default(),
            keeping: None,
            trouble: None,
            unproven: None,
            held_until: None,
            actions: VecDeque::new(),
        }
    }

    /// Requests outlive this process from now on.
    pub fn keep(&mut self, keeping: Keeping) {
        self.calls.start_at(keeping.first);
        self.keeping = Some(keeping);
    }

    /// A request that an earlier process left: it is sent again under its number.
    pub fn restore(&mut self, id: CallId, left: Unanswered) {
        let Unanswered { number, caller, request, note, kept, .. } = left;
        let held = Held::new(kept, number, self.calls.in_use());
        let outgoing = Outgoing { caller, request, bulk: Bulk::Empty, patience: None, note };
        self.calls.restore(id, outgoing, number, held);
        if matches!(self.phase, Phase::Idle) {
            self.connect();
        }
    }

    pub fn handle(&mut self, event: Event, now: Instant) {
        self.held_until = self.held_until.filter(|&until| now < until);
        match event {
            Event::Call(id, outgoing, deadline) => self.call(id, *outgoing, deadline, now),
            Event::Cancelled(id) => self.forget(id),
            Event::Warm => {
                if matches!(self.phase, Phase::Idle) {
                    self.connect();
                }
            }
            Event::Reached(address) => self.backoff.prefer(&address),
            Event::Better(address) => self.better_answers(&address),
            Event::Connected(welcome, sent) => self.connected(welcome, sent, now),
            Event::Refused(refusal) => self.refused(refusal),
            Event::Doubted(refusal) => self.doubted(refusal),
            Event::Unproven(refusal) => self.unproven(refusal),
            Event::Frame(frame) => self.frame(frame, now),
            Event::NoticeHandled(number, answer) => self.notice_handled(number, &answer, now),
            Event::Moved => self.moved(now),
            Event::Lost => self.lost(),
            Event::Failed(why) => {
                (self.trouble, self.unproven) = (Some(why), None);
                self.lost();
            }
            Event::Tick => self.tick(now),
            Event::Doubt => self.doubt(now),
            Event::Close => self.close(),
        }
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When something is due without anything happening.
    pub fn next_tick(&self) -> Option<Instant> {
        let life = match &self.phase {
            Phase::Up(up) => self.better.try_at.into_iter().chain([up.due(&self.settings)]).min(),
            Phase::Idle | Phase::Connecting | Phase::Closed => None,
        };
        self.calls.deadline().into_iter().chain(life).min()
    }

    pub fn standing(&self) -> Option<Standing> {
        self.standing
    }

    pub fn round_trips(&self) -> u64 {
        self.round_trips
    }

    /// The shortest time in which the server answered lately.
    pub fn round_trip(&self) -> Option<Duration> {
        self.nearness.round_trip()
    }

    /// The server in messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    fn call(&mut self, id: CallId, outgoing: Outgoing, deadline: Option<Instant>, now: Instant) {
        if matches!(self.phase, Phase::Closed) {
            let server = self.server.clone();
            self.actions.push_back(Action::Complete(id, Err(CallError::Closed { server })));
            return;
        }
        self.calls.add(id, outgoing, deadline);
        if let Some(until) = self.held_until {
            self.calls.extend(until + HOLD_GRACE);
        }
        match self.phase {
            Phase::Up(_) => self.send(id, now),
            Phase::Idle => self.connect(),
            Phase::Connecting | Phase::Closed => {}
        }
    }

    fn connect(&mut self) {
        let (addresses, after) = match self.held_until {
            None => self.backoff.next(),
            Some(_) => self.backoff.next_unhurried(),
        };
        self.phase = Phase::Connecting;
        self.actions.push_back(Action::Connect { addresses, after, hello: self.hello.clone() });
    }

    fn connected(&mut self, welcome: Welcome, hello_sent: Instant, now: Instant) {
        let is_same = self.hello.session == Some(welcome.session);
        if !(welcome.is_resumed && is_same) {
            // The server knows nothing of what was sent: what it may have applied cannot be
            // repeated.
            for id in self.calls.renumber() {
                let server = self.server.clone();
                self.complete(id, Err(CallError::SessionLost { server }));
            }
        }
        self.backoff.succeeded();
        (self.trouble, self.unproven, self.held_until) = (None, None, None);
        self.nearness.forget();
        self.nearness.learn(now.saturating_duration_since(hello_sent), now);
        self.hello.session = Some(welcome.session);
        self.server = format!("{} at {}", welcome.server, self.backoff.address());
        self.standing = Some(Standing {
            session: welcome.session,
            grant: welcome.grant,
            boot: welcome.boot,
            lease: Duration::from_millis(welcome.lease_ms.into()),
            holder: welcome.holder,
            is_connected: true,
        });
        self.better_connected(now);
        self.phase = Phase::Up(Up {
            sent: now,
            heard: now,
            ping: None,
            ping_number: 0,
            asks_time: None,
            asked_time: now,
            notices: 0,
        });
        self.actions.push_back(Action::Connected(welcome));
        self.actions.push_back(Action::Renewed(hello_sent));
        // Before any call: what is done after an answer is stamped by the server's clock.
        self.ask_time(now);
        for id in self.calls.to_send() {
            self.send(id, now);
        }
    }

    /// Sends a call on the connection that stands.
    fn send(&mut self, id: CallId, now: Instant) {
        let Phase::Up(up) = &mut self.phase else { return };
        let Some(number) = self.calls.number(id) else { return };
        let answered_below = self.calls.answered_below();
        let in_use = self.calls.in_use().clone();
        let Some(pending) = self.calls.pending(id) else { return };
        let envelope = Envelope { caller: pending.outgoing.caller.clone(), answered_below };
        let op = pending.outgoing.request.op();
        let body = pending.outgoing.request.encode(&envelope);
        if let Some(keeping) = self.keeping.as_ref().filter(|_| op.is_mutation())
            && pending.held.is_none()
        {
            let kept = keeping.put(number, op.number(), &pending.outgoing.note, &body);
            pending.held = kept.map(|kept| Held::new(kept, number, &in_use));
        }
        let bulk = pending.outgoing.bulk.clone();
        let frame = OutFrame::new(FrameKind::Request, number, body, bulk).with(|header| {
            header.op = op.number();
            header.deadline_ms = pending.deadline.map_or(0, |deadline| millis_until(deadline, now));
        });
        if frame.is_sendable() {
            pending.sent = Some(now);
            up.sent = now;
            self.actions.push_back(Action::Send(frame));
        } else {
            let failure = Failure::new(ErrorKind::InvalidArgument, "request exceeds a frame");
            self.complete(id, Err(CallError::Refused(failure)));
        }
    }

    fn complete(&mut self, id: CallId, result: Result<Incoming, CallError>) {
        if self.calls.remove(id).is_some() {
            self.actions.push_back(Action::Complete(id, result));
        }
    }

    fn complete_all(&mut self, error: impl Fn(String) -> CallError) {
        for id in self.calls.all() {
            self.complete(id, Err(error(self.server.clone())));
        }
    }

    /// Nobody waits any more. The server is told if it may be at work on it.
    fn forget(&mut self, id: CallId) {
        let Some(pending) = self.calls.remove(id) else { return };
        let Some(number) = pending.number else { return };
        if matches!(self.phase, Phase::Up(_)) {
            self.actions.push_back(Action::Cancel(number));
        }
    }

    fn refused(&mut self, refusal: Refusal) {
        if refusal.kind == ErrorKind::SessionLost {
            self.hello.session = None;
        }
        (self.trouble, self.unproven) = (Some(refusal.to_string()), None);
        let told = refusal.clone();
        self.judge(&refusal, |server| CallError::Handshake { server, source: told.clone() });
    }

    /// Whoever waits hears of it at the end, rather than that the server is silent.
    fn unproven(&mut self, refusal: Refusal) {
        self.unproven = Some(refusal.clone());
        let told = refusal.clone();
        self.judge(&refusal, |server| CallError::Unproven { server, source: told.clone() });
    }

    fn judge(&mut self, refusal: &Refusal, error: impl Fn(String) -> CallError) {
        match refusal.kind.retry() {
            Retry::SameRequest | Retry::AfterReconnect => self.connect_again(),
            Retry::Never => {
                self.complete_all(error);
                // The next call tries again, after a pause that grows.
                self.phase = Phase::Idle;
            }
        }
    }

    /// Whoever is on the way may have said it. It may as well be the server, to whom our proof
    /// means nothing, and whoever begins shall hear why at once; a session that stands and what
    /// waits in it are not given up by the word of anybody.
    fn doubted(&mut self, refusal: Refusal) {
        if self.hello.session.is_none() {
            return self.refused(refusal);
        }
        (self.trouble, self.unproven) = (Some(refusal.to_string()), None);
        self.connect_again();
    }

    fn connect_again(&mut self) {
        if !matches!(self.phase, Phase::Closed) {
            self.connect();
        }
    }

    fn frame(&mut self, frame: Frame, now: Instant) {
        let Phase::Up(up) = &mut self.phase else { return };
        up.heard = now;
        match frame.header.kind {
            FrameKind::Reply => self.reply(frame, now),
            FrameKind::Pong => {
                let number = frame.header.number;
                let answered = up.ping.take_if(|ping| ping.number == number);
                let asked = up.asks_time.take_if(|_| number == TIME);
                let asked = asked.or_else(|| answered.as_ref().map(|ping| ping.sent));
                // From a server without a clock for files, or of an earlier version, it is empty.
                if let Some(asked) = asked
                    && let Ok(ServerTime { now: told }) = tieline_wire::decode(&frame.body)
                {
                    up.asked_time = asked;
                    self.actions.push_back(Action::Told(Reading { asked, heard: now, told }));
                }
                if let Some(ping) = answered {
                    self.nearness.learn(now.saturating_duration_since(ping.sent), now);
                    self.actions.push_back(Action::Renewed(ping.sent));
                }
            }
            FrameKind::Ping => {
                up.sent = now;
                let pong = OutFrame::bare(FrameKind::Pong, frame.header.number);
                self.actions.push_back(Action::Send(pong));
            }
            FrameKind::Notice => self.notice(&frame, now),
            FrameKind::Hello
            | FrameKind::Welcome
            | FrameKind::Refused
            | FrameKind::Request
            | FrameKind::NoticeAnswer
            | FrameKind::Cancel
            | FrameKind::Goodbye
            | FrameKind::Token => self.give_up("server sent a frame that only clients send"),
        }
    }

    fn reply(&mut self, frame: Frame, now: Instant) {
        // An answer to what was cancelled meanwhile is of no use to anybody.
        let Some((id, pending)) = self.calls.numbered(frame.header.number) else { return };
        let (op, sent) = (pending.outgoing.request.op(), pending.sent);
        self.round_trips += 1;
        if let Phase::Up(up) = &self.phase
            && now.saturating_duration_since(up.asked_time) >= TIME_EVERY
        {
            self.ask_time(now);
        }
        let mut result = if frame.header.op == op.number() {
            self.outcome(op, frame)
        } else {
            Err(self.unreadable(op, BodyError::UnknownCall(frame.header.op)))
        };
        let is_over = matches!(&result, Err(error) if error.kind() == ErrorKind::SessionLost);
        if let Some(sent) = sent {
            self.nearness.learn(now.saturating_duration_since(sent), now);
            if !is_over {
                self.actions.push_back(Action::Renewed(sent));
            }
        }
        if let (Ok(incoming), Some(pending)) = (&mut result, self.calls.pending(id)) {
            incoming.held = pending.held.take();
        }
        self.complete(id, result);
        if is_over {
            // No request of it will be answered any more: the next connection begins another one.
            self.hello.session = None;
            self.give_up("session is over");
        }
    }

    fn outcome(&self, op: Op, frame: Frame) -> Result<Incoming, CallError> {
        if frame.header.is_failure() {
            return Err(match tieline_wire::decode::<Failure>(&frame.body) {
                Ok(failure) => CallError::Refused(failure),
                Err(source) => self.unreadable(op, source),
            });
        }
        let bulk = match frame.bulk {
            InBulk::Here(bulk, _) => bulk,
            InBulk::Skipped => bytes::Bytes::new(),
        };
        Ok(Incoming { op, body: frame.body, bulk, held: None })
    }

    fn unreadable(&self, op: Op, source: BodyError) -> CallError {
        CallError::Body { server: self.server.clone(), op, source }
    }

    fn moved(&mut self, now: Instant) {
        if let Phase::Up(up) = &mut self.phase {
            up.heard = now;
        }
    }

    /// Closes the connection from our side.
    fn give_up(&mut self, why: &'static str) {
        self.actions.push_back(Action::CloseConnection { why });
        self.lost();
    }

    fn lost(&mut self) {
        match self.phase {
            Phase::Up(_) => {
                if let Some(standing) = &mut self.standing {
                    standing.is_connected = false;
                }
                self.actions.push_back(Action::Disconnected);
                self.connect();
            }
            Phase::Connecting => self.connect(),
            Phase::Idle | Phase::Closed => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        for id in self.calls.late(now) {
            let patience = self.calls.pending(id).and_then(|pending| pending.outgoing.patience);
            self.forget(id);
            let server = self.server.clone();
            let (patience, why) = (patience.unwrap_or_default(), self.trouble.clone());
            let error = match self.unproven.clone() {
                Some(source) => CallError::Unproven { server, source },
                None => CallError::Timeout { server, patience, why },
            };
            self.actions.push_back(Action::Complete(id, Err(error)));
        }
        if self.better.try_at.is_some_and(|at| at <= now) {
            self.better_try(now);
        }
        let Phase::Up(up) = &mut self.phase else { return };
        if up.due(&self.settings) > now {
            return;
        }
        if up.ping.is_some() {
            return self.give_up("server is silent");
        }
        self.ping(now, false);
    }

    fn ping(&mut self, now: Instant, is_doubt: bool) {
        let Phase::Up(up) = &mut self.phase else { return };
        up.ping_number += 1;
        let number = RequestNumber(up.ping_number);
        up.ping = Some(Ping { number, sent: now, is_doubt });
        up.sent = now;
        self.actions.push_back(Action::Send(OutFrame::bare(FrameKind::Ping, number)));
    }

    /// Asks what time it is there.
    fn ask_time(&mut self, now: Instant) {
        let Phase::Up(up) = &mut self.phase else { return };
        if up.asks_time.is_some() {
            // One answer would be taken for the other's.
            return;
        }
        (up.asks_time, up.asked_time) = (Some(now), now);
        self.actions.push_back(Action::Send(OutFrame::bare(FrameKind::Ping, TIME)));
    }

    /// Asks at once whether the server still hears us, and dials anew if it does not answer soon.
    /// An attempt that is under way may be on a way that is gone: it begins again.
    fn doubt(&mut self, now: Instant) {
        match &self.phase {
            Phase::Up(up) if up.ping.as_ref().is_some_and(|ping| ping.is_doubt) => {}
            Phase::Up(_) => {
                self.ping(now, true);
                self.better_try(now);
            }
            Phase::Connecting => {
                self.backoff.hurry();
                self.connect();
            }
            Phase::Idle | Phase::Closed => {}
        }
    }

    fn close(&mut self) {
        self.complete_all(|server| CallError::Closed { server });
        if matches!(self.phase, Phase::Up(_)) {
            let goodbye = OutFrame::bare(FrameKind::Goodbye, RequestNumber(0));
            self.actions.push_back(Action::Send(goodbye));
        }
        if let Some(standing) = &mut self.standing {
            standing.is_connected = false;
        }
        self.phase = Phase::Closed;
        self.actions.push_back(Action::Finish);
    }
}

impl Up {
    /// When to ping, or, while a ping is unanswered, when to give up.
    fn due(&self, settings: &SessionSettings) -> Instant {
        match &self.ping {
            Some(ping) if ping.is_doubt && self.heard <= ping.sent => {
                ping.sent + settings.doubt_max
            }
            Some(ping) => ping.sent.max(self.heard) + settings.silence_max,
            // Also when we send and send and hear nothing.
            None => self.sent.min(self.heard) + settings.ping_every,
        }
    }
}

/// At least 1, since 0 says that there is no deadline.
fn millis_until(deadline: Instant, now: Instant) -> u32 {
    let left = deadline.saturating_duration_since(now).as_millis();
    u32::try_from(left).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests;
