//! The line between a client and its servers, in virtual time: what is sent stands in one queue,
//! and is there half a round trip after its last byte left.
//!
//! The MDS answers one question after the other. Nothing is lost, and requests weigh nothing.

use crate::server::{Answer, Server};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_net::{CallError, Channel, Dialer, Incoming, NoticeSink, Outgoing, Standing};
use tieline_types::{Grant, SessionId, Version};
use tieline_wire::{Flavor, Hello, Op, Welcome};
use tokio::time::{Instant, sleep, sleep_until};

const LEASE: Duration = Duration::from_secs(20);
/// Of the MDS, for a question and for each entry that it tells; as measured, roughly.
const QUESTION: Duration = Duration::from_micros(150);
const ENTRY: Duration = Duration::from_micros(8);

#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub round_trip: Duration,
    /// Bytes per second towards the client.
    pub rate: u64,
}

/// 50 ms and 1 Gbit/s.
pub const FAR: Way = Way { round_trip: Duration::from_millis(50), rate: 118_000_000 };

/// What crossed the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Crossed {
    pub bytes: u64,
    /// Of these, those of files, before they were packed.
    pub contents: u64,
    pub mds: u64,
    pub oss: u64,
}

pub struct Line {
    way: Way,
    pub server: Arc<Mutex<Server>>,
    queue: Mutex<Queue>,
    pub crossed: Mutex<Crossed>,
}

#[derive(Default)]
struct Queue {
    line_free: Option<Instant>,
    mds_free: Option<Instant>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    pub fn new(way: Way, server: Arc<Mutex<Server>>) -> Arc<Self> {
        Arc::new(Self { way, server, queue: Mutex::default(), crossed: Mutex::default() })
    }

    /// When an answer that is begun now has come whole.
    fn arrival(&self, answer: &Answer, is_mds: bool) -> Instant {
        let mut queue = lock(&self.queue);
        let mut ready = Instant::now();
        if is_mds {
            let work = QUESTION + ENTRY * answer.items as u32;
            ready = ready.max(queue.mds_free.unwrap_or(ready)) + work;
            queue.mds_free = Some(ready);
        }
        let sending = Duration::from_secs_f64(answer.bytes as f64 / self.way.rate as f64);
        let left = ready.max(queue.line_free.unwrap_or(ready)) + sending;
        queue.line_free = Some(left);
        left + self.way.round_trip / 2
    }

    fn count(&self, (bytes, contents): (u64, u64), is_mds: bool) {
        let mut crossed = lock(&self.crossed);
        crossed.bytes += bytes;
        crossed.contents += contents;
        *(if is_mds { &mut crossed.mds } else { &mut crossed.oss }) += 1;
    }
}

pub struct LineDialer(pub Arc<Line>);

impl Dialer for LineDialer {
    fn dial(
        &self,
        addresses: &[String],
        _hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel> {
        let is_mds = addresses.first().is_some_and(|address| address.starts_with("mds"));
        let renewed = sink.clone();
        if is_mds {
            // As a session does that has nothing else to say.
            tokio::spawn(async move {
                loop {
                    sleep(LEASE / 4).await;
                    renewed.renewed(Instant::now());
                }
            });
        }
        Arc::new(LineChannel { line: self.0.clone(), is_mds, sink, is_welcomed: Mutex::new(false) })
    }
}

struct LineChannel {
    line: Arc<Line>,
    is_mds: bool,
    sink: Arc<dyn NoticeSink>,
    is_welcomed: Mutex<bool>,
}

impl LineChannel {
    fn welcome(&self) {
        if !std::mem::replace(&mut *lock(&self.is_welcomed), true) {
            self.sink.connected(&Welcome {
                version: 1,
                session: SessionId(1),
                is_resumed: false,
                grant: Grant(7),
                boot: 1,
                lease_ms: LEASE.as_millis() as u32,
                flavor: Flavor::Null,
                features: Welcome::TREES,
                server: String::new(),
                map: Version(1),
                holder: None,
                lost_locks: None,
            });
        }
    }
}

#[async_trait::async_trait]
impl Channel for LineChannel {
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError> {
        let sent = Instant::now();
        self.welcome();
        sleep(self.line.way.round_trip / 2).await;
        let op: Op = outgoing.request.op();
        let answer = lock(&self.line.server).answer(outgoing.request);
        let answer = answer.map_err(CallError::Refused)?;
        sleep_until(self.line.arrival(&answer, self.is_mds)).await;
        self.line.count((answer.bytes, answer.contents), self.is_mds);
        self.sink.renewed(sent);
        Ok(Incoming { op, body: answer.body.into(), bulk: answer.bulk, held: None })
    }

    fn standing(&self) -> Option<Standing> {
        lock(&self.is_welcomed).then_some(Standing {
            session: SessionId(1),
            grant: Grant(7),
            boot: 1,
            lease: LEASE,
            holder: None,
            is_connected: true,
        })
    }

    fn round_trips(&self) -> u64 {
        0
    }

    fn round_trip(&self) -> Option<Duration> {
        lock(&self.is_welcomed).then_some(self.line.way.round_trip)
    }

    fn warm(&self) {
        self.welcome();
    }

    async fn close(&self, _patience: Duration) {}
}
