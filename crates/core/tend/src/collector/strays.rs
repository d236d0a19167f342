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

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Error, Result};
use crate::pace::Pace;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::key;
use tieline_kv::Key;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Grant, GrantedId, MdtIndex, OstIndex};
use tieline_wire::Failure;
use tieline_wire::data::ListObjects;
use tokio::time::Instant;

/// Objects in one question.
const PAGE: u32 = 1024;
/// Grants whose end is being waited for.
const GRANTS_MAX: usize = 65_536;
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// A page costs as much of the pace as this many deletions.
const PAGE_COST: u64 = 64;

/// Grants without a session, and since when they were missed.
type Missed = BTreeMap<Grant, Instant>;

/// Looks through all OSTs again and again.
pub struct Strays {
    parts: Arc<Parts>,
    pace: Arc<Pace>,
    missed: Missed,
}

#[async_trait::async_trait]
impl Chore for Strays {
    fn title(&self) -> (&'static str, &'static str) {
        ("strays", "objects")
    }

    fn pause(&self) -> Duration {
        (self.parts.settings.stray_keep / 4).clamp(MIN_PAUSE, MAX_PAUSE)
    }

    fn writes(&self) -> bool {
        false
    }

    fn rests_first(&self) -> bool {
        true
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        if self.parts.mdt.is_restored() {
            status.wait_for("a check of the restored store: tieline fsck --repair");
        }
        match self.scan(status).await? {
            0 => {}
            count => {
                status.did(count);
                tracing::info!(count, "deleted objects that nobody had committed");
            }
        }
        Ok(())
    }

    fn complain(&self, failure: &Failure) {
        tracing::info!("objects nobody committed stay for now: {failure}");
    }
}

impl Strays {
    pub fn new(parts: &Arc<Parts>, pace: &Arc<Pace>) -> Self {
        Self { parts: parts.clone(), pace: pace.clone(), missed: Missed::new() }
    }

    /// One look through all OSTs. Says how many strays went.
    pub(super) async fn scan(&mut self, status: &Status) -> Result<u64> {
        if self.parts.mdt.is_restored() {
            return Ok(0);
        }
        let mdt = &self.parts.mdt;
        self.missed.retain(|grant, _| !mdt.is_grant(*grant));
        let map = self.parts.map.current();
        let mut deleted = 0;
        for ost in &map.map.osts {
            match self.scan_ost(ost.ost).await {
                Ok(count) => deleted += count,
                // The others may be well.
                Err(Error::Ost { ost, reason }) => {
                    let ost = ost.label();
                    tracing::debug!(ost, "objects are not looked at: {reason}");
                    status.trouble(format!("objects of {ost} are not looked at: {reason}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    async fn scan_ost(&mut self, ost: OstIndex) -> Result<u64> {
        let mdt = self.parts.index;
        let silent = |failure: Failure| Error::Ost { ost, reason: failure.to_string() };
        let mut after = before_first(mdt);
        let mut deleted = 0;
        loop {
            self.pace.take(PAGE_COST).await;
            let ask = ListObjects { ost, after, limit: PAGE };
            let page = self.parts.objects.list(ask).await.map_err(silent)?;
            let Some(&last) = page.chunks.last() else { return Ok(deleted) };
            after = Some(last);
            let suspects: Vec<GrantedId> =
                page.chunks.into_iter().filter(|chunk| self.is_suspect(*chunk)).collect();
            let strays = unknown_chunks(&self.parts, suspects).await?;
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
    fn is_suspect(&mut self, chunk: GrantedId) -> bool {
        if chunk.mdt != self.parts.index || self.parts.mdt.is_grant(chunk.grant) {
            return false;
        }
        if self.missed.len() >= GRANTS_MAX && !self.missed.contains_key(&chunk.grant) {
            return false;
        }
        let since = *self.missed.entry(chunk.grant).or_insert_with(Instant::now);
        since.elapsed() >= self.parts.settings.stray_keep
    }
}

/// Just before the first chunk that an MDT can have.
pub fn before_first(mdt: MdtIndex) -> Option<GrantedId> {
    let before = mdt.0.checked_sub(1)?;
    Some(GrantedId { mdt: MdtIndex(before), grant: Grant(u64::MAX), serial: u64::MAX })
}

/// Those that no record knows.
pub async fn unknown_chunks(parts: &Parts, chunks: Vec<GrantedId>) -> Result<Vec<GrantedId>> {
    let keys: Vec<Key> = chunks.iter().map(|&chunk| key::chunk(chunk)).collect();
    let known = loop {
        match parts.store.begin().await?.read(&keys).await {
            Err(tieline_kv::Error::Conflict) => {}
            other => break other?,
        }
    };
    let unknown = chunks.into_iter().zip(known).filter(|(_, value)| value.is_none());
    Ok(unknown.map(|(chunk, _)| chunk).collect())
}
