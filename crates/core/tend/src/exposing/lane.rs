//! One exposed pool, followed: what comes first, and when it rests.
//!
//! A change that waits comes before all; then steps that may not have ended, a directory that is to
//! be emptied, notes of changes, and a look at what lies there.
//!
//! Invariant: what fails is said, and tried again after a pause; a change that waits is answered
//! within its patience whatever else goes on.

use super::plan::{Halt, Plan, Turn, is_of};
use super::staging::{Candidate, Staged};
use super::sweep::Sweep;
use super::{Sink, Told, Wish};
use crate::Parts;
use crate::error::{Error, Result, decode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::map::Exposure;
use tieline_format::mdt::{ExposeNote, ExposedPool, Inode, NO_SESSION, key};
use tieline_kv::{Key, Range};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, FileKind, PoolName, Version};
use tieline_wire::Failure;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Notes of one turn.
const NOTES: usize = 256;
/// Inodes of one page, when all are looked at.
const INODES: usize = 1024;
/// A file is left alone for so long after a change: more may come.
const QUIET_MS: u64 = 100;
/// One without bytes was just made, or cut, by an open that may be under way.
const QUIET_EMPTY_MS: u64 = 500;
/// Between two looks at notes that cannot be followed yet.
const SOON: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(2);
/// After something failed.
const FAILED_REST: Duration = Duration::from_millis(500);
/// One file of which steps failed.
const STEP_REST: Duration = Duration::from_secs(1);
/// How often what lies there is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(6 * 3600);
/// How often an OSS that has nothing to do is asked whether it is the one of before.
const GREET_EVERY: Duration = Duration::from_secs(10);

/// What comes next.
enum Next {
    /// There is more to do.
    Now,
    Rest(Duration),
    /// The pool is exposed no more.
    Over,
}

pub struct Lane {
    pub parts: Arc<Parts>,
    pub pool: PoolName,
    told: Arc<Mutex<Told>>,
    sink: Arc<Sink>,
    pub state: ExposedPool,
    /// Steps of before may not have ended.
    is_unsettled: bool,
    pub staging: JoinSet<Staged>,
    /// Files that are put together, and those that are to be next.
    pub busy: BTreeSet<FileId>,
    pub queue: VecDeque<(FileId, Version)>,
    pub ready: BTreeMap<FileId, Version>,
    pub rests: BTreeMap<FileId, Instant>,
    pub sweeping: Option<Sweep>,
    checking: Option<Key>,
    looked: Option<Instant>,
    /// The OSS's, as last heard, and when.
    boot: Option<u64>,
    greeted: Option<Instant>,
    /// Where the next turn's notes begin.
    cursor: Option<Key>,
    waiting: u64,
    /// Directories may be missing that are recorded.
    pub remakes: bool,
}

impl Lane {
    pub fn new(parts: &Arc<Parts>, pool: PoolName, told: Arc<Mutex<Told>>) -> Self {
        let sink = parts.exposures.sink(&pool);
        let state =
            ExposedPool { since: Version(0), is_unknown: true, walked: None, is_marked: false };
        Self {
            parts: parts.clone(),
            pool,
            told,
            sink,
            state,
            is_unsettled: true,
            staging: JoinSet::new(),
            busy: BTreeSet::new(),
            queue: VecDeque::new(),
            ready: BTreeMap::new(),
            rests: BTreeMap::new(),
            sweeping: None,
            checking: None,
            looked: None,
            boot: None,
            greeted: None,
            cursor: None,
            waiting: 0,
            remakes: false,
        }
    }

    /// Follows the pool until it is exposed no more, or the MDT ends.
    pub async fn run(mut self) -> PoolName {
        while !self.parts.mdt.is_ended() {
            let next = match self.turn().await {
                Ok(next) => next,
                Err(error) if error.is_conflict() => Next::Now,
                Err(error) => {
                    self.failed(error);
                    Next::Rest(FAILED_REST)
                }
            };
            match next {
                Next::Now => tokio::task::yield_now().await,
                Next::Rest(pause) => self.rest(pause).await,
                Next::Over => break,
            }
        }
        self.told().waiting = 0;
        self.pool
    }

