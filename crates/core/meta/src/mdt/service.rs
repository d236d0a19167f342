//! One request, from asking to answer.
//!
//! A reading request runs on one state of the store, is granted leases as far as that state is
//! still true, and is answered when what it read is durable. A mutation is answered from its stored
//! answer if it was done before; else it runs, the leases of other sessions on what it touches are
//! taken back, and it runs again on the state that is then, until nobody is left to be asked; its
//! effects and its answer commit together, and the reply waits until they are durable.
//!
//! What a session holds alone it may have changed without saying so yet: whoever reads or changes
//! something there waits until it has. A session that changes names in a directory that nobody
//! else holds is given it alone, if it has serials for what it will make ([`ops`]' Reserve).
//!
//! Invariants: no answer before what it rests on is durable; the asking session is never asked and
//! never waited for; a holder who does not answer delays a change by at most its lease, one who is
//! heard but does not answer by two.

mod locking;

use crate::Asker;
use crate::error::{Error, Result, chain};
use crate::leases::{Change, Entitled, Holder};
use crate::mdt::Mdt;
use crate::mdt::recall::Ask;
use crate::ops::batch::makes_file;
use crate::ops::{self, Reply};
use crate::permission;
use crate::placement::wall_time;
use crate::quotas::Resource;
use crate::view::{Keepers, Scene, View, decode};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Answer, Inode, SerialRun, Session, key};
use tieline_kv::{Committed, Transaction};
use tieline_telemetry::metrics::METRICS;
use tieline_types::quota::{Payer, Share};
use tieline_types::{
    Attributes, Caller, ErrorKind, FileId, Grant, LostLock, PoolName, RequestNumber, SessionId,
    Version,
};
use tieline_wire::meta::{Batch, BatchOutcome, ExclusiveUnit, ReserveReply};
use tieline_wire::{Failure, Op, Request};

/// How often a request is run again because others were in its way.
const ATTEMPTS: usize = 100;
/// How often more room is asked for, for one request: it meets the limits of three payers, and in a
/// pool of six, one after the other.
const EXTENSIONS: usize = 8;
/// How often an open is run again because its directory changed meanwhile.
const OPEN_ATTEMPTS: usize = 3;

/// Who was asked before, and of which files their writers.
type Asked<'a> = (&'a BTreeSet<Holder>, &'a BTreeSet<FileId>);

/// What one run of a mutation came to.
enum Run {
    /// Others were in the way.
    Again,
    /// A part was committed: so far these items, if it is a batch.
    Part(Vec<BatchOutcome>),
    /// These must be asked first.
    Ask(Vec<Ask>),
    /// Those who write these files must be.
    Written(BTreeSet<FileId>),
    /// These must be taken away first where their pools are exposed.
    Exposed(BTreeMap<PoolName, Vec<FileId>>),
    /// A limit is in the way: so much would have to fit below it.
    Short(Payer, Resource, u64),
    Done(Vec<u8>),
}

/// What a request notes of its session. One that ends meanwhile was cleaned up after already.
struct Noted<'m> {
    mdt: &'m Mdt,
    session: SessionId,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.mdt.forget_ended(self.session);
    }
}

impl Mdt {
    /// Answers one namespace request with the encoded reply. Requests of other rooms are refused.
    pub async fn call(&self, asker: &Asker, request: &Request) -> Result<Vec<u8>, Failure> {
        let result = self.dispatch(asker, request).await;
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
        let _noted = Noted { mdt: self, session: asker.session };
        if self.sessions.is_untold(asker.session) {
            return Err(Error::LossUntold { session: asker.session });
        }
        self.check_scope(asker, grant, request).await?;
        self.callers.asks(asker.session, &asker.caller);
        if let Some(answer) = self.locking(asker, request).await {
            return answer;
        }
        if let Some(answer) = self.quota_call(asker, request).await {
            return answer;
        }
        match request {
            Request::ReportPlace(report) => {
                return Ok(tieline_wire::encode(&self.report_place(report)?));
            }
            Request::ResyncFile(page) => {
                return Ok(tieline_wire::encode(&self.resync_file(asker, page).await?));
            }
            Request::GetCapability(asked) => {
                let reply = self.get_capability(asker, grant, asked).await?;
                return Ok(tieline_wire::encode(&reply));
            }
            _ => {}
        }
        if let Some(answer) = self.bulk_call(asker, grant, request).await {
            return answer;
        }
        if request.op().is_mutation() {
            self.mutate(asker, grant, request).await
        } else {
            self.read(asker, grant, request).await
        }
    }

