//! What a node's cache looks like from outside: for the start of a mount, and for who surveys it.

use super::entry::Entry;
use crate::is_whole_in_parts;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tieline_types::ChunkId;

/// A chunk's file below a federation's directory.
pub(crate) struct ChunkFile {
    pub chunk: ChunkId,
    pub path: PathBuf,
    pub space: u64,
    pub used_ms: u64,
}

/// All chunks of a federation's directory.
pub(crate) fn files(root: &Path) -> Vec<ChunkFile> {
    let mut found = Vec::new();
    let folders = std::fs::read_dir(root.join("chunks")).into_iter().flatten().flatten();
    for folder in folders {
        for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            let name = file.file_name().into_string().unwrap_or_default();
            let (Ok(chunk), Ok(stat)) = (name.parse(), file.metadata()) else { continue };
            let seconds = u64::try_from(stat.mtime().max(stat.atime())).unwrap_or_default();
            let (space, used_ms) = (stat.blocks() * 512, seconds * 1000);
            found.push(ChunkFile { chunk, path: file.path(), space, used_ms });
        }
    }
    found
}

/// Where a chunk lies below a federation's directory.
pub(crate) fn chunk_path(root: &Path, chunk: ChunkId) -> PathBuf {
    root.join("chunks").join(format!("{:02x}", chunk.spread() & 0xff)).join(chunk.to_string())
}

/// Reads all of an entry's blocks; says what is wrong with it, if anything.
pub(crate) fn verify(path: &Path, chunk: ChunkId) -> io::Result<()> {
    let entry = Entry::open_as_found(path, chunk)?;
    let found = entry.read(0..entry.known().length)?;
    if let (Some(digest), true) = (entry.known().digest, entry.is_whole())
        && !is_whole_in_parts(&found, &digest)
    {
        let what = "its blocks together do not have its digest";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(())
}
