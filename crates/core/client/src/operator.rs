//! What operators ask of a file system, beside what every door asks.

use crate::{At, Known, Result, Volume};
use std::sync::Arc;
use tieline_files::Files;
use tieline_format::map::FederationMap;
use tieline_types::{Caller, FileId, Layout, OstIndex};
use tieline_wire::Call;
use tieline_wire::federation::MapEdit;
use tieline_wire::ledger::ListDeletedReply;
use tieline_wire::meta::{ExtentPage, LayoutChange, OstUsage};

/// Files for verbs and the console: they may speak as servers do.
#[async_trait::async_trait]
pub trait Operator: Files {
    async fn layout(&self, caller: &Caller, id: FileId) -> Result<LayoutInForce>;
    async fn set_layout(
        &self,
        caller: &Caller,
        id: FileId,
        change: Option<LayoutChange>,
    ) -> Result<()>;
    /// Every extent of a file from `offset`, a page at a time.
    async fn extents(&self, caller: &Caller, id: FileId, offset: u64) -> Result<ExtentPage>;
    async fn usage(&self) -> Result<Vec<OstUsage>>;
    fn map(&self) -> Arc<FederationMap>;
    async fn edit_map(&self, caller: &Caller, edit: MapEdit) -> Result<()>;
    /// What was deleted from a directory and can be brought back, a page at a time.
    async fn deleted(
        &self,
        caller: &Caller,
        directory: FileId,
        after: Option<FileId>,
    ) -> Result<ListDeletedReply>;
    /// Gives a deleted file a name again.
    async fn undelete(
        &self,
        caller: &Caller,
        id: FileId,
        from: FileId,
        to: At<'_>,
    ) -> Result<Known>;
}

impl Volume {
    /// Asks a file's MDS what only operators ask.
    pub async fn ask<C: Call + Clone>(
        &self,
        caller: &Caller,
        id: FileId,
        message: C,
    ) -> Result<C::Reply> {
        Ok(self.shared.ask(caller, id, message).await?.reply)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutInForce {
    pub layout: Layout,
    pub is_own: bool,
    pub stripe: Vec<OstIndex>,
}

#[async_trait::async_trait]
impl Operator for Volume {
    async fn layout(&self, caller: &Caller, id: FileId) -> Result<LayoutInForce> {
        self.shared.layout(caller, id).await
    }

    async fn set_layout(
        &self,
        caller: &Caller,
        id: FileId,
        change: Option<LayoutChange>,
    ) -> Result<()> {
        self.shared.set_layout(caller, id, change).await
    }

    async fn extents(&self, caller: &Caller, id: FileId, offset: u64) -> Result<ExtentPage> {
        self.shared.extents(caller, id, offset).await
    }

    async fn usage(&self) -> Result<Vec<OstUsage>> {
        Ok(self.shared.usage().await?.osts)
    }

    fn map(&self) -> Arc<FederationMap> {
        Arc::new(self.shared.servers.map.current().map.clone())
    }

    async fn edit_map(&self, caller: &Caller, edit: MapEdit) -> Result<()> {
        self.shared.edit_map(caller, edit).await
    }

    async fn deleted(
        &self,
        caller: &Caller,
        directory: FileId,
        after: Option<FileId>,
    ) -> Result<ListDeletedReply> {
        self.shared.deleted(caller, directory, after).await
    }

    async fn undelete(
        &self,
        caller: &Caller,
        id: FileId,
        from: FileId,
        to: At<'_>,
    ) -> Result<Known> {
        self.shared.undelete(caller, id, (from, None), to).await
    }
}
