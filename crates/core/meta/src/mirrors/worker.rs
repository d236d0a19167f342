//! The worker: takes what is to be looked at or mended, a few at once, at a bounded rate.
//!
//! Complaints come first, then what an operator waits for, then what the store has noted, in the
//! order of keys; a pass over the notes is resumed where the last one stopped.

use super::lacks;
use crate::chunks;
use crate::error::Result;
use crate::mdt::Mdt;
use crate::mirrors::copies_of;
use crate::placement::wall_time;
use crate::recall::Keepers;
use crate::view::{View, decode};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Lacking, NO_SESSION, key};
use tieline_kv::{Key, Range};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, ChunkId, Content, FileId, Grant, OstIndex};
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
/// Extents of a file that one step looks through.
const EXTENTS_PER_STEP: usize = 256;

#[derive(Clone, Copy)]
enum Job {
    Check(ChunkId, OstIndex),
    Mend { chunk: ChunkId, file: FileId, is_urgent: bool },
}

impl Job {
    fn chunk(self) -> ChunkId {
        match self {
            Self::Check(chunk, _) | Self::Mend { chunk, .. } => chunk,
        }
    }
}

/// Where the worker is in the notes.
#[derive(Default)]
struct Walk {
    cursor: Option<Key>,
    found: VecDeque<(ChunkId, FileId)>,
    looks: usize,
    /// The end was reached since the last pause.
    is_over: bool,
    /// Notes seen since the beginning.
    count: i64,
}

impl Mdt {
    /// Has bad and missing copies of chunks made again. Runs until dropped.
    pub async fn run_mirrors(self: Arc<Self>) {
        let mut walk = Walk::default();
        let mut working = JoinSet::new();
        let mut busy: BTreeSet<ChunkId> = BTreeSet::new();
        while self.trouble().is_none() {
            // What is mended is noted.
            while working.len() < AT_ONCE && self.room.check_any().is_ok() {
                let job = match self.next_job(&mut walk, &busy).await {
                    Ok(Some(job)) => job,
                    Ok(None) => break,
                    Err(error) => {
                        self.complain(error);
                        break;
                    }
                };
                busy.insert(job.chunk());
                let mdt = self.clone();
                working.spawn(async move {
                    if let Err(error) = mdt.work(job).await {
                        mdt.complain(error);
                    }
                    job.chunk()
                });
            }
            tokio::select! {
                biased;
                Some(done) = working.join_next(), if !working.is_empty() => {
                    match done {
                        Ok(chunk) => drop(busy.remove(&chunk)),
                        // Which it was is not known: all may be taken up again.
                        Err(_) => busy.clear(),
                    }
                }
                () = self.mirrors.woken.notified() => {}
                () = tokio::time::sleep(PAUSE) => walk.rested(),
            }
        }
    }

    fn complain(&self, error: crate::Error) {
        self.note(&error);
        if !error.is_conflict() {
            let error = error.into_failure(self.settings.mdt);
            tracing::warn!("work on copies failed, to be tried again: {error}");
        }
    }

    async fn work(&self, job: Job) -> Result<()> {
        let started = Instant::now();
        match job {
            Job::Check(chunk, ost) => {
                // What is hopeless rests, and is not told of again meanwhile.
                if self.check_place(chunk, ost).await? {
                    self.mend(chunk, None).await?;
                }
            }
            Job::Mend { chunk, file, is_urgent } => {
                let bytes = self.mend(chunk, Some(file)).await?;
                if !is_urgent {
                    let share =
                        Duration::from_secs_f64(bytes as f64 / (RATE / AT_ONCE as u64) as f64);
                    tokio::time::sleep_until(started + share).await;
                }
            }
        }
        Ok(())
    }

    async fn next_job(&self, walk: &mut Walk, busy: &BTreeSet<ChunkId>) -> Result<Option<Job>> {
        {
            let mut state = self.mirrors.lock();
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
            if let Some((chunk, file)) = walk.found.pop_front() {
                if busy.contains(&chunk) || self.mirrors.is_resting(chunk) {
                    continue;
                }
                return Ok(Some(Job::Mend { chunk, file, is_urgent: false }));
            }
            if walk.is_over || walk.looks >= LOOKS_PER_PAUSE {
                return Ok(None);
            }
            self.walk_on(walk).await?;
        }
    }

    /// Reads the next page of notes.
    async fn walk_on(&self, walk: &mut Walk) -> Result<()> {
        let start = walk.cursor.clone().unwrap_or_else(key::lacking_chunks);
        let range = Range::new(start, key::after(&key::lacking_chunks()));
        let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
        walk.looks += page.len().max(1);
        walk.count += page.len() as i64;
        walk.cursor = page.last().map(|(last, _)| [last.as_slice(), &[0]].concat());
        let is_end = page.len() < PAGE;
        let now_ms = chunks::millis(wall_time(&self.parts.world));
        for (key, value) in page {
            let Some(chunk) = key::lacking_chunk_id(&key) else { continue };
            let noted: Lacking = decode(&value, || chunk.to_string())?;
            if chunks::millis(noted.since) + GRACE_MS <= now_ms {
                walk.found.push_back((chunk, noted.file));
            }
        }
        if is_end {
            METRICS.copies_lacking.set(walk.count);
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
            while !self.walk_file(file).await? {}
        }
        Ok(())
    }

    /// Notes the chunks of a file that lack copies, a bounded number at once. Says whether all were
    /// looked at.
    async fn walk_file(&self, file: FileId) -> Result<bool> {
        let (caller, nobody) = (Caller::root(), Keepers::new());
        let map = self.parts.map.current();
        let scene = self.scene(NO_SESSION, Grant(0), &caller, &map.map, &nobody);
        let mut view = View::new(scene, self.parts.store.begin().await?);
        let own = key::lacking_file(file);
        let Some(noted) = view.record::<Lacking>(own.clone()).await? else { return Ok(true) };
        let inode = view.find_inode(file).await?;
        let Some(inode) = inode else {
            view.delete(own);
            view.commit().await?.durable.await?;
            return Ok(true);
        };
        let page = chunks::page(&mut view, file, &inode, noted.next, EXTENTS_PER_STEP).await?;
        let since = tieline_types::Time::default();
        for extent in &page.extents {
            let Content::Chunk(chunk) = &extent.content else { continue };
            if lacks(&map.map, chunk.chunk, &chunk.places, copies_of(&inode)) > 0 {
                let lacking = Lacking { since, file, next: 0 };
                view.put(key::lacking_chunk(chunk.chunk), &lacking);
            }
        }
        let is_done = page.covered >= inode.size || page.covered <= noted.next;
        if is_done {
            view.delete(own);
        } else {
            view.put(own, &Lacking { next: page.covered, ..noted });
        }
        match view.commit().await {
            Ok(committed) => committed.durable.await?,
            // Somebody writes to it: the step is taken again.
            Err(error) if error.is_conflict() => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(is_done)
    }
}

impl Walk {
    fn rested(&mut self) {
        (self.looks, self.is_over) = (0, false);
    }
}
