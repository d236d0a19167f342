//! Strays: objects that no commit ever named, left by clients that crashed and by writers who came
//! too late.
//!
//! A chunk's id says whose grant it was put under. While that session lives the chunk may yet be
//! committed; after it, no commit names it any more: the MDT refuses chunks of other sessions that
//! it does not know. So an object is a stray when its session is gone for a while and no record
//! knows its chunk. When a session ended is not recorded: it counts from when it was first missed.
//!
//! In a store that was restored, an object without a record may be the only copy of something: none
//! is deleted until an operator has had the MDT checked and repaired.
//!
//! Invariants: what is listed is listed at the collector's pace; the table of grants is bounded,
//! and one that does not fit waits.

use crate::error::{Error, Result};
use crate::mdt::Mdt;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use tieline_format::mdt::key;
use tieline_kv::Key;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkId, Grant, MdtIndex, OstIndex};
use tieline_wire::data::ListObjects;
use tokio::time::Instant;

/// Objects in one question.
const PAGE: u32 = 1024;
/// Grants whose end is being waited for.
const GRANTS_MAX: usize = 65_536;
/// A page costs as much of the pace as this many deletions.
const PAGE_COST: u64 = 64;

/// Grants without a session, and since when they were missed.
pub(crate) type Missed = BTreeMap<Grant, Instant>;

impl Mdt {
    /// Looks through all OSTs again and again. Never ends.
    pub(crate) async fn collect_strays(&self) {
        let mut missed = Missed::new();
        let pause = (self.settings.stray_keep / 4).clamp(MIN_PAUSE, MAX_PAUSE);
        loop {
            tokio::time::sleep(pause).await;
            if self.trouble().is_some() {
                return;
            }
            match self.scan_strays(&mut missed).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "deleted objects that nobody had committed"),
                Err(error) => {
                    self.note(&error);
                    let error = error.into_failure(self.settings.mdt);
                    tracing::info!("objects nobody committed stay for now: {error}");
                }
            }
        }
    }

    /// Was the store restored, and not checked since?
    pub(crate) fn is_restored(&self) -> bool {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// One look through all OSTs. Says how many strays went.
    pub(crate) async fn scan_strays(&self, missed: &mut Missed) -> Result<u64> {
        if self.is_restored() {
            return Ok(0);
        }
        let live = self.sessions.grants();
        missed.retain(|grant, _| !live.contains(grant));
        let map = self.parts.map.current();
        let mut deleted = 0;
        for ost in &map.map.osts {
            match self.scan_ost(ost.ost, missed).await {
                Ok(count) => deleted += count,
                // The others may be well.
                Err(Error::Ost { ost, reason }) => {
                    tracing::debug!(ost = ost.label(), "objects are not looked at: {reason}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    async fn scan_ost(&self, ost: OstIndex, missed: &mut Missed) -> Result<u64> {
        let mdt = self.settings.mdt;
        let silent =
            |failure: tieline_wire::Failure| Error::Ost { ost, reason: failure.to_string() };
        let mut after = before_first(mdt);
        let mut deleted = 0;
        loop {
            self.pace.take(PAGE_COST).await;
            let ask = ListObjects { ost, after, limit: PAGE };
            let page = self.parts.objects.list(ask).await.map_err(silent)?;
            let Some(&last) = page.chunks.last() else { return Ok(deleted) };
            after = Some(last);
            let suspects: Vec<ChunkId> =
                page.chunks.into_iter().filter(|chunk| self.is_suspect(*chunk, missed)).collect();
            let strays = self.unknown_chunks(suspects).await?;
            if !strays.is_empty() {
                self.pace.take(strays.len() as u64).await;
                let count = strays.len() as u64;
                self.parts.objects.remove(ost, strays).await.map_err(silent)?;
                METRICS.strays_deleted.inc_by(count);
                deleted += count;
            }
            if page.is_end || last.mdt != mdt {
                return Ok(deleted);
            }
        }
    }

    /// Is the session that put it gone for long enough?
    fn is_suspect(&self, chunk: ChunkId, missed: &mut Missed) -> bool {
        if chunk.mdt != self.settings.mdt || self.sessions.is_grant(chunk.grant) {
            return false;
        }
        if missed.len() >= GRANTS_MAX && !missed.contains_key(&chunk.grant) {
            return false;
        }
        let since = *missed.entry(chunk.grant).or_insert_with(Instant::now);
        since.elapsed() >= self.settings.stray_keep
    }

    /// Those that no record knows.
    pub(crate) async fn unknown_chunks(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkId>> {
        let keys: Vec<Key> = chunks.iter().map(|&chunk| key::chunk(chunk)).collect();
        let known = loop {
            match self.parts.store.begin().await?.read(&keys).await {
                Err(tieline_kv::Error::Conflict) => {}
                other => break other?,
            }
        };
        let unknown = chunks.into_iter().zip(known).filter(|(_, value)| value.is_none());
        Ok(unknown.map(|(chunk, _)| chunk).collect())
    }
}

const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Just before the first chunk that an MDT can have.
pub(crate) fn before_first(mdt: MdtIndex) -> Option<ChunkId> {
    let before = mdt.0.checked_sub(1)?;
    Some(ChunkId { mdt: MdtIndex(before), grant: Grant(u64::MAX), serial: u64::MAX })
}
