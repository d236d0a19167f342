//! Storage that others write to: it gives whole chunks only, each compared with its digest before
//! it is used, and brought once for all readers here.
//!
//! Invariant: a chunk without a digest, or on an OST that is ruled private, is not asked for here.

use crate::lock;
use crate::source::{Fault, Piece, Source, Wish};
use crate::stack::Stack;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tieline_types::{ChunkId, ChunkRef, ErrorKind, OstIndex, Place};
use tokio::sync::OnceCell;

/// All of a chunk; `None`: everybody asks for his own range.
type Brought = Result<Option<Piece>, Fault>;

pub(crate) struct Whole {
    below: Stack,
    is_private: Option<Arc<dyn Fn(OstIndex) -> bool + Send + Sync>>,
    /// Chunks that are being brought.
    bringing: Mutex<BTreeMap<ChunkId, Arc<OnceCell<Brought>>>>,
}

impl Whole {
    pub fn new(
        below: Stack,
        is_private: Option<Arc<dyn Fn(OstIndex) -> bool + Send + Sync>>,
    ) -> Self {
        Self { below, is_private, bringing: Mutex::default() }
    }

    fn is_shared(&self, chunk: &ChunkRef) -> bool {
        let is_private = |ost: OstIndex| self.is_private.as_ref().is_some_and(|ruled| ruled(ost));
        chunk.digest().is_some() && !chunk.places.iter().filter_map(Place::ost).any(is_private)
    }
}

#[async_trait::async_trait]
impl Source for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let chunk = &wish.chunk;
        if !self.is_shared(chunk) {
            return Ok(Vec::new());
        }
        let all = 0..chunk.length;
        loop {
            let cell = lock(&self.bringing).entry(chunk.chunk).or_default().clone();
            let mut is_ours = false;
            let bring = async {
                is_ours = true;
                let wish = Wish { ranges: vec![all.clone()], ..wish.clone() };
                let pieces = self.below.bring(&wish).await?;
                Ok(pieces.into_iter().find(|piece| piece.range() == all))
            };
            let whole = cell.get_or_init(|| bring).await.clone();
            let mut bringing = lock(&self.bringing);
            if bringing.get(&chunk.chunk).is_some_and(|known| Arc::ptr_eq(known, &cell)) {
                bringing.remove(&chunk.chunk);
            }
            drop(bringing);
            // Whoever was to bring it does not want it any more.
            if is_ours || !whole.as_ref().is_err_and(|fault| fault.kind == ErrorKind::Cancelled) {
                // Who waited has it from whoever brought it, and so have those above.
                let news = |piece: Piece| Piece { is_news: piece.is_news && is_ours, ..piece };
                return Ok(whole?.map(news).into_iter().collect());
            }
        }
    }
}
