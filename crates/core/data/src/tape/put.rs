//! To tape: the parts of a file become one local file, whose checksums are taken on the way, and
//! the script puts that.
//!
//! Invariant: every byte was compared with its checks, and with the digest of its chunk, before the
//! script sees the file.

use super::{Ended, Job, TapeService, blocking, local};
use crate::copies::ObjectSource;
use bytes::{Bytes, BytesMut};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tieline_hsm::{Deed, said};
use tieline_types::digest::Encoding;
use tieline_types::tree::is_proven;
use tieline_types::{Algorithm, ChunkRef, ErrorKind, Hasher, OstPlace, checksum};
use tieline_wire::Failure;
use tieline_wire::data::{Hashed, ReadObject};
use tieline_wire::tape::{DriveState, TapeContent, TapePart, TapeWork};

/// One request to a source.
const PIECE: u64 = 4 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

pub(super) struct Put<'a> {
    pub service: &'a TapeService,
    pub job: &'a Job,
    pub work: &'a TapeWork,
    pub file: &'a Path,
}

/// The local file, and what is known of its bytes so far.
struct Growing {
    file: File,
    length: u64,
    digest: Hasher,
    adler32: simd_adler32::Adler32,
}

impl Put<'_> {
    pub async fn run(
        self,
        (name, size): (&str, u64),
        parts: Vec<TapePart>,
        source: &dyn ObjectSource,
    ) -> Result<DriveState, Ended> {
        let path = self.file.to_owned();
        let mut growing = blocking("a new file", move || Growing::new(&path)).await?;
        for part in parts {
            let bytes = match part.content {
                TapeContent::Inline(bytes) => bytes.into(),
                TapeContent::Chunk(chunk) => self.read(&chunk, part.length, source).await?,
                TapeContent::To(..) => {
                    return Err(local("a part that comes from tape", &"is put there"));
                }
            };
            growing = growing.add(part.offset, bytes).await?;
        }
        let (digest, adler32) = growing.finish(size).await?;
        let deed = Deed::Put { name, file: self.file, info: &self.work.storage_info };
        let output = self.service.script(self.job, self.work, &deed).await?;
        let uris = said::uris(&output)
            .map_err(|error| Failure::new(error.kind(), format!("put: {error}")))?;
        Ok(DriveState::Put { uris, digest, adler32 })
    }

    /// A part of a chunk, from the first place that has it.
    async fn read(
        &self,
        chunk: &ChunkRef,
        length: u64,
        source: &dyn ObjectSource,
    ) -> Result<Bytes, Ended> {
        let mut worst = None;
        for place in chunk.at_osts().filter(|place| !place.is_stale) {
            match self.read_at(chunk, &place, length, source).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => worst = Some(failure),
            }
        }
        let nowhere = || Failure::new(ErrorKind::Gone, format!("no OST has {}", chunk.chunk));
        Err(worst.unwrap_or_else(nowhere).into())
    }

    async fn read_at(
        &self,
        chunk: &ChunkRef,
        place: &OstPlace,
        length: u64,
        source: &dyn ObjectSource,
    ) -> Result<Bytes, Failure> {
        let damaged = || {
            let detail = format!("chunk {} at {} is damaged", chunk.chunk, place.ost.label());
            Failure::new(ErrorKind::Corrupt, detail)
        };
        let mut bytes = BytesMut::new();
        while (bytes.len() as u64) < length {
            let offset = place.offset + chunk.skip + bytes.len() as u64;
            let wanted = (length - bytes.len() as u64).min(PIECE);
            let message = ReadObject {
                ost: place.ost,
                object: place.object.clone(),
                offset,
                length: wanted as u32,
                capability: self.job.capability(),
                hashed: hashed(chunk, place),
            };
            let (reply, piece) = source.read(message).await?;
            let is_sound = checksum::first_mismatch(&piece, &reply.checks).is_none();
            if !is_sound || !are_of(chunk, place, (reply.offset, &piece), reply.proof) {
                return Err(damaged());
            }
            let skip = offset.checked_sub(reply.offset).ok_or_else(damaged)? as usize;
            let end = skip.saturating_add(wanted as usize);
            bytes.extend_from_slice(piece.get(skip..end).ok_or_else(damaged)?);
        }
        Ok(bytes.freeze())
    }
}

/// Of which range of a place's object the MDS has the digest, if it has one.
fn hashed(chunk: &ChunkRef, place: &OstPlace) -> Option<Hashed> {
    chunk.digest.map(|_| Hashed { offset: place.offset, length: chunk.length })
}

/// Are these bytes of the chunk, as far as its digest says?
fn are_of(
    chunk: &ChunkRef,
    place: &OstPlace,
    (offset, bytes): (u64, &Bytes),
    proof: Option<Vec<u8>>,
) -> bool {
    let Some(digest) = chunk.digest else { return true };
    let (Some(root), Some(proof)) = (digest.as_blake3(), proof) else { return false };
    let at = offset.checked_sub(place.offset);
    at.is_some_and(|at| is_proven(root, chunk.length, (at, bytes), &proof))
}

impl Growing {
    fn new(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let digest = Hasher::new(Algorithm::Blake3);
        Ok(Self { file, length: 0, digest, adler32: simd_adler32::Adler32::new() })
    }

    /// Writes bytes, behind zeros where nothing is between.
    async fn add(mut self, offset: u64, bytes: Bytes) -> Result<Self, Ended> {
        blocking("a write", move || {
            self.fill(offset)?;
            self.write(&bytes)?;
            Ok(self)
        })
        .await
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.digest.update(bytes);
        self.adler32.write(bytes);
        self.length += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn fill(&mut self, until: u64) -> std::io::Result<()> {
        while self.length < until {
            let some = (until - self.length).min(ZEROES.len() as u64);
            self.write(ZEROES.get(..some as usize).unwrap_or_default())?;
        }
        Ok(())
    }

    async fn finish(mut self, size: u64) -> Result<(tieline_types::Digest, u32), Ended> {
        blocking("a write", move || {
            self.fill(size)?;
            Ok((self.digest.finish(Encoding::Plain), self.adler32.finish()))
        })
        .await
    }
}
