//! Storage of OSTs that is mounted here: whole chunks, at hand as soon as they are read.

use crate::near::DirectAccess;
use crate::source::{Fault, Piece, Proof, Source, Wish};
use std::sync::Arc;
use tieline_types::Encoding;

pub(crate) struct Direct(pub Arc<dyn DirectAccess>);

#[async_trait::async_trait]
impl Source for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let places = wish.chunk.at_osts();
        for place in places.filter(|place| !place.is_stale && self.0.has(place.ost)) {
            if let Some(bytes) = self.0.read(&wish.chunk, &place).await {
                // A cache above would hold once more what lies here.
                let (proof, is_news) = (Proof::Whole(Encoding::Plain), false);
                return Ok(vec![Piece { offset: 0, bytes, proof, is_news }]);
            }
        }
        Ok(Vec::new())
    }
}
