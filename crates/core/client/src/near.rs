//! Where chunks are found nearer than at an OSS: in this node's cache, on storage that is mounted
//! here, in the cache of the site. Programs plug in what an operator asked for ([`Near`]).
//!
//! What a node has of a range is not fetched again, and what is fetched is kept there. Storage that
//! others write to gives whole chunks only, each compared with its digest before it is used; one
//! that comes that way is brought once for all readers here. Whoever wants bytes waits for them
//! once, wherever that is: one deadline holds for other nodes and for OSSs.
//!
//! Knows no directory and no file of any cache.
//!
//! Invariants: a chunk without a digest comes from an OSS; so does one whose OST is ruled private,
//! but for the node's own cache; whatever a cache answers, an OSS is asked in the end.

use crate::capabilities::Whose;
use crate::chunks::{Fault, Outcome};
use crate::volume::{Shared, lock};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_foresight::ahead::PIECE;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkId, ChunkRef, Digest, ErrorKind, OstIndex, Place, Retry};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A gap smaller than this is not worth a request of its own beside another.
const GAP_MIN: u64 = 64 << 10;
/// What is fetched at once of what is pinned: whole blocks.
const STORED: u64 = 4 << 20;
/// Requests for one whole chunk.
const REQUESTS_MAX: u64 = 8;
/// However long storage or other nodes took, an OSS is given so long.
const FETCH_LEAST: Duration = Duration::from_secs(1);

/// What an operator asked for.
#[derive(Clone, Default)]
pub struct Near {
    pub node: Option<Arc<dyn NodeCache>>,
    pub site: Option<Arc<dyn SiteCache>>,
    pub direct: Option<Arc<dyn DirectAccess>>,
    /// May the bytes of an OST lie where other machines read them?
    pub is_private: Option<Arc<dyn Fn(OstIndex) -> bool + Send + Sync>>,
    /// What the caches did, as JSON.
    pub report: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

/// Parts of chunks on this node.
#[async_trait::async_trait]
pub trait NodeCache: Send + Sync {
    /// What is here of a range: runs of verified bytes within it, in order, with their offsets.
    async fn find(&self, chunk: &ChunkRef, range: Range<u64>) -> Vec<(u64, Bytes)>;
    /// Keeps verified bytes of a chunk from `offset`, sooner or later.
    fn keep(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes);

    // For trees that are pinned.
    /// Returns when it can be asked for them: its directory may come later.
    async fn there(&self) {}
    /// Keeps bytes for certain, before it returns; or says why not.
    async fn store(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) -> Result<(), String>;
    /// Is all of a chunk here?
    async fn holds(&self, chunk: &ChunkRef) -> bool;
    /// Has chunks stay, in place of those that were pinned under the same words; `None` lets them
    /// go. What is pinned stays so beyond this process.
    async fn pin(&self, words: &str, chunks: Option<Vec<ChunkId>>) -> Result<(), String>;
    /// The words of all pins.
    async fn pinned(&self) -> Vec<String>;
    /// Puts something down beside a pin, in place of what was there; it goes with the pin.
    async fn save(&self, words: &str, bytes: Vec<u8>) -> Result<(), String>;
    async fn saved(&self, words: &str) -> Option<Vec<u8>>;
}

/// Whole chunks for all nodes of a site.
#[async_trait::async_trait]
pub trait SiteCache: Send + Sync {
    /// Waits while another node fetches it, until then at most.
    async fn look(&self, digest: &Digest, length: u64, until: Instant) -> SiteLook;
}

pub enum SiteLook {
    /// All of it, compared with its digest.
    Here(Bytes),
    /// We fetch it for all.
    Ours(Box<dyn SiteClaim>),
    /// Another node has not fetched it yet.
    Late,
    Aside,
}

/// Dropped, another node fetches.
#[async_trait::async_trait]
pub trait SiteClaim: Send {
    async fn publish(self: Box<Self>, bytes: Bytes);
}

/// Storage of OSTs that is mounted here.
#[async_trait::async_trait]
pub trait DirectAccess: Send + Sync {
    fn has(&self, ost: OstIndex) -> bool;
    /// A whole chunk, compared with its checks.
    async fn read(&self, chunk: &ChunkRef, place: &Place) -> Option<Bytes>;
}

/// All of a chunk; `None`: everybody asks for his own range.
type Brought = Result<Option<Bytes>, Fault>;

/// Chunks that are being brought whole.
pub(crate) type Bringing = Mutex<BTreeMap<ChunkId, Arc<OnceCell<Brought>>>>;

impl Shared {
    /// A range of a chunk from wherever it is nearest.
    pub(crate) async fn fetch_near(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        range: Range<u64>,
        whose: &Whose,
    ) -> Outcome {
        let here = match &self.near.node {
            Some(node) => node.find(chunk, range.clone()).await,
            None => Vec::new(),
        };
        let missing = missing(&range, &here);
        if missing.is_empty() {
            return Ok(join(range, here));
        }
        if let Some(whole) = self.whole(chunk, whose).await? {
            return Ok((0, whole));
        }
        // No server was waited for yet.
        let until = self.fetch_until(chunk, whose);
        let Some(node) = self.near.node.as_ref() else {
            return self.fetch(chunk, range, whose, until).await;
        };
        let fetched = self.fetch_all(chunk, missing, whose, until).await?;
        for (offset, bytes) in &fetched {
            node.keep(chunk, *offset, bytes.clone());
        }
        Ok(match (here.is_empty(), fetched.as_slice()) {
            // As wide as it came.
            (true, [one]) => one.clone(),
            _ => join(range, here.into_iter().chain(fetched).collect()),
        })
    }

