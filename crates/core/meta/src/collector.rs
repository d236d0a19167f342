//! Background work: ends dead sessions, deletes files nobody can name, and chunks nobody refers to.
//!
//! Everything goes in bounded transactions, and a round does a bounded amount of it. What fails is
//! left for the next round.
//!
//! Invariants: an object is deleted only after its chunk was freed for as long as the settings say;
//! the records of a freed chunk go only after its objects did; a copy that was given up stays where
//! its chunk has a place again.

use crate::chunks;
use crate::error::Result;
use crate::fsck::repair::{self, Repair};
use crate::mdt::Mdt;
use crate::names::{self, LastName};
use crate::ops;
use crate::placement::wall_time;
use crate::serials::change_superblock;
use crate::view::{View, decode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Chunk, Deleted, DeletedAt, Freed, LostName, NO_SESSION, Orphan, key};
use tieline_kv::{Key, Range};
use tieline_ledger::dump;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, ChunkId, FileId, Grant, ObjectName, OstIndex, SessionId};

/// Chunks deleted per step: far below what an OSS takes in one request, so that it serves others in
/// between.
const CHUNKS_PER_STEP: usize = 512;
/// Steps per round: with [`CHUNKS_PER_STEP`], the most chunks that one round deletes.
const STEPS_PER_ROUND: usize = 16;
/// Extents of a removed file that one transaction deletes.
const EXTENTS_PER_STEP: usize = 2048;

/// How often it is asked whether the change log needs a dump.
const LEDGER_PAUSE: Duration = Duration::from_secs(5);
/// Files kept for undeleting that one round deletes.
const DELETED_PER_ROUND: usize = 4096;
/// For this long whoever knows of a chunk may still read it, however full the OSTs are.
const READERS_KEEP: Duration = Duration::from_secs(60);

/// Rounds between two questions whether kept files are still open: about a minute.
const ROUNDS_PER_CHECK: u64 = 12;

/// Freed chunks of one step.
#[derive(Default)]
struct Batch {
    /// Keys of their records, with the OSTs that hold them.
    records: Vec<(Key, ChunkId, BTreeSet<OstIndex>)>,
    /// Chunks that only give copies up.
    split: BTreeSet<Key>,
    objects: BTreeMap<OstIndex, Vec<ChunkId>>,
}

/// A change that no client asked for.
pub(crate) enum Chore {
    Release(FileId, SessionId),
    /// A file that lingered goes over to those who have it open.
    Keep(FileId, BTreeSet<SessionId>),
    Remove(FileId),
    /// A deleted file was kept long enough.
    Purge(u64, FileId),
    /// Names that files lost by then were kept long enough.
    Forget(u64, Vec<Key>),
    Repair(Repair),
}

/// Deletes a file that was kept for undeleting: what is large about it is left to
/// [`Chore::Remove`].
async fn purge(view: &mut View<'_>, at_ms: u64, file: FileId) -> Result<()> {
    let at: Option<DeletedAt> = view.record(key::deletion(at_ms, file)).await?;
    let Some(DeletedAt { parent }) = at else { return Ok(()) };
    let deleted: Option<Deleted> = view.record(key::deleted(parent, file)).await?;
    view.delete(key::deletion(at_ms, file));
    if let Some(deleted) = deleted {
        view.delete(key::deleted(parent, file));
        view.freed_at = Some(deleted.at);
        // It was counted out when it was deleted.
        view.count(file, 1);
        names::purge_file(view, (file, deleted.inode)).await?;
    }
    Ok(())
}

