//! Hearing of limits that are kept elsewhere.
//!
//! One question is always under way. What news say is noted in the store and told to clients before
//! the next question says that it is known.
//!
//! Invariant: what is said to be known holds for every client that answers.

use super::follow::{TRY_AGAIN, Wish};
use crate::error::Result;
use crate::mdt::Mdt;
use crate::placement::wall_time;
use crate::quotas::Bound;
use crate::quotas::news::{Taken, by_own_clock};
use std::collections::BTreeSet;
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{QuotaGrace, key};
use tieline_types::Time;
use tieline_types::quota::Payer;
use tieline_wire::quotas::{LimitsNews, QuotaNews, QuotaNewsReply};
use tokio::time::Instant;

/// A question after news is held for so long.
const NEWS_WAIT: Duration = Duration::from_secs(3);
/// Beyond that, for the way there and back.
const NEWS_PATIENCE: Duration = Duration::from_secs(7);

/// How far news were heard.
#[derive(Default)]
struct Walk {
    epoch: u64,
    known: u64,
    /// Who was among them, while all are told anew.
    seen: Option<BTreeSet<Payer>>,
}

impl Mdt {
    pub(super) async fn hear_news(&self) {
        let mut walk = Walk::default();
        while self.trouble().is_none() {
            if let Err(why) = self.hear(&mut walk).await {
                tracing::debug!(why, "no news of limits");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }

    async fn hear(&self, walk: &mut Walk) -> Result<(), String> {
        let mdt = self.settings.mdt;
        let wait_ms = u32::try_from(NEWS_WAIT.as_millis()).unwrap_or(u32::MAX);
        let question = QuotaNews { mdt, epoch: walk.epoch, known: walk.known, wait_ms };
        let told = self.parts.limits.news(question, NEWS_PATIENCE).await;
        let told = told.map_err(|failure| failure.to_string())?;
        self.take_news(walk, told).await.map_err(|error| {
            self.note(&error);
            error.to_string()
        })
    }

    /// Takes in what limits are now, and sees to it that it holds.
    async fn take_news(&self, walk: &mut Walk, news: QuotaNewsReply) -> Result<()> {
        self.quotas.table().is_cut_off = false;
        if news.epoch != walk.epoch {
            *walk = Walk { epoch: news.epoch, known: 0, seen: Some(BTreeSet::new()) };
            // Who begins anew knows nothing of what was said.
            self.following.begin_anew().await;
        }
        let is_idle = news.limits.is_empty() && walk.seen.is_none() && news.known == walk.known;
        let mut taken = self.take_limits(walk, &news);
        if is_idle && taken.is_empty() {
            return Ok(());
        }
        self.note_bounds_of(&taken.changed).await?;
        self.note_graces(&news).await?;
        if !taken.fresh.is_empty() {
            // Shares first, then the limits: nobody is to be refused who has room.
            let told = taken.fresh.clone();
            let _ = self.exchange(Wish { told, ..Wish::default() }).await;
            self.quotas.table().hold(&taken.fresh);
        }
        if taken.is_announced {
            self.ask_promises(self.sessions.ids()).await;
        } else if !taken.short.is_empty() {
            let holders = self.quotas.table().holders(&taken.short);
            self.ask_promises(holders).await;
        }
        taken.changed.append(&mut taken.short);
        let wish = Wish { told: taken.changed, known: Some(news.known), ..Wish::default() };
        // If it is not heard now, it is with the next.
        let _ = self.exchange(wish).await;
        walk.known = news.known;
        Ok(())
    }

    fn take_limits(&self, walk: &mut Walk, news: &QuotaNewsReply) -> Taken {
        let (mut taken, mut table) = (Taken::default(), self.quotas.table());
        let own = wall_time(&self.parts.world);
        let here = |time: Option<Time>| time.map(|time| by_own_clock(time, news.now, own));
        for told in &news.limits {
            let LimitsNews { payer, limits, bytes_over, inodes_over, is_short, .. } = told;
            let (is_default, is_free) = (told.is_default == Some(true), told.is_free == Some(true));
            if let Some(seen) = &mut walk.seen {
                seen.insert(payer.clone());
            }
            if limits.is_none() && !is_free {
                taken.end(&mut table, payer);
                continue;
            }
            let known = table.bounds.get(payer).copied();
            let mut bound = known.unwrap_or(Bound { is_new: true, ..Bound::default() });
            taken.is_announced |= bound.limits != *limits;
            (bound.limits, bound.bytes_over, bound.inodes_over) =
                (*limits, here(*bytes_over), here(*inodes_over));
            (bound.is_default, bound.is_free) = (is_default, is_free);
            bound.short = is_short.then(Instant::now);
            if known.is_none() {
                taken.fresh.insert(payer.clone());
            }
            if *is_short {
                taken.short.insert(payer.clone());
            }
            if known.is_none_or(|known| known.record() != bound.record()) {
                taken.changed.insert(payer.clone());
            }
            table.bounds.insert(payer.clone(), bound);
        }
        if news.is_end
            && let Some(seen) = walk.seen.take()
        {
            let old = table.bounds.keys().filter(|payer| !seen.contains(payer));
            for payer in old.cloned().collect::<Vec<_>>() {
                taken.end(&mut table, &payer);
            }
        }
        if !news.limits.is_empty() || news.is_end {
            taken.follow(&mut table);
        }
        self.quotas.note_limits(&table);
        taken
    }

    async fn note_graces(&self, news: &QuotaNewsReply) -> Result<()> {
        let changed: Vec<_> = {
            let mut table = self.quotas.table();
            let graces = news.graces.iter().filter(|known| table.grace(known.kind) != known.grace);
            let changed: Vec<_> = graces.copied().collect();
            for known in &changed {
                table.grace.insert(known.kind, known.grace);
            }
            changed
        };
        if changed.is_empty() {
            return Ok(());
        }
        let mut transaction = self.parts.store.begin().await?;
        for known in changed {
            let record = QuotaGrace { grace: known.grace };
            transaction.put(key::grace(known.kind), record.to_bytes());
        }
        transaction.commit().await?.durable.await?;
        Ok(())
    }
}
