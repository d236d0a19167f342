//! Checks an MDT while it serves: its records against each other, then against the objects at the
//! OSTs; repairs what can be repaired, if asked to.
//!
//! A check reads one snapshot, so that a change under way is never taken for damage; what lies at
//! the OSTs is asked again where it seems wrong, and repairs run as transactions on what is then.
//! It runs here, in a task of its own, while the one who asked for it keeps asking how it goes on.
//!
//! * `names`: inodes, entries, and their counts.
//! * `bytes`: extents, chunk records, attributes, and their counts.
//! * `usage`: what is noted for quotas.
//! * `objects`: chunks at the OSTs.
//! * `adopted`: files that were there before, and in which chunks lie.
//!
//! Invariants: one check at a time, and none that nobody asks after; findings that wait to be
//! fetched are bounded, and so is what a check remembers; nothing is deleted that any record or any
//! living session may still name.

mod adopted;
mod bytes;
mod names;
mod objects;
mod usage;

use crate::Parts;
use crate::chore::status::{resting, set_failed};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Inode, key};
use tieline_kv::{Key, Range, Snapshot, Value};
use tieline_types::background::{Change, Repair};
use tieline_types::{ErrorKind, FileId, Time};
use tieline_wire::Failure;
use tieline_wire::chores::{Chore, ChoreFailure, ChoreState};
use tieline_wire::ledger::{CheckMdt, CheckMdtReply, Finding, Outcome};
use tokio::sync::Notify;
use tokio::time::Instant;

/// As operators see it beside other work.
const NAME: &str = "check";
/// Records in one look.
const PAGE: usize = 256;
/// Findings that wait to be fetched.
const WAITING_MAX: usize = 1024;
/// A question is answered after this long even if nothing happened.
const ANSWER_AFTER: Duration = Duration::from_millis(500);
/// A check that nobody asks after ends.
const ASKED_WITHIN: Duration = Duration::from_secs(60);
/// Who gives a check up is answered when it has ended, or after this long.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const ABANDONED: Error = Error::Given { what: "nobody asks after this check any more" };
const PANICKED: Error = Error::Given { what: "the check panicked: see the server's log" };
/// Directories above a file, for its path: more is a loop.
const DEPTH_MAX: usize = 512;

/// The check that runs, or ran last.
#[derive(Default)]
pub struct Checks(Mutex<Option<Arc<Job>>>);

/// A check.
struct Job {
    id: u64,
    is_repair: bool,
    reads_bytes: bool,
    state: Mutex<State>,
    /// There is something new to tell.
    told: Notify,
    /// Findings were fetched: there is room for more.
    fetched: Notify,
}

struct State {
    findings: VecDeque<Finding>,
    /// How many findings were fetched and forgotten.
    fetched: u64,
    phase: String,
    looked_at: u64,
    is_end: bool,
    ended: Option<Time>,
    failure: Option<Failure>,
    asked: Instant,
    is_given_up: bool,
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_asked(&self) -> Result<()> {
        let state = self.state();
        match state.is_given_up || state.asked.elapsed() >= ASKED_WITHIN {
            true => Err(ABANDONED),
            false => Ok(()),
        }
    }

    /// Waits until nobody asks any more.
    async fn abandoned(&self) {
        loop {
            // Whoever asks and whoever gives up says so.
            let fetched = self.fetched.notified();
            tokio::pin!(fetched);
            fetched.as_mut().enable();
            if self.check_asked().is_err() {
                return;
            }
            let _ = tokio::time::timeout(ASKED_WITHIN, fetched).await;
        }
    }

    /// Has the check end, and waits for that.
    async fn give_up(&self) {
        self.state().is_given_up = true;
        self.fetched.notify_waiters();
        let ended = async {
            loop {
                let told = self.told.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if self.state().is_end {
                    return;
                }
                told.await;
            }
        };
        let _ = tokio::time::timeout(ENDS_WITHIN, ended).await;
    }

    fn reply(&self) -> CheckMdtReply {
        let state = self.state();
        CheckMdtReply {
            job: self.id,
            findings: state.findings.iter().take(PAGE).cloned().collect(),
            phase: state.phase.clone(),
            looked_at: state.looked_at,
            is_end: state.is_end && state.failure.is_none() && state.findings.len() <= PAGE,
        }
    }
}

