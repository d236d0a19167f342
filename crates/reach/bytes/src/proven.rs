//! Ranges that come with what leads to their chunk's digest.
//!
//! The digest is the metadata's, the proof is the data server's ([`tieline_types::tree`]): bytes
//! that another digest is of have none. So a data server is believed in nothing.

use bytes::Bytes;
use tieline_types::tree::is_proven;
use tieline_types::{ChunkRef, OstPlace};
use tieline_wire::data::Hashed;

/// What is hashed here takes no longer than what else is done with a request.
const HERE_MAX: usize = 128 << 10;

/// Of which range of a place's object the metadata has the digest, if it has one.
pub(crate) fn hashed(chunk: &ChunkRef, place: &OstPlace) -> Option<Hashed> {
    chunk.digest().map(|_| Hashed { offset: place.offset, length: chunk.length })
}

/// Are these bytes of the chunk, from `offset` on, as far as the metadata says?
pub(crate) async fn are_of(
    chunk: &ChunkRef,
    (offset, bytes): (u64, &Bytes),
    proof: Option<Vec<u8>>,
) -> bool {
    let Some(digest) = chunk.digest() else { return true };
    // No other leads to ranges, and no chunk at an OST has another.
    let (Some(root), Some(proof)) = (digest.as_blake3().copied(), proof) else { return false };
    let (length, bytes) = (chunk.length, bytes.clone());
    let is_short = bytes.len() <= HERE_MAX;
    let judge = move || is_proven(&root, length, (offset, &bytes), &proof);
    match is_short {
        true => judge(),
        false => tokio::task::spawn_blocking(judge).await.unwrap_or(false),
    }
}
