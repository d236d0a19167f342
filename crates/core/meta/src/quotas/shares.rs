//! Shares of limits: who may use how much of what several MDTs may use together.
//!
//! The MDT that keeps the limits notes what each other one may use, and counts that as used. What
//! another one may use grows only by an answer that was noted before it was given ([`Table::give`])
//! and shrinks only when the other one says so, who then has noted that before ([`Table::weigh`]).
//! So whatever is lost, delayed or forgotten on the way: what somebody believes to have is never
//! more than what is noted.
//!
//! A share is what is in use and some slack, which grows with the limit and shrinks with the room
//! that is left. When somebody is refused, all are asked to give back what they do not use.
//!
//! Invariant: used, held and promised where limits are kept, and all that is noted of others,
//! together stay within the limit, but for what was used before it was set.

use super::table::Table;
use std::collections::BTreeMap;
use tieline_types::quota::{Payer, Share, Used};
use tieline_types::{MdtIndex, Time};
use tieline_wire::quotas::ShareHeld;

/// Bytes and inodes.
pub(crate) type Amount = Share;

/// A share may have so much of a limit beyond what is in use: an eighth.
const SLACK_PART: u64 = 8;
const SLACK_MAX: Amount = Amount { bytes: 64 << 30, inodes: 1 << 20 };
/// What is not needed at once is given as long as it is at most this part of what is left.
const FAIR_PART: u64 = 4;

/// What another MDT said last, and may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct There {
    pub share: Amount,
    pub used: Used,
    pub promised: u64,
    /// The news that it knew then.
    pub known: u64,
    /// The store says so, too.
    pub is_noted: bool,
}

impl There {
    pub fn in_use(&self) -> Amount {
        Amount { bytes: self.used.bytes.saturating_add(self.promised), inodes: self.used.inodes }
    }

    /// What it takes of the limit.
    pub fn takes(&self) -> Amount {
        let in_use = self.in_use();
        Amount {
            bytes: self.share.bytes.max(in_use.bytes),
            inodes: self.share.inodes.max(in_use.inodes),
        }
    }

    /// Could it give something back?
    pub fn has_spare(&self) -> bool {
        self.share.bytes > self.used.bytes || self.share.inodes > self.used.inodes
    }
}

impl Table {
    /// What other MDTs take of a payer's limits, but for one.
    pub fn elsewhere(&self, payer: &Payer, but: Option<MdtIndex>) -> Amount {
        let others = self.others.get(payer).into_iter().flatten();
        let others = others.filter(|(mdt, _)| Some(**mdt) != but);
        others.fold(Amount::default(), |sum, (_, there)| {
            let takes = there.takes();
            Amount {
                bytes: sum.bytes.saturating_add(takes.bytes),
                inodes: sum.inodes.saturating_add(takes.inodes),
            }
        })
    }

    /// What is used there.
    pub fn used_elsewhere(&self, payer: &Payer) -> Used {
        let others = self.others.get(payer).into_iter().flatten();
        others.fold(Used::default(), |sum, (_, there)| Used {
            bytes: sum.bytes.saturating_add(there.used.bytes),
            inodes: sum.inodes.saturating_add(there.used.inodes),
        })
    }

    /// Where limits are kept: takes what another MDT says, and gives it what it asks for as far as
    /// there is room. What is given must be noted in the store before it is answered.
    pub fn give(&mut self, mdt: MdtIndex, held: &ShareHeld, known: u64, now: Time) -> Amount {
        let payer = &held.payer;
        let limits = self.limits_now(payer, now);
        let (own, others) = (self.in_use(payer), self.elsewhere(payer, Some(mdt)));
        let noted = self.others.get(payer).and_then(|others| others.get(&mdt)).copied();
        let (before, noted) = (noted, noted.unwrap_or_default().share);
        let ShareHeld { share, used, promised, .. } = *held;
        let mut there = There { share, used, promised, known, is_noted: false };
        let in_use = there.in_use();
        let [bytes, inodes] = limits.map_or([None, None], |[bytes, inodes]| [bytes.0, inodes.0]);
        // It has less than is noted if an answer was lost, and more if its store is an old copy.
        let base = |held: u64, noted: u64| held.min(noted);
        there.share = Amount {
            bytes: give_one(
                bytes.map(|most| (most, own.bytes.saturating_add(others.bytes))),
                (base(held.share.bytes, noted.bytes), in_use.bytes),
                (held.needed.bytes, held.wanted.bytes),
            ),
            inodes: give_one(
                inodes.map(|most| (most, own.inodes.saturating_add(others.inodes))),
                (base(held.share.inodes, noted.inodes), in_use.inodes),
                (held.needed.inodes, held.wanted.inodes),
            ),
        };
        // Use is noted only where it is above the share, and would not be known after a restart.
        there.is_noted = before.is_some_and(|before| {
            before.is_noted && before.share == there.share && before.takes() == there.takes()
        });
        if limits.is_none() && there.share == Amount::default() {
            if let Some(others) = self.others.get_mut(payer) {
                others.remove(&mdt);
            }
            self.others.retain(|_, others| !others.is_empty());
        } else {
            self.others.entry(payer.clone()).or_default().insert(mdt, there);
        }
        self.note_over(payer, now);
        there.share
    }

