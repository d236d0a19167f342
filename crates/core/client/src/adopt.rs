//! Adoption: files that lie in an OST's adopted tree become files here, without a byte being moved.
//!
//! An adopted file is a file whose extents lie in one large place. Its checksums are not known
//! then: they are asked from the OSS later, chunk by chunk, and kept by the MDS.
//!
//! Knows nothing of the tree but what the OSS lists.

use crate::Volume;
use crate::commit::Change;
use crate::shared::Shared;
use crate::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::checksum::BLOCK;
use tieline_types::{
    Caller, ChunkRef, Content, ErrorKind, Extent, FileId, Layout, ObjectName, OstIndex, OstPlace,
};
use tieline_wire::data::{ChecksumAdopted, ListAdopted, ListAdoptedReply};
use tieline_wire::meta::{ChunkSums, RecordSums};

/// Chunks of adopted files: as large as chunks can be, since nothing is gained by more of them.
const CHUNK: u64 = Layout::CHUNK_SIZE_MAX as u64;
/// Extents in one commit.
const COMMIT_EXTENTS: usize = 256;
/// A file whose adoption was cut off has a multiple of this.
pub const ADOPTED_AT_ONCE: u64 = CHUNK * COMMIT_EXTENTS as u64;
/// A chunk is read from a disk that others use too.
const CHECKSUM_PATIENCE: Duration = Duration::from_secs(300);

/// A file of an adopted tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    pub ost: OstIndex,
    /// As [`ObjectName::External`] has it.
    pub path: String,
    pub size: u64,
    pub mtime_ns: i64,
}

impl Source {
    pub fn object(&self) -> ObjectName {
        ObjectName::External { path: self.path.clone(), size: self.size, mtime_ns: self.mtime_ns }
    }
}

impl Volume {
    /// Some entries of a directory of an OST's adopted tree.
    pub async fn list_adopted(
        &self,
        ost: OstIndex,
        directory: &[u8],
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> Result<ListAdoptedReply> {
        let message = ListAdopted { ost, directory: directory.to_vec(), after, limit };
        let wait = self.shared().settings.wait;
        let (reply, _) = self.shared().servers.ask_oss(ost, message, Bytes::new(), wait).await?;
        Ok(reply)
    }

    /// Asks whether `caller` may adopt files, which is root's: before anything is made for them.
    pub async fn check_may_adopt(&self, caller: &Caller, id: FileId) -> Result<()> {
        self.shared().ask(caller, id, RecordSums { id, sums: vec![] }).await.map(drop)
    }

    /// Makes the bytes of `source` those of an empty file. `adler32` is that of all of them, if it
    /// is known.
    pub async fn adopt(
        &self,
        caller: &Caller,
        id: FileId,
        source: &Source,
        adler32: Option<u32>,
    ) -> Result<()> {
        let shared = self.shared().clone();
        let (caller, source) = (caller.clone(), source.clone());
        let work = shared.clone();
        shared.detached(async move { work.adopt(&caller, id, &source, adler32).await }).await
    }

    /// Asks for the checksums of a chunk's bytes where they lie, and has them kept.
    pub async fn checksum_adopted(
        &self,
        caller: &Caller,
        id: FileId,
        chunk: &ChunkRef,
    ) -> Result<u32> {
        let none = || Error::local(ErrorKind::InvalidArgument, "chunk without an adopted place");
        let is_external = |place: &&OstPlace| matches!(place.object, ObjectName::External { .. });
        let (own, places) = chunk.granted().ok_or_else(none)?;
        let place = places.iter().find(is_external).ok_or_else(none)?;
        let message = ChecksumAdopted {
            ost: place.ost,
            object: place.object.clone(),
            offset: place.offset,
            length: u32::try_from(chunk.length).map_err(|_| none())?,
            capability: None,
        };
        let servers = &self.shared().servers;
        let asked = servers.ask_oss(place.ost, message, Bytes::new(), CHECKSUM_PATIENCE).await?;
        let (sums, _) = asked;
        if sums.checks.len() as u64 != chunk.length.div_ceil(BLOCK as u64) {
            return Err(Error::local(ErrorKind::Protocol, "checksums of an adopted chunk"));
        }
        let adler32 = sums.adler32;
        let sums = ChunkSums { chunk: own, checks: sums.checks, adler32, digest: sums.digest };
        self.shared().ask(caller, id, RecordSums { id, sums: vec![sums] }).await?;
        Ok(adler32)
    }
}

impl Shared {
    async fn adopt(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        source: &Source,
        adler32: Option<u32>,
    ) -> Result<()> {
        let file = self.file(id);
        let _gate = file.gate.lock().await;
        let mut offset = 0;
        while offset < source.size {
            let mut extents = Vec::new();
            while offset < source.size && extents.len() < COMMIT_EXTENTS {
                let length = CHUNK.min(source.size - offset);
                let (ost, object) = (source.ost, source.object());
                let place = OstPlace { ost, object, offset, length, is_stale: false };
                let chunk = ChunkRef {
                    chunk: self.chunk_id(&file).await?.into(),
                    length,
                    skip: 0,
                    places: vec![place.into()],
                    digest: None,
                    // Of the chunk: known if it is the whole file.
                    adler32: adler32.filter(|_| length == source.size),
                    checks: None,
                };
                extents.push(Extent { offset, length, content: Content::Chunk(chunk) });
                offset += length;
            }
            let change = Change { extents, ..Change::default() };
            self.commit_extents(&file, caller, change).await?;
        }
        Ok(())
    }
}
