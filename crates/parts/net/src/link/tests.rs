//! Scripted events, expected actions. No sockets, and time is a number.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tieline_types::{Caller, FileId, Grant, SessionId, Time, Version};
use tieline_wire::{CredentialKind, Flavor, PeerRole, Request, meta};

struct Script {
    state: State,
    now: Instant,
    calls: u64,
}

impl Script {
    fn new() -> Self {
        Self::with_addresses(&["a:1"])
    }

    fn with_addresses(addresses: &[&str]) -> Self {
        let hello = Hello {
            version_oldest: 1,
            version_newest: 1,
            role: PeerRole::Client,
            client: tieline_types::ClientId([1; 16]),
            session: None,
            fs: "extenci".parse().unwrap(),
            credential: CredentialKind::None,
            flavor: Flavor::Null,
            features: 0,
            description: String::new(),
            map: Version(0),
            wait_ms: None,
        };
        let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
        let state = State::new(SessionSettings::default(), addresses, hello, 3);
        Self { state, now: Instant::now(), calls: 0 }
    }

    /// A script whose first call made it connect to session 1.
    fn connected() -> Self {
        let mut script = Self::new();
        script.call(read(1));
        script.welcome(1, false);
        script
    }

    fn handle(&mut self, event: Event) -> Vec<String> {
        self.state.handle(event, self.now);
        let actions = std::iter::from_fn(|| self.state.next_action());
        // Each connection begins so: a test of its own looks at it.
        actions.map(|action| tell(&action)).filter(|told| told != "send Ping 0").collect()
    }

    fn call(&mut self, request: impl Into<Request>) -> Vec<String> {
        self.call_within(request, None)
    }

    fn call_within(
        &mut self,
        request: impl Into<Request>,
        patience: Option<Duration>,
    ) -> Vec<String> {
        self.calls += 1;
        let request = request.into();
        let outgoing =
            Outgoing { caller: Caller::root(), request, bulk: Bulk::Empty, patience, note: vec![] };
        let deadline = patience.map(|patience| self.now + patience);
        self.handle(Event::Call(CallId(self.calls), Box::new(outgoing), deadline))
    }

    fn welcome(&mut self, session: u64, is_resumed: bool) -> Vec<String> {
        self.handle(Event::Connected(welcome_to(session, is_resumed), self.now))
    }

    fn reply(&mut self, number: u64, op: Op) -> Vec<String> {
        self.frame(FrameKind::Reply, number, |header| header.op = op.number(), b"")
    }

    fn frame(
        &mut self,
        kind: FrameKind,
        number: u64,
        set: impl FnOnce(&mut tieline_wire::FrameHeader),
        body: &'static [u8],
    ) -> Vec<String> {
        let mut header = tieline_wire::FrameHeader::new(kind);
        header.number = RequestNumber(number);
        set(&mut header);
        let bulk = InBulk::Here(Bytes::new(), crate::frames::Held::default());
        self.handle(Event::Frame(Frame {
            header,
            body: Bytes::from_static(body),
            bulk,
            room: Default::default(),
        }))
    }

    fn wait(&mut self, seconds: u64) -> Vec<String> {
        self.now += Duration::from_secs(seconds);
        self.handle(Event::Tick)
    }
}

fn welcome_to(session: u64, is_resumed: bool) -> Welcome {
    Welcome {
        version: 1,
        session: SessionId(session),
        is_resumed,
        grant: Grant(1),
        boot: 1,
        lease_ms: 20_000,
        flavor: Flavor::Null,
        features: 0,
        server: "mds".to_owned(),
        map: Version(0),
        holder: None,
        lost_locks: None,
    }
}

fn read(id: u64) -> meta::GetAttributes {
    meta::GetAttributes { id: FileId(id) }
}

fn mutation() -> meta::Release {
    meta::Release { id: FileId(9) }
}

