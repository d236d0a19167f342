//! From tape: the script makes a local file, which is compared whole with what was archived before
//! any of it becomes a chunk.
//!
//! Invariant: what does not match is not stored, and is not tried for again without being asked.

use super::{Ended, Job, TapeService, blocking, local};
use bytes::Bytes;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use tieline_format::object::ObjectTrailer;
use tieline_hsm::Deed;
use tieline_types::digest::Encoding;
use tieline_types::{
    ChunkRef, ErrorKind, GrantedId, Hasher, Layout, OstIndex, TapeCopy, Version, checksum,
};
use tieline_wire::Failure;
use tieline_wire::tape::{DriveState, TapeContent, TapePart, TapeWork};

pub(super) struct Get<'a> {
    pub service: &'a TapeService,
    pub job: &'a Job,
    pub work: &'a TapeWork,
    pub file: &'a Path,
}

impl Get<'_> {
    pub async fn run(
        self,
        (name, copy): (&str, &TapeCopy),
        parts: Vec<TapePart>,
    ) -> Result<DriveState, Ended> {
        let mut worst = None;
        for uri in &copy.uris {
            match self.bring(name, copy, uri).await {
                Ok(file) => {
                    self.keep(&Arc::new(file), parts).await?;
                    return Ok(DriveState::Done);
                }
                // Another copy may be better.
                Err(ended) => worst = Some(ended),
            }
        }
        let none = || Failure::new(ErrorKind::Internal, "a copy on tape without a URI").into();
        Err(worst.unwrap_or_else(none))
    }

    /// Has the script bring the file, and looks whether it is the one that was archived.
    async fn bring(&self, name: &str, copy: &TapeCopy, uri: &str) -> Result<File, Ended> {
        let path = self.file.to_owned();
        blocking("an old file", move || match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .await?;
        let info = &self.work.storage_info;
        let deed = Deed::Get { name, file: self.file, info, uri };
        self.service.script(self.job, self.work, &deed).await?;
        let (path, whole) = (self.file.to_owned(), copy.clone());
        let found = blocking("the file that the script brought", move || look(&path, &whole));
        let (file, what) = found.await?;
        match what {
            None => Ok(file),
            Some(what) => {
                let detail = format!("get: {uri} is not what was archived: {what}");
                Err(Ended { failure: Failure::new(ErrorKind::Corrupt, detail), is_final: true })
            }
        }
    }

    /// Makes chunks of it, all of them durable.
    async fn keep(&self, file: &Arc<File>, parts: Vec<TapePart>) -> Result<(), Ended> {
        let mut kept: Vec<(OstIndex, GrantedId)> = Vec::with_capacity(parts.len());
        for part in parts {
            let TapeContent::To(chunk, ost) = part.content else {
                return Err(local("a part that goes to tape", &"is gotten"));
            };
            kept.push((ost, self.keep_chunk(file, part.offset, &chunk, ost).await?));
        }
        for (ost, chunk) in kept {
            self.service.chunks.target(ost)?.sync_chunk(chunk).await?;
        }
        Ok(())
    }

    async fn keep_chunk(
        &self,
        file: &Arc<File>,
        offset: u64,
        chunk: &ChunkRef,
        ost: OstIndex,
    ) -> Result<GrantedId, Ended> {
        let target = self.service.chunks.target(ost)?;
        let id = chunk.chunk.granted().filter(|_| chunk.length <= Layout::CHUNK_SIZE_MAX.into());
        let id = id.ok_or_else(|| target.refuse("a chunk from tape that is none".to_owned()))?;
        let (file, length) = (file.clone(), chunk.length as usize);
        let bytes = blocking("a read", move || {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(Bytes::from(bytes))
        })
        .await?;
        if chunk.digest.is_some_and(|digest| !digest.is_of(&bytes)) {
            let detail = format!("get: bytes {offset} to {} are not chunk {id}", chunk.length);
            let failure = Failure::new(ErrorKind::Corrupt, detail);
            return Err(Ended { failure, is_final: true });
        }
        let checks = checksum::block_checks(&bytes);
        let (file, version, path) = (self.job.file, Version(0), Vec::new());
        let trailer = ObjectTrailer { chunk: id, file, offset, version, path, checks, tree: None };
        target.replace(trailer, bytes).await?;
        Ok(id)
    }
}

/// Opens what the script made, and says what is wrong with it.
fn look(path: &Path, copy: &TapeCopy) -> std::io::Result<(File, Option<String>)> {
    let no_follow = OFlags::NOFOLLOW.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(no_follow).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok((file, Some("the script made no regular file".to_owned())));
    }
    if found.len() != copy.size {
        let what = format!("{} bytes, not {}", found.len(), copy.size);
        return Ok((file, Some(what)));
    }
    let mut digest = Hasher::new(copy.digest.algorithm());
    let mut adler32 = simd_adler32::Adler32::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut buffer)?;
        let some = buffer.get(..length).unwrap_or_default();
        if some.is_empty() {
            break;
        }
        digest.update(some);
        adler32.write(some);
    }
    if digest.finish(Encoding::Plain) == copy.digest {
        return Ok((file, None));
    }
    let what = format!("adler32 {:08x}, not {:08x}", adler32.finish(), copy.adler32);
    Ok((file, Some(what)))
}
