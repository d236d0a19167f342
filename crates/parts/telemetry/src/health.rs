//! How a role is: live, ready, degraded with a reason.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a program's parts say of themselves. Cloned freely.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Parts>>);

#[derive(Default)]
struct Parts {
    is_ready: bool,
    /// Part to reason.
    troubles: BTreeMap<String, String>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub is_ready: bool,
    /// `part: reason`, in order of the parts.
    pub troubles: Vec<(String, String)>,
}

impl Health {
    pub fn set_ready(&self, is_ready: bool) {
        self.lock().is_ready = is_ready;
    }

    /// `part` works worse than it should.
    pub fn degrade(&self, part: &str, reason: impl Into<String>) {
        self.lock().troubles.insert(part.to_owned(), reason.into());
    }

    /// `part` is fine again.
    pub fn recover(&self, part: &str) {
        self.lock().troubles.remove(part);
    }

    pub fn report(&self) -> Report {
        let parts = self.lock();
        Report { is_ready: parts.is_ready, troubles: parts.troubles.clone().into_iter().collect() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Parts> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