    async fn rest(&mut self, pause: Duration) {
        let sink = self.sink.clone();
        tokio::select! {
            biased;
            () = sink.woken.notified() => {}
            Some(done) = self.staging.join_next() => self.joined(done),
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn joined(&mut self, done: Result<Staged, tokio::task::JoinError>) {
        match done {
            Ok(staged) => self.staged(staged),
            // Which it was is not known: all may be begun again.
            Err(_) => {
                self.busy.clear();
                self.queue.clear();
            }
        }
        self.fill();
    }

    async fn turn(&mut self) -> Result<Next> {
        if !self.parts.mdt.has_room() {
            self.trouble("the metadata store has no room".to_owned());
            return Ok(Next::Rest(REST));
        }
        while let Some(done) = self.staging.try_join_next() {
            self.joined(done);
        }
        let Some(exposure) = self.said() else {
            return self.end().await;
        };
        self.load(&exposure).await?;
        self.answer_wishes().await?;
        if self.is_unsettled {
            self.finish(&[]).await?;
            self.is_unsettled = false;
        }
        let is_over = exposure.is_over == Some(true);
        if self.state.is_unknown || is_over {
            return self.empty(is_over).await;
        }
        if self.walk().await? {
            return Ok(Next::Now);
        }
        let next = self.follow().await?;
        if self.look().await? {
            return Ok(Next::Now);
        }
        self.tell();
        Ok(next)
    }

    /// The exposure, also one that is over.
    fn said(&self) -> Option<Exposure> {
        let map = self.parts.map.current();
        map.map.pool(&self.pool)?.exposure.clone()
    }

    pub fn exposure(&self) -> Result<Exposure> {
        self.said().ok_or(Error::Given { what: "the pool is exposed no more" })
    }

    pub fn root(&self) -> FileId {
        FileId::root_of(self.parts.index)
    }

    /// Reads how far it is; begins anew where another exposure is meant.
    async fn load(&mut self, exposure: &Exposure) -> Result<()> {
        if self.state.since == exposure.since {
            return Ok(());
        }
        let own = key::exposed_pool(&self.pool);
        let mut transaction = self.parts.store.begin().await?;
        let values = transaction.read(std::slice::from_ref(&own)).await?;
        drop(transaction);
        let value = values.into_iter().next().flatten();
        let found: Option<ExposedPool> =
            value.map(|value| decode(&value, || self.pool.to_string())).transpose()?;
        let found = found.filter(|found| found.since == exposure.since);
        let new = ExposedPool {
            since: exposure.since,
            is_unknown: true,
            walked: Some(FileId(0)),
            is_marked: false,
        };
        // What was restored does not know what lies there.
        let is_known = found.as_ref().is_some_and(|_| !self.parts.mdt.is_restored());
        match found.filter(|_| is_known) {
            Some(found) => self.state = found,
            None => self.put_state(new).await?,
        }
        Ok(())
    }

    async fn put_state(&mut self, state: ExposedPool) -> Result<()> {
        let mut transaction = self.parts.store.begin().await?;
        transaction.put(key::exposed_pool(&self.pool), state.to_bytes());
        transaction.commit().await?.durable.await?;
        self.state = state;
        Ok(())
    }

    pub async fn set_marked(&mut self, is_marked: bool) -> Result<()> {
        if is_marked && !self.state.is_marked {
            self.put_state(ExposedPool { is_marked, ..self.state.clone() }).await?;
        }
        Ok(())
    }

    /// The OSS answered. One that was started anew has forgotten what it put together, and its
    /// machine may have been off.
    pub fn heard(&mut self, boot: u64) {
        self.greeted = Some(Instant::now());
        if self.boot.replace(boot) != Some(boot) {
            self.ready.clear();
            self.looked = None;
        }
    }

    /// Takes away what changes wait for.
    async fn answer_wishes(&mut self) -> Result<()> {
        let wishes = self.sink.take();
        if wishes.is_empty() {
            return Ok(());
        }
        let files: BTreeSet<FileId> =
            wishes.iter().flat_map(|wish| wish.files.iter().copied()).collect();
        let taken = self.take_away(files).await;
        let answer = match &taken {
            Ok(left) => left.clone(),
            Err(error) => Some(crate::error::chain(error)),
        };
        for Wish { done, .. } in wishes {
            let answer = match &answer {
                None => Ok(()),
                Some(detail) => {
                    Err(Failure::new(tieline_types::ErrorKind::Overloaded, detail.clone()))
                }
            };
            // Who does not wait any more asks again.
            let _ = done.send(answer);
        }
        taken.map(drop)
    }

    /// Says what is in the way, if something is.
    async fn take_away(&mut self, mut files: BTreeSet<FileId>) -> Result<Option<String>> {
        if self.is_unsettled {
            self.finish(&[]).await?;
            self.is_unsettled = false;
        }
        let map = self.parts.map.current();
        while !files.is_empty() {
            let (pool, ready, prefix) = (self.pool.clone(), BTreeMap::new(), self.prefix()?);
            let transaction = self.parts.store.begin().await?;
            let at = (self.root(), &prefix[..]);
            let mut plan = Plan::new(transaction, (&pool, &map.map), at, self.parts.now(), &ready);
            let mut planned = vec![];
            for &file in &files {
                match plan.remove(file).await {
                    Ok(()) => planned.push(file),
                    Err(Halt::Full) => break,
                    Err(Halt::Lost) => {
                        return Ok(Some(format!("where file {file} lies is not known")));
                    }
                    Err(Halt::Failed(error)) => return Err(error),
                }
            }
            let count = plan.groups.len();
            let outcome = self.settled(plan).await?;
            if let Some(detail) = outcome.trouble {
                return Ok(Some(detail));
            }
            if outcome.done.iter().any(|done| !done) {
                return Ok(Some("a name could not be taken away".to_owned()));
            }
            METRICS.exposed_taken.with_label_values(&[pool.as_str()]).inc_by(count as u64);
            for file in planned {
                self.ready.remove(&file);
                files.remove(&file);
            }
        }
        Ok(None)
    }

    /// Carries a plan out; if that is not answered, it is finished first the next time.
    async fn settled(&mut self, plan: Plan<'_>) -> Result<super::steps::Outcome> {
        self.is_unsettled = true;
        let outcome = self.carry_out(plan).await?;
        self.is_unsettled = false;
        Ok(outcome)
    }

    /// Empties the directory, and forgets what was known of it.
    async fn empty(&mut self, is_over: bool) -> Result<Next> {
        if self.sweeping.is_none() {
            if !self.state.is_unknown {
                self.put_state(ExposedPool { is_unknown: true, ..self.state.clone() }).await?;
            }
            self.sweeping = Some(Sweep::new(&self.prefix()?, self.root(), true));
        }
        if !self.sweep().await? {
            return Ok(Next::Now);
        }
        let pool = &self.pool;
        let mut prefixes =
            vec![key::exposed_all(pool), key::exposed_entries(pool), key::expose_steps(pool)];
        if is_over {
            prefixes.extend([key::expose_notes(pool), key::exposed_pool(pool)]);
            self.forget(&prefixes).await?;
            tracing::info!(%self.pool, "a pool is exposed no more");
            return Ok(Next::Over);
        }
        self.forget(&prefixes).await?;
        self.ready.clear();
        self.looked = Some(Instant::now());
        let walked = Some(FileId(0));
        self.put_state(ExposedPool { is_unknown: false, walked, ..self.state.clone() }).await?;
        Ok(Next::Now)
    }

    /// The map does not know the pool any more: nobody can be asked.
    async fn end(&mut self) -> Result<Next> {
        let pool = &self.pool;
        let prefixes = [
            key::exposed_all(pool),
            key::exposed_entries(pool),
            key::expose_steps(pool),
            key::expose_notes(pool),
            key::exposed_pool(pool),
        ];
        self.forget(&prefixes).await?;
        Ok(Next::Over)
    }

    /// Notes a page of the files that were there when it began. Says whether there are more.
    async fn walk(&mut self) -> Result<bool> {
        let Some(from) = self.state.walked else { return Ok(false) };
        let range = Range::new(key::inode(from), key::after(&key::kind(b'i')));
        let found = self.parts.store.begin().await?.scan(range, INODES).await?;
        let mut transaction = self.parts.store.begin().await?;
        let note = ExposeNote { at: self.parts.now(), session: NO_SESSION }.to_bytes();
        let mut last = from;
        for (key, value) in &found {
            let Some(file) = key::file_id(key) else { continue };
            let inode: Inode = decode(value, || file.to_string())?;
            if inode.kind == FileKind::Regular && is_of(&inode, &self.pool) {
                transaction.put(key::expose_note(&self.pool, file), note.clone());
            }
            last = file;
        }
        let is_more = found.len() == INODES;
        let walked = is_more.then_some(FileId(last.0 + 1));
        let state = ExposedPool { walked, ..self.state.clone() };
        transaction.put(key::exposed_pool(&self.pool), state.to_bytes());
        transaction.commit().await?.durable.await?;
        self.state = state;
        Ok(is_more)
    }

    /// Follows a page of notes.
    async fn follow(&mut self) -> Result<Next> {
        let map = self.parts.map.current();
        let (pool, ready, prefix) = (self.pool.clone(), self.ready.clone(), self.prefix()?);
        let transaction = self.parts.store.begin().await?;
        let at = (self.root(), &prefix[..]);
        let mut plan = Plan::new(transaction, (&pool, &map.map), at, self.parts.now(), &ready);
        plan.remakes = self.remakes;
        let first = key::expose_notes(&pool);
        let from = self.cursor.take().unwrap_or_else(|| first.clone());
        let is_from_first = from == first;
        let range = Range::new(from, key::after(&first));
        let notes = plan.transaction.scan(range, NOTES).await?;
        let is_page = notes.len() == NOTES;
        let (now, wall) = (Instant::now(), self.parts.now().millis());
        self.rests.retain(|_, until| *until > now);
        let (mut candidates, mut is_full, mut cursor) = (vec![], false, None);
        for (key, value) in &notes {
            let Some(file) = key::exposed_file(key) else { continue };
            if self.rests.contains_key(&file) {
                continue;
            }
            match plan.follow(file, (key.clone(), value.clone())).await {
                Ok(Turn::Followed | Turn::Later) => {}
                Ok(Turn::Again) => is_full = true,
                Ok(Turn::Stage(content)) => {
                    let note: ExposeNote = decode(value, || file.to_string())?;
                    let Ok(Some(inode)) = plan.inode(file).await else { continue };
                    let quiet = if inode.size == 0 { QUIET_EMPTY_MS } else { QUIET_MS };
                    if wall.saturating_sub(note.at.millis()) >= quiet {
                        let parents = inode.names.into_iter().map(|name| name.parent).collect();
                        let session = note.session;
                        candidates.push(Candidate { file, content, session, parents });
                    }
                }
                Err(Halt::Full) => {
                    (is_full, cursor) = (true, Some(key.clone()));
                    break;
                }
                Err(Halt::Lost) => {
                    self.rests.insert(file, now + STEP_REST);
                    self.trouble(format!("where file {file} belongs is not known"));
                }
                Err(Halt::Failed(error)) => return Err(error),
            }
        }
        if is_page && cursor.is_none() {
            cursor = notes.last().map(|(key, _)| [&key[..], &[0]].concat());
        }
        self.count(notes.len(), is_from_first, cursor.is_none());
        self.cursor = cursor;
        let followed: Vec<(FileId, std::ops::Range<usize>)> = plan
            .followed
            .iter()
            .filter_map(|one| Some((key::exposed_file(&one.key)?, one.groups.clone())))
            .collect();
        if !plan.followed.is_empty() || !plan.groups.is_empty() {
            let outcome = self.settled(plan).await?;
            // What was done may let others have their turn.
            is_full |= outcome.done.contains(&true);
            self.take_note(&followed, outcome);
        } else {
            drop(plan);
        }
        let is_empty = notes.is_empty();
        self.begin_staging(candidates).await?;
        Ok(match (is_full || self.cursor.is_some(), is_empty) {
            (true, _) => Next::Now,
            (false, false) => Next::Rest(SOON),
            (false, true) => Next::Rest(REST),
        })
    }

    /// What steps came to.
    fn take_note(
        &mut self,
        followed: &[(FileId, std::ops::Range<usize>)],
        outcome: super::steps::Outcome,
    ) {
        self.told().done += outcome.placed;
        let mut is_good = outcome.trouble.is_none();
        for (file, groups) in followed {
            self.ready.remove(file);
            let done = outcome.done.get(groups.clone()).unwrap_or_default();
            if done.iter().any(|done| !done) {
                is_good = false;
                self.rests.insert(*file, Instant::now() + STEP_REST);
            }
        }
        // Until all goes well again.
        self.remakes = !is_good;
        if let Some(detail) = outcome.trouble {
            self.trouble(detail);
        }
    }

    /// Looks after what lies there, now and then. Says whether there is more to look at.
    async fn look(&mut self) -> Result<bool> {
        if self.greeted.is_none_or(|at| at.elapsed() >= GREET_EVERY) {
            self.arrange(Vec::new()).await?;
        }
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if is_due && self.sweeping.is_none() && self.checking.is_none() {
            self.looked = Some(Instant::now());
            self.sweeping = Some(Sweep::new(&self.prefix()?, self.root(), false));
            self.checking = Some(key::exposed_all(&self.pool));
        }
        if let Some(from) = self.checking.clone() {
            self.checking = self.check(from).await?;
            return Ok(true);
        }
        if self.sweeping.is_some() {
            return Ok(!self.sweep().await?);
        }
        Ok(false)
    }

    fn count(&mut self, notes: usize, is_first: bool, is_last: bool) {
        self.waiting = notes as u64 + if is_first { 0 } else { self.waiting };
        if is_last {
            let (mdt, pool) = (self.parts.index.label(), self.pool.as_str());
            METRICS
                .exposed_waiting
                .with_label_values(&[mdt.as_str(), pool])
                .set(self.waiting as i64);
            let waiting = self.waiting;
            self.told().waiting = waiting;
        }
    }

    // What people are told.

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn trouble(&self, detail: String) {
        let mut told = self.told();
        if told.trouble.as_ref() != Some(&detail) {
            tracing::warn!(pool = %self.pool, "an exposed pool: {detail}");
        }
        told.trouble = Some(detail);
    }

    /// A turn went well: what rests is what failed.
    fn tell(&self) {
        if self.rests.is_empty() && !self.remakes {
            self.told().trouble = None;
        }
    }

    fn failed(&mut self, error: Error) {
        let failure = self.parts.failure(error);
        self.trouble(failure.detail);
    }
}
