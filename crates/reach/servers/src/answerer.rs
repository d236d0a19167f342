//! Who answers calls of an MDT in this process, in place of a server: the other answerers of
//! "which chunks?".
//!
//! An address in the map may name one, such as `repository:NAME` ([`Beside`]). It is asked over a
//! [`Channel`] as a server is, and nobody above can tell them apart, but that it sends no notice.
//! Instead it says beforehand how long what it says holds ([`Holds`]). With another edition it
//! welcomes anew, and all that was said before is forgotten.

use crate::Result;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_net::{
    Answer, CallError, Channel, Dialer, Incoming, Keeping, NoticeSink, Outgoing, Standing,
    Unanswered,
};
use tieline_types::{Caller, Flavor, Grant, SessionId, Version};
use tieline_wire::handshake::{VERSION, Welcome};
use tieline_wire::{Failure, Hello, Request};
use tokio::time::{Instant, timeout_at};

/// As long as leases can be said to last.
const LEASE_MAX: Duration = Duration::from_millis(u32::MAX as u64);
/// How long whoever says nothing waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an answerer answers from, and for how long that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Another one forgets all that was said of those before it; they count up.
    pub edition: u64,
    pub since: Instant,
    pub lease: Duration,
}

impl Holds {
    /// What never changes.
    pub fn always() -> Self {
        Self { edition: 0, since: Instant::now(), lease: LEASE_MAX }
    }
}

/// Answers calls of an MDT.
#[async_trait::async_trait]
pub trait Answerer: Send + Sync {
    /// From what the next call is answered: looks whether there is something newer, if it is time.
    async fn holds(&self, _until: Instant) -> Result<Holds, Failure> {
        Ok(Holds::always())
    }

    /// The reply's bytes. It is dropped when nobody waits any more.
    async fn answer(
        &self,
        caller: &Caller,
        request: &Request,
        until: Instant,
    ) -> Result<Vec<u8>, Failure>;
}

/// Finds the answerer that an address names; `None`: it is a server's.
pub type Find = dyn Fn(&str) -> Option<Arc<dyn Answerer>> + Send + Sync;

/// Dials some addresses in this process, and all others as it was told to.
pub struct Beside {
    pub others: Arc<dyn Dialer>,
    pub find: Box<Find>,
}

impl Beside {
    fn here(&self, addresses: &[String], sink: &Arc<dyn NoticeSink>) -> Option<Arc<dyn Channel>> {
        let address = addresses.first()?;
        let answerer = (self.find)(address)?;
        let (welcomed, asked) = (Mutex::default(), AtomicU64::new(0));
        let (address, sink) = (address.clone(), sink.clone());
        Some(Arc::new(Here { answerer, address, sink, welcomed, asked }))
    }
}

impl Dialer for Beside {
    fn dial(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel> {
        let here = self.here(addresses, &sink);
        here.unwrap_or_else(|| self.others.dial(addresses, hello, sink))
    }

    fn dial_kept(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
        keeping: Keeping,
        unanswered: Vec<Unanswered>,
    ) -> (Arc<dyn Channel>, Vec<Answer>) {
        match self.here(addresses, &sink) {
            // Nothing that outlives this process is asked of it.
            Some(here) => (here, Vec::new()),
            None => self.others.dial_kept(addresses, hello, sink, keeping, unanswered),
        }
    }
}

/// The channel to one of them.
struct Here {
    answerer: Arc<dyn Answerer>,
    address: String,
    sink: Arc<dyn NoticeSink>,
    /// What was said to hold, with the last welcome.
    welcomed: Mutex<Option<Holds>>,
    asked: AtomicU64,
}

impl Here {
    /// Leases of another edition, or of another time, are told of before anything else is.
    fn welcome(&self, holds: Holds) {
        let mut welcomed = crate::lock(&self.welcomed);
        let is_new = |known: &Holds| {
            known.edition < holds.edition
                || known.edition == holds.edition && known.lease != holds.lease
        };
        if welcomed.as_ref().is_none_or(is_new) {
            *welcomed = Some(holds);
            self.sink.connected(&self.greeting(holds));
        }
    }

    fn greeting(&self, holds: Holds) -> Welcome {
        Welcome {
            version: VERSION,
            session: SessionId(1),
            is_resumed: false,
            grant: Grant(0),
            boot: 1 + holds.edition,
            lease_ms: u32::try_from(holds.lease.as_millis()).unwrap_or(u32::MAX),
            flavor: Flavor::Null,
            features: Welcome::FROZEN,
            server: self.address.clone(),
            map: Version(0),
            holder: None,
            lost_locks: None,
        }
    }
}

#[async_trait::async_trait]
impl Channel for Here {
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError> {
        let patience = outgoing.patience.unwrap_or(PATIENCE);
        let (until, op) = (Instant::now() + patience, outgoing.request.op());
        let late = |_| CallError::Timeout { server: self.address.clone(), patience, why: None };
        let holds = timeout_at(until, self.answerer.holds(until)).await.map_err(late)?;
        let holds = holds.map_err(CallError::Refused)?;
        self.welcome(holds);
        let asked = self.answerer.answer(&outgoing.caller, &outgoing.request, until);
        let answer = timeout_at(until, asked).await.map_err(late)?;
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.sink.renewed(holds.since);
        let body = answer.map_err(CallError::Refused)?.into();
        Ok(Incoming { op, body, bulk: Bytes::new(), held: None })
    }

    fn standing(&self) -> Option<Standing> {
        let holds = (*crate::lock(&self.welcomed))?;
        Some(Standing {
            session: SessionId(1),
            grant: Grant(0),
            boot: 1 + holds.edition,
            lease: holds.lease,
            holder: None,
            is_connected: true,
        })
    }

    fn server(&self) -> String {
        self.address.clone()
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    async fn close(&self, _patience: Duration) {}
}
