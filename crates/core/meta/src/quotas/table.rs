//! What is known of everybody's use and limits, and how much room that leaves.
//!
//! Where limits are kept, others' shares count as used. Elsewhere the share is the limit.
//!
//! Knows no store and no other server.

use super::shares::{Amount, There};
use super::{Resource, Sum};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tieline_types::quota::{Account, Grace, Limits, Payer, PayerKind};
use tieline_types::{FileId, MdtIndex, SessionId, Time};
use tieline_wire::quotas::{KindGrace, LimitsNews, QuotaNewsReply};
use tokio::time::Instant;

/// For so long after room was short nobody keeps more than is in use.
pub(super) const SHORT: Duration = Duration::from_secs(5);
/// News in one answer.
pub(super) const NEWS_MAX: usize = 1024;
/// Limits that were taken away and are told as such; beyond it everybody begins anew.
const GONE_MAX: usize = 1 << 16;

/// What a payer may use, and since when more than the soft limits is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bound {
    pub limits: Limits,
    /// They are those of everybody who has none of their own.
    pub is_default: bool,
    /// Without limits, also of those.
    pub is_free: bool,
    pub bytes_over: Option<Time>,
    pub inodes_over: Option<Time>,
    /// The store says otherwise.
    pub is_changed: bool,
    /// Where limits are kept elsewhere: what may be used here.
    pub share: Amount,
    /// The share as the store has it: what is told is noted before.
    pub noted: Amount,
    /// The limits were just heard of, and do not hold before a share was asked for.
    pub is_new: bool,
    /// Room was short then: where limits are kept, what others could give back was asked for.
    pub short: Option<Instant>,
    /// The number of the newest news of it.
    pub news: u64,
    /// Of those that said that room is short; and up to which clients here have given back.
    pub short_news: u64,
    pub own_news: u64,
    /// It was told that the grace of a soft limit is over.
    pub is_late: bool,
    /// More was asked for in vain.
    pub bytes_refused: Option<Refused>,
    pub inodes_refused: Option<Refused>,
}

/// A share that was not to be had: a smaller one may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub at: Instant,
    pub share: u64,
}

impl Bound {
    pub fn is_short(&self) -> bool {
        self.short.is_some_and(|at| at.elapsed() < SHORT)
    }
}

/// How much may be used of one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// By all MDTs together.
    pub whole: u64,
    /// By this one.
    pub here: u64,
    pub which: &'static str,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Table {
    /// Are the limits kept here?
    pub is_home: bool,
    pub used: BTreeMap<Payer, Sum>,
    /// By changes that are under way.
    pub held: BTreeMap<Payer, Sum>,
    pub bounds: BTreeMap<Payer, Bound>,
    pub grace: BTreeMap<PayerKind, Grace>,
    /// With those who would pay.
    pub promises: BTreeMap<(SessionId, FileId), (Account, u64)>,
    /// Where limits are kept: what other MDTs hold.
    pub others: BTreeMap<Payer, BTreeMap<MdtIndex, There>>,
    /// The number of the newest news, and in whose counting.
    pub news: u64,
    pub epoch: u64,
    /// News of limits that were taken away.
    pub gone: BTreeMap<u64, Payer>,
    /// The MDT that keeps the limits did not answer.
    pub is_cut_off: bool,
}

impl Table {
    pub fn used(&self, payer: &Payer) -> Sum {
        self.used.get(payer).copied().unwrap_or_default()
    }

    pub fn grace(&self, kind: PayerKind) -> Grace {
        self.grace.get(&kind).copied().unwrap_or_default()
    }

    /// Bytes promised to sessions, of which this payer would pay.
    pub fn promised(&self, payer: &Payer) -> u64 {
        let of = self.promises.values().filter(|(account, _)| account.payers().contains(payer));
        of.map(|(_, bytes)| *bytes).sum()
    }

    /// What is used here, held and promised.
    pub fn in_use(&self, payer: &Payer) -> Amount {
        self.in_use_with(payer, self.promised(payer))
    }

    pub fn in_use_with(&self, payer: &Payer, promised: u64) -> Amount {
        let (mut sum, held) = (self.used(payer), self.held.get(payer).copied());
        sum.add(held.unwrap_or_default());
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        Amount { bytes: unsigned(sum.bytes).saturating_add(promised), inodes: unsigned(sum.inodes) }
    }

