//! Clients' sessions: durable, resumed after a lost connection or a restart, with the answers they
//! may ask for again.
//!
//! Invariants: an id is never given twice; a session that was ended is refused, never taken for a
//! new one; an answer is kept until the client says that it has seen it; sessions, and what each
//! keeps, are bounded.

mod losses;

use crate::Coming;
use crate::error::{Error, Result};
use crate::serials::{Counter, Serials};
use crate::view::decode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Losses, SerialRun, Session, Shown, key};
use tieline_kv::{Range, Store, Transaction};
use tieline_sessions::{NoPlace, Parties, Place};
use tieline_types::{ClientId, FileId, Grant, RequestNumber, SessionId, Time};
use tieline_wire::Hello;
use tieline_wire::capability::{FileRun, Holder};

/// Answers a session may leave unconfirmed, and what they may take of the store.
pub(crate) const ANSWERS_MAX: usize = 4096;
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// A session that leaves less unconfirmed is never held up by others of its party.
const ANSWER_BYTES_FREE: u64 = 64 << 10;
/// What an answer takes beside its own bytes: its key, and its part of the store's tree.
const ANSWER_WEIGHT: u64 = 128;
/// Confirmed answers that one transaction deletes.
const PRUNE_MAX: usize = 64;
/// Runs of serials that a session may have begun and not used up; older ones are forgotten.
pub const RUNS_MAX: usize = 4;
/// Runs of ended sessions that are remembered.
const RETIRED_MAX: usize = 256;
/// Tickets of a session that are noted. Clients number them as they like.
const SHOWN_MAX: usize = 1024;
/// Records that one transaction of an ending session deletes.
const STEP: usize = 512;
/// Looks at so many of the records of nameless files, each at [`STEP`] of them.
const ORPHAN_PAGES: usize = 16;

pub struct SessionTable {
    store: Arc<dyn Store>,
    serials: Serials,
    inner: Mutex<BTreeMap<SessionId, Known>>,
    parties: Parties,
    /// Runs of file serials that ended sessions had and whose they were, the latest last.
    retired: Mutex<Vec<(ClientId, SerialRun)>>,
}

struct Known {
    client: ClientId,
    grant: Grant,
    /// How long the client waits for us, if it says so.
    wait: Option<Duration>,
    /// Numbers whose answers are stored, and what each takes.
    answers: BTreeMap<RequestNumber, u64>,
    /// File serials that it gives out itself.
    runs: Vec<SerialRun>,
    /// Of these, those from here on were never given out.
    unused_from: u64,
    /// Locks that it lost.
    losses: Losses,
    /// A welcome told of them up to this number.
    told: u64,
    place: Place,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.place.party.answers_went(self.answers.values().sum());
    }
}

impl SessionTable {
    /// Loads all sessions and what answers they have.
    pub async fn load(store: Arc<dyn Store>) -> Result<Self> {
        let (mut sessions, parties) = (BTreeMap::new(), Parties::default());
        let mut start = key::sessions();
        let end = key::after(&start);
        loop {
            let page = scan(&store, Range::new(start, end.clone())).await?;
            let Some((last, _)) = page.last() else { break };
            start = [last.as_slice(), &[0]].concat();
            for (key, value) in &page {
                let damaged = || Error::Missing { what: "id in key", id: "a session".to_owned() };
                let id = key::session_id(key).ok_or_else(damaged)?;
                let record: Session = decode(value, || id.to_string())?;
                let answers = load_answers(&store, id).await?;
                let Session { client, grant, runs, wait_ms, losses, party, .. } = record;
                let place = parties.old_place(party.as_deref().unwrap_or_default());
                place.party.answers_came(answers.values().sum());
                let wait = wait_ms.map(Duration::from_millis);
                let (runs, losses) = (runs.unwrap_or_default(), losses.unwrap_or_default());
                // Which of them were given out is not known.
                let (unused_from, told) = (u64::MAX, 0);
                let known =
                    Known { client, grant, wait, answers, runs, unused_from, losses, told, place };
                sessions.insert(id, known);
            }
        }
        let serials = Serials::new(store.clone(), Counter::Session);
        let (inner, retired) = (Mutex::new(sessions), Mutex::default());
        Ok(Self { store, serials, inner, parties, retired })
    }

