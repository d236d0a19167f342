//! One connection: a handshake, a login, and requests until somebody ends it.
//!
//! Requests that say who is there are answered in turn. Others run beside one another, at most
//! [`IN_FLIGHT`]; who asks for more is not listened to until one has ended.
//!
//! When the time of a visitor is over the connection ends in good order: stock clients come again,
//! show themselves anew, and go on with the files that they had open.

use crate::answer;
use crate::budget::Budget;
use crate::handles::Handles;
use crate::input::{Ended, Input};
use crate::login::{self, Guest, Met};
use crate::ops::{self, Asked};
use crate::output::{self, Deaf, Output};
use crate::refusal::{Code, Refusal};
use crate::request::{PAYLOAD_MAX, Request};
use crate::server::{Registered, Shared};
use crate::wire::{HANDSHAKE, Head, Status, Stream};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_world::Connection;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests that run at once on one connection.
const IN_FLIGHT: usize = 64;
/// From the first byte to being known.
const LOGIN: Duration = Duration::from_secs(60);
/// For a stranger to hear why, with whatever he asks for.
const STRANGER: Duration = Duration::from_secs(120);
/// Without a request. Stock clients leave after twenty minutes.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// What all requests of a connection share.
pub(crate) struct Session {
    pub shared: Arc<Shared>,
    pub output: Output,
    pub handles: Handles,
    pub budget: Budget,
    /// Our own end, as the client reached it.
    pub local: String,
    pub registered: Registered,
}

/// How far somebody came.
enum Stage {
    New,
    LoggedIn,
    Guest(Arc<Guest>),
    Stranger(Refusal),
}

/// Serves a connection to its end.
pub(crate) async fn serve(shared: Arc<Shared>, connection: Connection) {
    let Connection { reader, writer, peer, local, .. } = connection;
    let connections = METRICS.door_connections.with_label_values(&["root"]);
    connections.inc();
    let (output, writing) = output::begin(writer);
    tokio::pin!(writing);
    let conversing = async move {
        let budget = Budget::new(shared.budget.clone());
        let (handles, registered) = (Handles::default(), shared.register());
        let session = Session { shared, output, handles, budget, local, registered };
        Talk::new(Arc::new(session), Input::new(reader)).run().await
    };
    let ended = tokio::select! {
        biased;
        written = &mut writing => written.err().map(|error| error.to_string()),
        ended = conversing => {
            // What was answered still goes out.
            let _ = writing.await;
            ended
        }
    };
    if let Some(why) = ended {
        tracing::debug!(%peer, why, "a connection for root:// ended");
    }
    connections.dec();
}

struct Talk {
    session: Arc<Session>,
    input: Input,
    stage: Stage,
    answers_unasked: bool,
    begun: Instant,
    tasks: JoinSet<()>,
}

impl Talk {
    fn new(session: Arc<Session>, input: Input) -> Self {
        let (begun, tasks) = (Instant::now(), JoinSet::new());
        Self { session, input, stage: Stage::New, answers_unasked: false, begun, tasks }
    }

    /// Until the client has gone, or is not to be listened to any more; then says why.
    async fn run(mut self) -> Option<String> {
        match self.input.handshake(self.begun + LOGIN).await {
            Ok(HANDSHAKE) => {}
            Ok(_) => return Some("it does not speak this protocol".to_owned()),
            Err(ended) => return Some(format!("{ended:?} before a handshake")),
        }
        self.session.output.send(answer::handshake()).await.ok()?;
        let mut stopping = self.session.shared.stopping.clone();
        let mut ended = self.session.registered.ended.clone();
        let why = loop {
            while self.tasks.try_join_next().is_some() {}
            if self.tasks.len() >= IN_FLIGHT {
                self.tasks.join_next().await;
            }
            if self.end() <= Instant::now() {
                break "its time is over".to_owned();
            }
            let until = self.until();
            let head = tokio::select! {
                biased;
                _ = stopping.wait_for(|stops| *stops) => break "the door ends".to_owned(),
                _ = ended.wait_for(|ends| *ends) => return Some("it was ended".to_owned()),
                head = self.input.head(until) => head,
            };
            match head {
                Ok(head) => match self.request(head).await {
                    Ok(()) => {}
                    Err(why) => break why,
                },
                // It waits for us.
                Err(Ended::Silent) if !self.tasks.is_empty() => {}
                // Nobody hears what is still under way.
                Err(Ended::Gone) => return None,
                Err(ended) => break format!("{ended:?}"),
            }
        };
        while self.tasks.join_next().await.is_some() {}
        Some(why)
    }

