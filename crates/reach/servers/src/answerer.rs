//! Who answers calls of an MDT in this process, in place of a server: the other answerers of
//! "which chunks?".
//!
//! An address in the map may name one, such as `repository:NAME` ([`Beside`]). It is asked over a
//! [`Channel`] as a server is, and nobody above can tell them apart, but that it takes nothing back
//! and sends no notice.

use crate::Result;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tieline_net::{
    Answer, CallError, Channel, Dialer, Incoming, Keeping, NoticeSink, Outgoing, Standing,
    Unanswered,
};
use tieline_types::{Caller, Flavor, Grant, SessionId, Version};
use tieline_wire::handshake::{VERSION, Welcome};
use tieline_wire::{Failure, Hello, Request};
use tokio::time::{Instant, timeout_at};

/// Leases last as long as they can be said to: nobody takes one back.
const LEASE: Duration = Duration::from_millis(u32::MAX as u64);
/// How long whoever says nothing waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers calls of an MDT.
#[async_trait::async_trait]
pub trait Answerer: Send + Sync {
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
        let (is_welcome, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let (address, sink) = (address.clone(), sink.clone());
        Some(Arc::new(Here { answerer, address, sink, is_welcome, asked }))
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
    is_welcome: AtomicBool,
    asked: AtomicU64,
}

impl Here {
    fn welcome(&self) -> Welcome {
        Welcome {
            version: VERSION,
            session: SessionId(1),
            is_resumed: false,
            grant: Grant(0),
            boot: 1,
            lease_ms: u32::MAX,
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
        let sent = Instant::now();
        if !self.is_welcome.swap(true, Ordering::AcqRel) {
            self.sink.connected(&self.welcome());
        }
        let patience = outgoing.patience.unwrap_or(PATIENCE);
        let (until, op) = (sent + patience, outgoing.request.op());
        let asked = self.answerer.answer(&outgoing.caller, &outgoing.request, until);
        let late = |_| CallError::Timeout { server: self.address.clone(), patience, why: None };
        let answer = timeout_at(until, asked).await.map_err(late)?;
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.sink.renewed(sent);
        let body = answer.map_err(CallError::Refused)?.into();
        Ok(Incoming { op, body, bulk: Bytes::new(), held: None })
    }

    fn standing(&self) -> Option<Standing> {
        self.is_welcome.load(Ordering::Acquire).then_some(Standing {
            session: SessionId(1),
            grant: Grant(0),
            boot: 1,
            lease: LEASE,
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
