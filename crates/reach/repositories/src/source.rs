//! Chunks that lie in repositories.

use crate::{Repositories, Want};
use bytes::Bytes;
use std::time::Duration;
use tieline_bytes::{Fault, Piece, Proof, Source, Wish};
use tieline_types::{ErrorKind, ObjectName, Origin, Place};
use tokio::time::Instant;

/// How long whoever says nothing waits.
const PATIENCE: Duration = Duration::from_secs(60);

#[async_trait::async_trait]
impl Source for Repositories {
    fn name(&self) -> &'static str {
        "repository"
    }

    /// All of the chunk, whatever is wanted of it: only so it can be judged.
    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let chunk = &wish.chunk;
        let until = wish.until.unwrap_or_else(|| Instant::now() + PATIENCE);
        let mut fault = None;
        for place in &chunk.places {
            let Place { origin: Origin::Repository(name), object: ObjectName::Key(key), .. } =
                place
            else {
                continue;
            };
            let encoding = place.encoding();
            let (offset, length) = (place.offset, place.length);
            let want = Want { key, offset, length, most: encoding.stored_max(chunk.length) };
            let digest = chunk.digest().filter(|digest| digest.covers() == encoding);
            let is_right = |bytes: &Bytes| digest.is_none_or(|digest| digest.is_of(bytes));
            match self.get_right(name, want, until, &is_right).await {
                Ok(bytes) => return Ok(vec![Piece::new(0, bytes, Proof::Whole(encoding))]),
                Err(trouble) => {
                    let kind = match trouble.kind {
                        // Nobody frees what is published: a source lags behind, or lost it.
                        ErrorKind::NotFound => ErrorKind::Unreachable,
                        kind => kind,
                    };
                    let what = format!("chunk {} of {name} ({})", chunk.chunk, trouble.what);
                    fault.get_or_insert(Fault { kind, what });
                }
            }
        }
        fault.map_or(Ok(Vec::new()), Err)
    }
}
