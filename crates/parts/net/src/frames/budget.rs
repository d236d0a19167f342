//! Room in memory for bulk that waits for its requests.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a frame's bulk waits for room before it is skipped.
const BUDGET_PATIENCE: Duration = Duration::from_secs(10);

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug, Default)]
pub struct Held {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Room in memory for bulk, shared by many connections. Cloned freely.
#[derive(Clone)]
pub struct Budget {
    room: Option<Arc<Semaphore>>,
    total: u32,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self { room: Some(Arc::new(Semaphore::new(total as usize))), total }
    }

    /// For an end that receives only what it asked for.
    pub fn unlimited() -> Self {
        Self { room: None, total: 0 }
    }

    /// Room for `bytes`, or for as many as there are in all.
    pub(super) async fn hold(&self, bytes: u32) -> Option<Held> {
        let Some(room) = self.room.as_ref().filter(|_| bytes > 0) else {
            return Some(Held::default());
        };
        let permit =
            timeout(BUDGET_PATIENCE, room.clone().acquire_many_owned(bytes.min(self.total)));
        Some(Held { _permit: Some(permit.await.ok()?.ok()?) })
    }

    /// Counts bytes that are in memory already, as far as there is room to count them.
    pub fn count(&self, bytes: usize) -> Held {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total);
        let permit = self.room.clone().and_then(|room| room.try_acquire_many_owned(bytes).ok());
        Held { _permit: permit }
    }
}
