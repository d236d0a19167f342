//! The cache of a site: whole chunks, each fetched from far by one node for all.
//!
//! They lie there as their digest covers them: so whoever takes one can judge it.

use crate::judge::whole;
use crate::near::{SiteCache, SiteLook};
use crate::osts::Osts;
use crate::source::{Fault, Piece, Proof, Source, Wish};
use crate::stack::join;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_foresight::ahead::PIECE;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkRef, Encoding, ErrorKind, Retry};
use tokio::time::Instant;

/// Requests for one whole chunk.
const REQUESTS_MAX: u64 = 8;
/// However long other nodes took, an OSS is given so long.
const FETCH_LEAST: Duration = Duration::from_secs(1);

pub(crate) struct Site {
    pub cache: Arc<dyn SiteCache>,
    pub osts: Arc<Osts>,
    /// Who is asked for what is at no OST.
    pub further: Vec<Arc<dyn Source>>,
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
            SiteLook::Here(bytes) if digest.covers() == Encoding::Plain => {
                return Ok(vec![Piece::new(0, bytes, Proof::Judged)]);
            }
            SiteLook::Here(bytes) => {
                return Ok(vec![Piece::new(0, bytes, Proof::Whole(digest.covers()))]);
            }
            SiteLook::Ours(claim) => claim,
            SiteLook::Late => return Err(late(chunk)),
            SiteLook::Aside => return Ok(Vec::new()),
        };
        let until = until.max(Instant::now() + FETCH_LEAST);
        let is_at_osts = chunk.at_osts().next().is_some();
        if is_at_osts {
            let brought = self.brought_by_osts(wish, until).await?;
            let Some(bytes) = brought else { return Ok(Vec::new()) };
            tokio::spawn(claim.publish(bytes.clone()));
            return Ok(vec![Piece::new(0, bytes, Proof::Judged)]);
        }
        let fetched = self.brought_by_further(wish, until).await?;
        let Some((bytes, encoding)) = fetched else { return Ok(Vec::new()) };
        let Some(plain) = whole(chunk.length, bytes.clone(), (digest, encoding)).await else {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            tracing::warn!(chunk = %chunk.chunk, "chunk does not have the digest of its metadata");
            return Ok(Vec::new());
        };
        if encoding == digest.covers() {
            tokio::spawn(claim.publish(bytes));
        }
        Ok(vec![Piece::new(0, plain, Proof::Judged)])
    }
}

impl Site {
    /// All of a chunk, each range of it judged as it came. `None`: who asked asks himself.
    async fn brought_by_osts(&self, wish: &Wish, until: Instant) -> Result<Option<Bytes>, Fault> {
        let chunk = &wish.chunk;
        let step = chunk.length.div_ceil(REQUESTS_MAX).next_multiple_of(PIECE);
        // Who closes the file takes it back until now. What is begun is finished, for all nodes.
        self.osts.has_turn(chunk, step, &wish.whose, until).await?;
        let whose = wish.whose.whoever_reads();
        let starts = (0..chunk.length).step_by(step as usize);
        let ranges = starts.map(|at| at..(at + step).min(chunk.length)).collect();
        let all = Wish { chunk: chunk.clone(), ranges, whose, until: Some(until) };
        match self.osts.bring(&all).await {
            Ok(fetched) => Ok(Some(join(0..chunk.length, fetched).1)),
            // To wait for the same server again would help nobody.
            Err(fault) if fault.kind.retry() != Retry::Never => Err(fault),
            // Rights that others have, or damage where they do not look.
            Err(_) => Ok(None),
        }
    }

    /// The same as it is encoded there.
    async fn brought_by_further(
        &self,
        wish: &Wish,
        until: Instant,
    ) -> Result<Option<(Bytes, Encoding)>, Fault> {
        let (chunk, whose) = (wish.chunk.clone(), wish.whose.whoever_reads());
        let ranges = std::iter::once(0..chunk.length).collect();
        let all = Wish { chunk, ranges, whose, until: Some(until) };
        for source in &self.further {
            for piece in source.bring(&all).await? {
                if let Proof::Whole(encoding) = piece.proof {
                    return Ok(Some((piece.bytes, encoding)));
                }
            }
        }
        Ok(None)
    }
}

fn late(chunk: &ChunkRef) -> Fault {
    let what = format!("chunk {}, which another node of the site fetches", chunk.chunk);
    Fault { kind: ErrorKind::Timeout, what }
}
