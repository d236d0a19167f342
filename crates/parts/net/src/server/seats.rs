//! Which connection each session sits on: one at a time.
//!
//! Whoever comes for a seat asks the one that sits there, and all who wait before it, to leave,
//! then waits for its turn. Turns are in the order of coming, so the newest connection is the one
//! that stays.
//!
//! Invariants: a session has at most one connection between [`Seats::take`] and the drop of
//! [`Seat`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_types::SessionId;
use tokio::sync::{OwnedMutexGuard, watch};

#[derive(Default)]
pub(super) struct Seats {
    taken: Arc<Mutex<BTreeMap<SessionId, Chair>>>,
}

struct Chair {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Tells whoever came last to leave.
    newest: watch::Sender<bool>,
    comers: u64,
}

/// A session's seat, left when dropped.
pub(super) struct Seat {
    seats: Arc<Mutex<BTreeMap<SessionId, Chair>>>,
    session: SessionId,
    leave: watch::Receiver<bool>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Seats {
    /// Waits until the session's seat is free. `None`: a newer connection came meanwhile.
    pub(super) async fn take(&self, session: SessionId) -> Option<Seat> {
        let (turn, mut seat) = self.come(session);
        let turn = tokio::select! {
            biased;
            () = seat.left() => return None,
            turn = turn.lock_owned() => turn,
        };
        seat.turn = Some(turn);
        Some(seat)
    }

    fn come(&self, session: SessionId) -> (Arc<tokio::sync::Mutex<()>>, Seat) {
        let (newest, leave) = watch::channel(false);
        let mut taken = lock(&self.taken);
        let chair = taken.entry(session).or_insert_with(|| Chair {
            turn: Arc::default(),
            newest: watch::channel(false).0,
            comers: 0,
        });
        chair.newest.send_replace(true);
        chair.newest = newest;
        chair.comers += 1;
        let seats = self.taken.clone();
        (chair.turn.clone(), Seat { seats, session, leave, turn: None })
    }
}

impl Seat {
    /// Waits until somebody newer wants the seat.
    pub(super) async fn left(&mut self) {
        // The sender is dropped only after it said so.
        let _ = self.leave.wait_for(|&must_leave| must_leave).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = lock(&self.seats);
        self.turn = None;
        if let Some(chair) = taken.get_mut(&self.session) {
            chair.comers -= 1;
            if chair.comers == 0 {
                taken.remove(&self.session);
            }
        }
    }
}

fn lock(seats: &Mutex<BTreeMap<SessionId, Chair>>) -> MutexGuard<'_, BTreeMap<SessionId, Chair>> {
    // Nothing panics while the lock is held; a poisoned lock still holds whole values.
    seats.lock().unwrap_or_else(PoisonError::into_inner)
}
