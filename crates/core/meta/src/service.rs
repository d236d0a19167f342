//! One request, from asking to answer.
//!
//! A reading request runs on one state of the store, is granted leases as far as that state is
//! still true, and is answered when what it read is durable. A mutation is answered from its stored
//! answer if it was done before; else it runs, the leases of other sessions on what it touches are
//! taken back, and it runs again on the state that is then, until nobody is left to be asked; its
//! effects and its answer commit together, and the reply waits until they are durable.
//!
//! Invariants: no answer before what it rests on is durable; the asking session is never asked and
//! never waited for; a holder who does not answer delays a change by at most its lease, one who is
//! heard but does not answer by two.

use crate::Asker;
use crate::error::{Error, Result};
use crate::leases::{Change, Holder};
use crate::mdt::Mdt;
use crate::ops::{self, Reply};
use crate::placement::wall_time;
use crate::recall::{Ask, Keepers};
use crate::view::{Scene, View, decode};
use std::collections::BTreeSet;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Answer, key};
use tieline_kv::{Committed, Transaction};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, ErrorKind, Grant, RequestNumber, SessionId, Version};
use tieline_wire::{Failure, Op, Request};

/// How often a request is run again because others were in its way.
const ATTEMPTS: usize = 100;
/// How often an open is run again because its directory changed meanwhile.
const OPEN_ATTEMPTS: usize = 3;

/// What one run of a mutation came to.
enum Run {
    /// Others were in the way.
    Again,
    /// A part was committed.
    Part,
    /// These must be asked first.
    Ask(Vec<Ask>),
    Done(Vec<u8>),
}

impl Mdt {
    /// Answers one namespace request with the encoded reply. Requests of other rooms are refused.
    pub async fn call(&self, asker: &Asker, request: Request) -> Result<Vec<u8>, Failure> {
        let result = self.dispatch(asker, &request).await;
        result.map_err(|error| {
            self.note(&error);
            let failure = error.into_failure(self.settings.mdt);
            let (op, session, number) = (request.op().name(), asker.session.0, asker.number.0);
            tracing::debug!(op, session, request = number, kind = ?failure.kind, "{failure}");
            failure
        })
    }

    async fn dispatch(&self, asker: &Asker, request: &Request) -> Result<Vec<u8>> {
        if let Some((_, reason)) = self.trouble() {
            return Err(Error::Ended { reason });
        }
        if !ops::is_served(request.op()) {
            return Err(Error::NotServed { op: request.op().name() });
        }
        if self.leases.is_barred(asker.session) {
            return Err(Error::SessionLost { session: asker.session });
        }
        let grant = self.sessions.grant(asker.session)?;
        if request.op().is_mutation() {
            self.mutate(asker, grant, request).await
        } else {
            self.read(asker, grant, request).await
        }
    }

    async fn read(&self, asker: &Asker, grant: Grant, request: &Request) -> Result<Vec<u8>> {
        if let Request::Open(open) = request {
            // Before the file is read: whoever takes its last name from now on asks this session.
            self.opens.opened(asker.session, open.id);
        }
        let map = self.parts.map.current();
        let nobody = Keepers::new();
        for attempt in 0..ATTEMPTS {
            let scene = self.scene(asker.session, grant, &asker.caller, &map.map, &nobody);
            let mut view = View::new(&scene, self.parts.store.begin().await?);
            let mut reply = match ops::run(&mut view, request).await {
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(fail(view, error).await),
                Ok(reply) => reply,
            };
            let as_of = view.version();
            if attempt < OPEN_ATTEMPTS && self.open_is_overtaken(request, &mut reply, as_of).await {
                continue;
            }
            let committed = match view.commit().await {
                Err(error) if error.is_conflict() => continue,
                other => other?,
            };
            if let Some(lease) = reply.lease_mut() {
                lease.as_of = as_of;
                lease.units = self.leases.grant(asker.session, &lease.units, as_of);
            }
            committed.durable.await?;
            return Ok(reply.encode());
        }
        METRICS.conflicts.inc();
        Err(Error::Contended { attempts: ATTEMPTS })
    }

    /// Did the file of an open perhaps lose its last name while it was opened?
    async fn open_is_overtaken(
        &self,
        request: &Request,
        reply: &mut Reply,
        as_of: Version,
    ) -> bool {
        let Request::Open(open) = request else { return false };
        self.leases.not_losing(open.id).await;
        let units = reply.lease_mut().map(|lease| lease.units.clone()).unwrap_or_default();
        units.iter().any(|&unit| self.leases.is_overtaken(unit, as_of))
    }

