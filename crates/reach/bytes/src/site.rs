//! The cache of a site: whole chunks, each fetched from OSSs by one node for all.

use crate::near::{SiteCache, SiteLook};
use crate::osts::Osts;
use crate::source::{Fault, Piece, Source, Wish};
use crate::stack::{has_digest, join};
use std::sync::Arc;
use std::time::Duration;
use tieline_foresight::ahead::PIECE;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkRef, ErrorKind, Retry};
use tokio::time::Instant;

/// Requests for one whole chunk.
const REQUESTS_MAX: u64 = 8;
/// However long other nodes took, an OSS is given so long.
const FETCH_LEAST: Duration = Duration::from_secs(1);

pub(crate) struct Site {
    pub cache: Arc<dyn SiteCache>,
    pub osts: Arc<Osts>,
}

#[async_trait::async_trait]
impl Source for Site {
    fn name(&self) -> &'static str {
        "site"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let chunk = &wish.chunk;
        let Some(digest) = chunk.digest() else { return Ok(Vec::new()) };
        let until = wish.until.unwrap_or_else(|| self.osts.until(chunk, &wish.whose));
        let claim = match self.cache.look(&digest, chunk.length, until).await {
            SiteLook::Here(bytes) => return Ok(vec![Piece::new(0, bytes)]),
            SiteLook::Ours(claim) => claim,
            SiteLook::Late => return Err(late(chunk)),
            SiteLook::Aside => return Ok(Vec::new()),
        };
        let until = until.max(Instant::now() + FETCH_LEAST);
        let step = chunk.length.div_ceil(REQUESTS_MAX).next_multiple_of(PIECE);
        // Who closes the file takes it back until now. What is begun is finished, for all nodes.
        self.osts.has_turn(chunk, step, &wish.whose, until).await?;
        let whose = wish.whose.whoever_reads();
        let starts = (0..chunk.length).step_by(step as usize);
        let ranges = starts.map(|at| at..(at + step).min(chunk.length)).collect();
        let all = Wish { chunk: chunk.clone(), ranges, whose, until: Some(until) };
        let fetched = match self.osts.bring(&all).await {
            Ok(fetched) => fetched,
            // To wait for the same server again would help nobody.
            Err(fault) if fault.kind.retry() != Retry::Never => return Err(fault),
            // Rights that others have, or damage where they do not look: who asked asks himself.
            Err(_) => return Ok(Vec::new()),
        };
        let (_, bytes) = join(0..chunk.length, fetched);
        if !has_digest(bytes.clone(), digest).await {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            tracing::warn!(chunk = %chunk.chunk, "chunk does not have the digest of its metadata");
            return Ok(Vec::new());
        }
        tokio::spawn(claim.publish(bytes.clone()));
        Ok(vec![Piece::new(0, bytes)])
    }
}

fn late(chunk: &ChunkRef) -> Fault {
    let what = format!("chunk {}, which another node of the site fetches", chunk.chunk);
    Fault { kind: ErrorKind::Timeout, what }
}
