//! The worker: takes what is to be looked at or mended, a few at once, at a bounded rate.
//!
//! Complaints come first, then what an operator waits for, then what the store has noted, in the
//! order of keys; a pass over the notes is resumed where the last one stopped.

use super::Copyist;
use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Error, Result, decode};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Lacking, key};
use tieline_kv::{Key, Range};
use tieline_telemetry::metrics::METRICS;
use tieline_types::background::Change;
use tieline_types::{FileId, GrantedId, OstIndex};
use tieline_wire::Failure;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Chunks in work at once.
const AT_ONCE: usize = 4;
/// Bytes per second that are fetched in the background; what somebody waits for is not held back.
const RATE: u64 = 256 << 20;
/// A pause between two looks at the notes.
const PAUSE: Duration = Duration::from_secs(1);
/// Notes looked at per pause while none can be helped.
const LOOKS_PER_PAUSE: usize = 1024;
const PAGE: usize = 128;
/// A copy that was not there at its commit may be on its way from the writer still.
const GRACE_MS: u64 = 3000;

#[derive(Clone, Copy)]
enum Job {
    Check(GrantedId, OstIndex),
    Mend { chunk: GrantedId, file: FileId, is_urgent: bool },
}

impl Job {
    fn chunk(self) -> GrantedId {
        match self {
            Self::Check(chunk, _) | Self::Mend { chunk, .. } => chunk,
        }
    }
}

/// Where the worker is in the notes.
#[derive(Default)]
struct Walk {
    cursor: Option<Key>,
    found: VecDeque<(GrantedId, FileId)>,
    looks: usize,
    /// The end was reached since the last pause.
    is_over: bool,
    /// Notes seen since the beginning.
    count: i64,
    /// What the last pass over all of them counted.
    lacking: Option<u64>,
}

/// Has bad and missing copies of chunks made again.
pub struct Copies {
    parts: Arc<Parts>,
    copyist: Arc<Copyist>,
    walk: Walk,
    working: JoinSet<GrantedId>,
    busy: BTreeSet<GrantedId>,
}

#[async_trait::async_trait]
impl Chore for Copies {
    fn title(&self) -> (&'static str, &'static str) {
        ("copies", "copies")
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    /// Until nothing can be done now. What is mended is noted.
    async fn round(&mut self, status: &Status) -> Result<()> {
        loop {
            let begun = self.begin().await;
            self.tell(status);
            if self.working.is_empty() {
                return begun;
            }
            if let Err(error) = begun {
                complain(&self.parts, error);
            }
            tokio::select! {
                biased;
                Some(done) = self.working.join_next() => {
                    match done {
                        Ok(chunk) => drop(self.busy.remove(&chunk)),
                        // Which it was is not known: all may be taken up again.
                        Err(_) => self.busy.clear(),
                    }
                }
                () = self.parts.mirrors.woken.notified() => {}
                () = tokio::time::sleep(PAUSE) => self.walk.rested(),
            }
        }
    }

    async fn rest(&mut self) {
        tokio::select! {
            biased;
            () = self.parts.mirrors.woken.notified() => {}
            () = tokio::time::sleep(PAUSE) => self.walk.rested(),
        }
    }

    fn complain(&self, failure: &Failure) {
        tracing::warn!("work on copies failed, to be tried again: {failure}");
    }
}

fn complain(parts: &Parts, error: Error) {
    let is_conflict = error.is_conflict();
    let failure = parts.failure(error);
    if !is_conflict {
        tracing::warn!("work on copies failed, to be tried again: {failure}");
    }
}

impl Copies {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self {
            parts: parts.clone(),
            copyist: Arc::new(Copyist { parts: parts.clone() }),
            walk: Walk::default(),
            working: JoinSet::new(),
            busy: BTreeSet::new(),
        }
    }

    fn tell(&self, status: &Status) {
        status.did(self.parts.mirrors.take_made());
        status.set_left(self.walk.lacking);
        if let Some(reason) = self.parts.mirrors.any_trouble() {
            status.trouble(reason);
        }
    }

