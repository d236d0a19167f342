//! Requests of one owner for one range, one after the other.
//!
//! Answers come in another order than what was asked was done in, and a caller who goes away leaves
//! his request under way. So whoever asks for a lock, frees it, or closes its file waits for what
//! its owner has under way there, and asks when that is noted. Waits in a server's queue take no
//! turn: they may wait for what their owner frees.
//!
//! Invariant: what is noted of an owner, a server did in that order.

use super::Own;
use crate::handles::is_of_before;
use crate::shared::Shared;
use crate::{HandleId, LockWish};
use std::sync::Arc;
use tieline_types::{FileId, LockKind, LockRange};

/// A request that is under way. It is over when this is dropped.
pub(super) struct Turn {
    shared: Arc<Shared>,
    id: FileId,
    wish: LockWish,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let locks = &self.shared.locks;
        locks.with(self.id, |own| {
            if let Some(at) = own.under_way.iter().position(|one| *one == self.wish) {
                own.under_way.swap_remove(at);
            }
        });
        locks.settled.notify_waiters();
    }
}

impl Own {
    pub(super) fn has_under_way(&self, wish: &LockWish) -> bool {
        let is_in_turn = |one: &LockWish| {
            (one.kind, one.owner) == (wish.kind, wish.owner) && one.range.overlaps(wish.range)
        };
        self.under_way.iter().any(is_in_turn)
    }
}

impl Shared {
    /// Waits until the owner has nothing under way there.
    pub(super) async fn lock_turn(self: &Arc<Self>, id: FileId, wish: &LockWish) -> Turn {
        let is_next = |own: &mut Own| {
            let is_next = !own.has_under_way(wish);
            is_next.then(|| own.under_way.push(*wish))
        };
        self.locks.when(id, is_next).await;
        Turn { shared: self.clone(), id, wish: *wish }
    }

    /// The owner of a `flock` is the handle. The kernel's number for an open file may be the next
    /// one's already while its RELEASE is still to come. Earlier builds kept them by that number:
    /// what is left of them is found by it, through handles of that time.
    pub(super) fn wish_of(&self, id: FileId, handle: HandleId, wish: LockWish) -> LockWish {
        let keeps_owner = wish.kind == LockKind::Posix
            || (is_of_before(&self.keep, handle)
                && self.locks.holds(id, wish.kind, wish.owner, LockRange::WHOLE));
        LockWish { owner: if keeps_owner { wish.owner } else { handle.0 }, ..wish }
    }
}