impl Chore {
    /// One transaction of it. Says whether it is done.
    async fn run(&self, view: &mut View<'_>) -> Result<bool> {
        match *self {
            Self::Repair(ref repair) => repair::run(view, repair).await,
            Self::Release(file, session) => {
                ops::release(view, file, session).await?;
                Ok(true)
            }
            Self::Keep(file, ref sessions) => {
                let orphan: Option<Orphan> = view.record(key::orphan(file, NO_SESSION)).await?;
                let Some(orphan) = orphan else { return Ok(true) };
                if let Some(mut inode) = view.find_inode(file).await? {
                    names::count_lingering(view, file, &mut inode).await?;
                    view.put_inode(file, &inode);
                }
                view.delete(key::orphan(file, NO_SESSION));
                sessions.iter().for_each(|&session| view.put(key::orphan(file, session), &orphan));
                Ok(true)
            }
            Self::Purge(at_ms, file) => {
                purge(view, at_ms, file).await?;
                Ok(true)
            }
            Self::Forget(until_ms, ref names) => {
                for name in names {
                    let lost: Option<LostName> = view.record(name.clone()).await?;
                    // It may have been lost once more.
                    if lost.is_some_and(|lost| chunks::millis(lost.at) <= until_ms) {
                        view.delete(name.clone());
                    }
                }
                Ok(true)
            }
            Self::Remove(file) => {
                let orphan: Option<Orphan> = view.record(key::orphan(file, NO_SESSION)).await?;
                let inode = view.find_inode(file).await?;
                view.freed_at = orphan.as_ref().map(|orphan| orphan.since);
                if let Some(last) = orphan.and_then(LastName::of)
                    && let Some(inode) = inode
                {
                    view.delete(key::orphan(file, NO_SESSION));
                    names::remove_file(view, (file, inode), Some(last)).await?;
                    return Ok(true);
                }
                let is_there = view.find_inode(file).await?.is_some();
                let is_done = chunks::clear(view, file, EXTENTS_PER_STEP).await?;
                if is_done {
                    view.count(file, -i64::from(is_there));
                    view.delete_inode(file);
                    view.delete(key::orphan(file, NO_SESSION));
                }
                Ok(is_done)
            }
        }
    }
}