    /// Takes up as much as goes at once.
    async fn begin(&mut self) -> Result<()> {
        while self.working.len() < AT_ONCE && self.parts.mdt.has_room() {
            let Some(job) = self.next_job().await? else { return Ok(()) };
            self.busy.insert(job.chunk());
            let copyist = self.copyist.clone();
            self.working.spawn(async move {
                if let Err(error) = work(&copyist, job).await {
                    complain(&copyist.parts, error);
                }
                job.chunk()
            });
        }
        Ok(())
    }

    async fn next_job(&mut self) -> Result<Option<Job>> {
        {
            let busy = &self.busy;
            let mut state = self.parts.mirrors.lock();
            let suspect = state.suspects.iter().find(|(chunk, _)| !busy.contains(chunk)).copied();
            if let Some((chunk, ost)) = suspect {
                state.suspects.remove(&(chunk, ost));
                return Ok(Some(Job::Check(chunk, ost)));
            }
            let urgent = state.urgent.keys().find(|chunk| !busy.contains(chunk)).copied();
            if let Some((chunk, file)) = urgent.and_then(|chunk| state.urgent.remove_entry(&chunk))
            {
                return Ok(Some(Job::Mend { chunk, file, is_urgent: true }));
            }
        }
        loop {
            if let Some((chunk, file)) = self.walk.found.pop_front() {
                if self.busy.contains(&chunk) || self.parts.mirrors.is_resting(chunk) {
                    continue;
                }
                return Ok(Some(Job::Mend { chunk, file, is_urgent: false }));
            }
            if self.walk.is_over || self.walk.looks >= LOOKS_PER_PAUSE {
                return Ok(None);
            }
            self.walk_on().await?;
        }
    }

    /// Reads the next page of notes.
    async fn walk_on(&mut self) -> Result<()> {
        let walk = &mut self.walk;
        let start = walk.cursor.clone().unwrap_or_else(key::lacking_chunks);
        let range = Range::new(start, key::after(&key::lacking_chunks()));
        let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
        walk.looks += page.len().max(1);
        walk.count += page.len() as i64;
        walk.cursor = page.last().map(|(last, _)| [last.as_slice(), &[0]].concat());
        let is_end = page.len() < PAGE;
        let now_ms = self.parts.now().millis();
        for (key, value) in page {
            let Some(chunk) = key::lacking_chunk_id(&key) else { continue };
            let noted: Lacking = decode(&value, || chunk.to_string())?;
            if noted.since.millis() + GRACE_MS <= now_ms {
                walk.found.push_back((chunk, noted.file));
            }
        }
        if is_end {
            METRICS.copies_lacking.set(walk.count);
            walk.lacking = Some(walk.count as u64);
            (walk.cursor, walk.count, walk.is_over) = (None, 0, true);
            self.walk_files().await?;
        }
        Ok(())
    }

    /// Looks through the first file that is noted as a whole, one step.
    async fn walk_files(&self) -> Result<()> {
        let range = Range::new(key::lacking_files(), key::after(&key::lacking_files()));
        let page = self.parts.store.begin().await?.scan(range, 1).await?;
        let Some((key, _)) = page.first() else { return Ok(()) };
        if let Some(file) = key::lacking_file_id(key) {
            while !self.parts.mdt.change(Change::NoteCopies(file)).await? {}
        }
        Ok(())
    }
}

async fn work(copyist: &Copyist, job: Job) -> Result<()> {
    let started = Instant::now();
    match job {
        Job::Check(chunk, ost) => {
            // What is hopeless rests, and is not told of again meanwhile.
            if copyist.check_place(chunk, ost).await? {
                copyist.mend(chunk, None).await?;
            }
        }
        Job::Mend { chunk, file, is_urgent } => {
            let bytes = copyist.mend(chunk, Some(file)).await?;
            if !is_urgent {
                let share = Duration::from_secs_f64(bytes as f64 / (RATE / AT_ONCE as u64) as f64);
                tokio::time::sleep_until(started + share).await;
            }
        }
    }
    Ok(())
}

impl Walk {
    fn rested(&mut self) {
        (self.looks, self.is_over) = (0, false);
    }
}
