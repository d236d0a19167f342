//! The collector: ends dead sessions, deletes files nobody can name, and chunks nobody refers to.
//!
//! * `nameless`: files without names.
//! * `kept`: what was kept for undeleting.
//! * `freed`: chunks that were freed.
//! * `strays`: objects that no commit ever named.

mod freed;
mod kept;
mod nameless;
mod strays;

pub use freed::FreedChunks;
pub use kept::{DeletedFiles, LostNames};
pub use nameless::Nameless;
pub use strays::{Strays, before_first, unknown_chunks};

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// For this long whoever knows of a chunk may still read it, however full the OSTs are.
const READERS_KEEP: Duration = Duration::from_secs(60);

impl Parts {
    /// Until when what was deleted or freed is not kept any more. When an OST or the store is full
    /// it is kept only as long as readers need.
    fn kept_until_ms(&self) -> u64 {
        let keep = match self.mdt.is_tight() {
            true => self.settings.freed_keep.min(READERS_KEEP),
            false => self.settings.freed_keep,
        };
        self.now().millis().saturating_sub(keep.as_millis() as u64)
    }
}

/// Ends sessions that were silent for too long.
pub struct Sessions {
    parts: Arc<Parts>,
}

impl Sessions {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone() }
    }
}

#[async_trait::async_trait]
impl Chore for Sessions {
    fn title(&self) -> (&'static str, &'static str) {
        ("sessions", "sessions")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        status.did(self.parts.mdt.end_lost_sessions().await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
