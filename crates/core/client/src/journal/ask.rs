//! What must come before a request that is not decided here.
//!
//! A question waits for what was done to the files it is about; a change of one file too. A change
//! of names waits for everything: what loses its name may have been changed anywhere.

use super::Queue;
use crate::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::Cache;
use tieline_types::FileId;
use tieline_wire::rests::Rests;
use tieline_wire::{Op, Request};

/// A change is under way at the MDS: until this is dropped nothing is decided here about its files.
pub(crate) struct Busy {
    queue: Arc<Queue>,
    files: Vec<FileId>,
}

impl Queue {
    /// Waits until a request can be sent. A change keeps its files busy until the answer was
    /// learned.
    pub async fn before(
        self: &Arc<Self>,
        cache: &Cache,
        request: &Request,
        patience: Duration,
    ) -> Result<Option<Busy>> {
        let rests = Rests::of(request);
        let files = match &rests {
            Rests::Nothing | Rests::Name(_) | Rests::Listing(_) => vec![],
            Rests::File(file) => vec![*file],
            Rests::Names(directories) => directories.clone(),
        };
        // What a place changes of a file nobody sees.
        let is_change = request.op().is_mutation() && request.op() != Op::Place;
        let busy = is_change.then(|| self.busy(files));
        let number = match rests {
            Rests::Nothing => 0,
            Rests::Names(_) => self.last(),
            Rests::File(file) => self.last_on(file),
            Rests::Name(directory) | Rests::Listing(directory) => {
                let tables = cache.lock();
                let line = self.lock();
                if !tables.is_alone(directory) {
                    // What was done to what is in it is not in the cache any more.
                    line.last()
                } else if matches!(rests, Rests::Listing(_)) {
                    line.last_on(directory)
                } else {
                    // Names that were changed here are in the cache: the others are as the MDS
                    // says.
                    line.last_rights(directory)
                }
            }
        };
        if number > 0 {
            self.drain(number, patience).await?;
        }
        Ok(busy)
    }

    fn busy(self: &Arc<Self>, files: Vec<FileId>) -> Busy {
        self.lock().begin(&files);
        Busy { queue: self.clone(), files }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.queue.lock().end(&self.files);
    }
}