fn tell(action: &Action) -> String {
    match action {
        Action::Connect { addresses, after, hello } => {
            let address = addresses.first().unwrap();
            let session = hello.session.map_or(0, |session| session.0);
            assert!(*after <= Duration::from_secs(5));
            format!("connect {address} for {session}")
        }
        Action::Try { addresses } => format!("try {}", addresses.join(" ")),
        Action::Send(frame) => {
            let (header, number) = (frame.header(), frame.header().number);
            if header.kind != FrameKind::Request {
                return format!("send {:?} {number}", header.kind);
            }
            let (envelope, request) = Request::decode(header.op, frame.body()).unwrap();
            format!("send {number} {:?} below {}", request.op(), envelope.answered_below)
        }
        Action::Cancel(number) => format!("cancel {number}"),
        Action::Complete(id, result) => {
            format!("complete {}: {}", id.0, result.as_ref().map_or_else(how, |_| "ok".to_owned()))
        }
        Action::Notice(number, _) => format!("notice {number}"),
        Action::CloseConnection { why } => format!("close: {why}"),
        Action::Connected(welcome) => format!("connected {}", welcome.session),
        Action::Disconnected => "disconnected".to_owned(),
        Action::Renewed(_) => "renewed".to_owned(),
        Action::Told(reading) => format!("told {}", reading.told.seconds),
        Action::Finish => "finish".to_owned(),
    }
}

fn how(error: &CallError) -> String {
    format!("{:?}", error.kind())
}

#[test]
fn the_first_call_connects_and_is_sent_when_welcomed() {
    let mut script = Script::new();
    assert_eq!(script.call(read(1)), ["connect a:1 for 0"]);
    assert_eq!(script.call(read(2)), [""; 0]);
    assert_eq!(
        script.welcome(1, false),
        ["connected 1", "renewed", "send 1 GetAttributes below 1", "send 2 GetAttributes below 1"]
    );
    assert!(script.state.standing().unwrap().is_connected);
    assert_eq!(script.state.server(), "mds at a:1");
}

#[test]
fn replies_come_in_any_order_and_move_answered_below() {
    let mut script = Script::connected();
    script.call(read(2));
    assert_eq!(script.reply(2, Op::GetAttributes), ["renewed", "complete 2: ok"]);
    assert_eq!(script.call(read(3)), ["send 3 GetAttributes below 1"]);
    assert_eq!(script.reply(1, Op::GetAttributes), ["renewed", "complete 1: ok"]);
    assert_eq!(script.call(read(4)), ["send 4 GetAttributes below 3"]);
    assert_eq!(script.reply(1, Op::GetAttributes), [""; 0], "twice the same answer");
    assert_eq!(script.reply(3, Op::Unlink), ["renewed", "complete 3: Protocol"]);
    assert_eq!(script.state.round_trips(), 3);
}

#[test]
fn a_failure_is_the_calls_own() {
    let mut script = Script::connected();
    let failed = |header: &mut tieline_wire::FrameHeader| {
        header.op = Op::GetAttributes.number();
        header.flags = tieline_wire::FrameHeader::FLAG_FAILED;
    };
    let failure = Failure::new(ErrorKind::Stale, "gone");
    let body: &'static [u8] = tieline_wire::encode(&failure).leak();
    assert_eq!(script.frame(FrameKind::Reply, 1, failed, body), ["renewed", "complete 1: Stale"]);
}

#[test]
fn a_resumed_session_gets_the_unanswered_again_under_their_numbers() {
    let mut script = Script::connected();
    script.call(mutation());
    script.call(read(3));
    script.reply(1, Op::GetAttributes);
    assert_eq!(script.handle(Event::Lost), ["disconnected", "connect a:1 for 1"]);
    assert!(!script.state.standing().unwrap().is_connected);
    assert_eq!(script.call(read(4)), [""; 0]);
    assert_eq!(
        script.welcome(1, true),
        [
            "connected 1",
            "renewed",
            "send 2 Release below 2",
            "send 3 GetAttributes below 2",
            "send 4 GetAttributes below 2"
        ]
    );
    assert_eq!(script.reply(2, Op::Release), ["renewed", "complete 2: ok"]);
}

