//! What MDSs are asked, and what they told: each reply with the lease epoch that it was asked in.
//!
//! Invariants: what was done here and a question may rest on comes before it; what an earlier
//! process was answered for a door's request is not asked again.

use crate::journal::Busy;
use crate::shared::Shared;
use crate::{Error, Result};
use std::time::Duration;
use tieline_believed::Stamp;
use tieline_owed::cause;
use tieline_owed::records;
use tieline_servers::{Server, silence};
use tieline_types::{Caller, FileId, MdtIndex, ServerNumber};
use tieline_wire::{Call, Op};
use tokio::time::{Instant, timeout_at};

/// An MDS's reply, and the lease epoch it was asked in.
pub(crate) struct Told<T> {
    pub reply: T,
    pub stamp: Stamp,
    /// Of a change: to be dropped when the reply was learned.
    pub busy: Option<Busy>,
}

impl Shared {
    /// Asks the MDS that holds `file`.
    pub async fn ask<C: Call + Clone>(
        &self,
        caller: &Caller,
        file: FileId,
        message: C,
    ) -> Result<Told<C::Reply>> {
        self.ask_mdt(caller, file.mdt(), message, self.servers.wait_for(file.mdt())).await
    }

    /// What was done here and the message may rest on comes before it.
    pub async fn ask_mdt<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
        patience: Duration,
    ) -> Result<Told<C::Reply>> {
        let deadline = Instant::now() + patience;
        let mut busy = None;
        if let Some(queue) = self.journal.of(mdt)
            && let Some(shared) = self.weak.upgrade()
        {
            if matches!(C::OP, Op::Create | Op::MakeDirectory) {
                shared.stir(None);
            }
            if C::OP.is_mutation() {
                let reserved = timeout_at(deadline, queue.reserve_first(&shared)).await;
                reserved.map_err(|_| silence(mdt, patience))?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            busy = queue.before(&self.cache, &message.clone().into(), left).await?;
        }
        let told = self.ask_until(caller, mdt, message, deadline).await?;
        Ok(Told { busy, ..told })
    }

    /// Asks without regard for what was done here.
    pub async fn ask_now<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
    ) -> Result<Told<C::Reply>> {
        self.ask_until(caller, mdt, message, Instant::now() + self.servers.wait_for(mdt)).await
    }

    async fn ask_until<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
        deadline: Instant,
    ) -> Result<Told<C::Reply>> {
        let server = self.servers.mds(mdt)?;
        if let Some(reply) = answered_before::<C>(&server) {
            // What it grants may have been taken back since.
            let stamp = Stamp::past(server.number);
            return Ok(Told { reply: reply?, stamp, busy: None });
        }
        let stamp = |number: ServerNumber| self.cache.stamp(number);
        let asked = self.servers.ask_mdt(caller, mdt, message, deadline, stamp);
        let (reply, stamp) = asked.await?;
        Ok(Told { reply, stamp, busy: None })
    }
}

/// What an earlier process was answered for the request that is being served.
fn answered_before<C: Call>(server: &Server) -> Option<Result<C::Reply>> {
    if !C::OP.is_mutation() || records::is_noting() {
        return None;
    }
    let cause = cause::current()?;
    let (_, answer) = cause.take_answer(|request| request.op() == C::OP)?;
    Some(answer.map_err(Error::from).and_then(|mut incoming| {
        if let Some(held) = incoming.held.take() {
            records::hold(held);
        }
        server.read::<C>(&incoming)
    }))
}
