//! What operators and `df` ask: space, layouts, extents, the map; and the end.

use crate::Volume;
use crate::reader::EXTENTS_PAGE;
use crate::shared::{Shared, lock};
use crate::writer::How;
use crate::{FsSpace, LayoutInForce, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_believed::Under;
use tieline_owed::spool::Claim;
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{Caller, FileId, MdtIndex, Retry};
use tieline_wire::Call;
use tieline_wire::federation::{EditMap, MapEdit};
use tieline_wire::meta::{
    ExtentPage, GetExtents, GetLayout, LayoutChange, SetLayout, Usage, UsageReply,
};
use tieline_wire::quotas::{GetQuota, Quota};
use tokio::time::Instant;

/// `df` may be this old.
const SPACE_KEPT: Duration = Duration::from_secs(2);
/// After so long `df` answers with what it knew last.
const SPACE_PATIENCE: Duration = Duration::from_secs(1);
/// The same where it knows something.
const SPACE_PATIENCE_KNOWN: Duration = Duration::from_millis(400);
/// A mount that takes longer to end has copies of what it has to send in the spool.
const COPY_AFTER: Duration = Duration::from_secs(1);
/// How long servers may take to let us go.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);
/// Files are limited by the MDT's disk alone; programs want to see a number, some of them one of 32
/// bits together with those in use.
const INODES_FREE: u64 = 1 << 31;

impl Shared {
    /// In a project's tree: its quota, as far as it is less than there is.
    pub(crate) async fn statfs(self: &Arc<Self>, id: FileId) -> Result<FsSpace> {
        let space = self.space_of_all().await?;
        if self.is_away(id.mdt()) {
            return Ok(space);
        }
        let within = tokio::time::timeout(SPACE_PATIENCE_KNOWN, self.project_quota(id)).await;
        Ok(match within {
            Ok(Some(quota)) => space_within(space, &quota),
            _ => space,
        })
    }

    async fn project_quota(self: &Arc<Self>, id: FileId) -> Option<Quota> {
        let caller = Caller::root();
        let project = self.attributes(&caller, id).await.ok()?.attributes.project?;
        let payer = Payer { kind: PayerKind::Project, id: project, pool: None };
        // The MDT of the root knows of all; its own does while that one is away.
        let home = FileId::root_of(MdtIndex(0));
        let asked = self.ask(&caller, home, GetQuota { payer: payer.clone(), is_default: None });
        if let Ok(Ok(told)) = tokio::time::timeout(SPACE_PATIENCE / 2, asked).await {
            return Some(told.reply);
        }
        Some(self.ask(&caller, id, GetQuota { payer, is_default: None }).await.ok()?.reply)
    }

    async fn space_of_all(self: &Arc<Self>) -> Result<FsSpace> {
        let seen = *lock(&self.space);
        if let Some((space, at)) = seen
            && at.elapsed() < SPACE_KEPT
        {
            return Ok(space);
        }
        let mdt = self.root.mdt();
        if let Some((space, _)) = seen.filter(|_| self.is_away(mdt)) {
            return Ok(space);
        }
        let patience = if seen.is_some() { SPACE_PATIENCE_KNOWN } else { SPACE_PATIENCE };
        // Each MDS has heard of the space that it reaches.
        let asked = self.servers.anywhere(mdt, |mdt| {
            let shared = self.clone();
            async move { Ok(shared.ask_mdt(&Caller::root(), mdt, Usage {}, patience).await?.reply) }
        });
        // Whatever happens, `df` answers.
        let space = match tokio::time::timeout(patience, asked).await {
            Ok(Ok(usage)) => space_of(&usage),
            _ => seen.map_or(NO_SPACE, |(space, _)| space),
        };
        *lock(&self.space) = Some((space, Instant::now()));
        Ok(space)
    }

    pub(crate) async fn usage(&self) -> Result<UsageReply> {
        let root = FileId::root_of(MdtIndex(0));
        Ok(self.ask(&Caller::root(), root, Usage {}).await?.reply)
    }

    pub(crate) async fn layout(&self, caller: &Caller, id: FileId) -> Result<LayoutInForce> {
        let reply = self.ask(caller, id, GetLayout { id }).await?.reply;
        Ok(LayoutInForce { layout: reply.layout, is_own: reply.is_own, stripe: reply.stripe })
    }

    pub(crate) async fn set_layout(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        change: Option<LayoutChange>,
    ) -> Result<()> {
        let (shared, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            let outcome = shared.ask(&caller, id, SetLayout { id, layout: change }).await;
            let told = outcome.inspect_err(|error| shared.doubt_change(id, error))?;
            let reply = told.reply;
            let mut tables = shared.cache.lock();
            let known = tables.admit(told.stamp, &reply.lease);
            // What files in it inherit is another thing now.
            tables.units.share(id, known.as_of);
            tables.learn_attributes(known, &reply.lease, Under::Granted, reply.attributes);
            drop(tables);
            if let Some(file) = shared.files.known(id) {
                // The next open asks.
                file.with(|state| state.layout = None);
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn extents(
        &self,
        caller: &Caller,
        id: FileId,
        offset: u64,
    ) -> Result<ExtentPage> {
        let message = GetExtents { id, offset, limit: EXTENTS_PAGE };
        Ok(self.ask(caller, id, message).await?.reply.page)
    }

    pub(crate) async fn edit_map(&self, caller: &Caller, edit: MapEdit) -> Result<()> {
        let mdt = MdtIndex(0);
        self.ask_mdt(caller, mdt, EditMap { edit }, self.servers.wait_for(mdt)).await?;
        // Ours follows with the notice; who edits wants to see it at once.
        self.servers.refresh(mdt).await
    }

    /// Commits what is dirty, then ends the sessions. What no server has taken by then is in the
    /// spool. A copy of it is there as soon as that takes long: whoever ends this process meanwhile
    /// loses nothing.
    pub(crate) async fn close(self: &Arc<Self>, patience: Duration) {
        let deadline = Instant::now() + patience;
        let why: Mutex<BTreeMap<FileId, String>> = Mutex::default();
        let copied = async {
            tokio::time::sleep(COPY_AFTER).await;
            let known = lock(&why).clone();
            self.spool_unsent(Claim::Waiting, &known).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = self.send_all(deadline, &why) => {}
            () = copied => {}
        }
        let why = lock(&why).clone();
        self.spool_rest(&why).await;
        tokio::join!(self.tell_last_runs(GOODBYE_PATIENCE), self.leave_rooms());
        // Whom we cannot tell finds out when the lease is over.
        self.servers.close(GOODBYE_PATIENCE).await;
    }

    /// What no server has is in the spool when this ends, and nothing else that was a copy.
    async fn spool_rest(&self, why: &BTreeMap<FileId, String>) {
        let files = self.spool_unsent(Claim::Answered, why).await;
        if files > 0 {
            tracing::error!(files, "written bytes are not at their servers: spooled");
        }
        self.forget_copies().await;
    }

    async fn send_all(self: &Arc<Self>, deadline: Instant, why: &Mutex<BTreeMap<FileId, String>>) {
        let files: Vec<_> = lock(&self.dirty).values().cloned().collect();
        let mut tasks = tokio::task::JoinSet::new();
        for file in files {
            let shared = self.clone();
            tasks.spawn(async move {
                while let Err(error) = shared.launder(&file, How::Flush).await {
                    if error.kind().retry() == Retry::Never || Instant::now() >= deadline {
                        tracing::error!(file = %file.id, %error, "written bytes are not committed");
                        return Some((file.id, error.to_string()));
                    }
                    tokio::time::sleep(SPACE_PATIENCE).await;
                }
                None
            });
        }
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                lock(why).extend(ended.ok().flatten());
            }
        };
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            tracing::error!("file system is closed before everything was committed");
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(SPACE_PATIENCE);
        if let Err(error) = self.drain_all(left).await {
            tracing::error!(%error, "file system is closed before everything was sent");
        }
    }
}

impl Volume {
    /// Ends the sessions as they are: for whoever cannot wait until everything is committed.
    pub async fn part(&self, patience: Duration) {
        self.shared.servers.close(patience).await;
    }

    /// Puts what no server has yet into the spool, now: for whoever has to end at once.
    pub async fn spool_unsent(&self) {
        self.shared.spool_rest(&BTreeMap::new()).await;
    }

    /// What no server has yet is not wanted any more: no copy of it stays in the spool.
    pub async fn drop_unsent(&self) {
        self.shared.forget_copies().await;
    }

    /// Asks the MDT of a file something that only operators ask.
    pub async fn ask_of_mdt<C: Call + Clone>(
        &self,
        caller: &Caller,
        id: FileId,
        message: C,
    ) -> Result<C::Reply> {
        Ok(self.shared.ask(caller, id, message).await?.reply)
    }
}

/// The limits of a tree take the place of the file system's size, where they are smaller.
fn space_within(mut space: FsSpace, quota: &Quota) -> FsSpace {
    let limits = quota.limits;
    let elsewhere = quota.elsewhere.iter().flatten();
    let (mut bytes, mut inodes) = (quota.used.bytes, quota.used.inodes);
    bytes = bytes.saturating_add(quota.promised);
    for there in elsewhere {
        bytes = bytes.saturating_add(there.used.bytes).saturating_add(there.promised);
        inodes = inodes.saturating_add(there.used.inodes);
    }
    let first = |soft: u64, hard: u64| [soft, hard].into_iter().find(|&limit| limit > 0);
    if let Some(limit) = first(limits.bytes_soft, limits.bytes_hard) {
        let free = limit.saturating_sub(bytes).min(space.bytes_free);
        space.bytes_total = limit.min(space.bytes_total);
        space.bytes_free = free.min(space.bytes_total);
    }
    if let Some(limit) = first(limits.inodes_soft, limits.inodes_hard) {
        space.inodes_total = limit;
        space.inodes_free = limit.saturating_sub(inodes);
    }
    space
}

const NO_SPACE: FsSpace =
    FsSpace { bytes_total: 0, bytes_free: 0, inodes_total: INODES_FREE, inodes_free: INODES_FREE };

fn space_of(usage: &UsageReply) -> FsSpace {
    let states = usage.osts.iter().filter_map(|ost| Some((ost.is_active, ost.state.as_ref()?)));
    let mut space = NO_SPACE;
    for (is_active, state) in states {
        space.bytes_total = space.bytes_total.saturating_add(state.bytes_total);
        if is_active {
            space.bytes_free = space.bytes_free.saturating_add(state.bytes_free);
        }
    }
    space.inodes_total = INODES_FREE.saturating_add(usage.inodes);
    space
}
