//! A channel over a world's transport: the front of the loop that drives a client's state machine.
//!
//! Callers hand a call to the driver's task ([`driver`]) and wait for its outcome; a caller that
//! stops waiting takes the call back. The driver ends when the last clone of the session is
//! dropped, or after [`Channel::close`].
//!
//! Invariants: of [`SessionSettings::requests_max`] places, each call holds one from before it is
//! handed over until the driver forgot it, so all queues between here and the stream are bounded;
//! waiting for a place counts towards the caller's patience.

use crate::{
    Answer, CallError, Channel, Dialer, Incoming, Keeping, NoticeSink, Outgoing, Standing,
    Unanswered, link,
};
use link::CallId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_auth::Guard;
use tieline_wire::Hello;
use tieline_world::World;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

mod driver;
mod reach;
use driver::Driver;

#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Requests under way at once; further calls wait their turn.
    pub requests_max: usize,
    /// A ping goes out when nothing else did for this long.
    pub ping_every: Duration,
    /// No frame for this long after a ping: the connection is dead.
    pub silence_max: Duration,
    /// The same when the machine slept or its networks changed.
    pub doubt_max: Duration,
    /// First and longest pause between attempts to connect.
    pub retry_first: Duration,
    pub retry_longest: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            requests_max: 128,
            ping_every: Duration::from_secs(5),
            // With the ping before it shorter than what is left of a lease: a line that is cut is
            // known to be before the leases run out.
            silence_max: Duration::from_secs(8),
            doubt_max: Duration::from_millis(1_000),
            retry_first: Duration::from_millis(50),
            retry_longest: Duration::from_secs(1),
        }
    }
}

/// A channel over a world's transport.
pub struct Session {
    to_driver: mpsc::UnboundedSender<Message>,
    places: Arc<Semaphore>,
    call_next: AtomicU64,
    view: Arc<View>,
}

/// What callers say to the driver. The queue is bounded by the places.
enum Message {
    Call(Box<Handed>),
    /// Connect, if nobody has called yet.
    Warm,
    Cancel(CallId),
    /// The connection may be dead without a word.
    Doubt,
    /// Say goodbye, but wait no longer than until then.
    Close(Instant, oneshot::Sender<()>),
}

/// A call on its way to the driver.
struct Handed {
    id: CallId,
    outgoing: Outgoing,
    deadline: Option<Instant>,
    outcome: oneshot::Sender<Result<Incoming, CallError>>,
    place: OwnedSemaphorePermit,
}

/// What the driver lets callers see.
struct View {
    standing: Mutex<Option<Standing>>,
    server: Mutex<String>,
    round_trips: AtomicU64,
    /// Of one, in microseconds; 0 if none was measured.
    round_trip: AtomicU64,
}

impl View {
    fn server(&self) -> String {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, state: &link::State) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = state.standing();
        self.round_trips.store(state.round_trips(), Ordering::Relaxed);
        let micros = state.round_trip().map_or(0, |time| time.as_micros().max(1) as u64);
        self.round_trip.store(micros, Ordering::Relaxed);
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if *server != state.server() {
            state.server().clone_into(&mut server);
        }
    }
}

/// Makes [`Session`]s.
pub struct SessionDialer {
    pub world: World,
    pub settings: SessionSettings,
    /// Proves us to servers, and says how well they must be protected.
    pub guard: Arc<Guard>,
}

