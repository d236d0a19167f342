//! The directories that all sites are reached through: the mounted one, those with junctions in
//! them, and those between.
//!
//! What a server takes back of them, because somebody else changed something there, is asked for
//! again soon: when a line is cut later, a site that stands alone finds the way to its own tree,
//! and `df` and `ls` of the mount tell what was there. What is changed all the time is asked for
//! ever more seldom ([`tieline_believed::Above`]).

use crate::shared::{Shared, lock};
use std::sync::Arc;
use tieline_types::{Caller, FileId};

impl Shared {
    /// Somebody else changed a directory. If sites are reached through it, it is asked for again.
    pub(crate) fn come_back_to(self: &Arc<Self>, directory: FileId) {
        if !self.settings.warms || !self.is_above(directory) {
            return;
        }
        let Some(pause) = lock(&self.above).recalled(directory) else { return };
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let Some(shared) = shared.upgrade() else { return };
            // What changes from here on is for the next time.
            lock(&shared.above).asked(directory);
            if !shared.cache.lock().is_complete(directory) {
                shared.come_to(&Caller::root(), directory, None).await;
            }
            // The names may be too many.
            if let Err(error) = shared.attributes(&Caller::root(), directory).await {
                tracing::info!(%directory, %error, "what changed above the sites is not known yet");
            }
        });
    }

    fn is_above(&self, directory: FileId) -> bool {
        if directory == self.root {
            return true;
        }
        let believed = self.servers.map.current();
        let tables = self.cache.lock();
        let leads_here = |mut at: FileId| {
            // No deeper than a path may be.
            for _ in 0..64 {
                if at == directory {
                    return true;
                }
                match tables.parent_of(at).filter(|_| !at.is_root()) {
                    Some(parent) => at = parent,
                    None => return false,
                }
            }
            false
        };
        believed.map.junctions.iter().any(|junction| leads_here(junction.parent))
    }
}
