//! Requests, and what is tried again of them.
//!
//! Invariants: a mutation is sent again only if it surely did not happen, or may happen twice;
//! every call ends at its deadline.

use crate::server::Server;
use crate::{Error, Result, Servers};
use bytes::Bytes;
use std::time::Duration;
use tieline_net::{CallError, Channel, Incoming, Outgoing, read_reply};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, Effect, ErrorKind, MdtIndex, OstIndex, Retry, ServerNumber};
use tieline_wire::federation::GetMap;
use tieline_wire::{Call, Op};
use tieline_world::Bulk;
use tokio::time::Instant;

/// Refusals that ask for the same request again, in a row.
const REPEATS_MAX: u32 = 6;

impl Servers {
    /// Asks the MDS that holds an MDT. Each attempt is stamped before it leaves; the stamp of the
    /// one that was answered comes with the reply.
    pub async fn ask_mdt<C: Call + Clone, S>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
        deadline: Instant,
        stamp: impl Fn(ServerNumber) -> S,
    ) -> Result<(C::Reply, S)> {
        let mut attempts = Attempts::default();
        loop {
            let server = self.mds(mdt)?;
            let stamp = stamp(server.number);
            let result = self.once(&server, caller, message.clone(), Bulk::Empty, deadline).await;
            match result {
                Ok((reply, _)) => return Ok((reply, stamp)),
                Err(error) => {
                    let is_proof = error.kind() == ErrorKind::Unauthenticated;
                    if is_proof && !attempts.has_shown {
                        attempts.has_shown = true;
                        if self.show_all(&server, caller, &message.clone().into()).await? {
                            continue;
                        }
                    }
                    attempts.judge(self, &server, C::OP, error, deadline).await?
                }
            }
        }
    }

    /// Asks the OSS that serves `ost`.
    pub async fn ask_oss<C: Call + Clone>(
        &self,
        ost: OstIndex,
        message: C,
        bulk: impl Into<Bulk>,
        patience: Duration,
    ) -> Result<(C::Reply, Bytes)> {
        self.ask_oss_for(ost, message, (bulk.into(), 0), patience).await
    }

    /// The same, for an answer that brings about `expected` bytes.
    pub async fn ask_oss_for<C: Call + Clone>(
        &self,
        ost: OstIndex,
        message: C,
        (bulk, expected): (Bulk, u64),
        patience: Duration,
    ) -> Result<(C::Reply, Bytes)> {
        let deadline = Instant::now() + patience;
        let mut attempts = Attempts::default();
        loop {
            let server = self.oss(ost)?;
            let bulk = (bulk.clone(), expected);
            let caller = Caller::root();
            match self.once_for(&server, &caller, message.clone(), bulk, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(error) => attempts.judge(self, &server, C::OP, error, deadline).await?,
            }
        }
    }

    pub(crate) async fn once<C: Call>(
        &self,
        server: &Server,
        caller: &Caller,
        message: C,
        bulk: Bulk,
        deadline: Instant,
    ) -> Result<(C::Reply, Bytes)> {
        self.once_for(server, caller, message, (bulk, 0), deadline).await
    }

    async fn once_for<C: Call>(
        &self,
        server: &Server,
        caller: &Caller,
        message: C,
        (bulk, expected): (Bulk, u64),
        deadline: Instant,
    ) -> Result<(C::Reply, Bytes)> {
        let patience = Some(deadline.saturating_duration_since(Instant::now()));
        let records = self.records.as_ref().filter(|_| C::OP.is_mutation());
        let note = records.map_or_else(Vec::new, |records| records.note(C::OP));
        let (caller, request) = (caller.clone(), message.into());
        let chosen = server.channel(bulk.len() as u64 + expected)?;
        let outgoing = Outgoing { caller, request, bulk, patience, note };
        let result = chosen.channel.exchange(outgoing).await;
        let result = result.and_then(|incoming| self.read_held::<C>(&*chosen.channel, incoming));
        match &result {
            Ok(_) | Err(CallError::Refused(_)) => {
                METRICS.round_trips.with_label_values(&[server.kind.label()]).inc();
            }
            Err(error) if error.kind() == ErrorKind::Timeout => METRICS.client_timeouts.inc(),
            Err(_) => {}
        }
        Ok(result?)
    }

    /// Any answer proves that there is a session.
    pub async fn greet(&self, server: &Server) -> Result<()> {
        let deadline = Instant::now() + self.wait_at(server);
        self.once(server, &Caller::root(), GetMap {}, Bulk::Empty, deadline).await.map(drop)
    }

    /// The reply, with its record in good hands.
    fn read_held<C: Call>(
        &self,
        channel: &dyn Channel,
        mut incoming: Incoming,
    ) -> Result<(C::Reply, Bytes), CallError> {
        if let Some((records, held)) = self.records.as_ref().zip(incoming.held.take()) {
            records.hold(held);
        }
        Ok((read_reply::<C>(channel, &incoming)?, incoming.bulk))
    }
}

/// What was tried already for one request.
#[derive(Default)]
struct Attempts {
    has_looked: bool,
    /// Tickets of users were shown, again perhaps.
    has_shown: bool,
    repeats: u32,
}

impl Attempts {
    /// Returns when the request may be tried again; else gives the error back.
    async fn judge(
        &mut self,
        servers: &Servers,
        server: &Server,
        op: Op,
        error: Error,
        deadline: Instant,
    ) -> Result<()> {
        let kind = error.kind();
        let is_safe = !op.is_mutation() || is_repeatable(op) || kind.effect() == Effect::NotApplied;
        if !is_safe || Instant::now() >= deadline {
            return Err(error);
        }
        match kind.retry() {
            Retry::AfterReconnect if !self.has_looked => {
                self.has_looked = true;
                let is_newer = servers.look_around(server).await;
                // The same server again only helps if the session was what was lost.
                if is_newer || kind == ErrorKind::SessionLost { Ok(()) } else { Err(error) }
            }
            Retry::SameRequest if kind != ErrorKind::Timeout && self.repeats < REPEATS_MAX => {
                self.repeats += 1;
                tokio::time::sleep(Duration::from_millis(10 << self.repeats)).await;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// Mutations that leave the same behind when they happen twice. Not commits: under another session
/// their chunks need other names.
fn is_repeatable(op: Op) -> bool {
    matches!(op, Op::Place | Op::Release | Op::Reserve)
}