    /// Ranges of a chunk from OSSs, at once.
    async fn fetch_all(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        ranges: Vec<Range<u64>>,
        whose: &Whose,
        until: Instant,
    ) -> Result<Vec<(u64, Bytes)>, Fault> {
        if let [range] = ranges.as_slice() {
            return Ok(vec![self.fetch(chunk, range.clone(), whose, until).await?]);
        }
        let mut fetches = JoinSet::new();
        for range in ranges {
            let (shared, chunk, whose) = (self.clone(), chunk.clone(), whose.clone());
            fetches.spawn(async move { shared.fetch(&chunk, range, &whose, until).await });
        }
        let mut fetched = Vec::new();
        while let Some(joined) = fetches.join_next().await {
            fetched.push(joined.unwrap_or_else(|_| Err(crate::chunks::lost()))?);
        }
        fetched.sort_by_key(|(offset, _)| *offset);
        Ok(fetched)
    }

    /// A whole chunk from storage that others write to too, if there is any; brought once for all
    /// who want it here.
    async fn whole(self: &Arc<Self>, chunk: &ChunkRef, whose: &Whose) -> Brought {
        if self.near.site.is_none() && self.near.direct.is_none() {
            return Ok(None);
        }
        let Some(digest) = chunk.digest else { return Ok(None) };
        let is_private = |place: &Place| {
            self.near.is_private.as_ref().is_some_and(|is_private| is_private(place.ost))
        };
        if chunk.places.iter().any(is_private) {
            return Ok(None);
        }
        loop {
            let cell = lock(&self.bringing).entry(chunk.chunk).or_default().clone();
            let mut is_ours = false;
            let bring = async {
                is_ours = true;
                self.bring_whole(chunk, &digest, whose).await
            };
            let whole = cell.get_or_init(|| bring).await.clone();
            let mut bringing = lock(&self.bringing);
            if bringing.get(&chunk.chunk).is_some_and(|known| Arc::ptr_eq(known, &cell)) {
                bringing.remove(&chunk.chunk);
            }
            // Whoever was to bring it does not want it any more.
            if is_ours || !whole.as_ref().is_err_and(|fault| fault.kind == ErrorKind::Cancelled) {
                return whole;
            }
        }
    }

    async fn bring_whole(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        digest: &Digest,
        whose: &Whose,
    ) -> Brought {
        if let Some(bytes) = self.bring_directly(chunk, digest).await {
            return Ok(Some(bytes));
        }
        let Some(site) = &self.near.site else { return Ok(None) };
        let until = self.fetch_until(chunk, whose);
        let claim = match site.look(digest, chunk.length, until).await {
            SiteLook::Here(bytes) => {
                self.keep_whole(chunk, &bytes);
                return Ok(Some(bytes));
            }
            SiteLook::Ours(claim) => claim,
            SiteLook::Late => return Err(late(chunk)),
            SiteLook::Aside => return Ok(None),
        };
        let until = until.max(Instant::now() + FETCH_LEAST);
        let step = chunk.length.div_ceil(REQUESTS_MAX).next_multiple_of(PIECE);
        // Who closes the file takes it back until now. What is begun is finished, for all nodes.
        self.has_turn(chunk, step, whose, until).await?;
        let whose = &whose.whoever_reads();
        let starts = (0..chunk.length).step_by(step as usize);
        let ranges = starts.map(|at| at..(at + step).min(chunk.length)).collect();
        let fetched = match self.fetch_all(chunk, ranges, whose, until).await {
            Ok(fetched) => fetched,
            // To wait for the same server again would help nobody.
            Err(fault) if fault.kind.retry() != Retry::Never => return Err(fault),
            // Rights that others have, or damage where they do not look: who asked asks himself.
            Err(_) => return Ok(None),
        };
        let (_, bytes) = join(0..chunk.length, fetched);
        if !has_digest(bytes.clone(), *digest).await {
            METRICS.corrupt_blocks.with_label_values(&["client"]).inc();
            tracing::warn!(chunk = %chunk.chunk, "chunk does not have the digest of its metadata");
            return Ok(None);
        }
        self.keep_whole(chunk, &bytes);
        tokio::spawn(claim.publish(bytes.clone()));
        Ok(Some(bytes))
    }

