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
use crate::{Error, Result, Volume};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::Under;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{Caller, ErrorKind, FileId, TapeWish, Version};
use tieline_wire::tape::{AskTape, GetTape, GiveUpBytes, GiveUpBytesReply, TapeReply};
use tokio::time::{Instant, sleep, timeout_at};

/// Between two questions: the first pause, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What was given up so lately is not tried again for a reader.
const GIVEN_UP_MS: u64 = 15_000;
/// Extents in one step.
const PAGE: u32 = 512;

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
        if is_here(&found) {
            return Ok(());
        }
        given_up(&found, found.now_ms.saturating_sub(GIVEN_UP_MS))?;
        let asked_ms = found.now_ms;
        found = self.ask(caller, id, AskTape { id, wish: TapeWish::Restore }).await?.reply;
        tracing::info!(file = %id, "brought back from tape for a reader");
        let mut pause = PAUSE_FIRST;
        while !is_here(&found) {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            found = self.ask(caller, id, GetTape { id }).await?.reply;
            given_up(&found, asked_ms)?;
        }
        Ok(())
    }

    /// The same by id, where only attributes tell of it.
    pub(crate) async fn bring_back_file(&self, caller: &Caller, id: FileId) -> Result<()> {
        self.bring_back(caller, &self.file(id)).await
    }
}

fn is_here(found: &TapeReply) -> bool {
    !found.on_tape.is_some_and(|on_tape| on_tape.is_nearline())
}

/// Was it given up since then? Then that is what a reader is told.
fn given_up(found: &TapeReply, since_ms: u64) -> Result<()> {
    let wish = found.wish.as_ref().filter(|wish| wish.is_over);
    let failure = wish.and_then(|wish| wish.failure.as_ref());
    match failure.filter(|failure| failure.at.millis() >= since_ms) {
        Some(failure) => {
            let kind = match failure.kind {
                ErrorKind::Corrupt => ErrorKind::Corrupt,
                _ => ErrorKind::StorageFault,
            };
            Err(Error::local(kind, failure.detail.clone()))
        }
        None => Ok(()),
    }
}

impl Volume {
    /// How a file stands to tape.
    pub async fn tape(&self, caller: &Caller, id: FileId) -> Result<TapeReply> {
        Ok(self.shared().ask(caller, id, GetTape { id }).await?.reply)
    }

    /// Wishes a file archived or restored, in the background.
    pub async fn ask_tape(&self, caller: &Caller, id: FileId, wish: TapeWish) -> Result<TapeReply> {
        let (shared, caller) = (self.shared().clone(), caller.clone());
        let work = async move { Ok(shared.ask(&caller, id, AskTape { id, wish }).await?.reply) };
        self.shared().detached(work).await
    }

    /// Has OSTs give up a page of what tape has of a file.
    pub async fn give_up_bytes(
        &self,
        caller: &Caller,
        id: FileId,
        offset: u64,
    ) -> Result<GiveUpBytesReply> {
        let (shared, caller) = (self.shared().clone(), caller.clone());
        let work = async move {
            let message = GiveUpBytes { id, offset, limit: PAGE };
            let asked = shared.ask(&caller, id, message).await;
            let told = asked.inspect_err(|error| shared.doubt_change(id, error))?;
            let reply = told.reply;
            let mut tables = shared.cache.lock();
            let known = tables.admit(told.stamp, &reply.lease);
            let attributes = reply.attributes.clone();
            tables.learn_attributes(known, &reply.lease, Under::Granted, attributes);
            drop(tables);
            Ok(reply)
        };
        self.shared().detached(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::tape::WishFailure;
    use tieline_types::{OnTape, Time, WishState};

    #[test]
    fn what_was_given_up_is_told_while_it_is_news() {
        let at = Time { seconds: 100, nanos: 0 };
        let failure =
            WishFailure { kind: ErrorKind::Corrupt, detail: "osm://a is not it".to_owned(), at };
        let mut wish = WishState::new(TapeWish::Restore, at);
        wish.failure = Some(failure);
        let found = |wish: &WishState| TapeReply {
            on_tape: Some(OnTape::Released),
            copy: None,
            released: 1,
            wish: Some(wish.clone()),
            now_ms: 100_500,
        };
        assert!(given_up(&found(&wish), 0).is_ok(), "it is tried again");
        wish.is_over = true;
        let told = given_up(&found(&wish), 100_000).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Corrupt);
        assert!(told.to_string().contains("osm://a"), "{told}");
        assert!(given_up(&found(&wish), 100_001).is_ok(), "of before it was asked for");
        assert!(!is_here(&found(&wish)));
    }
}