#[test]
fn a_lost_session_ends_sent_mutations_and_renumbers_the_rest() {
    let mut script = Script::connected();
    script.call(mutation());
    script.call(read(3));
    script.handle(Event::Lost);
    // Not sent in the old session: nothing of it can have been applied.
    script.call(mutation());
    assert_eq!(
        script.welcome(2, false),
        [
            "complete 2: SessionLost",
            "connected 2",
            "renewed",
            "send 1 GetAttributes below 1",
            "send 2 GetAttributes below 1",
            "send 3 Release below 1"
        ]
    );
    assert_eq!(script.reply(2, Op::GetAttributes), ["renewed", "complete 3: ok"]);
    // Another session than ours is not ours, whatever the welcome says of it.
    script.handle(Event::Lost);
    assert_eq!(script.welcome(5, true)[0], "complete 4: SessionLost");
}

#[test]
fn an_answer_that_the_session_is_over_begins_another() {
    let mut script = Script::connected();
    script.call(mutation());
    script.call(read(3));
    let failed = |header: &mut tieline_wire::FrameHeader| {
        header.op = Op::GetAttributes.number();
        header.flags = tieline_wire::FrameHeader::FLAG_FAILED;
    };
    let failure = Failure::new(ErrorKind::SessionLost, "barred");
    let body: &'static [u8] = tieline_wire::encode(&failure).leak();
    // It renews nothing.
    assert_eq!(
        script.frame(FrameKind::Reply, 1, failed, body),
        ["complete 1: SessionLost", "close: session is over", "disconnected", "connect a:1 for 0"]
    );
    assert_eq!(
        script.welcome(2, false),
        ["complete 2: SessionLost", "connected 2", "renewed", "send 1 GetAttributes below 1"]
    );
}

#[test]
fn a_cancelled_call_is_forgotten_and_the_server_told() {
    let mut script = Script::connected();
    assert_eq!(script.handle(Event::Cancelled(CallId(1))), ["cancel 1"]);
    assert_eq!(script.reply(1, Op::GetAttributes), [""; 0]);
    assert_eq!(script.call(read(2)), ["send 2 GetAttributes below 2"]);
    script.handle(Event::Lost);
    // While there is no connection nobody is told, and it is not sent again.
    assert_eq!(script.handle(Event::Cancelled(CallId(2))), [""; 0]);
    assert_eq!(script.welcome(1, true), ["connected 1", "renewed"]);
}

#[test]
fn patience_ends_with_or_without_a_connection() {
    let second = Some(Duration::from_secs(1));
    let mut script = Script::new();
    script.call_within(read(1), second);
    assert_eq!(script.state.next_tick(), Some(script.now + Duration::from_secs(1)));
    assert_eq!(script.wait(1), ["complete 1: Timeout"]);
    script.welcome(1, false);
    script.call_within(read(2), second);
    assert_eq!(script.wait(1), ["cancel 1", "complete 2: Timeout"]);
}

#[test]
fn silence_is_asked_for_and_then_ends_the_connection() {
    let mut script = Script::connected();
    script.reply(1, Op::GetAttributes);
    assert_eq!(script.wait(4), [""; 0]);
    assert_eq!(script.wait(1), ["send Ping 1"]);
    assert_eq!(script.frame(FrameKind::Pong, 1, |_| {}, b""), ["renewed"]);
    assert_eq!(script.wait(5), ["send Ping 2"]);
    // Bytes that move are a sign of life, also without a whole frame.
    script.now += Duration::from_secs(5);
    script.handle(Event::Moved);
    assert_eq!(script.wait(7), [""; 0]);
    assert_eq!(script.wait(1), ["close: server is silent", "disconnected", "connect a:1 for 1"]);
}