impl Mdt {
    /// Background work: ends dead sessions, deletes freed chunks, keeps the ledger. Runs until
    /// dropped.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(self.collect(), self.collect_strays(), self.keep_ledger());
    }

    /// Makes a dump beside the change log when one is due.
    async fn keep_ledger(&self) {
        let Some(log) = &self.parts.log else { return };
        loop {
            // What lies there may be more than what was restored, until somebody has looked.
            let prunes = !self.is_restored();
            if log.wants_dump()
                && let Err(error) = dump::beside_log(&*self.parts.store, log, prunes).await
            {
                let mut text = error.to_string();
                let mut cause = std::error::Error::source(&error);
                while let Some(error) = cause {
                    text = format!("{text}: {error}");
                    cause = error.source();
                }
                tracing::warn!("no dump beside the change log, to be tried again: {text}");
            }
            tokio::time::sleep(LEDGER_PAUSE).await;
        }
    }

    async fn collect(&self) {
        let keep = self.settings.freed_keep.min(self.settings.session_keep) / 4;
        let pause = keep.clamp(Duration::from_millis(50), Duration::from_secs(5));
        let mut is_counted = false;
        let mut lost_names = None;
        for round in 1u64.. {
            if self.trouble().is_some() {
                return;
            }
            let checks_kept = round.is_multiple_of(ROUNDS_PER_CHECK);
            if let Err(error) = self.round(&mut is_counted, &mut lost_names, checks_kept).await {
                self.note(&error);
                if !error.is_conflict() {
                    let error = error.into_failure(self.settings.mdt);
                    tracing::warn!("background work failed, to be tried again: {error}");
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(
        &self,
        is_counted: &mut bool,
        lost_names: &mut Option<Key>,
        checks_kept: bool,
    ) -> Result<()> {
        if self.room.check_any().is_err() {
            // It would be written; and what it frees, the disk does not see.
            return Ok(());
        }
        // Not asked under the lock of the leases.
        let waits = self.sessions.waits();
        let wait = |session| waits.get(&session).copied().flatten();
        for session in self.leases.lost(|session| self.settings.session_keep_for(wait(session))) {
            self.end(session).await?;
        }
        self.locks.sweep();
        self.collect_orphans().await?;
        if checks_kept {
            self.check_kept().await?;
        }
        self.collect_deleted().await?;
        self.collect_lost_names(lost_names).await?;
        self.collect_chunks().await?;
        self.add_up_usage().await?;
        if !*is_counted {
            self.count_inodes().await?;
            *is_counted = true;
        }
        Ok(())
    }

    /// Gives back what a session held of a nameless file.
    pub(crate) async fn release(&self, file: FileId, session: SessionId) -> Result<()> {
        self.in_background(Chore::Release(file, session)).await?;
        Ok(())
    }

    /// Deletes a nameless file, a bounded part at a time.
    pub(crate) async fn remove(&self, file: FileId) -> Result<()> {
        while !self.in_background(Chore::Remove(file)).await? {}
        Ok(())
    }

    /// Does what nobody asked for, again while others are in its way. Says whether it is done.
    pub(crate) async fn in_background(&self, chore: Chore) -> Result<bool> {
        let (caller, nobody) = (Caller::root(), BTreeSet::new());
        let map = self.parts.map.current();
        loop {
            let scene = self.scene(NO_SESSION, Grant(0), &caller, &map.map, &nobody);
            let mut view = View::new(scene, self.parts.store.begin().await?);
            let run = chore.run(&mut view).await;
            let counted = view.counted;
            let committed = match run {
                Ok(is_done) => view.commit().await.map(|committed| (is_done, committed)),
                Err(error) => Err(error),
            };
            match committed {
                Err(error) if error.is_conflict() => METRICS.conflicts.inc(),
                Err(error) => return Err(error),
                Ok((is_done, committed)) => {
                    self.inodes.add(counted);
                    committed.durable.await?;
                    return Ok(is_done);
                }
            }
        }
    }

    /// Until when what was deleted or freed is not kept any more. When an OST or the store is full
    /// it is kept only as long as readers need.
    fn kept_until_ms(&self) -> u64 {
        let now_ms = chunks::millis(wall_time(&self.parts.world));
        let keep = match self.placement.is_tight() || self.room.is_short() {
            true => self.settings.freed_keep.min(READERS_KEEP),
            false => self.settings.freed_keep,
        };
        now_ms.saturating_sub(keep.as_millis() as u64)
    }

    /// Deletes files that were kept for undeleting long enough, the oldest first.
    pub(crate) async fn collect_deleted(&self) -> Result<()> {
        let end = key::deletions_from(self.kept_until_ms().saturating_add(1));
        let range = Range::new(key::deletions_from(0), end);
        let page = self.parts.store.begin().await?.scan(range, DELETED_PER_ROUND).await?;
        for (key, _) in page {
            let Some((at_ms, file)) = key::deletion_parts(&key) else { continue };
            self.pace.take(1).await;
            self.in_background(Chore::Purge(at_ms, file)).await?;
            self.leases.gone(&BTreeSet::from([file]));
        }
        Ok(())
    }

    /// Forgets names that files lost long enough ago. They are few: each round looks at a part of
    /// them, from where the last one ended.
    pub(crate) async fn collect_lost_names(&self, from: &mut Option<Key>) -> Result<()> {
        let until_ms = self.kept_until_ms();
        let start = from.take().unwrap_or_else(key::lost_names);
        let range = Range::new(start, key::after(&key::lost_names()));
        let page = self.parts.store.begin().await?.scan(range, DELETED_PER_ROUND).await?;
        let last = page.last().filter(|_| page.len() == DELETED_PER_ROUND);
        *from = last.map(|(last, _)| [last.as_slice(), &[0]].concat());
        let mut old = vec![];
        for (key, value) in page {
            let lost: LostName = decode(&value, || "lost name".to_owned())?;
            if chunks::millis(lost.at) <= until_ms {
                old.push(key);
            }
        }
        for names in old.chunks(CHUNKS_PER_STEP) {
            self.pace.take(names.len() as u64).await;
            self.in_background(Chore::Forget(until_ms, names.to_vec())).await?;
        }
        Ok(())
    }

    /// Deletes chunks that were freed long enough ago, at their OSTs first.
    pub(crate) async fn collect_chunks(&self) -> Result<()> {
        let until_ms = self.kept_until_ms();
        let mut start = key::freed_from(0);
        let end = key::freed_from(until_ms.saturating_add(1));
        for _ in 0..STEPS_PER_ROUND {
            let range = Range::new(start.clone(), end.clone());
            let page = self.parts.store.begin().await?.scan(range, CHUNKS_PER_STEP).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            start = [last.as_slice(), &[0]].concat();
            let mut batch = Batch::read(page)?;
            for (chunk, ost) in self.wanted_again(&batch).await? {
                batch.spare(chunk, ost);
            }
            self.pace.take(batch.records.len() as u64).await;
            let failed = self.delete_objects(&batch).await;
            for (chunk, ost) in self.wanted_again(&batch).await? {
                // Chosen again meanwhile, and maybe taken for whole before it was deleted.
                self.mirrors.suspect(chunk, ost);
            }
            self.delete_records(batch, &failed).await?;
        }
        Ok(())
    }

    /// Copies that were given up, where their chunks have a place again.
    async fn wanted_again(&self, batch: &Batch) -> Result<Vec<(ChunkId, OstIndex)>> {
        let split: Vec<_> =
            batch.records.iter().filter(|(freed, ..)| batch.split.contains(freed)).collect();
        if split.is_empty() {
            return Ok(vec![]);
        }
        let keys: Vec<Key> = split.iter().map(|(_, chunk, _)| key::chunk(*chunk)).collect();
        let values = loop {
            match self.parts.store.begin().await?.read(&keys).await {
                Err(tieline_kv::Error::Conflict) => {}
                other => break other?,
            }
        };
        let mut wanted = vec![];
        for ((_, id, osts), value) in split.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let chunk: Chunk = decode(&value, || id.to_string())?;
            let again = chunk.places.iter().filter(|place| osts.contains(&place.ost));
            wanted.extend(again.map(|place| (*id, place.ost)));
        }
        Ok(wanted)
    }

    /// Asks every OST. Those that did not do it are named.
    async fn delete_objects(&self, batch: &Batch) -> BTreeSet<OstIndex> {
        let mut failed = BTreeSet::new();
        for (&ost, chunks) in &batch.objects {
            match self.parts.objects.remove(ost, chunks.clone()).await {
                Ok(()) => METRICS.chunks_freed.inc_by(chunks.len() as u64),
                Err(error) => {
                    tracing::info!(ost = ost.label(), "freed chunks stay for now: {error}");
                    failed.insert(ost);
                }
            }
        }
        failed
    }

    async fn delete_records(&self, batch: Batch, failed: &BTreeSet<OstIndex>) -> Result<()> {
        let mut transaction = self.parts.store.begin().await?;
        for (freed, chunk, osts) in batch.records {
            if osts.is_disjoint(failed) {
                if !batch.split.contains(&freed) {
                    transaction.delete(key::chunk(chunk));
                }
                transaction.delete(freed);
            }
        }
        transaction.commit().await?.durable.await?;
        Ok(())
    }

    /// Counts the files that were there at the start, and notes how many there are.
    async fn count_inodes(&self) -> Result<()> {
        let first = FileId::new(self.settings.mdt, self.first_serial);
        let mut count = 0;
        let mut start = key::inode(FileId(0));
        loop {
            let range = Range::new(start, key::inode(first));
            let page = self.parts.store.begin().await?.scan(range, 1024).await?;
            let Some((last, _)) = page.last() else { break };
            count += page.len() as i64;
            start = [last.as_slice(), &[0]].concat();
            tokio::task::yield_now().await;
        }
        self.inodes.recounted(count);
        let total = self.inodes.total();
        change_superblock(&*self.parts.store, |superblock| superblock.inodes = total).await
    }
}

impl Batch {
    fn read(page: Vec<(Key, Vec<u8>)>) -> Result<Self> {
        let mut batch = Self::default();
        for (key, value) in page {
            let Some((_, chunk)) = key::freed_parts(&key) else { continue };
            let freed: Freed = decode(&value, || chunk.to_string())?;
            let mut osts = BTreeSet::new();
            for place in freed.places {
                // Adopted files are not ours to delete.
                if place.object == ObjectName::Chunk(chunk) && osts.insert(place.ost) {
                    batch.objects.entry(place.ost).or_default().push(chunk);
                }
            }
            if freed.is_split == Some(true) {
                batch.split.insert(key.clone());
            }
            batch.records.push((key, chunk, osts));
        }
        Ok(batch)
    }

    /// Leaves an object where it is.
    fn spare(&mut self, chunk: ChunkId, ost: OstIndex) {
        if let Some(chunks) = self.objects.get_mut(&ost) {
            chunks.retain(|other| *other != chunk);
        }
        for (freed, own, osts) in &mut self.records {
            if *own == chunk && self.split.contains(freed) {
                osts.remove(&ost);
            }
        }
    }
}

mod orphans;
pub(crate) mod strays;
#[cfg(test)]
mod tests;