impl Dialer for SessionDialer {
    fn dial(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel> {
        let (settings, guard) = (self.settings.clone(), self.guard.clone());
        Session::start(self.world.clone(), settings, guard, addresses, hello, sink)
    }

    fn dial_kept(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
        keeping: Keeping,
        unanswered: Vec<Unanswered>,
    ) -> (Arc<dyn Channel>, Vec<Answer>) {
        let (world, settings) = (self.world.clone(), self.settings.clone());
        let (kept, guard) = (Some((keeping, unanswered)), self.guard.clone());
        let (session, answers) =
            Session::begin(world, settings, guard, addresses, hello, sink, kept);
        (session, answers)
    }
}

impl Session {
    /// Starts the driver on the current runtime. Nothing is connected before the first call.
    pub fn start(
        world: World,
        settings: SessionSettings,
        guard: Arc<Guard>,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<Self> {
        Self::begin(world, settings, guard, addresses, hello, sink, None).0
    }

    fn begin(
        world: World,
        settings: SessionSettings,
        guard: Arc<Guard>,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
        kept: Option<(Keeping, Vec<Unanswered>)>,
    ) -> (Arc<Self>, Vec<Answer>) {
        let seed = world.random();
        let places = Arc::new(Semaphore::new(settings.requests_max));
        let mut state = link::State::new(settings, addresses.to_vec(), hello, seed);
        let (mut waiting, mut answers, mut last) = (Vec::new(), Vec::new(), 0);
        if let Some((keeping, unanswered)) = kept {
            state.keep(keeping);
            for request in unanswered {
                last += 1;
                let (outcome, answer) = oneshot::channel();
                state.restore(CallId(last), request);
                waiting.push((CallId(last), outcome));
                answers.push(answer);
            }
        }
        let view = Arc::new(View {
            standing: Mutex::new(None),
            server: Mutex::new(state.server().to_owned()),
            round_trips: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
        });
        let (to_driver, inbox) = mpsc::unbounded_channel();
        let mut driver = Driver::new((world.transport, guard), state, sink, inbox, view.clone());
        driver.wait_for(waiting);
        tokio::spawn(driver.run());
        let call_next = AtomicU64::new(last + 1);
        (Arc::new(Self { to_driver, places, call_next, view }), answers)
    }

    fn closed(&self) -> CallError {
        CallError::Closed { server: self.view.server() }
    }

    /// A place among the requests at once.
    async fn place(
        &self,
        deadline: Option<Instant>,
        patience: Option<Duration>,
    ) -> Result<OwnedSemaphorePermit, CallError> {
        let place = self.places.clone().acquire_owned();
        let place = match deadline {
            None => place.await,
            Some(deadline) => tokio::time::timeout_at(deadline, place).await.map_err(|_| {
                let server = self.view.server();
                CallError::Timeout { server, patience: patience.unwrap_or_default(), why: None }
            })?,
        };
        place.map_err(|_| self.closed())
    }
}

#[async_trait::async_trait]
impl Channel for Session {
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError> {
        // A patience too long to be added to the clock is none.
        let deadline = outgoing.patience.and_then(|patience| Instant::now().checked_add(patience));
        let place = self.place(deadline, outgoing.patience).await?;
        let id = CallId(self.call_next.fetch_add(1, Ordering::Relaxed));
        let (outcome, waiting) = oneshot::channel();
        let handed = Box::new(Handed { id, outgoing, deadline, outcome, place });
        self.to_driver.send(Message::Call(handed)).map_err(|_| self.closed())?;
        let mut interest = Interest { to_driver: &self.to_driver, id, is_answered: false };
        let result = waiting.await;
        interest.is_answered = true;
        result.unwrap_or_else(|_| Err(self.closed()))
    }

    fn standing(&self) -> Option<Standing> {
        *self.view.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> String {
        self.view.server()
    }

    fn round_trips(&self) -> u64 {
        self.view.round_trips.load(Ordering::Relaxed)
    }

    fn doubt(&self) {
        // A driver that is gone has no connection.
        let _ = self.to_driver.send(Message::Doubt);
    }

    fn warm(&self) {
        // A driver that is gone has nothing to connect.
        let _ = self.to_driver.send(Message::Warm);
    }

    fn round_trip(&self) -> Option<Duration> {
        let micros = self.view.round_trip.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    async fn close(&self, patience: Duration) {
        self.places.close();
        let (done, waiting) = oneshot::channel();
        // The driver answers at its end, which is not later than the deadline; or it has ended
        // already.
        if self.to_driver.send(Message::Close(Instant::now() + patience, done)).is_ok() {
            let _ = waiting.await;
        }
    }
}

/// A caller's interest in its call: dropped before the answer, it takes the call back.
struct Interest<'a> {
    to_driver: &'a mpsc::UnboundedSender<Message>,
    id: CallId,
    is_answered: bool,
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            // A driver that is gone has forgotten the call already.
            let _ = self.to_driver.send(Message::Cancel(self.id));
        }
    }
}