#[test]
fn a_server_is_asked_what_time_it_is_there_and_again_while_there_is_work() {
    let mut script = Script::new();
    let sent_by = |script: &mut Script, event| {
        script.state.handle(event, script.now);
        let actions = std::iter::from_fn(|| script.state.next_action());
        actions.map(|action| tell(&action)).filter(|line| line.contains("Ping 0")).count()
    };
    script.call(read(1));
    let welcomed = Event::Connected(welcome_to(1, false), script.now);
    assert_eq!(sent_by(&mut script, welcomed), 1);
    let told = |seconds| ServerTime { now: Time { seconds, nanos: 0 } };
    let body = |seconds| -> &'static [u8] { tieline_wire::encode(&told(seconds)).leak() };
    assert_eq!(script.frame(FrameKind::Pong, 0, |_| {}, body(77)), ["told 77"]);
    // Nobody asked.
    assert_eq!(script.frame(FrameKind::Pong, 0, |_| {}, body(78)), [""; 0]);
    // A ping that asks for a sign of life is told, too.
    script.reply(1, Op::GetAttributes);
    assert_eq!(script.wait(5), ["send Ping 1"]);
    assert_eq!(script.frame(FrameKind::Pong, 1, |_| {}, body(82)), ["told 82", "renewed"]);
    let mut asked = 0;
    for second in 1..=62 {
        script.call(read(second));
        script.now += Duration::from_secs(1);
        let mut header = tieline_wire::FrameHeader::new(FrameKind::Reply);
        (header.number, header.op) = (RequestNumber(1 + second), Op::GetAttributes.number());
        let bulk = InBulk::Here(Bytes::new(), crate::frames::Held::default());
        let reply = Frame { header, body: Bytes::new(), bulk, room: Default::default() };
        asked += sent_by(&mut script, Event::Frame(reply));
        // The second time it does not say, as servers of earlier versions do not.
        script.frame(FrameKind::Pong, 0, |_| {}, if asked < 2 { body(82) } else { b"" });
    }
    assert_eq!(asked, 2);
}

#[test]
fn after_a_sleep_a_dead_connection_is_found_at_once() {
    let mut script = Script::connected();
    script.reply(1, Op::GetAttributes);
    assert_eq!(script.handle(Event::Doubt), ["send Ping 1"]);
    // Doubts come in swarms.
    assert_eq!(script.handle(Event::Doubt), [""; 0]);
    assert_eq!(script.wait(1), ["close: server is silent", "disconnected", "connect a:1 for 1"]);
    // The way that is tried may be the one that is gone.
    assert_eq!(script.handle(Event::Doubt), ["connect a:1 for 1"]);
    script.welcome(1, true);
    assert_eq!(script.handle(Event::Doubt), ["send Ping 1"]);
    assert_eq!(script.frame(FrameKind::Pong, 1, |_| {}, b""), ["renewed"]);
    assert_eq!(script.wait(4), [""; 0]);
}

#[test]
fn a_server_that_announced_its_absence_is_waited_for() {
    let mut script = Script::connected();
    let patience = Some(Duration::from_secs(3));
    script.call_within(read(2), patience);
    let body: &'static [u8] = tieline_wire::encode(&Notice::Hold(60_000)).leak();
    assert_eq!(script.frame(FrameKind::Notice, 8, |_| {}, body), ["notice 8"]);
    script.handle(Event::Lost);
    script.call_within(read(3), patience);
    assert_eq!(script.wait(100), [""; 0]);
    let welcomed = script.welcome(1, true);
    assert!(welcomed.iter().any(|line| line.starts_with("send 2")), "{welcomed:?}");
}

#[test]
fn an_announced_absence_can_be_taken_back() {
    let mut script = Script::connected();
    for millis in [60_000, 0] {
        let body: &'static [u8] = tieline_wire::encode(&Notice::Hold(millis)).leak();
        script.frame(FrameKind::Notice, millis + 1, |_| {}, body);
    }
    script.handle(Event::Lost);
    script.call_within(read(2), Some(Duration::from_secs(3)));
    assert!(script.wait(5).iter().any(|line| line.ends_with("Timeout")));
}