    /// Elsewhere: what to say of a payer. Lowers the share to what is in use and some slack; that
    /// must be noted in the store before it is said. `needed`: what somebody waits for.
    pub fn weigh(
        &mut self,
        payer: &Payer,
        (promised, needed): (u64, Amount),
        is_used_more: bool,
        now: Time,
    ) -> Option<ShareHeld> {
        let [bytes, inodes] = self.limits_now(payer, now)?.map(|(most, _)| most);
        let (used, in_use) = (self.used(payer), self.in_use_with(payer, promised));
        let bound = self.bounds.get_mut(payer)?;
        let has_slack = !bound.is_short();
        let is_used = in_use != Amount::default();
        let is_used_more = is_used_more || (bound.is_new && is_used);
        let weigh = |most, held, in_use, needed, slack_max| {
            weigh_one(most, (held, in_use, needed), (has_slack, slack_max), is_used_more)
        };
        let share = bound.share;
        let (less_bytes, needed_bytes, wanted_bytes) =
            weigh(bytes, share.bytes, in_use.bytes, needed.bytes, SLACK_MAX.bytes);
        let (less_inodes, needed_inodes, wanted_inodes) =
            weigh(inodes, share.inodes, in_use.inodes, needed.inodes, SLACK_MAX.inodes);
        bound.share = Amount { bytes: less_bytes, inodes: less_inodes };
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let used = Used { bytes: unsigned(used.bytes), inodes: unsigned(used.inodes) };
        Some(ShareHeld {
            payer: payer.clone(),
            share: bound.share,
            used,
            // With what changes under way may use.
            promised: in_use.bytes.saturating_sub(used.bytes),
            needed: Amount { bytes: needed_bytes, inodes: needed_inodes },
            wanted: Amount { bytes: wanted_bytes, inodes: wanted_inodes },
        })
    }

    /// Bytes promised to sessions, by who would pay.
    pub fn promised_to_all(&self) -> BTreeMap<Payer, u64> {
        let mut promised = BTreeMap::new();
        for (account, bytes) in self.promises.values() {
            for payer in account.payers() {
                *promised.entry(payer).or_default() += bytes;
            }
        }
        promised
    }
}

/// One resource of [`Table::give`]. `limit`: what all may use, and what others take of it.
fn give_one(
    limit: Option<(u64, u64)>,
    (base, in_use): (u64, u64),
    (needed, wanted): (u64, u64),
) -> u64 {
    let Some((most, others)) = limit else { return base };
    // What is in use there already is no room, whether it was given or not.
    let floor = base.max(in_use);
    let room = most.saturating_sub(others).saturating_sub(floor);
    let fair = floor.saturating_add(room / FAIR_PART);
    wanted.max(needed).min(fair.max(needed)).min(floor.saturating_add(room)).max(base)
}

/// One resource of [`Table::weigh`]: the share, and what is needed and wanted of it.
fn weigh_one(
    most: Option<u64>,
    (share, in_use, needed): (u64, u64, u64),
    (has_slack, slack_max): (bool, u64),
    is_used_more: bool,
) -> (u64, u64, u64) {
    let Some(most) = most else { return (0, 0, 0) };
    let slack = if has_slack { (most / SLACK_PART).min(slack_max) } else { 0 };
    let good = in_use.saturating_add(slack);
    if needed > share {
        return (share, needed, needed.max(good));
    }
    if share > good.saturating_add(slack) {
        // Whoever waits needs what he was given, and more elsewhere.
        return (good.max(needed), 0, 0);
    }
    let is_tight = share < in_use.saturating_add(slack / 2);
    let wanted = if is_tight && is_used_more { good } else { 0 };
    (share, 0, wanted)
}

#[cfg(test)]
mod tests;
