//! Where a file would lie that has no place yet: where there is room, by turns.

use crate::{Inner, Rooms};
use std::sync::MutexGuard;
use tieline_types::OstIndex;
use tieline_wire::data::GrantRoom;

/// Free space is compared in so many parts of the emptiest, as MDSs do.
const SHARES: u64 = 64;
/// From this part on OSTs are equally empty.
const BALANCED: u64 = SHARES * 4 / 5;

/// Nothing is granted or drawn while one chooses.
pub struct Choosing<'r>(MutexGuard<'r, Inner>);

impl Rooms {
    pub fn choosing(&self) -> Choosing<'_> {
        Choosing(self.lock())
    }
}

impl Choosing<'_> {
    /// Is there room for chunks of these lengths?
    pub fn has_room(&self, ost: OstIndex, lengths: &[u64]) -> bool {
        self.0.osts.get(&ost).is_some_and(|room| {
            let cost: u64 = lengths.iter().map(|&one| GrantRoom::cost(one, room.unit)).sum();
            room.free() >= cost.max(1)
        })
    }

    /// Whose turn it is, by free space as at an MDS (smooth weighted round-robin); the first is
    /// drawn by lot.
    pub fn next_turn(&mut self, turn: &[OstIndex], lot: impl Fn() -> u64) -> Option<OstIndex> {
        let free = |ost: &OstIndex| self.0.osts.get(ost).map_or(0, |room| room.bytes_free);
        let emptiest = turn.iter().map(free).max()?.max(1);
        let mut total = 0;
        let mut next: Option<(i64, OstIndex)> = None;
        for &ost in turn {
            let room = self.0.osts.entry(ost).or_default();
            let free = u128::from(room.bytes_free);
            let share = (free * u128::from(SHARES) / u128::from(emptiest)) as u64;
            let share = if share >= BALANCED { SHARES } else { share.max(1) } as i64;
            let due = room.due.get_or_insert_with(|| (lot() % SHARES) as i64);
            *due += share;
            total += share;
            if next.is_none_or(|(most, _)| *due > most) {
                next = Some((*due, ost));
            }
        }
        let (_, ost) = next?;
        if let Some(due) = self.0.osts.get_mut(&ost).and_then(|room| room.due.as_mut()) {
            *due -= total;
        }
        Some(ost)
    }
}
