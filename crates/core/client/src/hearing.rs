//! What servers say unasked, handed to the rooms that it concerns.

use crate::shared::Shared;
use std::sync::Arc;
use tieline_format::map::FederationMap;
use tieline_servers::Hearer;
use tieline_types::{FileId, ServerNumber};
use tieline_wire::notice::Recall;
use tieline_wire::{NoticeAnswer, Welcome};
use tokio::time::Instant;

#[async_trait::async_trait]
impl Hearer for Shared {
    async fn recalled(&self, recall: Recall) -> NoticeAnswer {
        match self.weak.upgrade() {
            Some(shared) => shared.take_back(recall).await,
            None => NoticeAnswer::default(),
        }
    }

    async fn free_locks(&self, id: FileId) {
        if let Some(shared) = self.weak.upgrade() {
            shared.give_locks_back(id).await;
        }
    }

    fn welcomed(&self, number: ServerNumber, welcome: &Welcome) {
        self.with(|shared| shared.met_mds(number, welcome));
    }

    fn welcomed_by_oss(&self, number: ServerNumber, welcome: &Welcome) {
        self.with(|shared| shared.met_oss(number, welcome));
    }

    fn disconnected(&self, number: ServerNumber) {
        self.with(|shared| shared.lost_mds(number));
    }

    fn renewed(&self, number: ServerNumber, sent: Instant) {
        self.with(|shared| shared.leases_renewed(number, sent));
    }

    fn map_changed(&self, before: &FederationMap, now: &FederationMap) {
        self.junctions_changed(before, now);
    }

    fn is_away(&self, number: ServerNumber) -> bool {
        self.cache.lock().units.is_away(number)
    }
}

impl Shared {
    fn with(&self, hear: impl FnOnce(&Arc<Self>)) {
        if let Some(shared) = self.weak.upgrade() {
            hear(&shared);
        }
    }
}