    async fn read(&self, asker: &Asker, grant: Grant, request: &Request) -> Result<Vec<u8>> {
        let mut begin = None;
        let (mut looked, mut asked) = (BTreeSet::new(), BTreeSet::new());
        let map = self.parts.map.current();
        let (unnamed, mut nobody) = (Keepers::new(), Keepers::new());
        for attempt in 0..ATTEMPTS {
            let (shared, said) = (self.leases.shared(), self.writers.said());
            let serial = self.capability_serial(request);
            let scene = self.scene(asker, grant, &map.map, &unnamed);
            let mut view = View::reading(scene, self.parts.store.begin().await?);
            let run = ops::run(&mut view, request).await;
            let asks = self.alone(asker.session, &view.seen, false);
            if !asks.is_empty() {
                drop(view);
                let asks = self.dated(asks).await?;
                self.take_back(asks, &mut nobody).await;
                continue;
            }
            if self.leases.shared() != shared {
                // What somebody held alone came in after this began.
                continue;
            }
            let mut reply = match run {
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(fail(view, error).await),
                Ok(reply) => reply,
            };
            if let Request::Open(open) = request {
                // Before it is looked at whether the file lost its last name meanwhile: whoever
                // takes that from now on asks this session.
                self.opens.opened(asker.session, open.id, open.is_write);
                begin = begin.or_else(|| self.begins_to_write(asker.session, open));
                if begin.is_some() && self.writers.has_others(asker.session, open.id) {
                    view.written.insert(open.id);
                }
            }
            let written: BTreeSet<FileId> = view.written.difference(&looked).copied().collect();
            if !written.is_empty() {
                drop(view);
                self.ask_writers(asker.session, &written, begin.is_some()).await?;
                looked.extend(written);
                continue;
            }
            if let Some(begin) = begin.as_mut().filter(|begin| begin.is_news) {
                let touched = (&view.touched, false);
                let asks = self.cover(asker.session, &mut begin.change, touched, &asked);
                if !asks.is_empty() {
                    drop(view);
                    asked.extend(asks.iter().map(|ask| ask.holder));
                    let asks = self.dated(asks).await?;
                    self.take_back(asks, &mut nobody).await;
                    continue;
                }
            }
            let as_of = view.version();
            if attempt < OPEN_ATTEMPTS && self.open_is_overtaken(request, &mut reply, as_of).await {
                continue;
            }
            let units = reply.lease_mut().map(|lease| lease.units.clone()).unwrap_or_default();
            let entitled = match self.entitled(&mut view, &units).await {
                Err(error) if error.is_conflict() => continue,
                entitled => entitled?,
            };
            let resting = take(&mut view.resting);
            let committed = match view.commit().await {
                Err(error) if error.is_conflict() => continue,
                other => other?,
            };
            if let Some(lease) = reply.lease_mut() {
                lease.as_of = as_of;
                lease.units = match &begin {
                    Some(begin) => begin.change.grant(&entitled, as_of),
                    None => self.leases.grant(asker.session, &entitled, as_of),
                };
                // Also where nothing is granted: what the reader holds by another answer is not
                // to cover what he is told here. Where others begin all the time it ends.
                if self.are_begun(asker.session, said, &resting) {
                    if attempt < ATTEMPTS / 2 {
                        continue;
                    }
                    lease.units.clear();
                }
            }
            committed.durable.await?;
            if let Some(begin) = begin.take() {
                begin.done();
            }
            if let (Request::Open(open), Reply::Open(opened), Some(serial)) =
                (request, &mut reply, serial)
            {
                self.grant_open(asker, serial, open, opened);
            }
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
        self.sessions.check_room(asker.session, asker.answered_below)?;
        if request.op() != Op::Batch {
            // What comes in batches was done where nobody else could believe anything.
            self.leases.grace_over().await;
        }
        let mut change = self.leases.change(asker.session);
        let mut keepers = Keepers::new();
        let (mut asked, mut looked) = (BTreeSet::new(), BTreeSet::new());
        let (mut attempts, mut extended) = (0, 0);
        let mut needed_of: BTreeMap<Payer, Share> = BTreeMap::new();
        // Of a batch, if it is done in parts.
        let mut done = vec![];
        let unused_from = match request {
            Request::Batch(batch) => self.check_ids(asker.session, batch)?,
            _ => u64::MAX,
        };
        while attempts < ATTEMPTS {
            let before = (&mut change, &keepers, (&asked, &looked), done.as_slice());
            let refuses = extended >= EXTENSIONS;
            let outcome = self.attempt(asker, grant, request, (refuses, unused_from), before);
            match outcome.await {
                Ok(Run::Done(body)) => return Ok(body),
                Ok(Run::Part(outcomes)) => done = outcomes,
                Ok(Run::Ask(asks)) => {
                    asked.extend(asks.iter().map(|ask| ask.holder));
                    self.take_back(asks, &mut keepers).await;
                }
                Ok(Run::Written(files)) => {
                    let writes = matches!(request, Request::Commit(_));
                    self.ask_writers(asker.session, &files, writes).await?;
                    looked.extend(files);
                }
                Ok(Run::Exposed(files)) => {
                    attempts += 1;
                    self.take_away(files).await?;
                }
                Ok(Run::Short(payer, resource, needed)) => {
                    extended += 1;
                    let (known, more) =
                        (needed_of.entry(payer).or_default(), resource.amount(needed));
                    *known = Share {
                        bytes: known.bytes.max(more.bytes),
                        inodes: known.inodes.max(more.inodes),
                    };
                    if !self.extend(&needed_of).await {
                        extended = EXTENSIONS;
                    }
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
        (refuses, unused_from): (bool, u64),
        (change, keepers, (asked, looked), done): (
            &mut Change,
            &Keepers,
            Asked<'_>,
            &[BatchOutcome],
        ),
    ) -> Result<Run> {
        let map = self.parts.map.current();
        let turn = self.turns.take(request.written()).await;
        let mut transaction = self.parts.store.begin().await?;
        let (stored, lost) = self.stored_answer(&mut *transaction, asker, request.op()).await?;
        if let Some(body) = stored {
            transaction.commit().await?.durable.await?;
            return Ok(Run::Done(body));
        }
        self.room.check(request)?;
        let scene = self.scene(asker, grant, &map.map, keepers);
        let (shared, said) = (self.leases.shared(), self.writers.said());
        let mut view = View::new(Scene { refuses, unused_from, lost: &lost, ..scene }, transaction);
        view.outcomes = done.to_vec();
        let run = ops::run(&mut view, request).await;
        let sends = matches!(request, Request::Batch(_) | Request::Place(_) | Request::Commit(_));
        let mut asks = self.alone(asker.session, &view.seen, sends);
        let mut reply = match run {
            _ if !asks.is_empty() => return self.dated(asks).await.map(Run::Ask),
            Ok(_) if !view.written.is_subset(looked) => {
                return Ok(Run::Written(view.written.difference(looked).copied().collect()));
            }
            Err(error) if error.is_conflict() => return Ok(Run::Again),
            Err(_) if self.leases.shared() != shared => return Ok(Run::Again),
            Err(Error::Quota { payer, resource, needed, .. }) if !refuses => {
                return Ok(Run::Short(payer, resource, needed));
            }
            Err(error) => return Err(fail(view, error).await),
            Ok(reply) => reply,
        };
        let exposed = view.still_exposed().await?;
        if !exposed.is_empty() {
            return Ok(Run::Exposed(exposed));
        }
        let sweeps = request.sweeps() && self.sessions.is_exclusive(asker.session);
        asks = self.cover(asker.session, change, (&view.touched, sweeps), asked);
        if !asks.is_empty() {
            return self.dated(asks).await.map(Run::Ask);
        }
        if let Some(lease) = reply.lease_mut() {
            let swept = view.look_at(change.swept()).await?;
            lease.units.extend(swept);
        }
        let units = reply.lease_mut().map(|lease| lease.units.clone()).unwrap_or_default();
        let entitled = self.entitled(&mut view, &units).await?;
        let (length, pruned) = if view.is_partial {
            Default::default()
        } else {
            self.put_answer(&mut view, asker, request.op(), &reply)
        };
        if let Reply::Create(created) = &reply {
            let file = created.open.attributes.id;
            self.opens.opened(asker.session, file, created.is_new);
            if created.is_new {
                self.writers.note(asker.session, file);
            }
            if self.leases.is_losing(file) {
                drop(turn);
                self.leases.not_losing(file).await;
                return Ok(Run::Again);
            }
        }
        let scene = view.scene;
        let alone = self.hold_made(asker.session, request, &view);
        let (is_partial, counted) = (view.is_partial, view.counted);
        let resting = (said, take(&mut view.resting));
        let (gone, outcomes) = (take(&mut view.gone), take(&mut view.outcomes));
        let noted = take(&mut view.exposure.noted);
        let committed = view.commit().await?;
        drop(turn);
        change.committed(committed.version);
        self.tell_exposer(&noted);
        if let (Request::Commit(commit), Reply::Commit(reply)) = (request, &mut reply) {
            reply.attributes.is_written = self.wrote(asker.session, commit).then_some(true);
        }
        self.note_made(&scene, &reply);
        self.revoke_changed(request, &outcomes, (done.len(), is_partial));
        self.inodes.add(counted);
        if !self.settings.keeps_deleted {
            // Else whoever removed one must hear of it when it is brought back.
            self.leases.gone(&gone);
        }
        if is_partial {
            return Ok(Run::Part(outcomes));
        }
        self.sessions.answered(asker.session, (asker.number, length), &pruned);
        if let Reply::Reserve(ReserveReply { first, count }) = reply {
            self.sessions.reserved(asker.session, SerialRun { first, count });
        }
        let told = (asker.session, &entitled[..], alone);
        self.finish(change, committed, &mut reply, told, resting).await.map(Run::Done)
    }

    /// Are the ids of what a batch makes the session's to give? Says from which serial on none of
    /// them was given before.
    fn check_ids(&self, session: SessionId, batch: &Batch) -> Result<u64> {
        let made = batch.items.iter().filter(|item| makes_file(item));
        let serials: Vec<u64> = made.map(|item| item.id.serial()).collect();
        let of_others = Error::Invalid { what: "a batch makes a file with an id of others" };
        // One that is barred is not ended yet, and its client sends again what it had not sent.
        let is_over = |before| self.leases.is_barred(before);
        self.sessions.give(session, &serials, is_over).ok_or(of_others)
    }

    /// Directories that the reply may give the session to hold alone. Those that a batch makes it
    /// holds before anybody can see them: what it makes in them next is not known here.
    fn hold_made(
        &self,
        session: SessionId,
        request: &Request,
        view: &View<'_>,
    ) -> Vec<ExclusiveUnit> {
        if matches!(request, Request::Batch(_)) {
            let made = view.made.difference(&view.gone);
            made.for_each(|&directory| self.leases.made_alone(session, directory));
            return vec![];
        }
        // A door may have been a client before.
        let acts_for_another = view.scene.delegation.is_some();
        if !self.sessions.is_exclusive(session) || self.room.is_short() || acts_for_another {
            return vec![];
        }
        let unit = |(&id, inode): (&FileId, &Inode)| ExclusiveUnit {
            attributes: view.attributes(id, inode),
            layout: inode.layout.clone().unwrap_or_default(),
            is_empty: inode.entries == 0 && view.scene.map.junctions_in(id).next().is_none(),
            has_limits: Some(self.quotas.has_limits()).filter(|&has| has),
        };
        view.directories.iter().map(unit).collect()
    }

    /// The reply, once it is durable.
    async fn finish(
        &self,
        change: &Change,
        committed: Committed,
        reply: &mut Reply,
        (session, entitled, mut alone): (SessionId, &[Entitled], Vec<ExclusiveUnit>),
        (said, resting): (u64, BTreeSet<FileId>),
    ) -> Result<Vec<u8>> {
        let is_begun = self.are_begun(session, said, &resting);
        if let Some(told) = told_file(reply).filter(|_| is_begun) {
            told.is_written = Some(true);
        }
        if let Some(lease) = reply.lease_mut() {
            lease.as_of = committed.version;
            lease.units = change.grant(entitled, committed.version);
            if is_begun {
                // What the reply tells is good for once.
                lease.units.clear();
            }
            alone.retain(|unit| lease.units.contains(&unit.attributes.id));
            let wished: Vec<_> = alone.iter().map(|unit| unit.attributes.id).collect();
            let held = change.grant_alone(&wished, committed.version);
            alone.retain(|unit| held.contains(&unit.attributes.id));
            lease.exclusive = Some(alone).filter(|alone| !alone.is_empty());
        }
        committed.durable.await?;
        Ok(reply.encode())
    }

    /// The answer this request got before, and the locks that the session lost unheard. Reading
    /// session and answer here makes the commit depend on both.
    async fn stored_answer(
        &self,
        transaction: &mut dyn Transaction,
        asker: &Asker,
        op: Op,
    ) -> Result<(Option<Vec<u8>>, Vec<LostLock>)> {
        let session = asker.session;
        let keys = [key::session(session), key::answer(session, asker.number)];
        let mut values = transaction.read(&keys).await?.into_iter();
        let record = values.next().flatten().ok_or(Error::SessionLost { session })?;
        let record: Session = decode(&record, || session.to_string())?;
        let lost = record.losses.map(|losses| losses.unheard).unwrap_or_default();
        let Some(value) = values.next().flatten() else { return Ok((None, lost)) };
        let answer: Answer = decode(&value, || format!("{session}/{}", asker.number))?;
        if answer.op != op.number() {
            return Err(Error::Invalid { what: "this request number was used for another call" });
        }
        Ok((Some(answer.body), lost))
    }

    /// Stores the answer beside its effects, and deletes answers that the client has seen.
    ///
    /// A repeated answer grants nothing: what it says may be old by then. Says how long it is.
    fn put_answer(
        &self,
        view: &mut View<'_>,
        asker: &Asker,
        op: Op,
        reply: &Reply,
    ) -> (usize, Vec<RequestNumber>) {
        let mut reply = reply.clone();
        if let Some(lease) = reply.lease_mut() {
            lease.units.clear();
        }
        let answer = Answer { op: op.number(), is_failure: false, body: reply.encode() };
        let length = answer.body.len();
        view.put(key::answer(asker.session, asker.number), &answer);
        let pruned = self.sessions.confirmed(asker.session, asker.answered_below);
        for &number in &pruned {
            view.delete(key::answer(asker.session, number));
        }
        (length, pruned)
    }

    /// What somebody's request runs in.
    pub(crate) fn scene<'a>(
        &'a self,
        asker: &'a Asker,
        grant: Grant,
        map: &'a FederationMap,
        keepers: &'a Keepers,
    ) -> Scene<'a> {
        let delegation = asker.delegation.as_deref();
        let scene = self.scene_of(asker.session, grant, &asker.caller, map, keepers);
        let is_judged = map.security.is_some() && !asker.may_be_root;
        let walks = is_judged.then_some(&self.walks);
        Scene { delegation, of_items: &asker.of_items, walks, ..scene }
    }

    pub(crate) fn scene_of<'a>(
        &'a self,
        session: SessionId,
        grant: Grant,
        caller: &'a Caller,
        map: &'a FederationMap,
        keepers: &'a Keepers,
    ) -> Scene<'a> {
        let now = wall_time(&self.parts.world);
        Scene {
            mdt: self.settings.mdt,
            map,
            now,
            at: now,
            session,
            grant,
            caller,
            delegation: None,
            of_items: &[],
            made: &self.made,
            keepers,
            serials: &self.serials,
            placement: &self.placement,
            quotas: &self.quotas,
            writers: &self.writers,
            inodes: self.inodes.total(),
            first_serial: self.first_serial,
            chosen: None,
            unused_from: u64::MAX,
            refuses: true,
            keeps_deleted: self.settings.keeps_deleted,
            keep_ms: self.settings.freed_keep.as_millis() as u64,
            lost: &[],
            walks: None,
        }
    }

