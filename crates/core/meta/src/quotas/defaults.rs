//! Default limits: of everybody of a kind, in a pool or over all, who has no limits of their own.
//!
//! They stand under id 0, which has no limits itself. Whoever they concern gets a [`Bound`] as with
//! limits of his own, marked as such, when they are set or his use is first looked at; from then
//! on shares, news and graces are as everybody's. Whoever shall have no limits in spite of them is
//! marked as free.
//!
//! Invariant: a bound that is marked has the limits of its default.

use super::table::{Bound, Table};
use std::collections::BTreeSet;
use tieline_types::Time;
use tieline_types::quota::{Limits, Payer};

/// Where limits come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Own,
    Default,
    /// None, whatever the default is.
    Free,
}

/// Under whom the default limits stand that concern a payer.
fn default_of(payer: &Payer) -> Payer {
    Payer { id: 0, ..payer.clone() }
}

impl Table {
    /// The limits that concern a payer without own ones.
    pub fn default_limits(&self, payer: &Payer) -> Option<Limits> {
        if payer.id == 0 {
            return None;
        }
        self.bounds.get(&default_of(payer)).map(|bound| bound.limits)
    }

    /// Does any limit concern a payer, or may it?
    pub fn is_concerned(&self, payer: &Payer) -> bool {
        let is_bound = || self.bounds.contains_key(payer);
        payer.id != 0 && (is_bound() || self.default_limits(payer).is_some())
    }

    /// Has default limits hold for a payer who has no others. Says whether they are new to him.
    pub fn inherit(&mut self, payer: &Payer, now: Time) -> bool {
        if self.bounds.contains_key(payer) {
            return false;
        }
        let Some(limits) = self.default_limits(payer) else { return false };
        if self.is_home {
            self.put(payer, limits, Origin::Default, now);
            if let Some(bound) = self.bounds.get_mut(payer) {
                bound.is_changed = true;
            }
        } else {
            // Without a share, as for whoever never used anything here: it is asked for.
            let bound = Bound { limits, is_default: true, ..Bound::default() };
            self.bounds.insert(payer.clone(), bound);
        }
        true
    }

    /// Where limits are kept: sets them. Says whose changed.
    pub fn set_limits(
        &mut self,
        payer: &Payer,
        limits: Limits,
        is_default: bool,
        now: Time,
    ) -> BTreeSet<Payer> {
        if payer.id == 0 {
            return self.set_default(payer, limits, now);
        }
        let default = self.default_limits(payer);
        let is_changed = match default {
            Some(default) if is_default => self.put(payer, default, Origin::Default, now),
            Some(_) if limits.is_none() => self.put(payer, limits, Origin::Free, now),
            None if is_default || limits.is_none() => self.take(payer),
            _ => self.put(payer, limits, Origin::Own, now),
        };
        BTreeSet::from_iter(is_changed.then(|| payer.clone()))
    }

    fn set_default(&mut self, payer: &Payer, limits: Limits, now: Time) -> BTreeSet<Payer> {
        let mut changed = BTreeSet::new();
        let theirs = self.under(payer);
        if limits.is_none() {
            // Those who are under it first: whoever hears of it in parts is not left with them.
            let all = theirs.into_iter().chain([payer.clone()]);
            changed.extend(all.filter(|payer| self.take(payer)));
            return changed;
        }
        if self.put(payer, limits, Origin::Own, now) {
            changed.insert(payer.clone());
        }
        let known = self.used.keys().chain(self.others.keys());
        let fresh = known.filter(|known| known.id != 0 && default_of(known) == *payer);
        let fresh: BTreeSet<Payer> =
            fresh.filter(|known| !self.bounds.contains_key(known)).cloned().collect();
        for other in theirs.into_iter().chain(fresh) {
            if self.put(&other, limits, Origin::Default, now) {
                changed.insert(other);
            }
        }
        changed
    }

    /// Who is under a default.
    fn under(&self, default: &Payer) -> BTreeSet<Payer> {
        let theirs = self.bounds.iter().filter(|(payer, bound)| {
            bound.is_default && payer.id != 0 && default_of(payer) == *default
        });
        theirs.map(|(payer, _)| payer.clone()).collect()
    }

    fn put(&mut self, payer: &Payer, limits: Limits, origin: Origin, now: Time) -> bool {
        let old = self.bounds.get(payer).copied();
        let (is_default, is_free) = (origin == Origin::Default, origin == Origin::Free);
        let bound = Bound { limits, is_default, is_free, ..old.unwrap_or_default() };
        if old == Some(bound) {
            return false;
        }
        self.bounds.insert(payer.clone(), bound);
        self.note_over(payer, now);
        let is_short = self.is_full(payer, now);
        self.tell_news(payer, is_short);
        true
    }

    fn take(&mut self, payer: &Payer) -> bool {
        let is_there = self.bounds.remove(payer).is_some();
        if is_there {
            self.tell_gone(payer.clone());
        }
        is_there
    }

    /// Elsewhere, after news: what defaults mean for who uses something here. Who is new to limits
    /// is told; who has none any more, and whose are others, too.
    pub fn follow_defaults(&mut self) -> Followed {
        let mut followed = Followed::default();
        let marked = self.bounds.iter().filter(|(_, bound)| bound.is_default);
        let marked: Vec<(Payer, Limits)> =
            marked.map(|(payer, bound)| (payer.clone(), bound.limits)).collect();
        for (payer, old) in marked {
            match (self.default_limits(&payer), self.bounds.get_mut(&payer)) {
                (Some(limits), Some(bound)) if limits != old => {
                    bound.limits = limits;
                    followed.changed.insert(payer);
                }
                (None, _) => drop(followed.gone.insert(payer)),
                _ => {}
            }
        }
        let fresh = self.used.iter().filter(|(payer, sum)| {
            let is_used = sum.bytes != 0 || sum.inodes != 0;
            is_used && !self.bounds.contains_key(*payer) && self.default_limits(payer).is_some()
        });
        followed.fresh = fresh.map(|(payer, _)| payer.clone()).collect();
        for payer in &followed.fresh {
            let limits = self.default_limits(payer).unwrap_or_default();
            let bound = Bound { limits, is_default: true, is_new: true, ..Bound::default() };
            self.bounds.insert(payer.clone(), bound);
        }
        followed
    }
}

/// What [`Table::follow_defaults`] found.
#[derive(Default)]
pub(crate) struct Followed {
    pub changed: BTreeSet<Payer>,
    pub fresh: BTreeSet<Payer>,
    pub gone: BTreeSet<Payer>,
}