    async fn mutate(&self, asker: &Asker, grant: Grant, request: &Request) -> Result<Vec<u8>> {
        self.sessions.check_room(asker.session)?;
        self.leases.grace_over().await;
        let mut change = self.leases.change(asker.session);
        let mut keepers = Keepers::new();
        let mut asked = BTreeSet::new();
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            let outcome = self.attempt(asker, grant, request, (&mut change, &keepers, &asked));
            match outcome.await {
                Ok(Run::Done(body)) => return Ok(body),
                Ok(Run::Part) => {}
                Ok(Run::Ask(asks)) => {
                    asked.extend(asks.iter().map(|ask| ask.holder));
                    self.take_back(asks, &mut keepers).await;
                }
                Err(error) if !error.is_conflict() => return Err(error),
                Ok(Run::Again) | Err(_) => {
                    attempts += 1;
                    METRICS.conflicts.inc();
                }
            }
        }
        Err(Error::Contended { attempts })
    }

    /// Runs a mutation once, and commits it if nobody needs to be asked.
    async fn attempt(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &Request,
        (change, keepers, asked): (&mut Change, &Keepers, &BTreeSet<Holder>),
    ) -> Result<Run> {
        let map = self.parts.map.current();
        let turn = self.turns.take(ops::primary(request)).await;
        let mut transaction = self.parts.store.begin().await?;
        if let Some(body) = self.stored_answer(&mut *transaction, asker, request.op()).await? {
            transaction.commit().await?.durable.await?;
            return Ok(Run::Done(body));
        }
        let scene = self.scene(asker.session, grant, &asker.caller, &map.map, keepers);
        let mut view = View::new(&scene, transaction);
        let mut reply = match ops::run(&mut view, request).await {
            Err(error) if error.is_conflict() => return Ok(Run::Again),
            Err(error) => return Err(fail(view, error).await),
            Ok(reply) => reply,
        };
        let asks = self.cover(asker.session, change, &view.touched, asked);
        if !asks.is_empty() {
            return self.dated(asks).await.map(Run::Ask);
        }
        let pruned = if view.is_partial {
            vec![]
        } else {
            self.put_answer(&mut view, asker, request.op(), &reply)
        };
        if let Reply::CreateReply(created) = &reply {
            let file = created.open.attributes.id;
            self.opens.opened(asker.session, file);
            if self.leases.is_losing(file) {
                drop(turn);
                self.leases.not_losing(file).await;
                return Ok(Run::Again);
            }
        }
        let (is_partial, counted) = (view.is_partial, view.counted);
        let committed = view.commit().await?;
        drop(turn);
        change.committed(committed.version);
        self.inodes.add(counted);
        if is_partial {
            return Ok(Run::Part);
        }
        self.sessions.answered(asker.session, asker.number, &pruned);
        self.finish(change, committed, &mut reply).await.map(Run::Done)
    }

    /// The reply, once it is durable.
    async fn finish(
        &self,
        change: &Change,
        committed: Committed,
        reply: &mut Reply,
    ) -> Result<Vec<u8>> {
        if let Some(lease) = reply.lease_mut() {
            lease.as_of = committed.version;
            lease.units = change.grant(&lease.units, committed.version);
        }
        committed.durable.await?;
        Ok(reply.encode())
    }

    /// The answer this request got before. Reading session and answer here makes the commit depend
    /// on both.
    async fn stored_answer(
        &self,
        transaction: &mut dyn Transaction,
        asker: &Asker,
        op: Op,
    ) -> Result<Option<Vec<u8>>> {
        let session = asker.session;
        let keys = [key::session(session), key::answer(session, asker.number)];
        let mut values = transaction.read(&keys).await?.into_iter();
        if values.next().flatten().is_none() {
            return Err(Error::SessionLost { session });
        }
        let Some(value) = values.next().flatten() else { return Ok(None) };
        let answer: Answer = decode(&value, || format!("{session}/{}", asker.number))?;
        if answer.op != op.number() {
            return Err(Error::Invalid { what: "this request number was used for another call" });
        }
        Ok(Some(answer.body))
    }

    /// Stores the answer beside its effects, and deletes answers that the client has seen.
    ///
    /// A repeated answer grants nothing: what it says may be old by then.
    fn put_answer(
        &self,
        view: &mut View<'_>,
        asker: &Asker,
        op: Op,
        reply: &Reply,
    ) -> Vec<RequestNumber> {
        let mut reply = reply.clone();
        if let Some(lease) = reply.lease_mut() {
            lease.units.clear();
        }
        let answer = Answer { op: op.number(), is_failure: false, body: reply.encode() };
        view.put(key::answer(asker.session, asker.number), &answer);
        let pruned = self.sessions.confirmed(asker.session, asker.answered_below);
        for &number in &pruned {
            view.delete(key::answer(asker.session, number));
        }
        pruned
    }

    pub(crate) fn scene<'a>(
        &'a self,
        session: SessionId,
        grant: Grant,
        caller: &'a Caller,
        map: &'a FederationMap,
        keepers: &'a Keepers,
    ) -> Scene<'a> {
        Scene {
            mdt: self.settings.mdt,
            map,
            now: wall_time(&self.parts.world),
            session,
            grant,
            caller,
            keepers,
            serials: &self.serials,
            placement: &self.placement,
            inodes: self.inodes.total(),
            first_serial: self.first_serial,
        }
    }

    /// Remembers that the store ended, so that nothing is asked of it any more.
    pub(crate) fn note(&self, error: &Error) {
        let Error::Store(source) = error else { return };
        if matches!(
            source,
            tieline_kv::Error::Failed { .. }
                | tieline_kv::Error::Journal { .. }
                | tieline_kv::Error::Ended { .. }
        ) {
            let reason = source.to_string();
            if self.ended.set((ErrorKind::StorageFault, reason)).is_ok() {
                let mdt = self.settings.mdt.label();
                tracing::error!(mdt, "the metadata store failed; restart the server: {source}");
            }
        }
    }
}

/// Ends a failed run. The answer rests on what was read, so it waits until that is durable.
async fn fail(view: View<'_>, error: Error) -> Error {
    if error.kind() == ErrorKind::StorageFault {
        return error;
    }
    match view.abandon().await {
        Ok(()) => error,
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests;