#[test]
fn a_better_address_is_used_again_when_it_answers() {
    let mut script = Script::with_addresses(&["a:1", "b:1"]);
    script.call(read(1));
    script.handle(Event::Reached("b:1".to_owned()));
    script.welcome(1, false);
    let tries = |script: &mut Script, seconds| {
        let mut told = Vec::new();
        for number in 1..=seconds {
            told.extend(script.wait(1).into_iter().filter(|line| line.starts_with("try")));
            script.frame(FrameKind::Pong, number, |_| {}, b"");
            script.handle(Event::Moved);
        }
        told
    };
    assert_eq!(tries(&mut script, 29), [""; 0]);
    assert_eq!(tries(&mut script, 31), ["try a:1", "try a:1"]);
    // Another network: at once.
    assert!(script.handle(Event::Doubt).contains(&"try a:1".to_owned()));
    let moved = script.handle(Event::Better("a:1".to_owned()));
    let words = ["close: a better address answers again", "disconnected", "connect a:1 for 1"];
    assert_eq!(moved, words);
    assert_eq!(script.handle(Event::Better("a:1".to_owned())), [""; 0]);
    // It answers, but not to us: then not so soon again.
    script.handle(Event::Reached("b:1".to_owned()));
    let sent = script.welcome(1, true);
    assert!(sent.contains(&"send 1 GetAttributes below 1".to_owned()), "{sent:?}");
    assert_eq!(tries(&mut script, 59), [""; 0]);
    assert_eq!(tries(&mut script, 1), ["try a:1"]);
}

#[test]
fn a_server_that_only_listens_is_found_out_while_we_talk() {
    let mut script = Script::connected();
    let mut told = Vec::new();
    for id in 2..40 {
        told.extend(script.call(read(id)));
        told.extend(script.wait(1));
    }
    assert!(told.iter().any(|line| line == "send Ping 1"));
    assert!(told.iter().any(|line| line == "close: server is silent"));
}

#[test]
fn a_refusal_for_now_is_tried_again_and_one_for_good_ends_all_calls() {
    let refusal = |kind| {
        Event::Refused(Refusal {
            kind,
            detail: String::new(),
            version_oldest: 1,
            version_newest: 1,
        })
    };
    let mut script = Script::with_addresses(&["a:1", "b:1"]);
    script.call(read(1));
    assert_eq!(script.handle(refusal(ErrorKind::WrongServer)), ["connect b:1 for 0"]);
    assert_eq!(script.handle(refusal(ErrorKind::Overloaded)), ["connect a:1 for 0"]);
    assert_eq!(script.handle(refusal(ErrorKind::VersionMismatch)), ["complete 1: VersionMismatch"]);
    assert_eq!(script.call(read(2)), ["connect b:1 for 0"], "the next call tries again");
}

#[test]
fn a_refusal_that_anybody_may_have_made_counts_only_before_there_is_a_session() {
    let doubted = |kind| {
        let detail = "made up".to_owned();
        Event::Doubted(Refusal { kind, detail, version_oldest: 1, version_newest: 1 })
    };
    let mut script = Script::connected();
    script.handle(Event::Lost);
    for kind in [ErrorKind::SessionLost, ErrorKind::Unauthenticated, ErrorKind::VersionMismatch] {
        assert_eq!(script.handle(doubted(kind)), ["connect a:1 for 1"]);
    }
    script.call_within(read(2), Some(Duration::from_secs(1)));
    assert_eq!(script.wait(1), ["complete 2: Timeout"]);
    assert!(script.state.trouble.as_ref().is_some_and(|why| why.contains("made up")));
    let mut newcomer = Script::new();
    newcomer.call(read(1));
    let told = newcomer.handle(doubted(ErrorKind::Unauthenticated));
    assert_eq!(told, ["complete 1: Unauthenticated"]);
}

