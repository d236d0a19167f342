//! Handles that append, for pages of mappings must not be written through them.
//!
//! The kernel writes a dirty page through any handle of the file that is open for writing. Through
//! one that appends the page would land at the file's end.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_client::HandleId;
use tieline_types::{Caller, FileId};

#[derive(Clone, Debug)]
pub struct Appender {
    pub id: FileId,
    /// Who opened it.
    pub caller: Caller,
}

/// Open handles that append: bounded by what programs have open.
#[derive(Default)]
pub struct Appenders(Mutex<HashMap<HandleId, Appender>>);

impl Appenders {
    pub fn enter(&self, handle: HandleId, id: FileId, caller: Caller) {
        self.lock().insert(handle, Appender { id, caller });
    }

    pub fn leave(&self, handle: HandleId) {
        self.lock().remove(&handle);
    }

    pub fn find(&self, handle: HandleId) -> Option<Appender> {
        self.lock().get(&handle).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HandleId, Appender>> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
