//! The node's cache, plugged into the client room: open from the beginning, or from when there is
//! something to keep.

use super::late::{Late, Open};
use super::usual;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tieline_bytes::NodeCache;
use tieline_cache::{Error, Known, NodeSettings};
use tieline_types::{ChunkId, ChunkRef};
use tieline_world::World;
use tokio::sync::{OnceCell, Semaphore};

const WAITING_MAX: usize = 32 << 20;
const GRAIN: usize = 4096;

#[derive(Clone)]
pub struct NodePlug(Arc<Inner>);

struct Inner {
    open: Open<tieline_cache::NodeCache>,
    late: OnceCell<Late<tieline_cache::NodeCache>>,
    /// For bytes that are to be kept while it is opened, in units of [`GRAIN`].
    waiting: Arc<Semaphore>,
}

impl NodePlug {
    /// One that the operator named.
    pub async fn open(settings: NodeSettings, world: World, is_new: bool) -> Result<Self, Error> {
        let open = move || tieline_cache::NodeCache::open(settings.clone(), world.clock.clone());
        let plug = Self::new(Arc::new(open));
        plug.begin(is_new).await?;
        Ok(plug)
    }

    /// The mount's own: opened now if an earlier mount left it, else when there is something to
    /// keep.
    pub async fn own(settings: NodeSettings, world: World) -> Self {
        let is_there = settings.path.is_dir();
        let plug = Self::new(Arc::new(move || usual::open(&settings, &world)));
        if is_there {
            plug.begin_own().await;
        }
        plug
    }

    fn new(open: Open<tieline_cache::NodeCache>) -> Self {
        let waiting = Arc::new(Semaphore::new(WAITING_MAX / GRAIN));
        Self(Arc::new(Inner { open, late: OnceCell::new(), waiting }))
    }

    async fn begin(&self, is_new: bool) -> Result<&Late<tieline_cache::NodeCache>, Error> {
        let open = || Late::open("node", is_new, self.0.open.clone());
        self.0.late.get_or_try_init(open).await
    }

    /// Another mount may have it: then this one goes without.
    async fn begin_own(&self) {
        if let Err(error) = self.begin(false).await {
            tracing::debug!(%error, "the node's cache is not used");
        }
    }

    /// The first bytes that are to be kept, and those that come while it is opened.
    fn begin_with(&self, known: Known, offset: u64, bytes: Bytes) {
        let grains = u32::try_from(bytes.len().div_ceil(GRAIN)).unwrap_or(u32::MAX);
        let Ok(room) = self.0.waiting.clone().try_acquire_many_owned(grains) else { return };
        let plug = self.clone();
        tokio::spawn(async move {
            plug.begin_own().await;
            if let Some(cache) = plug.now() {
                cache.keep(&known, offset, bytes);
            }
            drop(room);
        });
    }

    fn now(&self) -> Option<tieline_cache::NodeCache> {
        self.0.late.get()?.now()
    }

    /// Why it is not used.
    pub fn trouble(&self) -> Option<String> {
        self.0.late.get()?.trouble()
    }

    async fn needed(&self) -> Result<tieline_cache::NodeCache, String> {
        let late = self.begin(false).await.map_err(|error| error.to_string())?;
        late.now().ok_or_else(|| late.trouble().unwrap_or_default())
    }
}

#[async_trait::async_trait]
impl NodeCache for NodePlug {
    async fn there(&self) {
        if let Some(late) = self.0.late.get() {
            late.there().await;
        }
    }

    async fn find(&self, chunk: &ChunkRef, range: Range<u64>) -> Vec<(u64, Bytes)> {
        match self.now() {
            Some(cache) => cache.find(&Known::from(chunk), range).await,
            None => Vec::new(),
        }
    }

    fn is_full(&self, chunk: &ChunkRef) -> bool {
        self.now().is_some_and(|cache| cache.is_full(&Known::from(chunk)))
    }

    fn keep(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) {
        let known = Known::from(chunk);
        match self.now() {
            Some(cache) => cache.keep(&known, offset, bytes),
            None => self.begin_with(known, offset, bytes),
        }
    }

    async fn store(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) -> Result<(), String> {
        let stored = self.needed().await?.store(&Known::from(chunk), offset, bytes).await;
        stored.map_err(|error| error.to_string())
    }

    async fn holds(&self, chunk: &ChunkRef) -> bool {
        match self.now() {
            Some(cache) => cache.holds(&Known::from(chunk)).await,
            None => false,
        }
    }

    async fn pin(&self, words: &str, chunks: Option<Vec<ChunkId>>) -> Result<(), String> {
        let pinned = self.needed().await?.pin(words, chunks.as_deref()).await;
        pinned.map_err(|error| tieline_base::report::chain(&error))
    }

    async fn pinned(&self) -> Vec<String> {
        match self.now() {
            Some(cache) => cache.pinned().await,
            None => Vec::new(),
        }
    }

    async fn save(&self, words: &str, bytes: Vec<u8>) -> Result<(), String> {
        let saved = self.needed().await?.save(words, bytes).await;
        saved.map_err(|error| tieline_base::report::chain(&error))
    }

    async fn saved(&self, words: &str) -> Option<Vec<u8>> {
        self.now()?.saved(words).await
    }
}