impl Checks {
    /// Begins a check, or says how it goes on.
    pub async fn ask(
        &self,
        parts: &Arc<Parts>,
        message: &CheckMdt,
    ) -> Result<CheckMdtReply, Failure> {
        let job = match message.job {
            None => self.begin(parts, message)?,
            Some(id) => {
                let current = self.current();
                current.filter(|job| job.id == id).ok_or_else(|| {
                    let detail = "this check was given up or its server restarted: begin again";
                    Failure::new(ErrorKind::Gone, detail)
                })?
            }
        };
        if message.received == CheckMdt::GIVE_UP {
            job.give_up().await;
            return Ok(job.reply());
        }
        let told = job.told.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        let has_news = {
            let mut state = job.state();
            state.asked = Instant::now();
            while state.fetched < message.received && state.findings.pop_front().is_some() {
                state.fetched += 1;
            }
            !state.findings.is_empty() || state.is_end
        };
        job.fetched.notify_waiters();
        // Who asks again and again must not keep the check from its work.
        tokio::task::yield_now().await;
        if !has_news {
            let _ = tokio::time::timeout(ANSWER_AFTER, told).await;
        }
        let state = job.state();
        if let Some(failure) = state.failure.clone().filter(|_| state.findings.is_empty()) {
            return Err(failure);
        }
        drop(state);
        Ok(job.reply())
    }

    /// The check as a chore: it is done when somebody asks for it.
    pub fn tell(&self) -> Chore {
        let mut told = resting(NAME, "records and objects");
        let Some(job) = self.current() else { return told };
        let state = job.state();
        (told.done, told.ended) = (state.looked_at, state.ended);
        told.state = match &state.failure {
            None if !state.is_end => ChoreState::Working,
            // It ended since nobody wanted it any more.
            Some(_) if !state.is_given_up => ChoreState::Failed,
            _ => ChoreState::Resting,
        };
        let (failure, at) = (state.failure.clone(), state.ended.unwrap_or_default());
        told.failure = failure.map(|failure| ChoreFailure { at, detail: failure.detail });
        told
    }

    fn current(&self) -> Option<Arc<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn begin(&self, parts: &Arc<Parts>, message: &CheckMdt) -> Result<Arc<Job>, Failure> {
        let mut checks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if checks.as_ref().is_some_and(|job| !job.state().is_end) {
            let detail = "another check of this MDT is under way: wait until it ends, or a minute \
                          if nobody waits for it any more";
            return Err(Failure::new(ErrorKind::Busy, detail));
        }
        let state = State {
            findings: VecDeque::new(),
            fetched: 0,
            phase: "names".to_owned(),
            looked_at: 0,
            is_end: false,
            ended: None,
            failure: None,
            asked: Instant::now(),
            is_given_up: false,
        };
        let job = Arc::new(Job {
            id: parts.world.random(),
            is_repair: message.is_repair,
            reads_bytes: message.reads_bytes,
            state: Mutex::new(state),
            told: Notify::new(),
            fetched: Notify::new(),
        });
        *checks = Some(job.clone());
        tokio::spawn(see_through(parts.clone(), job.clone()));
        Ok(job)
    }
}

/// Has a check done, and tells how it ended.
async fn see_through(parts: Arc<Parts>, job: Arc<Job>) {
    let work = tokio::spawn({
        let (parts, job) = (parts.clone(), job.clone());
        async move { run(&parts, &job).await }
    });
    tokio::pin!(work);
    let outcome = tokio::select! {
        biased;
        // Also while it waits for a server that does not answer. A repair is not cut off.
        () = job.abandoned(), if !job.is_repair => {
            work.abort();
            work.await.unwrap_or_else(|_| Err(ABANDONED))
        }
        outcome = &mut work => outcome.unwrap_or_else(|_| Err(PANICKED)),
    };
    let mut state = job.state();
    state.is_end = true;
    state.ended = Some(parts.now());
    set_failed(parts.index, NAME, outcome.is_err() && !state.is_given_up);
    if let Err(error) = outcome {
        state.failure = Some(parts.failure(error));
    }
    drop(state);
    job.told.notify_waiters();
}