    /// When it ends, whatever the client does.
    fn end(&self) -> Instant {
        match &self.stage {
            Stage::New | Stage::LoggedIn => self.begun + LOGIN,
            Stage::Stranger(_) => self.begun + STRANGER,
            Stage::Guest(guest) => guest.visitor.until(),
        }
    }

    /// When it has been silent for too long.
    fn until(&self) -> Instant {
        self.end().min(Instant::now() + IDLE)
    }

    async fn request(&mut self, head: Head) -> Result<(), String> {
        let stream = head.stream;
        let payload = match self.input.payload(&head).await {
            Ok(payload) => payload,
            Err(Ended::TooLarge) => {
                let what =
                    format!("{} bytes in a request: {PAYLOAD_MAX} are the most", head.length);
                let refusal = Refusal::new(Code::InvalidRequest, what.clone());
                self.refuse(stream, "unknown", &refusal).await?;
                return Err(what);
            }
            Err(ended) => return Err(format!("{ended:?} in the middle of a request")),
        };
        let request = match Request::read(&head, payload) {
            Ok(request) => request,
            Err(refusal) => return self.refuse(stream, "unknown", &refusal).await,
        };
        let name = request.name();
        match request {
            Request::Protocol => self.say(answer::protocol(stream)).await,
            Request::Login { answers_unasked } => {
                if !matches!(self.stage, Stage::New) {
                    let refusal = Refusal::new(Code::InvalidRequest, "logged in already");
                    return self.refuse(stream, name, &refusal).await;
                }
                (self.stage, self.answers_unasked) = (Stage::LoggedIn, answers_unasked);
                let ways = login::ways(&self.session.shared);
                let told = [&self.session.registered.name()[..], ways.as_bytes()].concat();
                self.done(stream, name, &told).await
            }
            Request::Auth { kind, shown } => self.auth(stream, kind, shown).await,
            Request::Bind => {
                let what = "one connection serves all: there are no others beside it";
                let refusal = Refusal::new(Code::Unsupported, what);
                self.refuse(stream, name, &refusal).await
            }
            request => self.beside(stream, request).await,
        }
    }

    async fn auth(&mut self, stream: Stream, kind: [u8; 4], shown: Bytes) -> Result<(), String> {
        if !matches!(self.stage, Stage::LoggedIn) {
            let refusal = Refusal::new(Code::InvalidRequest, "log in first, and once");
            return self.refuse(stream, "auth", &refusal).await;
        }
        match login::meet(&self.session.shared, kind, shown).await {
            Ok(Met::Guest(guest)) => {
                self.session.registered.belongs_to(guest.visitor.principal());
                self.stage = Stage::Guest(guest);
            }
            Ok(Met::Stranger(refusal)) => self.stage = Stage::Stranger(refusal),
            Err(refusal) => return self.refuse(stream, "auth", &refusal).await,
        }
        self.done(stream, "auth", b"").await
    }

    /// Has a request answered when it can be.
    async fn beside(&mut self, stream: Stream, request: Request) -> Result<(), String> {
        let guest = match &self.stage {
            Stage::Guest(guest) => guest.clone(),
            Stage::Stranger(refusal) => {
                let refusal = refusal.clone();
                return self.refuse(stream, request.name(), &refusal).await;
            }
            Stage::New | Stage::LoggedIn => {
                let refusal = Refusal::new(Code::InvalidRequest, "log in first");
                return self.refuse(stream, request.name(), &refusal).await;
            }
        };
        let (session, answers_unasked) = (self.session.clone(), self.answers_unasked);
        let asked = Asked { session, guest, stream, answers_unasked };
        self.tasks.spawn(ops::answer(asked, request));
        Ok(())
    }

    async fn say(&mut self, frame: Bytes) -> Result<(), String> {
        self.session.output.send(frame).await.map_err(|Deaf| "it does not listen".to_owned())
    }

    async fn done(&mut self, stream: Stream, name: &str, payload: &[u8]) -> Result<(), String> {
        count(name, "ok");
        self.say(answer::whole(stream, Status::Done, payload)).await
    }

    async fn refuse(&mut self, stream: Stream, name: &str, why: &Refusal) -> Result<(), String> {
        count(name, &(why.code as u32).to_string());
        self.say(answer::error(stream, why)).await
    }
}

/// Counts a request that was answered.
pub(crate) fn count(name: &str, outcome: &str) {
    METRICS.door_requests.with_label_values(&["root", name, outcome]).inc();
}