    pub fn ids(&self) -> BTreeSet<SessionId> {
        self.lock().keys().copied().collect()
    }

    /// Sessions that may hold directories alone.
    pub fn exclusive(&self) -> BTreeSet<SessionId> {
        let inner = self.lock();
        inner.iter().filter(|(_, known)| !known.runs.is_empty()).map(|(&id, _)| id).collect()
    }

    /// May it hold directories alone?
    pub fn is_exclusive(&self, session: SessionId) -> bool {
        self.lock().get(&session).is_some_and(|known| !known.runs.is_empty())
    }

    /// The session gives out these serials from now on.
    pub fn reserved(&self, session: SessionId, run: SerialRun) {
        if let Some(known) = self.lock().get_mut(&session) {
            known.unused_from = known.unused_from.min(run.first);
            known.runs.push(run);
            let extra = known.runs.len().saturating_sub(RUNS_MAX);
            known.runs.drain(..extra);
        }
    }

    /// May the session give out these serials? Those of sessions that are over are given out by the
    /// same client's that came after: it sends again what was not answered. `is_over` says it of
    /// those that are still here. Says from where on none of them was given out before; `None` if
    /// one is not the session's to give.
    pub fn give(
        &self,
        session: SessionId,
        serials: &[u64],
        is_over: impl Fn(SessionId) -> bool,
    ) -> Option<u64> {
        let mut inner = self.lock();
        let known = inner.get_mut(&session)?;
        let unused_from = known.unused_from;
        let is_own = |serial: &u64| known.runs.iter().any(|run| run.holds(*serial));
        let given = serials.iter().filter(|serial| is_own(serial)).max().map_or(0, |last| last + 1);
        let is_all_own = serials.iter().all(is_own);
        known.unused_from = unused_from.max(given);
        if is_all_own {
            return Some(unused_from);
        }
        let client = known.client;
        let may_give = |(id, known): &(&SessionId, &Known)| {
            known.client == client && (**id == session || is_over(**id))
        };
        let here = inner.iter().filter(may_give).flat_map(|(_, known)| &known.runs);
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = retired.iter().filter(|(whose, _)| *whose == client).map(|(_, run)| run);
        let runs: Vec<&SerialRun> = here.chain(gone).collect();
        let is_given = |serial: &u64| runs.iter().any(|run| run.holds(*serial));
        serials.iter().all(is_given).then_some(u64::MAX)
    }

    /// The session goes on if it is known and the client's.
    pub fn resume(&self, session: SessionId, client: ClientId) -> Option<Grant> {
        let inner = self.lock();
        let known = inner.get(&session).filter(|known| known.client == client)?;
        Some(known.grant)
    }

    pub async fn open(
        &self,
        client: ClientId,
        Coming { description, party, wait, .. }: Coming<'_>,
        now: Time,
    ) -> Result<(SessionId, Grant)> {
        let place = self.parties.place(party);
        let place = place.map_err(|NoPlace { whose, most }| Error::SessionsFull { whose, most })?;
        let serial = self.serials.next().await?;
        let (session, grant) = (SessionId(serial), Grant(serial));
        let description = description.chars().take(Hello::DESCRIPTION_MAX).collect();
        let (opened, runs, wait_ms, losses) = (now, None, wait.map(millis), None);
        let party = Some(party.to_owned());
        let record = Session { client, grant, description, opened, runs, wait_ms, losses, party };
        let mut transaction = self.store.begin().await?;
        transaction.put(key::session(session), record.to_bytes());
        transaction.commit().await?.durable.await?;
        let (answers, runs, unused_from) = (BTreeMap::new(), vec![], u64::MAX);
        let (losses, told) = Default::default();
        let known = Known { client, grant, wait, answers, runs, unused_from, losses, told, place };
        self.lock().insert(session, known);
        Ok((session, grant))
    }

    /// How long the clients of all sessions wait for us, as far as they say so, and as far as that
    /// counts: where a party has no place left, who is silent makes room for who comes.
    pub fn waits(&self) -> BTreeMap<SessionId, Option<Duration>> {
        let counted = |known: &Known| known.wait.filter(|_| known.place.party.has_place());
        self.lock().iter().map(|(&session, known)| (session, counted(known))).collect()
    }

