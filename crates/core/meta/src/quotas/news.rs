//! News of limits that are kept elsewhere: what they change here.
//!
//! A limit that is new here holds when a share of it was asked for: nobody is refused who has room.

use super::table::Table;
use std::collections::BTreeSet;
use tieline_types::Time;
use tieline_types::quota::Payer;

/// Clocks that differ by no more seconds are taken for the same.
const APART_LEAST: u64 = 10;

/// What news changed.
#[derive(Default)]
pub(crate) struct Taken {
    /// To be noted in the store.
    pub changed: BTreeSet<Payer>,
    /// Whose limits were not known before.
    pub fresh: BTreeSet<Payer>,
    pub short: BTreeSet<Payer>,
    /// Clients must hear of it.
    pub is_announced: bool,
}

impl Taken {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.short.is_empty() && !self.is_announced
    }

    pub fn end(&mut self, table: &mut Table, payer: &Payer) {
        if let Some(bound) = table.bounds.remove(payer) {
            tracing::info!(%payer, limits = ?bound.limits, "limits are taken away");
            self.changed.insert(payer.clone());
            self.is_announced = true;
        }
    }
}

impl Taken {
    /// Takes in what default limits mean here.
    pub fn follow(&mut self, table: &mut Table) {
        let followed = table.follow_defaults();
        for payer in &followed.gone {
            self.end(table, payer);
        }
        self.is_announced |= !followed.changed.is_empty() || !followed.fresh.is_empty();
        self.changed.extend(followed.changed);
        self.changed.extend(followed.fresh.iter().cloned());
        self.fresh.extend(followed.fresh);
    }
}

/// A time that MDT0000 told when it was `told` there and `own` here. What its answer took is no
/// difference.
pub(crate) fn by_own_clock(time: Time, told: Option<Time>, own: Time) -> Time {
    let ahead = told.map_or(0, |told| own.seconds.saturating_sub(told.seconds));
    let ahead = if ahead.unsigned_abs() <= APART_LEAST { 0 } else { ahead };
    Time { seconds: time.seconds.saturating_add(ahead), ..time }
}

impl Table {
    /// From now on these hold.
    pub fn hold(&mut self, payers: &BTreeSet<Payer>) {
        for payer in payers {
            if let Some(bound) = self.bounds.get_mut(payer) {
                bound.is_new = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_ends_at_the_same_moment_by_each_clock() {
        let time = |seconds| Time { seconds, nanos: 5 };
        let here = |told, own| by_own_clock(time(1000), told, time(own)).seconds;
        assert_eq!(here(Some(time(2000)), 2000 + 7200), 1000 + 7200);
        assert_eq!(here(Some(time(2000)), 2000 - 3600), 1000 - 3600);
        assert_eq!(here(Some(time(2000)), 2003), 1000, "the answer was on its way");
        assert_eq!(here(None, 2000 + 7200), 1000, "an MDS of an earlier version");
    }
}
