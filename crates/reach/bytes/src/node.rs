//! What this node has of chunks: any ranges, verified when they were kept.

use crate::near::NodeCache;
use crate::source::{Fault, Piece, Proof, Source, Wish};
use std::sync::Arc;
use tieline_types::ChunkRef;

pub(crate) struct Node(pub Arc<dyn NodeCache>);

#[async_trait::async_trait]
impl Source for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let mut pieces = Vec::new();
        for range in &wish.ranges {
            for (offset, bytes) in self.0.find(&wish.chunk, range.clone()).await {
                pieces.push(Piece { offset, bytes, proof: Proof::Judged, is_news: false });
            }
        }
        Ok(pieces)
    }

    fn keep(&self, chunk: &ChunkRef, piece: &Piece) {
        self.0.keep(chunk, piece.offset, piece.bytes.clone());
    }
}
