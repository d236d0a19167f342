//! What [`tieline_bytes`] asks back, and what people ask of ways.

use crate::file::File;
use crate::shared::Shared;
use crate::{Result, Volume};
use std::time::Duration;
use tieline_bytes::{Metadata, PathCost, Whose};
use tieline_types::{Caller, ChunkRef, Extent, FileId, MdtIndex, OstPlace};
use tieline_wire::capability::{CapabilityGrant, GetCapability};
use tieline_wire::mirrors::ReportPlace;

#[async_trait::async_trait]
impl Metadata for Shared {
    async fn capability(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        wish: GetCapability,
        patience: Duration,
    ) -> Result<Option<CapabilityGrant>> {
        Ok(self.ask_mdt(caller, mdt, wish, patience).await?.reply.grant)
    }

    async fn report(&self, report: ReportPlace, patience: Duration) -> Result<()> {
        self.ask_mdt(&Caller::root(), report.chunk.mdt, report, patience).await.map(drop)
    }
}

impl Shared {
    /// What to show for making a file's chunks durable. Who wrote some of them may do so anyhow.
    pub(crate) async fn capability_to_sync(
        &self,
        file: &File,
        is_refused: bool,
    ) -> Result<Option<Vec<u8>>> {
        let (caller, is_written) =
            file.with(|state| (state.writer.clone(), state.last_written.is_some()));
        let capabilities = &self.chunks.capabilities;
        match is_written {
            true => capabilities.to_write(file.id, &caller, is_refused).await,
            false => capabilities.to_sync(file.id, &caller, is_refused).await,
        }
    }
}

impl Volume {
    /// What it costs to read this extent's chunk from one of its places.
    pub async fn path_cost(
        &self,
        caller: &Caller,
        file: FileId,
        (extent, chunk): (&Extent, &ChunkRef),
        place: &OstPlace,
    ) -> Result<PathCost> {
        let whose = Whose { offset: extent.offset, ..Whose::own(file, caller) };
        self.shared().chunks.osts.path_cost(chunk, place, &whose).await
    }

    /// The places of a chunk in the order in which they would be asked now.
    pub fn places_in_order(&self, chunk: &ChunkRef) -> Vec<OstPlace> {
        self.shared().chunks.osts.places_in_order(chunk, chunk.length)
    }
}