async fn run(parts: &Arc<Parts>, job: &Arc<Job>) -> Result<()> {
    let snapshot = parts.store.snapshot().await?;
    let mut check = Check { parts: parts.clone(), job: job.clone(), snapshot, unrepaired: 0 };
    check.names().await?;
    check.junctions().await?;
    check.bytes().await?;
    check.usage().await?;
    check.objects().await?;
    if job.is_repair && check.unrepaired == 0 {
        // Whatever the OSTs hold beyond the records was looked at.
        parts.mdt.set_checked().await?;
    }
    Ok(())
}

/// One check at work.
struct Check {
    parts: Arc<Parts>,
    job: Arc<Job>,
    snapshot: Box<dyn Snapshot>,
    unrepaired: u64,
}

impl Check {
    fn phase(&self, phase: impl Into<String>) {
        self.job.state().phase = phase.into();
    }

    /// The next records of a range, and from where to go on. Ends what nobody asks after.
    async fn page(&mut self, start: &mut Key, end: &Key) -> Result<Vec<(Key, Value)>> {
        self.job.check_asked()?;
        let range = Range::new(start.clone(), end.clone());
        let page = self.snapshot.scan(range, PAGE).await?;
        if let Some((last, _)) = page.last() {
            *start = [last.as_slice(), &[0]].concat();
        }
        self.job.state().looked_at += page.len() as u64;
        tokio::task::yield_now().await;
        Ok(page)
    }

    async fn record<R: Record>(&mut self, key: Key) -> Result<Option<R>> {
        let value = self.snapshot.read(&[key]).await?.into_iter().next().flatten();
        Ok(value.and_then(|value| R::from_bytes(&value).ok()))
    }

    async fn inode(&mut self, id: FileId) -> Result<Option<Inode>> {
        self.record(key::inode(id)).await
    }

    /// The path of a file below the MDT's root; empty if it has none.
    async fn path(&mut self, id: FileId) -> Result<Vec<u8>> {
        let mut path: Vec<u8> = vec![];
        let mut at = id;
        for _ in 0..DEPTH_MAX {
            if at.is_root() {
                return Ok(path);
            }
            let inode = self.inode(at).await?;
            let Some(name) = inode.and_then(|inode| inode.names.into_iter().next()) else {
                return Ok(path);
            };
            let rest = if path.is_empty() { vec![] } else { [b"/", path.as_slice()].concat() };
            path = [name.name.as_bytes(), &rest].concat();
            at = name.parent;
        }
        Ok(path)
    }

    /// Tells of a finding. Waits while too many are not fetched; ends when nobody fetches them.
    async fn tell(
        &mut self,
        what: &str,
        file: Option<FileId>,
        detail: String,
        outcome: Outcome,
    ) -> Result<()> {
        let path = match file {
            Some(id) => self.path(id).await?,
            None => vec![],
        };
        self.unrepaired += u64::from(outcome != Outcome::Repaired);
        let finding = Finding { what: what.to_owned(), path, file, detail, outcome };
        loop {
            let fetched = self.job.fetched.notified();
            tokio::pin!(fetched);
            fetched.as_mut().enable();
            self.job.check_asked()?;
            {
                let mut state = self.job.state();
                if state.findings.len() < WAITING_MAX {
                    state.findings.push_back(finding);
                    break;
                }
            }
            let _ = tokio::time::timeout(ASKED_WITHIN, fetched).await;
        }
        self.job.told.notify_waiters();
        Ok(())
    }

    /// Tells of something that `repair` can put right, and does it if that was asked for.
    async fn mend(
        &mut self,
        what: &str,
        file: Option<FileId>,
        detail: String,
        repair: Repair,
    ) -> Result<()> {
        let outcome = if self.job.is_repair {
            match self.parts.mdt.change(Change::Repair(repair)).await? {
                true => Outcome::Repaired,
                // It is well by now.
                false => return Ok(()),
            }
        } else {
            Outcome::Left
        };
        self.tell(what, file, detail, outcome).await
    }

    /// Tells of what is left of a file that is gone, and deletes it if that was asked for.
    async fn clear(&mut self, what: &str, detail: String, file: FileId) -> Result<()> {
        let mut outcome = Outcome::Left;
        if self.job.is_repair {
            let transaction = &mut self.parts.store.begin().await?;
            if transaction.read(&[key::inode(file)]).await?.into_iter().flatten().next().is_some() {
                return Ok(());
            }
            self.parts.remove(file).await?;
            outcome = Outcome::Repaired;
        }
        self.tell(what, None, detail, outcome).await
    }
}

#[cfg(test)]
mod tests;
