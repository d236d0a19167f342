//! Connections that nobody knows yet: between accept and welcome.
//!
//! There are only so many; a newer one makes the oldest leave. Who means it is through in a few
//! milliseconds, so a crowd that says nothing pushes out itself.
//!
//! Invariant: at most as many as the settings say are in the lobby when [`Lobby::enter`] returns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Who waits, oldest first.
#[derive(Clone)]
pub(super) struct Lobby {
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    entered: u64,
    guests: BTreeMap<u64, Arc<Notify>>,
}

/// A place in the lobby, given back when dropped.
pub(super) struct Guest {
    lobby: Lobby,
    number: u64,
    leave: Arc<Notify>,
}

impl Lobby {
    pub(super) fn new(most: usize) -> Self {
        Self { most, waiting: Arc::default() }
    }

    pub(super) fn enter(&self) -> Guest {
        let leave = Arc::new(Notify::new());
        let mut waiting = self.lock();
        waiting.entered += 1;
        let number = waiting.entered;
        waiting.guests.insert(number, leave.clone());
        while waiting.guests.len() > self.most.max(1) {
            if let Some((_, oldest)) = waiting.guests.pop_first() {
                oldest.notify_one();
            }
        }
        Guest { lobby: self.clone(), number, leave }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// Waits until a newer one needs the place.
    pub(super) async fn pushed_out(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.lobby.lock().guests.remove(&self.number);
    }
}