    /// May a handle of the asker do one of `wishes`? For calls that are no operations.
    pub(crate) fn check_handle(
        &self,
        asker: &Asker,
        file: (FileId, &Inode),
        wishes: &[u32],
    ) -> Result<()> {
        let current = self.parts.map.current();
        permission::check_handle_of(&asker.caller, &current.map, file, wishes)
    }

    /// Remembers that the store ended, so that nothing is asked of it any more.
    pub(crate) fn note(&self, error: &Error) {
        if let Error::Store(source) = error {
            self.store_failed(source);
        }
    }

    /// Notes what ends the store, whoever used it.
    pub fn store_failed(&self, source: &tieline_kv::Error) {
        if matches!(
            source,
            tieline_kv::Error::Failed { .. }
                | tieline_kv::Error::Journal { .. }
                | tieline_kv::Error::Ended { .. }
        ) {
            let reason = chain(source);
            if self.ended.set((ErrorKind::StorageFault, reason.clone())).is_ok() {
                let mdt = self.settings.mdt.label();
                tracing::error!(mdt, "the metadata store failed; restart the server: {reason}");
            }
        }
    }
}

/// The file that the answer to a change tells under the directory of its name.
fn told_file(reply: &mut Reply) -> Option<&mut Attributes> {
    match reply {
        Reply::Create(made) => Some(&mut made.open.attributes),
        Reply::Link(made) => made.attributes.as_mut(),
        Reply::Rename(moved) => moved.attributes.as_mut(),
        _ => None,
    }
}

/// Ends a failed run. The answer rests on what was read, so it waits until that is durable.
pub(crate) async fn fail(view: View<'_>, error: Error) -> Error {
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
