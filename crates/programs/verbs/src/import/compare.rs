//! `tieline import --compare`: what size and time call unchanged is read, for a copy that kept
//! both may have taken its place.
//!
//! Damage at rest looks the same: which of the two it is, whoever asks for this has to know.

use crate::shell::Shell;
use tieline_types::{Attributes, ChunkRef, Content, ErrorKind, ObjectName, OstPlace};

/// Are the source's bytes others than those that the checksums are of? Chunks that have none yet
/// are as they are.
pub async fn has_other_bytes(shell: &Shell, found: &Attributes) -> anyhow::Result<bool> {
    let mut offset = 0;
    while offset < found.size {
        let page = shell.files.extents(&shell.caller, found.id, offset).await?;
        for extent in &page.extents {
            if let Content::Chunk(chunk) = &extent.content
                && differs(shell, chunk).await?
            {
                return Ok(true);
            }
        }
        if page.covered <= offset {
            break;
        }
        offset = page.covered;
    }
    Ok(false)
}

async fn differs(shell: &Shell, chunk: &ChunkRef) -> anyhow::Result<bool> {
    let is_external = |place: &OstPlace| matches!(place.object, ObjectName::External { .. });
    let place = chunk.at_osts().find(is_external);
    let (Some(place), Some(digest)) = (place, chunk.digest) else { return Ok(false) };
    match shell.volume.verify_place(&place).await {
        Ok(reply) => Ok(reply.length != place.length || reply.digest != digest),
        // It was changed since the directory was listed.
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
        Err(error) => Err(error.into()),
    }
}
