//! What this node has of chunks: any ranges, verified when they were kept.

use crate::near::{IsPrivate, NodeCache};
use crate::osts::Osts;
use crate::source::{Fault, Piece, Proof, Source, Wish};
use std::sync::Arc;
use tieline_types::{ChunkRef, Place};

pub(crate) struct Node {
    pub cache: Arc<dyn NodeCache>,
    /// Not everything is kept.
    pub choice: Option<Choice>,
}

/// Keeps what comes from far data servers and may lie here. How far a repository is, nobody knows.
pub(crate) struct Choice {
    pub osts: Arc<Osts>,
    pub is_private: Option<IsPrivate>,
}

impl Choice {
    fn keeps(&self, chunk: &ChunkRef) -> bool {
        let is_private = |ost| self.is_private.as_ref().is_some_and(|is_private| is_private(ost));
        let mut osts = chunk.places.iter().filter_map(Place::ost);
        let is_of_servers = osts.clone().next().is_some();
        is_of_servers && self.osts.is_far(chunk) && !osts.any(is_private)
    }
}

#[async_trait::async_trait]
impl Source for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let mut pieces = Vec::new();
        for range in &wish.ranges {
            for (offset, bytes) in self.cache.find(&wish.chunk, range.clone()).await {
                pieces.push(Piece { offset, bytes, proof: Proof::Judged, is_news: false });
            }
        }
        Ok(pieces)
    }

    fn keep(&self, chunk: &ChunkRef, piece: &Piece) {
        if self.choice.as_ref().is_none_or(|choice| choice.keeps(chunk)) {
            self.cache.keep(chunk, piece.offset, piece.bytes.clone());
        }
    }
}
