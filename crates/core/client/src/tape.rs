//! Files on tape: whoever reads what OSTs gave up has it brought back, and waits.
//!
//! Only what a program asks for is brought: what is read ahead, compacted or moved is not. Several
//! who read one file wait for the same question. A wait ends with its caller, who may be killed, or
//! after [`Settings::wait`]; what was begun goes on without it.
//!
//! Invariant: bytes of a file that was brought back are read from where its MDS says they are then.
//!
//! [`Settings::wait`]: crate::Settings::wait

use crate::asking::Asking;
use crate::file::File;
use crate::shared::Shared;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, ErrorKind, FileId, TapeWish, Version};
use tieline_wire::tape::{AskTape, GetTape, TapeReply};
use tokio::time::{Instant, sleep, timeout_at};

/// Between two questions: the first pause, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What was given up so lately is not tried again for a reader.
const GIVEN_UP_MS: u64 = 15_000;

impl Shared {
    /// Has a file brought back if tape alone has some of it, and waits until it is here.
    pub(crate) async fn bring_back(&self, caller: &Caller, file: &Arc<File>) -> Result<()> {
        let deadline = Instant::now() + self.settings.wait;
        let id = file.id;
        let brought = timeout_at(deadline, async {
            let _one = file.tape.lock().await;
            METRICS.client_tape_waits.inc();
            self.wait_for_tape(caller, id).await
        });
        let brought = brought.await.unwrap_or_else(|_| {
            let seconds = self.settings.wait.as_secs();
            let what = format!(
                "file {id} did not come back from tape within {seconds} s: `tieline hsm state` \
                 tells how far it is"
            );
            Err(Error::local(ErrorKind::Timeout, what))
        });
        if let Err(error) = &brought {
            tracing::warn!(file = %id, "a file on tape cannot be read: {error}");
        }
        brought?;
        // What is known of where its chunks are is old.
        file.with(|state| state.version = Version(0));
        Ok(())
    }

    /// The same for who reads these ranges: pages that wait for that are not in the way of who
    /// changes the file.
    pub(crate) async fn bring_back_for(
        &self,
        caller: &Caller,
        file: &Arc<File>,
        ranges: &[Range<u64>],
    ) -> Result<()> {
        let _asking: Vec<Asking<'_>> =
            ranges.iter().map(|range| Asking::new(file, range.clone())).collect();
        self.bring_back(caller, file).await
    }

    async fn wait_for_tape(&self, caller: &Caller, id: FileId) -> Result<()> {
        let mut found = self.ask(caller, id, GetTape { id }).await?.reply;
        if found.is_here() {
            return Ok(());
        }
        check(&found, found.now_ms.saturating_sub(GIVEN_UP_MS))?;
        let asked_ms = found.now_ms;
        found = self.ask(caller, id, AskTape { id, wish: TapeWish::Restore }).await?.reply;
        tracing::info!(file = %id, "brought back from tape for a reader");
        let mut pause = PAUSE_FIRST;
        while !found.is_here() {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            found = self.ask(caller, id, GetTape { id }).await?.reply;
            check(&found, asked_ms)?;
        }
        Ok(())
    }

    /// The same by id, where only attributes tell of it.
    pub(crate) async fn bring_back_file(&self, caller: &Caller, id: FileId) -> Result<()> {
        self.bring_back(caller, &self.file(id)).await
    }
}

/// Was it given up since then? Then that is what a reader is told.
fn check(found: &TapeReply, since_ms: u64) -> Result<()> {
    let Some(failure) = found.given_up(since_ms) else { return Ok(()) };
    let is_damaged = failure.kind == ErrorKind::Corrupt;
    let kind = if is_damaged { ErrorKind::Corrupt } else { ErrorKind::StorageFault };
    Err(Error::local(kind, failure.detail.clone()))
}
