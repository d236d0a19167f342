//! What people are told of limits and use, and which limits they may set.

use super::shares::There;
use super::{Bound, Table};
use crate::error::{Error, Result};
use tieline_types::Time;
use tieline_types::quota::{Limits, Payer, PayerKind, Used};
use tieline_wire::quotas::{Quota, UsedElsewhere};

/// What is counted is kept as a signed number.
pub const MOST: u64 = i64::MAX as u64;

pub fn check_limits(payer: &Payer, limits: Limits, is_default: bool) -> Result<()> {
    if payer.id == 0 && !is_default && !limits.is_none() {
        let what = match payer.kind {
            PayerKind::Project => "project 0 is no project: it has no limits",
            _ => "root has no limits",
        };
        return Err(Error::Invalid { what });
    }
    let is_crossed = |soft: u64, hard: u64| hard > 0 && soft > hard;
    if is_crossed(limits.bytes_soft, limits.bytes_hard)
        || is_crossed(limits.inodes_soft, limits.inodes_hard)
    {
        return Err(Error::Invalid { what: "a soft limit is above its hard limit" });
    }
    Ok(())
}

impl Table {
    /// The limits of who has none of their own: nobody's use.
    pub fn tell_default(&self, payer: &Payer, now: Time) -> Quota {
        let default = Payer { id: 0, ..payer.clone() };
        let limits = self.bounds.get(&default).map(|bound| bound.limits);
        Quota {
            limits: limits.unwrap_or_default(),
            used: Used::default(),
            promised: 0,
            elsewhere: None,
            is_default: Some(true),
            ..self.tell(&default, now)
        }
    }

    pub fn tell(&self, payer: &Payer, now: Time) -> Quota {
        let used = self.used(payer);
        let own = self.bounds.get(payer).copied().filter(|_| payer.id != 0);
        // Nobody has looked at his use yet.
        let default = self.default_limits(payer);
        let default = default.map(|limits| Bound { limits, is_default: true, ..Bound::default() });
        let bound = own.or(default).unwrap_or_default();
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let others = self.others.get(payer).into_iter().flatten();
        let others = others.map(|(&mdt, &There { used, promised, share, .. })| UsedElsewhere {
            mdt,
            used,
            promised,
            share,
        });
        let elsewhere: Vec<_> = others.collect();
        Quota {
            payer: payer.clone(),
            used: Used { bytes: unsigned(used.bytes), inodes: unsigned(used.inodes) },
            promised: self.promised(payer),
            limits: bound.limits,
            bytes_over: bound.bytes_over,
            inodes_over: bound.inodes_over,
            grace: self.grace(payer.kind),
            now,
            elsewhere: Some(elsewhere).filter(|others| !others.is_empty()),
            is_default: bound.is_default.then_some(true),
        }
    }
}
