//! Shares of limits that are kept elsewhere: what was said of them, and what is to be had.

use super::shares::Amount;
use super::table::{Bound, Refused, Table};
use std::collections::BTreeMap;
use std::time::Duration;
use tieline_types::quota::Payer;
use tieline_wire::quotas::ShareHeld;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Who was refused is refused for so long without another question.
const REFUSED: Duration = Duration::from_millis(300);
/// What is said and heard, beside the table.
#[derive(Default)]
pub(crate) struct Following {
    pub asking: tokio::sync::Mutex<Asking>,
    pub noting: tokio::sync::Mutex<()>,
    /// Somebody got less than he wanted.
    pub kick: Notify,
}

/// What was said last.
#[derive(Default)]
pub(crate) struct Asking {
    pub number: u64,
    /// News that were taken in.
    pub known: u64,
    pub told: BTreeMap<Payer, ShareHeld>,
}

impl Following {
    /// Nothing of what was said is remembered there.
    pub async fn begin_anew(&self) {
        self.asking.lock().await.told.clear();
    }
}

impl Table {
    /// The same of all.
    pub fn outlook_for(&self, needed: &BTreeMap<Payer, Amount>) -> Option<bool> {
        let each = needed.iter().map(|(payer, amount)| self.outlook(payer, *amount));
        let each: Vec<Option<bool>> = each.collect();
        if each.contains(&Some(false)) {
            return Some(false);
        }
        (!each.contains(&None)).then_some(true)
    }

    /// Is a share so large, or is it in vain to ask for that? `None`: nobody knows.
    fn outlook(&self, payer: &Payer, amount: Amount) -> Option<bool> {
        let Some(bound) = self.bounds.get(payer) else { return Some(true) };
        if bound.share.bytes >= amount.bytes && bound.share.inodes >= amount.inodes {
            return Some(true);
        }
        // Who needs less than that, as he freed some meanwhile, may have it.
        let is_vain = |refused: Option<Refused>, needed: u64| {
            needed > 0 && refused.is_some_and(|it| it.is_recent() && needed >= it.share)
        };
        let was_refused = is_vain(bound.bytes_refused, amount.bytes)
            || is_vain(bound.inodes_refused, amount.inodes);
        (was_refused || self.is_cut_off).then_some(false)
    }
}

impl Bound {
    /// Notes what was needed and is not to be had.
    pub fn refuse(&mut self, needed: Amount) {
        if needed.bytes > self.share.bytes {
            Refused::note(&mut self.bytes_refused, needed.bytes);
        }
        if needed.inodes > self.share.inodes {
            Refused::note(&mut self.inodes_refused, needed.inodes);
        }
    }
}

impl Refused {
    fn is_recent(self) -> bool {
        self.at.elapsed() < REFUSED
    }

    /// The smallest counts.
    fn note(noted: &mut Option<Self>, share: u64) {
        if noted.is_none_or(|before| !before.is_recent() || share < before.share) {
            *noted = Some(Self { at: Instant::now(), share });
        }
    }
}