    /// A client that came back says how long it waits, perhaps otherwise than before.
    pub async fn note_wait(&self, session: SessionId, wait: Option<Duration>) -> Result<()> {
        match self.lock().get_mut(&session) {
            Some(known) if known.wait != wait => known.wait = wait,
            _ => return Ok(()),
        }
        loop {
            let mut transaction = self.store.begin().await?;
            let found = transaction.read(&[key::session(session)]).await?.into_iter().next();
            let Some(value) = found.flatten() else { return Ok(()) };
            let record: Session = decode(&value, || session.to_string())?;
            let record = Session { wait_ms: wait.map(millis), ..record };
            transaction.put(key::session(session), record.to_bytes());
            match commit(transaction).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
        }
    }

    /// As whom capabilities know the session's client.
    pub fn holder(&self, session: SessionId) -> Option<Holder> {
        self.lock().get(&session).map(|known| Holder(known.client.0))
    }

    /// Serials that the session gives out itself, and those that it may have taken over.
    pub fn runs(&self, session: SessionId) -> Vec<FileRun> {
        let own = self.lock().get(&session).map(|known| known.runs.clone()).unwrap_or_default();
        own.iter().map(|run| FileRun { first: run.first, count: run.count }).collect()
    }

    /// The session's grant, if it may ask.
    pub fn grant(&self, session: SessionId) -> Result<Grant> {
        let inner = self.lock();
        inner.get(&session).map(|known| known.grant).ok_or(Error::SessionLost { session })
    }

    /// Is it the grant of a session? A session's grant has its number.
    pub fn is_grant(&self, grant: Grant) -> bool {
        self.lock().get(&SessionId(grant.0)).is_some_and(|known| known.grant == grant)
    }

    /// May an answer more be stored, where the client has seen those below a number?
    pub fn check_room(&self, session: SessionId, below: RequestNumber) -> Result<()> {
        let inner = self.lock();
        let Some(known) = inner.get(&session) else { return Ok(()) };
        let (kept, bytes) = known
            .answers
            .range(below..)
            .fold((0, 0), |(kept, bytes), (_, weight)| (kept + 1, bytes + weight));
        if kept >= ANSWERS_MAX || bytes >= ANSWER_BYTES_MAX {
            return Err(Error::AnswersFull { session, kept });
        }
        let party = &known.place.party;
        if bytes >= ANSWER_BYTES_FREE && party.is_full_of_answers() {
            return Err(Error::PartyAnswersFull { party: party.name().to_owned() });
        }
        Ok(())
    }

    /// Confirmed answers that may be deleted now.
    pub fn confirmed(&self, session: SessionId, below: RequestNumber) -> Vec<RequestNumber> {
        let inner = self.lock();
        let answers = inner.get(&session).map(|known| known.answers.range(..below));
        answers.into_iter().flatten().take(PRUNE_MAX).map(|(&number, _)| number).collect()
    }

    /// An answer of so many bytes was stored, and others were deleted.
    pub fn answered(
        &self,
        session: SessionId,
        (number, length): (RequestNumber, usize),
        pruned: &[RequestNumber],
    ) {
        if let Some(known) = self.lock().get_mut(&session) {
            let weight = weight_of_answer(length);
            let before = known.answers.insert(number, weight);
            let pruned = pruned.iter().filter_map(|number| known.answers.remove(number));
            let went = pruned.chain(before).sum();
            known.place.party.answers_came(weight);
            known.place.party.answers_went(went);
        }
    }

    /// From now on the session is refused. Says whether it was known.
    pub fn forget(&self, session: SessionId) -> bool {
        let Some(known) = self.lock().remove(&session) else { return false };
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.extend(known.runs.iter().map(|&run| (known.client, run)));
        let extra = retired.len().saturating_sub(RETIRED_MAX);
        retired.drain(..extra);
        true
    }

