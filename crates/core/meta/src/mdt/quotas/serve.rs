//! The calls: telling and setting quotas, and promising bytes.

use crate::Asker;
use crate::error::{Error, Result};
use crate::leases::{EVERYTHING, Holder};
use crate::mdt::Mdt;
use crate::permission;
use crate::placement::wall_time;
use crate::quotas::account_of;
use crate::quotas::told::{MOST, check_limits};
use crate::view::decode;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Inode, QuotaGrace, key};
use tieline_types::quota::{Grace, Limits, Payer, PayerKind};
use tieline_types::{FileId, Gid, SessionId};
use tieline_wire::Request;
use tieline_wire::notice::Recall;
use tieline_wire::quotas::{
    GetQuota, ListQuotas, ListQuotasReply, Promise, PromiseReply, Quota, SetQuota, SetQuotaReply,
};
use tokio::task::JoinSet;

/// Quotas in one answer.
const PAGE_MAX: u32 = 1024;
/// A client that does not answer for so long is not waited for. What it was told before ends with
/// its lease.
const RECALL_PATIENCE: Duration = Duration::from_secs(5);
/// How often more room is asked for, for one promise: a share that was given may be lowered before
/// it is used.
const EXTENSIONS: usize = 2;

impl Mdt {
    /// Answers a call about quotas; `None`: it is none.
    pub(crate) async fn quota_call(
        &self,
        asker: &Asker,
        request: &Request,
    ) -> Option<Result<Vec<u8>>> {
        Some(match request {
            Request::GetQuota(r) => self.get_quota(asker, r).map(|r| tieline_wire::encode(&r)),
            Request::SetQuota(r) => {
                self.set_quota(asker, r).await.map(|r| tieline_wire::encode(&r))
            }
            Request::ListQuotas(r) => self.list_quotas(asker, r).map(|r| tieline_wire::encode(&r)),
            Request::ReclaimShares(r) => {
                self.reclaim_shares(asker, r).await.map(|r| tieline_wire::encode(&r))
            }
            Request::Promise(r) => self.promise(asker, r).await.map(|r| tieline_wire::encode(&r)),
            _ => return None,
        })
    }

    fn get_quota(&self, asker: &Asker, request: &GetQuota) -> Result<Quota> {
        let (payer, caller) = (&request.payer, &asker.caller);
        let is_own = match payer.kind {
            PayerKind::User => caller.uid.0 == payer.id,
            PayerKind::Group => caller.is_member(Gid(payer.id)),
            PayerKind::Project => true,
        };
        let (table, now) = (self.quotas.table(), wall_time(&self.parts.world));
        if request.is_default == Some(true) {
            return Ok(table.tell_default(payer, now));
        }
        if !is_own {
            permission::check_root(caller, "see the quotas of others")?;
        }
        Ok(table.tell(payer, now))
    }

    fn list_quotas(&self, asker: &Asker, request: &ListQuotas) -> Result<ListQuotasReply> {
        permission::check_root(&asker.caller, "list everybody's quotas")?;
        let (table, now) = (self.quotas.table(), wall_time(&self.parts.world));
        let is_wanted = |payer: &&Payer| {
            payer.kind == request.kind && request.after.as_ref().is_none_or(|after| after < payer)
        };
        let used = table.used.iter().filter(|(_, sum)| sum.bytes != 0 || sum.inodes != 0);
        let limited = table.bounds.keys().filter(|payer| payer.id != 0);
        let payers: BTreeSet<&Payer> =
            used.map(|(payer, _)| payer).chain(limited).filter(is_wanted).collect();
        let limit = request.limit.clamp(1, PAGE_MAX) as usize;
        Ok(ListQuotasReply {
            quotas: payers.iter().take(limit).map(|payer| table.tell(payer, now)).collect(),
            is_end: payers.len() <= limit,
        })
    }

