//! RecordSums: checksums of adopted chunks, read for the first time after the adoption.
//!
//! The bytes stay what they are, so no version, no time and no lease is touched.
//!
//! Invariant: only chunks that lie wholly in adopted files are changed, and only if they are in
//! use.

use crate::chunks::read_chunks;
use crate::error::{Error, Result};
use crate::view::View;
use tieline_format::mdt::{Chunk, key};
use tieline_types::ObjectName;
use tieline_types::checksum::BLOCK;
use tieline_wire::meta::{ChunkSums, RecordSums, RecordSumsReply};

const KEPT_IS_WRONG: &str =
    "the checksum that was kept with an adopted file is not that of its bytes";

pub async fn run(view: &mut View<'_>, request: &RecordSums) -> Result<RecordSumsReply> {
    let caller = view.scene.caller;
    if !caller.is_root() {
        return Err(Error::NotRoot { uid: caller.uid.0, wish: "record checksums" });
    }
    view.inode(request.id).await?;
    let known = read_chunks(view, request.sums.iter().map(|sums| sums.chunk).collect()).await?;
    let mut recorded = 0;
    for sums in &request.sums {
        let Some(chunk) = known.get(&sums.chunk).filter(|chunk| takes(chunk, sums)) else {
            continue;
        };
        let mut chunk = chunk.clone();
        if let Some(kept) = chunk.adler32.filter(|&kept| kept != sums.adler32) {
            // Nobody may be there to be told: it was damaged before it came to us.
            let (file, kept, found) =
                (request.id, format!("{kept:08x}"), format!("{:08x}", sums.adler32));
            tracing::warn!(%file, kept, found, "{KEPT_IS_WRONG}");
        }
        chunk.checks = Some(sums.checks.clone());
        chunk.adler32 = Some(sums.adler32);
        chunk.digest = Some(sums.digest);
        view.put(key::chunk(sums.chunk), &chunk);
        recorded += 1;
    }
    Ok(RecordSumsReply { recorded })
}

fn takes(chunk: &Chunk, sums: &ChunkSums) -> bool {
    let is_external = chunk.places.iter().all(|p| matches!(p.object, ObjectName::External { .. }));
    let blocks = chunk.length.div_ceil(BLOCK as u64);
    chunk.references > 0 && is_external && sums.checks.len() as u64 == blocks
}
