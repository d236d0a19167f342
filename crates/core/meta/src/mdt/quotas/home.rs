//! The MDT that keeps the limits: tells others of them, and gives them shares.
//!
//! Others ask all the time what is new, so that they hear of it at once. When somebody is short of
//! room, all are told so, and what they do not use comes back with their next words.
//!
//! Invariants: a share is noted in the store before it is given; nobody is waited for who was not
//! heard of lately.

use crate::Asker;
use crate::error::{Error, Result};
use crate::mdt::Mdt;
use crate::permission;
use crate::placement::wall_time;
use crate::quotas::Table;
use crate::quotas::shares::There;
use std::collections::BTreeMap;
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{QuotaShare, key};
use tieline_types::MdtIndex;
use tieline_types::quota::Payer;
use tieline_wire::Failure;
use tieline_wire::quotas::{
    QuotaNews, QuotaNewsReply, QuotaShares, QuotaSharesReply, ReclaimShares, ReclaimSharesReply,
    ShareGiven,
};

/// Payers in one question.
pub(super) const SHARES_MAX: usize = 1024;
/// Longest time that a question after news is held.
const NEWS_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long others may take to give back, and to take in new limits.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(3);
const TELL_PATIENCE: Duration = Duration::from_secs(8);
/// How often it is asked for at most.
const GATHER_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked whether a grace is over.
const GRACE_LOOK: Duration = Duration::from_secs(1);

impl Mdt {
    fn is_home(&self) -> bool {
        self.quotas.table().is_home
    }

    /// Answers another MDT that says what it holds of limits, and asks for more. Whether it is the
    /// one that it says is for the caller to judge.
    pub async fn quota_shares(&self, request: &QuotaShares) -> Result<QuotaSharesReply, Failure> {
        let answer = self.answer_shares(request).await;
        answer.map_err(|error| self.told_failure(error))
    }

    /// Answers another MDT that asks what is new, when something is.
    pub async fn quota_news(&self, request: &QuotaNews) -> Result<QuotaNewsReply, Failure> {
        if !self.is_home() || request.mdt == self.settings.mdt {
            return Err(self.told_failure(Error::LimitsElsewhere));
        }
        let (epoch, newest) = {
            let table = self.quotas.table();
            (table.epoch, table.news)
        };
        let known = if request.epoch == epoch { request.known } else { 0 };
        self.home.contact(request.mdt, |contact| contact.known = known);
        if request.epoch == epoch && known >= newest {
            let wait = Duration::from_millis(request.wait_ms.into()).min(NEWS_WAIT_MAX);
            let mut news = self.quotas.subscribe();
            // The time that is over is an answer, too.
            let _ = tokio::time::timeout(wait, news.wait_for(|&newest| newest > known)).await;
        }
        let now = Some(wall_time(&self.parts.world));
        Ok(QuotaNewsReply { now, ..self.quotas.table().news_since(request.epoch, known) })
    }

    fn told_failure(&self, error: Error) -> Failure {
        self.note(&error);
        error.into_failure(self.settings.mdt)
    }

    async fn answer_shares(&self, request: &QuotaShares) -> Result<QuotaSharesReply> {
        if !self.is_home() || request.mdt == self.settings.mdt {
            return Err(Error::LimitsElsewhere);
        }
        if request.shares.len() > SHARES_MAX {
            return Err(Error::Invalid { what: "more than 1024 shares are told at once" });
        }
        let question = (request.boot, request.number);
        self.give_shares(request, question).await
    }

    async fn give_shares(
        &self,
        request: &QuotaShares,
        question: (u64, u64),
    ) -> Result<QuotaSharesReply> {
        let (mdt, now) = (request.mdt, wall_time(&self.parts.world));
        let giving = self.home.giving.lock().await;
        let is_newest = self.home.is_newest(mdt, question);
        if !is_newest {
            return Err(Error::Invalid { what: "a later question after shares was heard" });
        }
        let (mut shares, mut notes) = (vec![], vec![]);
        {
            let mut table = self.quotas.table();
            for held in &request.shares {
                table.inherit(&held.payer, now);
                let before = table.there(mdt, &held.payer);
                let share = table.give(mdt, held, request.known, now);
                let there = table.there(mdt, &held.payer);
                if there.map_or(before.is_some(), |there| !there.is_noted) {
                    notes.push((held.payer.clone(), there));
                }
                if table.bounds.contains_key(&held.payer) {
                    let is_refused =
                        share.bytes < held.needed.bytes || share.inodes < held.needed.inodes;
                    let is_asked = is_refused && self.ask_back(&mut table, &held.payer, mdt);
                    shares.push(ShareGiven { payer: held.payer.clone(), share, is_asked });
                }
            }
            self.quotas.announce(&table);
        }
        if !notes.is_empty() {
            let mut transaction = self.parts.store.begin().await?;
            for (payer, there) in &notes {
                let key = key::share(mdt, payer);
                match *there {
                    Some(There { share, used, promised, .. }) => {
                        transaction.put(key, QuotaShare { share, used, promised }.to_bytes());
                    }
                    None => transaction.delete(key),
                }
            }
            transaction.commit().await?.durable.await?;
            let mut table = self.quotas.table();
            notes.iter().for_each(|(payer, _)| table.share_noted(mdt, payer));
        }
        drop(giving);
        // Who waits for what was given back.
        self.home.contact(mdt, |_| ());
        Ok(QuotaSharesReply { shares })
    }

