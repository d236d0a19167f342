//! An MDT whose limits are kept elsewhere: has its shares of them extended.
//!
//! Shares are told of every few seconds if anything changed, at once when a promise is short, and
//! before somebody is refused.
//!
//! Cut off, limits and shares stay what they are, also over restarts.
//!
//! Invariants: a lower share is noted before it is told; of several questions after shares only the
//! newest answer counts, and at most one is under way.

use super::home::SHARES_MAX;
use crate::error::Result;
use crate::mdt::Mdt;
use crate::placement::wall_time;
use crate::quotas::follow::Asking;
use crate::quotas::shares::Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::key;
use tieline_types::quota::{Payer, Share, Used};
use tieline_wire::quotas::{QuotaShares, QuotaSharesReply, ShareHeld};

/// Somebody waits.
const SHARES_PATIENCE: Duration = Duration::from_secs(3);
/// How often shares are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// And how often at most.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// After an answer that did not come.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Between questions while others are asked to give back.
const PAUSES: [Duration; 8] = {
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
    [ms(10), ms(20), ms(40), ms(80), ms(160), ms(320), ms(640), ms(1280)]
};

/// What a question after shares is about, beside what changed.
#[derive(Default)]
pub(super) struct Wish {
    /// Somebody waits for so much.
    pub needed: BTreeMap<Payer, Amount>,
    /// To be told whether it changed or not.
    pub told: BTreeSet<Payer>,
    /// Up to there news were taken in.
    pub known: Option<u64>,
}

impl Mdt {
    /// Keeps limits and shares what they are to be. Runs until dropped.
    pub async fn run_quotas(self: std::sync::Arc<Self>) {
        if self.quotas.table().is_home {
            self.keep_home().await;
        } else {
            tokio::join!(self.hear_news(), self.look_after_shares());
        }
    }

