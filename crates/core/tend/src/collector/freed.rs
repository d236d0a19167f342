//! Freed chunks: they are deleted when readers have had their time, at their OSTs first.
//!
//! Invariants: an object is deleted only after its chunk was freed for as long as the settings say;
//! the records of a freed chunk go only after its objects did; a copy that was given up stays where
//! its chunk has a place again.

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Result, decode};
use crate::pace::Pace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Chunk, Freed, key};
use tieline_kv::{Key, Range};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{GrantedId, ObjectName, OstIndex};

/// Chunks deleted per step: far below what an OSS takes in one request, so that it serves others in
/// between.
const CHUNKS_PER_STEP: usize = 512;
/// Steps per round: with [`CHUNKS_PER_STEP`], the most chunks that one round deletes.
const STEPS_PER_ROUND: usize = 16;

/// Deletes chunks that were freed long enough ago.
pub struct FreedChunks {
    parts: Arc<Parts>,
    pace: Arc<Pace>,
}

/// Freed chunks of one step.
#[derive(Default)]
struct Batch {
    /// Keys of their records, with the OSTs that hold them.
    records: Vec<(Key, GrantedId, BTreeSet<OstIndex>)>,
    /// Chunks that only give copies up.
    split: BTreeSet<Key>,
    objects: BTreeMap<OstIndex, Vec<GrantedId>>,
}

#[async_trait::async_trait]
impl Chore for FreedChunks {
    fn title(&self) -> (&'static str, &'static str) {
        ("freed-chunks", "chunks")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        let until_ms = self.parts.kept_until_ms();
        let mut start = key::freed_from(0);
        let end = key::freed_from(until_ms.saturating_add(1));
        // Who did not answer is not waited for again in this round.
        let (mut stayed, mut failed) = (0, BTreeSet::new());
        for _ in 0..STEPS_PER_ROUND {
            let range = Range::new(start.clone(), end.clone());
            let page = self.parts.store.begin().await?.scan(range, CHUNKS_PER_STEP).await?;
            let Some((last, _)) = page.last() else {
                status.set_left(Some(stayed));
                return Ok(());
            };
            start = [last.as_slice(), &[0]].concat();
            let mut batch = Batch::read(page)?;
            self.pace.take(batch.records.len() as u64).await;
            let freeing = self.parts.mirrors.freeing.lock().await;
            for (chunk, ost) in self.wanted_again(&batch).await? {
                batch.spare(chunk, ost);
            }
            self.delete_objects(&batch, &mut failed, status).await;
            drop(freeing);
            for (chunk, ost) in self.wanted_again(&batch).await? {
                // Chosen again meanwhile, and maybe taken for whole before it was deleted.
                self.parts.mirrors.suspect(chunk, ost);
            }
            stayed += self.delete_records(batch, &failed).await?;
        }
        status.set_left(None);
        Ok(())
    }
}

impl FreedChunks {
    pub fn new(parts: &Arc<Parts>, pace: &Arc<Pace>) -> Self {
        Self { parts: parts.clone(), pace: pace.clone() }
    }

    /// Copies that were given up, where their chunks have a place again.
    async fn wanted_again(&self, batch: &Batch) -> Result<Vec<(GrantedId, OstIndex)>> {
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

    /// Asks every OST but those that failed. Those that do not do it are noted.
    async fn delete_objects(
        &self,
        batch: &Batch,
        failed: &mut BTreeSet<OstIndex>,
        status: &Status,
    ) {
        for (&ost, chunks) in &batch.objects {
            if failed.contains(&ost) {
                continue;
            }
            match self.parts.objects.remove(ost, chunks.clone()).await {
                Ok(()) => {
                    METRICS.chunks_freed.inc_by(chunks.len() as u64);
                    status.did(chunks.len() as u64);
                }
                Err(error) => {
                    tracing::info!(ost = ost.label(), "freed chunks stay for now: {error}");
                    let ost_label = ost.label();
                    status.trouble(format!("chunks at {ost_label} stay for now: {error}"));
                    failed.insert(ost);
                }
            }
        }
    }

    /// Says how many chunks stay.
    async fn delete_records(&self, batch: Batch, failed: &BTreeSet<OstIndex>) -> Result<u64> {
        let mut transaction = self.parts.store.begin().await?;
        let mut stayed = 0;
        for (freed, chunk, osts) in batch.records {
            if osts.is_disjoint(failed) {
                if !batch.split.contains(&freed) {
                    transaction.delete(key::chunk(chunk));
                }
                transaction.delete(freed);
            } else {
                stayed += 1;
            }
        }
        transaction.commit().await?.durable.await?;
        Ok(stayed)
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
    fn spare(&mut self, chunk: GrantedId, ost: OstIndex) {
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
