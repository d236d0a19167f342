//! One piece of background work, and the loop that has it done again and again.
//!
//! Invariants: a round does a bounded amount; between two there is a pause; the loop ends with the
//! MDT; how the chore is is known at all times.

pub mod status;

use crate::Parts;
use crate::error::{Error, Result};
use status::Status;
use std::sync::Arc;
use std::time::Duration;
use tieline_wire::Failure;

#[async_trait::async_trait]
pub trait Chore: Send {
    /// Its name, and what it counts.
    fn title(&self) -> (&'static str, &'static str);

    /// Between two rounds.
    fn pause(&self) -> Duration;

    /// Does a bounded amount of it.
    async fn round(&mut self, status: &Status) -> Result<()>;

    /// It writes to the store: not while there is no room at all. What it frees, the disk does not
    /// see.
    fn writes(&self) -> bool {
        true
    }

    /// The first round is a pause after the start.
    fn rests_first(&self) -> bool {
        false
    }

    /// There will be nothing to do any more.
    fn is_over(&self) -> bool {
        false
    }

    /// Waits for the next round.
    async fn rest(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }

    /// Tells people that a round failed.
    fn complain(&self, failure: &Failure) {
        tracing::warn!("background work failed, to be tried again: {failure}");
    }
}

/// Has a chore done until the MDT ends.
pub async fn run(parts: Arc<Parts>, mut chore: Box<dyn Chore>, status: Arc<Status>) {
    if chore.rests_first() {
        chore.rest().await;
    }
    while !parts.mdt.is_ended() && !chore.is_over() {
        status.begin();
        if chore.writes() && !parts.mdt.has_room() {
            status.wait_for("room in the metadata store");
        } else if let Err(error) = chore.round(&status).await
            && !error.is_conflict()
        {
            let failure = parts.failure(error);
            chore.complain(&failure);
            status.trouble(failure.detail);
        }
        status.end(parts.now());
        chore.rest().await;
    }
}

impl Parts {
    /// As people are told. What ends the store, the MDT must know.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        if let Error::Store(source) = &error {
            self.mdt.store_failed(source);
        }
        error.into_failure(self.index)
    }
}
