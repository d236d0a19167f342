//! Dumps beside the change log: one when one is due.

use crate::Parts;
use crate::chore::Chore;
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_ledger::dump;
use tieline_wire::Failure;

/// How often it is asked whether the change log needs a dump.
const PAUSE: Duration = Duration::from_secs(5);

pub struct Dumps {
    parts: Arc<Parts>,
}

impl Dumps {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone() }
    }
}

#[async_trait::async_trait]
impl Chore for Dumps {
    fn pause(&self) -> Duration {
        PAUSE
    }

    fn writes(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        self.parts.log.is_none()
    }

    async fn round(&mut self) -> Result<()> {
        let Some(log) = &self.parts.log else { return Ok(()) };
        // What lies there may be more than what was restored, until somebody has looked.
        let prunes = !self.parts.mdt.is_restored();
        if log.wants_dump() {
            dump::beside_log(&*self.parts.store, log, prunes).await?;
        }
        Ok(())
    }

    fn complain(&self, failure: &Failure) {
        tracing::warn!("no dump beside the change log, to be tried again: {failure}");
    }
}