    async fn bring_directly(&self, chunk: &ChunkRef, digest: &Digest) -> Option<Bytes> {
        let direct = self.near.direct.as_ref()?;
        let places = chunk.places.iter().filter(|place| !place.is_stale && direct.has(place.ost));
        for place in places {
            let Some(bytes) = direct.read(chunk, place).await else { continue };
            if has_digest(bytes.clone(), *digest).await {
                METRICS.cache_served_bytes.with_label_values(&["direct"]).inc_by(chunk.length);
                return Some(bytes);
            }
            METRICS.cache_poisoned.with_label_values(&["direct"]).inc();
            let (ost, id) = (place.ost.label(), chunk.chunk);
            tracing::warn!(%ost, chunk = %id, "chunk read directly does not have its digest");
        }
        None
    }

    /// Brings all of a chunk into the node's cache, where it is when this returns.
    pub(crate) async fn store_whole(
        self: &Arc<Self>,
        chunk: &ChunkRef,
        whose: &Whose,
    ) -> Result<(), String> {
        let Some(node) = &self.near.node else { return Err("there is no cache".to_owned()) };
        if node.holds(chunk).await {
            return Ok(());
        }
        let whole = self.whole(chunk, whose).await.map_err(|fault| fault.what)?;
        if let Some(whole) = whole {
            return node.store(chunk, 0, whole).await;
        }
        let here = node.find(chunk, 0..chunk.length).await;
        for range in missing(&(0..chunk.length), &here) {
            for start in (range.start..range.end).step_by(STORED as usize) {
                let step = start..(start + STORED).min(range.end);
                let until = self.fetch_until(chunk, whose);
                let fetched = self.fetch(chunk, step, whose, until).await;
                let (offset, bytes) = fetched.map_err(|fault| fault.what)?;
                node.store(chunk, offset, bytes).await?;
            }
        }
        Ok(())
    }

    fn keep_whole(&self, chunk: &ChunkRef, bytes: &Bytes) {
        if let Some(node) = &self.near.node {
            node.keep(chunk, 0, bytes.clone());
        }
    }
}

fn late(chunk: &ChunkRef) -> Fault {
    let what = format!("chunk {}, which another node of the site fetches", chunk.chunk);
    Fault { kind: ErrorKind::Timeout, what }
}

/// Takes milliseconds for a large chunk: not where others wait for their turn.
async fn has_digest(bytes: Bytes, digest: Digest) -> bool {
    let compare = move || blake3::hash(&bytes).as_bytes() == &digest.0;
    tokio::task::spawn_blocking(compare).await.unwrap_or(false)
}

/// What is not in `runs`, with small gaps between such ranges fetched again.
fn missing(range: &Range<u64>, runs: &[(u64, Bytes)]) -> Vec<Range<u64>> {
    let mut missing: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    let ends = runs.iter().map(|(offset, bytes)| (*offset, *offset + bytes.len() as u64));
    for (from, to) in ends.chain([(range.end, range.end)]) {
        if from > at {
            match missing.last_mut() {
                Some(last) if at - last.end < GAP_MIN => last.end = from,
                _ => missing.push(at..from),
            }
        }
        at = at.max(to);
    }
    missing
}

/// The bytes of `range`, all of which are in `runs`.
fn join(range: Range<u64>, mut runs: Vec<(u64, Bytes)>) -> (u64, Bytes) {
    runs.sort_by_key(|(offset, _)| *offset);
    if let [(offset, bytes)] = runs.as_slice() {
        return (*offset, bytes.clone());
    }
    let mut joined = BytesMut::with_capacity((range.end - range.start) as usize);
    let mut at = range.start;
    for (offset, bytes) in runs {
        let end = (offset + bytes.len() as u64).min(range.end);
        if end > at && offset <= at {
            joined.extend_from_slice(&bytes[(at - offset) as usize..(end - offset) as usize]);
            at = end;
        }
    }
    (range.start, joined.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A list of one range, where others have more.
    #[allow(clippy::single_range_in_vec_init)]
    #[test]
    fn what_is_missing_is_fetched_and_little_else() {
        let run = |range: Range<u64>| (range.start, Bytes::from(vec![1; range.count()]));
        let of = |runs: &[(u64, Bytes)]| missing(&(100..1_000_000), runs);
        assert_eq!(of(&[]), [100..1_000_000]);
        assert_eq!(of(&[run(100..1_000_000)]), []);
        assert_eq!(of(&[run(100..200_000)]), [200_000..1_000_000]);
        assert_eq!(of(&[run(300_000..400_000)]), [100..300_000, 400_000..1_000_000]);
        assert_eq!(of(&[run(300_000..300_100)]), [100..1_000_000], "too little to spare a request");
        assert_eq!(of(&[run(100..300_000), run(300_000..999_999)]), [999_999..1_000_000]);
    }

    #[test]
    fn runs_are_joined_where_they_meet_or_overlap() {
        let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
        let run = |range: Range<usize>| (range.start as u64, bytes.slice(range));
        let (offset, joined) = join(5..90, vec![run(50..100), run(0..20), run(15..50)]);
        assert_eq!((offset, &joined[..]), (5, &bytes[5..90]));
        assert_eq!(join(5..90, vec![run(0..100)]), (0, bytes.clone()));
    }
}