    async fn look_after_shares(&self) {
        while self.trouble().is_none() {
            let kicked = self.following.kick.notified();
            let _ = tokio::time::timeout(LOOK_EVERY, kicked).await;
            if let Err(why) = self.exchange(Wish::default()).await {
                tracing::debug!(why, "shares of limits stay as they are");
                tokio::time::sleep(TRY_AGAIN).await;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Has more room made for payers, who need so much in all. Says whether it may be there now.
    /// All whom one request needs are named together, those who have what they need by now, too:
    /// while room is short nobody keeps a share that he does not use.
    pub(crate) async fn extend(&self, needed: &BTreeMap<Payer, Amount>) -> bool {
        if self.quotas.table().is_home {
            let mut may_have = false;
            for payer in needed.keys() {
                may_have |= self.gather(payer).await;
            }
            return may_have;
        }
        let outlook = || self.quotas.table().outlook_for(needed);
        for pause in PAUSES {
            if let Some(has_room) = outlook() {
                return has_room;
            }
            let wish = Wish { needed: needed.clone(), ..Wish::default() };
            if let Err(why) = self.exchange(wish).await {
                let payers: Vec<String> = needed.keys().map(Payer::to_string).collect();
                tracing::info!(?payers, why, "no more of a limit can be asked for");
                return false;
            }
            if let Some(has_room) = outlook() {
                return has_room;
            }
            tokio::time::sleep(pause).await;
        }
        let mut table = self.quotas.table();
        for (payer, amount) in needed {
            if let Some(bound) = table.bounds.get_mut(payer) {
                bound.refuse(*amount);
            }
        }
        false
    }

    /// Tells what changed about shares, asks for more where it is short, and takes the answer.
    pub(super) async fn exchange(&self, mut wish: Wish) -> Result<(), String> {
        let mut asking = self.following.asking.lock().await;
        if !wish.needed.is_empty() && self.quotas.table().is_cut_off {
            return Err("MDT0000 does not answer".to_owned());
        }
        asking.known = wish.known.unwrap_or(asking.known);
        loop {
            let (shares, unnoted, is_more) = self.weigh_all(&mut asking, &mut wish);
            if shares.is_empty() {
                return Ok(());
            }
            self.note_bounds_of(&unnoted).await.map_err(|error| {
                self.note(&error);
                error.to_string()
            })?;
            asking.number += 1;
            let (boot, number, known) = (self.boot(), asking.number, asking.known);
            let mdt = self.settings.mdt;
            let question = QuotaShares { mdt, boot, number, known, shares: shares.clone() };
            let answer = self.parts.limits.shares(question, SHARES_PATIENCE).await;
            self.quotas.table().is_cut_off = answer.is_err();
            let answer = answer.map_err(|failure| failure.to_string())?;
            let raised = self.take_shares(&mut asking, shares, answer);
            self.note_bounds_of(&raised).await.map_err(|error| {
                self.note(&error);
                error.to_string()
            })?;
            if !is_more {
                return Ok(());
            }
        }
    }

    /// What is to be said, and whose share is to be noted before.
    fn weigh_all(
        &self,
        asking: &mut Asking,
        wish: &mut Wish,
    ) -> (Vec<ShareHeld>, BTreeSet<Payer>, bool) {
        let (mut shares, mut unnoted, now) =
            (vec![], BTreeSet::new(), wall_time(&self.parts.world));
        let mut table = self.quotas.table();
        let promised = table.promised_to_all();
        let payers: Vec<Payer> = table.bounds.keys().cloned().collect();
        for payer in payers {
            if shares.len() == SHARES_MAX {
                return (shares, unnoted, true);
            }
            let noted = table.bounds.get(&payer).map(|bound| bound.noted).unwrap_or_default();
            let told = asking.told.get(&payer);
            let promised = promised.get(&payer).copied().unwrap_or(0);
            let in_use = table.in_use_with(&payer, promised).bytes;
            let inodes = table.used(&payer).inodes;
            let is_used_more = told.is_some_and(|told| {
                let was = told.used.bytes.saturating_add(told.promised);
                in_use > was || inodes > told.used.inodes as i64
            });
            let needed = wish.needed.get(&payer).copied().unwrap_or_default();
            let held = table.weigh(&payer, (promised, needed), is_used_more, now);
            let Some(held) = held else { continue };
            if held.share != noted {
                unnoted.insert(payer.clone());
            }
            if wish.told.remove(&payer) || asking.told.get(&payer) != Some(&held) {
                shares.push(held);
            }
        }
        asking.told.retain(|payer, _| table.bounds.contains_key(payer));
        // Limits that went take their shares with them.
        while let Some(payer) = wish.told.pop_first() {
            if shares.len() == SHARES_MAX {
                wish.told.insert(payer);
                return (shares, unnoted, true);
            }
            let (share, used, promised) = (Share::default(), Used::default(), 0);
            let (needed, wanted) = (share, share);
            shares.push(ShareHeld { payer, share, used, promised, needed, wanted });
        }
        (shares, unnoted, false)
    }

    fn take_shares(
        &self,
        asking: &mut Asking,
        said: Vec<ShareHeld>,
        answer: QuotaSharesReply,
    ) -> BTreeSet<Payer> {
        let mut table = self.quotas.table();
        let (mut raised, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for given in answer.shares {
            if given.is_asked {
                asked.insert(given.payer.clone());
            }
            let Some(bound) = table.bounds.get_mut(&given.payer) else { continue };
            if bound.share != given.share {
                bound.share = given.share;
                raised.insert(given.payer);
            }
        }
        for mut held in said {
            let Some(bound) = table.bounds.get_mut(&held.payer) else { continue };
            if !asked.contains(&held.payer) {
                bound.refuse(held.needed);
            }
            // What it will say if nothing changes.
            (held.share, held.needed, held.wanted) =
                (bound.share, Share::default(), Share::default());
            asking.told.insert(held.payer.clone(), held);
        }
        raised
    }

    pub(super) async fn note_bounds_of(&self, payers: &BTreeSet<Payer>) -> Result<()> {
        if payers.is_empty() {
            return Ok(());
        }
        // What was read later is written later.
        let _noting = self.following.noting.lock().await;
        let bounds: Vec<_> = {
            let table = self.quotas.table();
            payers.iter().map(|payer| (payer, table.bounds.get(payer).copied())).collect()
        };
        let mut transaction = self.parts.store.begin().await?;
        for &(payer, bound) in &bounds {
            match bound {
                Some(bound) => transaction.put(key::limits(payer), bound.record().to_bytes()),
                None => transaction.delete(key::limits(payer)),
            }
        }
        transaction.commit().await?.durable.await?;
        let mut table = self.quotas.table();
        for (payer, bound) in bounds {
            if let (Some(now), Some(noted)) = (table.bounds.get_mut(payer), bound) {
                now.noted = noted.share;
            }
        }
        Ok(())
    }
}
