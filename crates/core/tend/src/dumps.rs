//! Dumps beside the change log: one when one is due.

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_ledger::dump;
use tieline_ledger::log::Log;
use tieline_wire::Failure;

/// How often it is asked whether the change log needs a dump.
const PAUSE: Duration = Duration::from_secs(5);

pub struct Dumps {
    parts: Arc<Parts>,
    log: Arc<Log>,
}

impl Dumps {
    pub fn new(parts: &Arc<Parts>, log: &Arc<Log>) -> Self {
        Self { parts: parts.clone(), log: log.clone() }
    }
}

#[async_trait::async_trait]
impl Chore for Dumps {
    fn title(&self) -> (&'static str, &'static str) {
        ("dumps", "dumps")
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn writes(&self) -> bool {
        false
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        // What lies there may be more than what was restored, until somebody has looked.
        let prunes = !self.parts.mdt.is_restored();
        if self.log.wants_dump() {
            dump::beside_log(&*self.parts.store, &self.log, prunes).await?;
            status.did(1);
        }
        Ok(())
    }

    fn complain(&self, failure: &Failure) {
        tracing::warn!("no dump beside the change log, to be tried again: {failure}");
    }
}