    /// What all MDTs may use of bytes and inodes now: the hard limits, or the soft ones when their
    /// grace is over.
    pub fn limits_now(&self, payer: &Payer, now: Time) -> Option<[(Option<u64>, &'static str); 2]> {
        if payer.id == 0 {
            return None;
        }
        let Bound { limits, is_default, bytes_over, inodes_over, .. } = *self.bounds.get(payer)?;
        let grace = self.grace(payer.kind);
        let (soft_label, hard_label) = match is_default {
            true => ("default soft limit, whose grace is over,", "default hard limit"),
            false => ("soft limit, whose grace is over,", "hard limit"),
        };
        let one = |soft: u64, hard: u64, over: Option<Time>, grace: u64| {
            let is_late = is_late(over, grace, now);
            match (soft > 0 && is_late, hard) {
                (true, 0) => (Some(soft), soft_label),
                (true, hard) => (Some(soft.min(hard)), soft_label),
                (false, 0) => (None, hard_label),
                (false, hard) => (Some(hard), hard_label),
            }
        };
        Some([
            one(limits.bytes_soft, limits.bytes_hard, bytes_over, grace.bytes_seconds),
            one(limits.inodes_soft, limits.inodes_hard, inodes_over, grace.inodes_seconds),
        ])
    }

    /// Does what is in use here and shared out reach a limit?
    pub fn is_full(&self, payer: &Payer, now: Time) -> bool {
        let Some([(bytes, _), (inodes, _)]) = self.limits_now(payer, now) else { return false };
        let (own, elsewhere) = (self.in_use(payer), self.elsewhere(payer, None));
        bytes.is_some_and(|most| own.bytes.saturating_add(elsewhere.bytes) >= most)
            || inodes.is_some_and(|most| own.inodes.saturating_add(elsewhere.inodes) >= most)
    }

    /// Is the grace of a soft limit over?
    pub fn is_late(&self, payer: &Payer, now: Time) -> bool {
        let Some(bound) = self.bounds.get(payer) else { return false };
        let grace = self.grace(payer.kind);
        is_late(bound.bytes_over, grace.bytes_seconds, now)
            || is_late(bound.inodes_over, grace.inodes_seconds, now)
    }

    /// Sessions that bytes are promised to, of which any of these would pay.
    pub fn holders(&self, payers: &BTreeSet<Payer>) -> BTreeSet<SessionId> {
        let pays = |account: &Account| account.payers().iter().any(|payer| payers.contains(payer));
        let theirs = self.promises.iter().filter(|(_, (account, _))| pays(account));
        theirs.map(|((session, _), _)| *session).collect()
    }

    /// The same for this MDT.
    fn most(&self, payer: &Payer, now: Time) -> Option<[Option<Most>; 2]> {
        let [bytes, inodes] = self.limits_now(payer, now)?;
        let bound = self.bounds.get(payer)?;
        let elsewhere = self.elsewhere(payer, None);
        let one = |(whole, which): (Option<u64>, &'static str), share: u64, others: u64| {
            let whole = whole?;
            let here = match (self.is_home, bound.is_new) {
                (true, _) => whole.saturating_sub(others),
                (false, true) => whole,
                (false, false) => share.min(whole),
            };
            let which = if self.is_cut_off { CUT_OFF } else { which };
            Some(Most { whole, here, which })
        };
        Some([
            one(bytes, bound.share.bytes, elsewhere.bytes),
            one(inodes, bound.share.inodes, elsewhere.inodes),
        ])
    }

    /// How many bytes a session may have promised in all under a payer's limit, and what the limit
    /// is called.
    pub fn room(&self, payer: &Payer, own: u64, now: Time) -> Option<(u64, String)> {
        let [most, _] = self.most(payer, now)?;
        // A limit of inodes alone does not concern bytes; a soft one will when its grace is over.
        let most = match most {
            Some(most) => most,
            None if self.bounds.get(payer)?.limits.bytes_soft > 0 => {
                Most { whole: u64::MAX / 2, here: u64::MAX / 2, which: "soft limit" }
            }
            None => return None,
        };
        let in_use = self.in_use(payer).bytes.saturating_sub(own);
        let size = tieline_types::ByteSize(most.whole);
        let label = format!("{payer}: {} of {size} bytes", most.which);
        Some((most.here.saturating_sub(in_use), label))
    }

    pub fn check(&self, payer: &Payer, sum: Sum, own: u64, now: Time) -> Result<()> {
        let Some([bytes, inodes]) = self.most(payer, now) else {
            return Ok(());
        };
        let in_use = self.in_use(payer);
        let over = |resource, Most { whole, which, .. }, needed| {
            let payer = payer.clone();
            Err(Error::Quota { payer, resource, which, most: whole, needed })
        };
        if let (Some(most), Ok(more @ 1..)) = (inodes, u64::try_from(sum.inodes)) {
            let needed = in_use.inodes.saturating_add(more);
            if needed > most.here {
                return over(Resource::Inodes, most, needed);
            }
        }
        if let (Some(most), Ok(more @ 1..)) = (bytes, u64::try_from(sum.bytes)) {
            let needed = in_use.bytes.saturating_sub(own).saturating_add(more);
            if more > own && needed > most.here {
                return over(Resource::Bytes, most, needed);
            }
        }
        Ok(())
    }

    /// Do all together use more than the payer's soft limits, or not any more? Only who keeps the
    /// limits knows.
    pub fn note_over(&mut self, payer: &Payer, now: Time) {
        if !self.is_home || payer.id == 0 {
            return;
        }
        let (used, elsewhere) = (self.used(payer), self.used_elsewhere(payer));
        let Some(bound) = self.bounds.get_mut(payer) else { return };
        let is_over = |used: i64, others: u64, soft: u64| {
            soft > 0 && u64::try_from(used).unwrap_or(0).saturating_add(others) > soft
        };
        let bytes = is_over(used.bytes, elsewhere.bytes, bound.limits.bytes_soft);
        let inodes = is_over(used.inodes, elsewhere.inodes, bound.limits.inodes_soft);
        let after = (
            bytes.then(|| bound.bytes_over.unwrap_or(now)),
            inodes.then(|| bound.inodes_over.unwrap_or(now)),
        );
        if after != (bound.bytes_over, bound.inodes_over) {
            bound.is_changed = true;
            (bound.bytes_over, bound.inodes_over) = after;
            self.tell_news(payer, false);
        }
    }

    /// Has others told what holds of a payer now. `is_short`: and asked to give back.
    pub fn tell_news(&mut self, payer: &Payer, is_short: bool) -> u64 {
        self.news += 1;
        let number = self.news;
        if let Some(bound) = self.bounds.get_mut(payer) {
            bound.news = number;
            if is_short {
                (bound.short, bound.short_news) = (Some(Instant::now()), number);
            }
        }
        number
    }

    /// What they hear brings all graces along.
    pub fn tell_grace(&mut self) {
        self.news += 1;
    }

    pub fn tell_gone(&mut self, payer: Payer) {
        self.news += 1;
        self.gone.insert(self.news, payer);
        if self.gone.len() > GONE_MAX {
            self.gone.clear();
            self.epoch += 1;
        }
    }

    /// What somebody is to hear who knows the news up to `known`.
    pub fn news_since(&self, epoch: u64, known: u64) -> QuotaNewsReply {
        let known = if epoch == self.epoch { known } else { 0 };
        let mut newer: BTreeMap<u64, LimitsNews> = BTreeMap::new();
        for (payer, bound) in self.bounds.iter().filter(|(_, bound)| bound.news > known) {
            let Bound { limits, bytes_over, inodes_over, .. } = *bound;
            let news = LimitsNews {
                payer: payer.clone(),
                limits,
                bytes_over,
                inodes_over,
                is_short: bound.is_short(),
                is_default: bound.is_default.then_some(true),
                is_free: bound.is_free.then_some(true),
            };
            newer.insert(bound.news, news);
        }
        for (&number, payer) in self.gone.range(known.saturating_add(1)..) {
            // Who has limits again is among the others.
            if !self.bounds.contains_key(payer) {
                let news = LimitsNews {
                    payer: payer.clone(),
                    limits: Limits::default(),
                    bytes_over: None,
                    inodes_over: None,
                    is_short: false,
                    is_default: None,
                    is_free: None,
                };
                newer.insert(number, news);
            }
        }
        let is_end = newer.len() <= NEWS_MAX;
        let told: Vec<_> = newer.into_iter().take(NEWS_MAX).collect();
        let known = match told.last() {
            Some((number, _)) if !is_end => *number,
            _ => self.news,
        };
        let limits = told.into_iter().map(|(_, news)| news).collect();
        let grace = |kind| KindGrace { kind, grace: self.grace(kind) };
        let graces = PayerKind::ALL.into_iter().map(grace).collect();
        QuotaNewsReply { epoch: self.epoch, known, limits, is_end, graces, now: None }
    }
}

fn is_late(over: Option<Time>, grace: u64, now: Time) -> bool {
    over.is_some_and(|over| {
        now.seconds.saturating_sub(over.seconds) >= i64::try_from(grace).unwrap_or(i64::MAX)
    })
}

const CUT_OFF: &str = "share that is kept here, as MDT0000 does not answer, of the limit";