    /// Notes a ticket that was shown in a session, durably: who showed it may destroy it at once,
    /// and what he opened goes on.
    pub async fn note_shown(&self, session: SessionId, number: u64, shown: &Shown) -> Result<()> {
        loop {
            let mut transaction = self.store.begin().await?;
            let noted = transaction.scan(shown_in(session), SHOWN_MAX).await?;
            if let Some(oldest) = oldest_shown(&noted).filter(|_| noted.len() >= SHOWN_MAX) {
                transaction.delete(oldest);
            }
            transaction.put(key::shown(session, number), shown.to_bytes());
            match commit(transaction).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
        }
    }

    /// What was shown in a session under a number.
    pub async fn shown(&self, session: SessionId, number: u64) -> Result<Option<Shown>> {
        let mut transaction = self.store.begin().await?;
        let found = transaction.read(&[key::shown(session, number)]).await?;
        let found = found.into_iter().next().flatten();
        found.map(|value| decode(&value, || format!("ticket of session {session}"))).transpose()
    }

    /// Deletes what the store keeps of a session but its orphans: its answers and tickets, last its
    /// record.
    pub async fn delete(&self, session: SessionId) -> Result<()> {
        loop {
            let mut transaction = self.store.begin().await?;
            let mut is_all = true;
            for range in [answers_of(session), shown_in(session)] {
                let found = transaction.scan(range, STEP).await?;
                is_all &= found.len() < STEP;
                for (key, _) in found {
                    transaction.delete(key);
                }
            }
            if is_all {
                transaction.delete(key::session(session));
            }
            match commit(transaction).await {
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
                Ok(()) if is_all => return Ok(()),
                Ok(()) => {}
            }
        }
    }

    /// Nameless files that a session keeps, as far as few records tell. The collector goes through
    /// all there are, and lets go what nobody known keeps.
    pub async fn orphans_of(&self, session: SessionId) -> Result<Vec<FileId>> {
        let mut kept = vec![];
        let mut start = key::orphans();
        let end = key::after(&start);
        for _ in 0..ORPHAN_PAGES {
            let page = scan(&self.store, Range::new(start, end.clone())).await?;
            let Some((last, _)) = page.last() else { break };
            start = [last.as_slice(), &[0]].concat();
            let parts = page.iter().filter_map(|(key, _)| key::orphan_parts(key));
            kept.extend(parts.filter(|(_, keeper)| *keeper == session).map(|(file, _)| file));
        }
        Ok(kept)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Known>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight_of_answer(length: usize) -> u64 {
    length as u64 + ANSWER_WEIGHT
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

async fn commit(transaction: Box<dyn Transaction>) -> Result<()> {
    transaction.commit().await?.durable.await?;
    Ok(())
}

async fn scan(store: &Arc<dyn Store>, range: Range) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    Ok(store.begin().await?.scan(range, STEP).await?)
}

fn answers_of(session: SessionId) -> Range {
    Range::new(
        key::answer(session, RequestNumber(0)),
        key::answer(SessionId(session.0 + 1), RequestNumber(0)),
    )
}

/// The note that was made first; before that one that cannot be read.
fn oldest_shown(noted: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
    let at = |value: &[u8]| Shown::from_bytes(value).ok().map(|shown| shown.at);
    noted.iter().min_by_key(|(_, value)| at(value)).map(|(key, _)| key.clone())
}

fn shown_in(session: SessionId) -> Range {
    Range::new(key::shown(session, 0), key::shown(SessionId(session.0 + 1), 0))
}

async fn load_answers(
    store: &Arc<dyn Store>,
    session: SessionId,
) -> Result<BTreeMap<RequestNumber, u64>> {
    let mut numbers = BTreeMap::new();
    let mut range = answers_of(session);
    loop {
        let page = scan(store, range.clone()).await?;
        let Some((last, _)) = page.last() else { return Ok(numbers) };
        range.start = [last.as_slice(), &[0]].concat();
        for (key, value) in &page {
            // Kind, session, then the number.
            let number = key.get(9..).and_then(|rest| rest.first_chunk());
            let number = number.map(|bytes| RequestNumber(u64::from_be_bytes(*bytes)));
            numbers.extend(number.map(|number| (number, weight_of_answer(value.len()))));
        }
    }
}