#[test]
fn who_waits_for_a_kdc_hears_of_it_and_not_of_the_server() {
    let detail = "no KDC answers: look at `kdc =`".to_owned();
    let kind = ErrorKind::Timeout;
    let away = || Refusal { kind, detail: detail.clone(), version_oldest: 1, version_newest: 1 };
    let mut script = Script::new();
    script.call_within(read(1), Some(Duration::from_secs(1)));
    assert_eq!(script.handle(Event::Unproven(away())), ["connect a:1 for 0"]);
    script.state.handle(Event::Tick, script.now + Duration::from_secs(1));
    let told = script.state.next_action();
    let Some(Action::Complete(_, Err(error))) = told else { panic!("it was not answered") };
    assert!(matches!(&error, CallError::Unproven { source, .. } if source.detail == detail));
    assert_eq!(error.kind(), kind);
    // Of what came later it says nothing.
    script.call_within(read(2), Some(Duration::from_secs(1)));
    script.handle(Event::Failed("cannot connect".to_owned()));
    script.state.handle(Event::Tick, script.now + Duration::from_secs(1));
    let told = script.state.next_action();
    assert!(matches!(told, Some(Action::Complete(_, Err(CallError::Timeout { .. })))));
}

#[test]
fn addresses_take_turns_and_the_one_that_was_good_comes_first() {
    let mut script = Script::with_addresses(&["a:1", "b:1"]);
    script.call(read(1));
    assert_eq!(script.handle(Event::Lost), ["connect b:1 for 0"]);
    script.welcome(1, false);
    assert_eq!(script.handle(Event::Lost), ["disconnected", "connect b:1 for 1"]);
    assert_eq!(script.handle(Event::Lost), ["connect a:1 for 1"]);
    assert_eq!(script.handle(Event::Lost), ["connect b:1 for 1"]);
}

#[test]
fn pauses_grow_to_the_longest_and_differ_by_seed() {
    let pauses = |seed| {
        let settings = SessionSettings::default();
        let mut backoff = Backoff::new(&settings, vec!["a:1".to_owned()], seed);
        (0..12).map(|_| backoff.next().1).collect::<Vec<_>>()
    };
    let (first, longest) = (Duration::from_millis(50), Duration::from_secs(1));
    let one = pauses(1);
    assert_eq!(one[0], Duration::ZERO);
    assert!(one[1] >= first / 2 && one[1] <= first, "{one:?}");
    assert!(one[11] >= longest / 2 && one[11] <= longest, "{one:?}");
    assert_eq!(one, pauses(1));
    assert_ne!(one, pauses(2));
}

#[test]
fn notices_are_answered_under_their_numbers() {
    let mut script = Script::connected();
    let body: &'static [u8] = tieline_wire::encode(&Notice::MapChanged(Version(2))).leak();
    assert_eq!(script.frame(FrameKind::Notice, 8, |_| {}, body), ["notice 8"]);
    let handled = Event::NoticeHandled(RequestNumber(8), NoticeAnswer::default());
    assert_eq!(script.handle(handled), ["send NoticeAnswer 8"]);
    let nonsense = script.frame(FrameKind::Notice, 9, |_| {}, b"\xff");
    assert_eq!(nonsense[0], "close: server sent a notice that cannot be read");
}

#[test]
fn closing_ends_calls_says_goodbye_and_stays_closed() {
    let mut script = Script::connected();
    assert_eq!(
        script.handle(Event::Close),
        ["complete 1: Disconnected", "send Goodbye 0", "finish"]
    );
    assert_eq!(script.call(read(2)), ["complete 2: Disconnected"]);
    assert_eq!(script.handle(Event::Lost), [""; 0]);
    assert_eq!(script.state.next_tick(), None);
}

/// What may happen to a machine, in any order.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Call { is_mutation: bool, patience: Option<u64> },
    Cancel(u8),
    Answer(u8),
    Welcome { is_resumed: bool },
    Refuse,
    Lose,
    Wait(u64),
}

fn turns() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => (any::<bool>(), prop::option::of(1..40u64))
            .prop_map(|(is_mutation, patience)| Turn::Call { is_mutation, patience }),
        1 => any::<u8>().prop_map(Turn::Cancel),
        3 => any::<u8>().prop_map(Turn::Answer),
        2 => any::<bool>().prop_map(|is_resumed| Turn::Welcome { is_resumed }),
        1 => Just(Turn::Refuse),
        1 => Just(Turn::Lose),
        2 => (0..12u64).prop_map(Turn::Wait),
    ]
}