    async fn set_quota(&self, asker: &Asker, request: &SetQuota) -> Result<SetQuotaReply> {
        permission::check_root(&asker.caller, "set quotas")?;
        if !self.quotas.table().is_home {
            return Err(Error::LimitsElsewhere);
        }
        let (payer, now) = (&request.payer, wall_time(&self.parts.world));
        let is_default = request.is_default == Some(true);
        let (old, old_grace) = {
            let table = self.quotas.table();
            let own = table.bounds.get(payer).map(|bound| bound.limits);
            let old = own.or_else(|| table.default_limits(payer)).unwrap_or_default();
            (old, table.grace(payer.kind))
        };
        let limit = |wanted: Option<u64>, old: u64| wanted.unwrap_or(old).min(MOST);
        let limits = Limits {
            bytes_soft: limit(request.bytes_soft, old.bytes_soft),
            bytes_hard: limit(request.bytes_hard, old.bytes_hard),
            inodes_soft: limit(request.inodes_soft, old.inodes_soft),
            inodes_hard: limit(request.inodes_hard, old.inodes_hard),
        };
        check_limits(payer, limits, is_default)?;
        let grace = Grace {
            bytes_seconds: limit(request.bytes_grace, old_grace.bytes_seconds),
            inodes_seconds: limit(request.inodes_grace, old_grace.inodes_seconds),
        };
        let mut transaction = self.parts.store.begin().await?;
        if grace != old_grace {
            let mut table = self.quotas.table();
            table.grace.insert(payer.kind, grace);
            table.tell_grace();
            self.quotas.announce(&table);
            drop(table);
            transaction.put(key::grace(payer.kind), QuotaGrace { grace }.to_bytes());
        }
        let sets = request.sets_limits();
        let changed = match sets {
            true => self.quotas.set(payer, (limits, is_default), now),
            false => BTreeMap::new(),
        };
        for (payer, bound) in &changed {
            match bound {
                None => transaction.delete(key::limits(payer)),
                Some(bound) => transaction.put(key::limits(payer), bound.record().to_bytes()),
            }
        }
        transaction.commit().await?.durable.await?;
        if !changed.is_empty() {
            let whose = changed.len();
            let uid = asker.caller.uid.0;
            tracing::info!(%payer, ?limits, is_default, whose, uid, "quota set");
        }
        // What clients believed of limits ends, and what they did by themselves comes in.
        let own = if changed.is_empty() { BTreeSet::new() } else { self.sessions.ids() };
        let (_, absent) = tokio::join!(self.ask_promises(own), self.limits_told());
        let absent = Some(absent).filter(|absent| !absent.is_empty());
        let quota = match (payer.id, is_default) {
            (0, true) => self.quotas.table().tell_default(payer, now),
            _ => self.quotas.table().tell(payer, now),
        };
        Ok(SetQuotaReply { quota, absent })
    }

    /// Has sessions send what they did alone, and give back what was promised and is not used.
    pub(crate) async fn ask_promises(&self, sessions: BTreeSet<SessionId>) {
        if sessions.is_empty() {
            return;
        }
        let Ok(begun) = self.parts.store.begin().await else { return };
        let (at, unit) = (begun.version(), FileId::new(self.settings.mdt, EVERYTHING.serial()));
        drop(begun);
        let mut waiting = JoinSet::new();
        for session in sessions {
            let recall = Recall::look(unit, at);
            let recaller = self.parts.recaller.clone();
            waiting.spawn(async move {
                (session, recaller.recall(session, recall, RECALL_PATIENCE).await)
            });
        }
        while let Some(joined) = waiting.join_next().await {
            let Ok((session, Some(answer))) = joined else { continue };
            let everything = Holder { session, unit: EVERYTHING };
            self.note_written(everything, &answer).await;
        }
    }

    async fn promise(&self, asker: &Asker, request: &Promise) -> Result<PromiseReply> {
        let id = request.id;
        if let Some(payers) = &request.payers {
            let promised = self.quotas.concerns(payers).then_some(0);
            return Ok(PromiseReply { promised, reason: None });
        }
        if id.mdt() != self.settings.mdt {
            return Err(Error::OtherMdt { id });
        }
        let key = key::inode(id);
        let mut transaction = self.parts.store.begin().await?;
        let value = transaction.read(&[key]).await?.into_iter().next().flatten();
        drop(transaction);
        let Some(value) = value else {
            // What was promised for it is not needed any more.
            self.quotas.forget(asker.session, id);
            return Err(Error::Stale { id });
        };
        let inode: Inode = decode(&value, || id.to_string())?;
        // Whoever may not write it may give back what was promised.
        if (request.wanted, request.needed) != (0, 0) {
            self.check_handle(asker, (id, &inode), &[permission::WRITE])?;
        }
        let (account, whom) = (account_of(&inode), (asker.session, id));
        let now = wall_time(&self.parts.world);
        let amounts = (request.wanted.max(request.needed).min(MOST), request.needed.min(MOST));
        let mut promised = self.quotas.promise(whom, &account, amounts, now);
        if !promised.others.is_empty() {
            self.ask_promises(promised.others).await;
            promised = self.quotas.promise(whom, &account, amounts, now);
        }
        for _ in 0..EXTENSIONS {
            if promised.lacks.is_empty() {
                break;
            }
            let has_room = self.extend(&promised.lacks).await;
            // What was written meanwhile has used of it, whether there is more or not.
            promised = self.quotas.promise(whom, &account, amounts, now);
            if !has_room {
                break;
            }
        }
        if promised.is_less {
            self.following.kick.notify_one();
        }
        if let Some(reason) = &promised.tight {
            let (file, uid) = (id.to_string(), asker.caller.uid.0);
            tracing::info!(
                session = asker.session.0,
                file,
                uid,
                "quota exceeded: {reason}; delete files, or raise it with `tieline setquota`"
            );
        }
        Ok(PromiseReply { promised: promised.bytes, reason: promised.tight })
    }
}