    /// Forgets what a lost MDT held. Should it come back after all, it gets anew what there is room
    /// for; what it lets in until then nobody counts.
    pub(super) async fn reclaim_shares(
        &self,
        asker: &Asker,
        request: &ReclaimShares,
    ) -> Result<ReclaimSharesReply> {
        permission::check_root(&asker.caller, "take shares of limits back")?;
        let mdt = request.mdt;
        if !self.is_home() {
            return Err(Error::LimitsElsewhere);
        }
        if mdt == self.settings.mdt {
            return Err(Error::Invalid { what: "taking back from the MDT that keeps all limits" });
        }
        if self.home.is_in_touch(mdt) {
            let what = "taking back from an MDT that was there within the last 10 s";
            return Err(Error::Invalid { what });
        }
        let giving = self.home.giving.lock().await;
        let payers = self.quotas.table().payers_of(mdt);
        if !payers.is_empty() {
            let mut transaction = self.parts.store.begin().await?;
            payers.iter().for_each(|payer| transaction.delete(key::share(mdt, payer)));
            transaction.commit().await?.durable.await?;
            let mut table = self.quotas.table();
            table.forget(mdt);
            self.quotas.announce(&table);
        }
        drop(giving);
        let count = payers.len();
        tracing::info!(mdt = %mdt.label(), count, "shares of limits are taken back");
        Ok(ReclaimSharesReply { payers: u32::try_from(count).unwrap_or(u32::MAX) })
    }

    /// Asks other MDTs, and clients here, to give back what they do not use, for one MDT that is
    /// short. Says whether some have not answered yet.
    fn ask_back(&self, table: &mut Table, payer: &Payer, mdt: MdtIndex) -> bool {
        let own = table.promised(payer);
        let spare = self.spare(table, payer, Some(mdt));
        let Some(bound) = table.bounds.get(payer).copied() else { return false };
        if spare.is_empty() && own == 0 {
            return false;
        }
        let is_asked = bound.short.is_some_and(|at| at.elapsed() < GATHER_PAUSE);
        if !is_asked {
            table.tell_news(payer, true);
            self.home.wanted.notify_one();
            return true;
        }
        let news = bound.short_news;
        let is_waited = |mdt: &MdtIndex| table.there(*mdt, payer).is_some_and(|it| it.known < news);
        spare.iter().any(is_waited) || (own > 0 && bound.own_news < news)
    }

    /// Who has something to give back, and will be heard.
    fn spare(&self, table: &Table, payer: &Payer, but: Option<MdtIndex>) -> Vec<MdtIndex> {
        let others = table.others.get(payer).into_iter().flatten();
        let spare = others.filter(|(mdt, there)| Some(**mdt) != but && there.has_spare());
        spare.map(|(mdt, _)| *mdt).filter(|mdt| self.home.is_in_touch(*mdt)).collect()
    }

    /// Has clients here give back what others are short of. Runs until dropped.
    async fn give_back_own(&self) {
        loop {
            self.home.wanted.notified().await;
            let wanted: BTreeMap<Payer, u64> = {
                let table = self.quotas.table();
                let short =
                    table.bounds.iter().filter(|(_, bound)| bound.short_news > bound.own_news);
                short.map(|(payer, bound)| (payer.clone(), bound.short_news)).collect()
            };
            let holders = self.quotas.table().holders(&wanted.keys().cloned().collect());
            self.ask_promises(holders).await;
            let mut table = self.quotas.table();
            for (payer, news) in wanted {
                if let Some(bound) = table.bounds.get_mut(&payer) {
                    bound.own_news = news;
                }
            }
        }
    }

    /// Asks other MDTs to give back what they do not use, and waits for it: somebody here is short.
    /// Says whether anybody had something.
    pub(super) async fn gather(&self, payer: &Payer) -> bool {
        let (spare, news) = {
            let mut table = self.quotas.table();
            let spare = self.spare(&table, payer, None);
            let Some(bound) = table.bounds.get(payer).copied() else { return true };
            if spare.is_empty() {
                return false;
            }
            let is_asked = bound.short.is_some_and(|at| at.elapsed() < GATHER_PAUSE);
            let news = if is_asked { bound.short_news } else { table.tell_news(payer, true) };
            self.quotas.announce(&table);
            (spare, news)
        };
        let is_heard = |mdt: &MdtIndex| {
            self.quotas.table().there(*mdt, payer).is_none_or(|there| there.known >= news)
        };
        self.home.wait(GIVE_BACK_PATIENCE, || spare.iter().all(is_heard)).await;
        true
    }

    /// Waits until the limits of now hold everywhere; who did not say so in time is named.
    pub(super) async fn limits_told(&self) -> Vec<MdtIndex> {
        let news = self.quotas.table().news;
        let map = self.parts.map.current();
        let others = map.map.mdts.iter().map(|known| known.mdt);
        let others: Vec<MdtIndex> = others.filter(|mdt| *mdt != self.settings.mdt).collect();
        let knows = |mdt: &MdtIndex| self.home.known(*mdt) >= news;
        let waited: Vec<_> = others.iter().filter(|mdt| self.home.is_in_touch(**mdt)).collect();
        self.home.wait(TELL_PATIENCE, || waited.iter().all(|mdt| knows(mdt))).await;
        others.into_iter().filter(|mdt| !knows(mdt)).collect()
    }

    /// Looks after what others are to be told. Runs until dropped.
    pub(super) async fn keep_home(&self) {
        tokio::join!(self.watch_graces(), self.give_back_own());
    }

    /// Tells others when the grace of somebody's soft limit is over.
    async fn watch_graces(&self) {
        loop {
            let now = wall_time(&self.parts.world);
            {
                let mut table = self.quotas.table();
                for payer in table.newly_late(now) {
                    table.tell_news(&payer, true);
                }
                self.quotas.announce(&table);
            }
            tokio::time::sleep(GRACE_LOOK).await;
        }
    }
}
