//! Ranges of which no copy is whole: each block is taken from whichever copy has it undamaged.
//!
//! Comes after [`crate::osts`], when every place was asked and damage was found. Copies that are
//! known to be bad are asked too: what is damaged in one is good in the other, mostly.

use crate::proven::are_of;
use crate::{Osts, Whose};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkRef, Patchwork};
use tokio::time::Instant;

impl Osts {
    /// The blocks that hold `range`, and where in the chunk they begin.
    pub(crate) async fn fetch_patched(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        range: &Range<u64>,
        (whose, until): (&Whose, Instant),
    ) -> Option<(u64, Bytes)> {
        let id = chunk.chunk.granted()?;
        let places = chunk.at_osts();
        let places: Vec<_> = places.filter(|place| place.is_own(id)).collect();
        if places.len() < 2 {
            return None;
        }
        let (mut patchwork, mut proofs) = (Patchwork::new(range, chunk.length), Vec::new());
        for place in &places {
            // Who does not answer has nothing to give.
            let asked = self.ask_place(chunk, place, range, (whose, until)).await;
            if let Ok((reply, bulk)) = asked {
                METRICS.client_fetched_bytes.inc_by(bulk.len() as u64);
                patchwork.add(reply.offset, &bulk, &reply.checks);
                proofs.push(reply.proof);
            }
        }
        let (offset, bytes) = patchwork.finish()?;
        let bytes = Bytes::from(bytes);
        let mut is_proven = false;
        for proof in proofs {
            is_proven = is_proven || are_of(chunk, (offset, &bytes), proof).await;
        }
        if !is_proven {
            return None;
        }
        let chunk = chunk.chunk;
        tracing::warn!(%chunk, offset, "no copy is whole here: read from what is good in each");
        Some((offset, bytes))
    }
}