/// Watches a machine from outside and knows what a server may assume.
struct Watcher {
    script: Script,
    /// What the server has in its hands on this connection, by number.
    at_server: BTreeMap<u64, Op>,
    number_last: u64,
    answered_below: u64,
    is_connecting: bool,
    session: u64,
    open: BTreeSet<u64>,
}

impl Watcher {
    fn play(&mut self, turn: Turn) {
        let nth = |set: &BTreeMap<u64, Op>, at: u8| set.keys().copied().nth(usize::from(at) % 8);
        let told = match turn {
            Turn::Call { is_mutation, patience } => {
                self.open.insert(self.script.calls + 1);
                let patience = patience.map(Duration::from_secs);
                match is_mutation {
                    true => self.script.call_within(mutation(), patience),
                    false => self.script.call_within(read(1), patience),
                }
            }
            Turn::Cancel(at) => {
                let Some(&id) = self.open.iter().nth(usize::from(at) % 8) else { return };
                self.open.remove(&id);
                self.script.handle(Event::Cancelled(CallId(id)))
            }
            Turn::Answer(at) => {
                let Some(number) = nth(&self.at_server, at) else { return };
                let op = self.at_server.remove(&number).unwrap();
                self.script.reply(number, op)
            }
            Turn::Welcome { is_resumed } if self.is_connecting => {
                self.is_connecting = false;
                let is_resumed = is_resumed && self.session > 0;
                if !is_resumed {
                    self.session += 1;
                    (self.number_last, self.answered_below) = (0, 0);
                }
                self.script.welcome(self.session, is_resumed)
            }
            Turn::Refuse if self.is_connecting => {
                let (kind, detail) = (ErrorKind::Overloaded, String::new());
                let refusal = Refusal { kind, detail, version_oldest: 1, version_newest: 1 };
                self.script.handle(Event::Refused(refusal))
            }
            Turn::Lose => self.script.handle(Event::Lost),
            Turn::Wait(seconds) => self.script.wait(seconds),
            Turn::Welcome { .. } | Turn::Refuse => return,
        };
        told.iter().for_each(|line| self.heard(line));
    }

    fn heard(&mut self, line: &str) {
        let words: Vec<&str> = line.split([' ', ':']).collect();
        match words[..] {
            ["send", "Ping", _] => {}
            ["send", number, op, "below", below] => {
                let (number, below) = (number.parse().unwrap(), below.parse().unwrap());
                let op = *Op::ALL.iter().find(|known| known.name() == op).unwrap();
                assert!(!self.is_connecting, "sent without a connection");
                assert!(number >= self.answered_below, "{number} was said to be answered");
                assert!(below <= number && below >= self.answered_below, "{line}");
                assert!(self.at_server.insert(number, op).is_none(), "{number} sent twice");
                assert!(number <= self.number_last + 1, "{number} leaves a gap");
                self.number_last = self.number_last.max(number);
                self.answered_below = below;
            }
            ["complete", id, _, ref how @ ..] => {
                let id = id.parse().unwrap();
                assert!(self.open.remove(&id), "call {id} completed twice: {how:?}");
            }
            ["connect", ..] => {
                self.is_connecting = true;
                self.at_server.clear();
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Every call completes exactly once unless it is cancelled, and the server can rely on the
    /// numbers.
    #[test]
    fn any_history_gives_each_call_one_outcome(turns in prop::collection::vec(turns(), 1..80)) {
        let mut watcher = Watcher {
            script: Script::with_addresses(&["a:1", "b:1"]),
            at_server: BTreeMap::new(),
            number_last: 0,
            answered_below: 0,
            is_connecting: false,
            session: 0,
            open: BTreeSet::new(),
        };
        for turn in turns {
            watcher.play(turn);
        }
        // Let a good connection end it: all that is open is at the server, and is answered.
        watcher.play(Turn::Welcome { is_resumed: true });
        for _ in 0..watcher.at_server.len() {
            watcher.play(Turn::Answer(0));
        }
        prop_assert_eq!(&watcher.open, &BTreeSet::new());
    }
}
