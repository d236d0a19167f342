//! What an operator plugs in: caches and storage that are nearer than OSSs.
//!
//! Knows no directory and no file of any of them.

use crate::Source;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_types::{ChunkId, ChunkRef, Digest, OstIndex, OstPlace};
use tokio::time::Instant;

/// Must the bytes of an OST not lie where others may read them?
pub type IsPrivate = Arc<dyn Fn(OstIndex) -> bool + Send + Sync>;

/// What an operator asked for.
#[derive(Clone, Default)]
pub struct Near {
    pub node: Option<Arc<dyn NodeCache>>,
    /// Only what comes from far is kept there, and nothing that is private.
    pub is_node_for_far: bool,
    pub site: Option<Arc<dyn SiteCache>>,
    pub direct: Option<Arc<dyn DirectAccess>>,
    /// Who has whole chunks that are at no OST, such as a repository's.
    pub further: Vec<Arc<dyn Source>>,
    pub is_private: Option<IsPrivate>,
    /// What the caches did, as JSON.
    pub report: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

/// Parts of chunks on this node.
#[async_trait::async_trait]
pub trait NodeCache: Send + Sync {
    /// What is here of a range: runs of verified bytes within it, in order, with their offsets.
    async fn find(&self, chunk: &ChunkRef, range: Range<u64>) -> Vec<(u64, Bytes)>;
    /// Is nearly all of a chunk here, as far as is known without a look at the disk?
    fn is_full(&self, _chunk: &ChunkRef) -> bool {
        false
    }
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
    /// Waits while another node fetches it, until then at most. `length`: of its plain bytes; they
    /// lie there as the digest covers them.
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
    async fn read(&self, chunk: &ChunkRef, place: &OstPlace) -> Option<Bytes>;
}
