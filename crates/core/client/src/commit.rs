//! Makes written bytes part of the file: seals what is fresh, waits for it to arrive, commits it.
//!
//! One at a time per file ([`File::gate`]). Chunks that were named under a grant we no longer have
//! are sent again first. A commit that fails for good loses what it held, says so in the log, and
//! at fsync and close ([`crate::late`]).
//!
//! Invariants: a commit's extents are in order and do not overlap; bytes leave the overlay only
//! when their commit was answered; with `Sync`, every OST has made its chunks durable before they
//! are committed.

use crate::file::{File, State, copies};
use crate::send::{OST_PATIENCE, is_refusal};
use crate::shared::{Shared, lock};
use crate::writer::{How, seal_all};
use crate::{Error, Result};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::Under;
use tieline_bytes::race::Race;
use tieline_keep::Keep;
use tieline_owed::records::Noting;
use tieline_owed::writes::{Cut, Space};
use tieline_ranges::overlay::SealId;
use tieline_types::{Caller, Content, ErrorKind, Extent, FileId, OstIndex, Retry, SetTime};
use tieline_wire::data::{SyncFile, SyncFileReply};
use tieline_wire::meta::{Commit, GetAttributes};
use tokio::time::{Instant, timeout_at};

/// How many sessions may be lost under one commit.
const LOST_MAX: u32 = 3;
/// Extents in one commit.
const EXTENTS_MAX: usize = 1024;
/// OSTs that failed lately get so long to sync copies, where others have done so.
const POOR_PATIENCE: Duration = Duration::from_secs(1);
/// Shorter extents make a file worn.
pub(crate) const SMALL_BELOW: u64 = 64 << 10;

impl Shared {
    /// Commits what `how` says. Must run to its end.
    pub(crate) async fn launder(self: &Arc<Self>, file: &Arc<File>, how: How) -> Result<()> {
        let _gate = file.gate.lock().await;
        self.forfeit_gated(file).await;
        let (sealed, last) = file.with(|state| {
            state.stuck = None;
            state.last_committed = Some(Instant::now());
            if how == How::Arrived {
                return (Vec::new(), state.overlay.last_seal());
            }
            state.first_written = state.first_written.and(state.last_committed);
            let sealed = seal_all(state, how);
            let last = state.overlay.last_seal();
            state.overlay.settle(Some(last));
            (sealed, last)
        });
        sealed.into_iter().for_each(|sealed| self.send(file, sealed));
        let laundered = self.launder_sealed(file, how, last).await;
        file.with(|state| state.overlay.settle(None));
        laundered?;
        self.rest_if_clean(file);
        Ok(())
    }

    /// Waits for runs up to one, and commits them. The caller holds the gate.
    async fn launder_sealed(
        self: &Arc<Self>,
        file: &Arc<File>,
        how: How,
        last: SealId,
    ) -> Result<()> {
        if how != How::Arrived {
            self.arrival(file, last).await?;
        }
        let mut lost = 0;
        loop {
            self.send_disowned(file).await?;
            if how == How::Sync {
                self.sync_osts(file).await?;
            }
            self.forfeit_gated(file).await;
            // Who reads what was written last reads what was written before it.
            let arrivals = file.with(|state| {
                let is_part = how == How::Arrived;
                let upto = if is_part { state.overlay.last_arrived() } else { last };
                state.committable(upto)
            });
            if arrivals.is_empty() {
                break;
            }
            match self.commit(file, arrivals).await {
                Err(error) if error.kind() == ErrorKind::SessionLost && lost < LOST_MAX => {
                    lost += 1;
                    self.greet(file).await?;
                }
                other => other?,
            }
            let is_done = how != How::Arrived && file.with(|state| !state.overlay.has_sealed(last));
            if is_done {
                break;
            }
        }
        Ok(())
    }

    /// A file of which nothing waits any more leaves the list of those of which something does.
    /// The caller holds its gate.
    pub(crate) fn rest_if_clean(&self, file: &Arc<File>) {
        let is_clean = file.with(State::rest);
        if is_clean {
            lock(&self.dirty).remove(&file.id);
            self.deferred.forget(file.id);
            // A write may have come in between.
            if file.is_dirty() {
                self.mark_dirty(file);
            }
        }
    }

    /// Any answer proves that there is a session, with a grant to name chunks under.
    pub(crate) async fn greet(&self, file: &File) -> Result<()> {
        let caller = file.with(|state| state.writer.clone());
        self.ask(&caller, file.id, GetAttributes { id: file.id }).await.map(drop)
    }

    /// Waits until sealed runs up to `last` have arrived; an error if one could not be sent for
    /// now.
    async fn arrival(&self, file: &File, last: SealId) -> Result<()> {
        loop {
            let moved = file.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let (is_sending, stuck) =
                file.with(|state| (state.overlay.is_sending(last), state.stuck.clone()));
            match stuck {
                Some((kind, what)) if !is_sending => return Err(Error::local(kind, what)),
                _ if !is_sending => return Ok(()),
                _ => moved.await,
            }
        }
    }

    /// Chunks of a session that is over may have been deleted: they get new names under the grant
    /// of now.
    async fn send_disowned(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let has_chunks = file.with(|state| state.overlay.has_chunks());
        let grant = self.servers.mds(file.id.mdt())?.grant();
        if !has_chunks || grant.is_none() {
            return Ok(());
        }
        let (again, last) =
            file.with(|state| (state.overlay.disown(grant), state.overlay.last_seal()));
        if again.is_empty() {
            return Ok(());
        }
        tracing::warn!(file = %file.id, runs = again.len(), "session was lost: sending again");
        again.into_iter().for_each(|sealed| self.send(file, sealed));
        self.arrival(file, last).await
    }

    /// Makes the file's chunks durable: of each as many copies as the layout says.
    async fn sync_osts(self: &Arc<Self>, file: &File) -> Result<()> {
        let (chunks, begun, enough, as_of) = file.with(|state| {
            let (mut chunks, begun) = state.unsynced.begin();
            let layout = state.layout.clone().unwrap_or_default();
            if !state.is_synced {
                chunks.extend(state.extents.chunks().map(copies));
                if state.size > layout.inline_limit.into() {
                    // Chunks of an earlier open may be there, whose extents were not fetched.
                    let columns = state.stripe.chunks(layout.mirrors.max(1).into());
                    chunks.extend(columns.map(<[OstIndex]>::to_vec));
                }
            }
            (chunks, begun, usize::from(layout.sync.max(1)), state.as_of)
        });
        self.sync_copies(file, &chunks, enough).await?;
        file.with(|state| state.is_synced = state.as_of == as_of);
        self.synced(file, begun);
        Ok(())
    }

    /// Syncs all OSTs at once; done when of each chunk enough copies are durable. Where an OST
    /// fails or stays silent, those that are suffice: of each chunk one at least.
    pub(crate) async fn sync_copies(
        self: &Arc<Self>,
        file: &File,
        chunks: &BTreeSet<Vec<OstIndex>>,
        enough: usize,
    ) -> Result<()> {
        let osts: BTreeSet<OstIndex> = chunks.iter().flatten().copied().collect();
        let have = |least: usize, good: &dyn Fn(OstIndex) -> bool| {
            chunks.iter().all(|copies| {
                let distinct: BTreeSet<OstIndex> = copies.iter().copied().collect();
                let count = distinct.iter().filter(|&&ost| good(ost)).count();
                count >= least.min(distinct.len())
            })
        };
        let resting = osts.iter().copied().filter(|&ost| self.poor.is_resting(ost));
        let (mut done, mut failed) = (BTreeSet::new(), resting.collect::<BTreeSet<_>>());
        if !have(1, &|ost| !failed.contains(&ost)) {
            failed.clear();
        }
        let sync = |ost: OstIndex| async move { (ost, self.sync_at(ost, file).await) };
        let mut syncs = Race::default();
        osts.difference(&failed).for_each(|&ost| syncs.add(sync(ost)));
        let mut until = None;
        while !have(enough, &|ost| done.contains(&ost)) {
            if have(1, &|ost| done.contains(&ost)) {
                let are_poor = osts.difference(&done).all(|&ost| self.poor.is_poor(ost));
                let patience = if are_poor { POOR_PATIENCE } else { OST_PATIENCE };
                until.get_or_insert_with(|| Instant::now() + patience);
            }
            let next = match until {
                None => syncs.next().await,
                Some(until) => timeout_at(until, syncs.next()).await.ok().flatten(),
            };
            let Some((ost, outcome)) = next else { break };
            match outcome {
                Ok(_) => drop(done.insert(ost)),
                Err(error) => {
                    failed.insert(ost);
                    self.poor.failed(ost, is_refusal(error.kind()));
                    if !have(1, &|ost| !failed.contains(&ost)) {
                        return Err(error);
                    }
                    tracing::warn!(ost = %ost.label(), %error, "copies there are not synced");
                }
            }
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let silent = osts.iter().filter(|ost| !done.contains(ost) && !failed.contains(ost));
            silent.for_each(|ost| self.poor.failed(*ost, false));
        }
        Ok(())
    }

    async fn sync_at(self: &Arc<Self>, ost: OstIndex, file: &File) -> Result<SyncFileReply> {
        let mut is_refused = false;
        loop {
            let capability = self.capability_to_sync(file, is_refused).await?;
            let may_ask_again = capability.is_some() && !is_refused;
            let message = SyncFile { ost, file: file.id, capability };
            let patience = self.servers.wait_for_osts([ost]);
            match self.servers.ask_oss(ost, message, Bytes::new(), patience).await {
                Err(error) if error.kind() == ErrorKind::PermissionDenied && may_ask_again => {
                    is_refused = true;
                }
                answer => return Ok(answer?.0),
            }
        }
    }

    async fn commit(
        self: &Arc<Self>,
        file: &Arc<File>,
        arrivals: Vec<(SealId, Extent)>,
    ) -> Result<()> {
        let extents: Vec<Extent> = arrivals.iter().map(|(_, extent)| extent.clone()).collect();
        let end = extents.last().map_or(0, Extent::end);
        let (caller, change) = file.with(|state| {
            let append_from = state.appended_from().filter(|&from| end > from);
            state.is_appending = append_from.is_some();
            let clears_setid = state.clears_setid;
            let cuts = state.cuts(file.id, &arrivals);
            let change = Change { extents, size_min: 0, clears_setid, append_from, cuts };
            (state.writer.clone(), change)
        });
        let (append_from, cuts) = (change.append_from, change.cuts.clone());
        let noting = Noting::of(cuts.clone());
        let outcome = noting.within(self.commit_extents(file, &caller, change)).await;
        let appended = append_from.map(|_| end);
        match outcome {
            Ok(size) => {
                self.keep_committed(file, &arrivals, appended.map(|end| (end, size)), &cuts);
                if appended.is_none() {
                    let over = arrivals.iter().map(|(_, extent)| extent.offset..extent.end());
                    self.spool_changed(file, over.collect());
                }
                Ok(())
            }
            Err(error) => {
                file.with(|state| {
                    state.is_appending = false;
                    state.set_size(state.size);
                });
                self.commit_failed(file, &arrivals, error).await
            }
        }
    }

    async fn commit_failed(
        &self,
        file: &File,
        arrivals: &[(SealId, Extent)],
        error: Error,
    ) -> Result<()> {
        // The session ended while the commit was on its way: it may have come under the next.
        if self.is_disowned(file, arrivals) {
            let what = format!("session under a commit of {}", file.id);
            return Err(Error::local(ErrorKind::SessionLost, what));
        }
        if !file.with(|state| state.is_lost_by(&error, self.settings.wait)) {
            return Err(error);
        }
        // Told as late, by whoever asks next.
        let seals: Vec<SealId> = arrivals.iter().map(|(id, _)| *id).collect();
        self.give_up(file, &seals, &error).await;
        Ok(())
    }

    /// Bytes of a file are lost: fsync of its directory tells, too.
    pub(crate) fn note_loss(&self, id: FileId, error: &Error) {
        let Some(queue) = self.journal.of(id.mdt()) else { return };
        let unit = {
            let tables = self.cache.lock();
            tables.unit_of(id).or_else(|| tables.parent_of(id))
        };
        let at = (unit.unwrap_or(id), Some(id));
        queue.lock().note_late(at, error.kind(), &error.to_string());
    }

    /// Is one of these chunks named under a grant that is not ours any more?
    fn is_disowned(&self, file: &File, arrivals: &[(SealId, Extent)]) -> bool {
        let grant = self.servers.mds(file.id.mdt()).ok().and_then(|server| server.grant());
        arrivals.iter().any(|(_, extent)| match &extent.content {
            Content::Chunk(chunk) => chunk.chunk.granted().map(|id| id.grant) != grant,
            Content::Inline(_) | Content::Hole => false,
        })
    }

    /// Commits extents and takes note of the outcome; says how long the file is then. The caller
    /// holds the gate.
    pub(crate) async fn commit_extents(
        &self,
        file: &File,
        caller: &Caller,
        change: Change,
    ) -> Result<u64> {
        let message = Commit {
            id: file.id,
            extents: change.extents.clone(),
            size_min: change.reaches(),
            mtime: file.with(|state| state.mtime_to_commit()),
            clears_setid: change.clears_setid,
            append_from: change.append_from,
            closes: None,
            is_promised: file.with(|state| state.deferred.map(|_| true)),
        };
        self.own_room(file.id).await;
        let own = file.with(|state| {
            self.commit_own(file.id, state, caller, &change)?;
            Some(state.size)
        });
        if let Some(size) = own {
            return Ok(size);
        }
        let closes = file.with(State::closes);
        let message = Commit { closes, ..message };
        let before = self.before(file);
        let stored = self.cache.lock().attributes(file.id).map(|known| known.attributes.stored);
        let told = match self.ask(caller, file.id, message).await {
            Ok(told) => told,
            Err(error) => {
                self.doubt_change(file.id, &error);
                return Err(error);
            }
        };
        let (lease, attributes) = (told.reply.lease, told.reply.attributes);
        let (known, heard) = {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &lease);
            // A capability among them is gone.
            tables.forget_xattrs(file.id);
            let heard = tables.units.covering(told.stamp, &lease);
            let attributes = attributes.clone();
            (tables.learn_attributes(reply, &lease, Under::Granted, attributes), heard)
        };
        let size = attributes.size;
        // What is known may be newer than the answer: then others have changed the file since.
        let is_newest = known.attributes.version == attributes.version;
        let was_alone = is_newest && before.is_still(&known);
        file.with(|state| {
            state.learn_writers(lease.as_of, &attributes);
            let grown = attributes.stored.saturating_sub(stored.unwrap_or(0));
            state.promise.used(stored.filter(|_| was_alone).map(|_| grown), &change.extents);
            state.learn_change(lease.as_of, &attributes, was_alone);
            state.heard_under = heard.filter(|_| is_newest);
            for extent in change.placed(size) {
                state.small += usize::from(extent.length < SMALL_BELOW);
                state.extents.commit(&extent);
            }
            if !is_newest {
                state.forget_extents();
            }
        });
        Ok(size)
    }

    /// Committed bytes leave the overlay; those of chunks stay with what was read, as far as there
    /// is room. What was appended up to `appended.0` ends at `appended.1` now.
    fn keep_committed(
        &self,
        file: &Arc<File>,
        arrivals: &[(SealId, Extent)],
        appended: Option<(u64, u64)>,
        cuts: &[Cut],
    ) {
        let is_worn = file.with(|state| {
            state.kept.cut(&self.keep, cuts);
            let counted = cuts.iter().find(|cut| cut.space == Space::Appended);
            state.kept.append_done = counted.map_or(state.kept.append_done, |cut| cut.end);
            for (id, extent) in arrivals {
                if let (Content::Chunk(chunk), Some(run)) =
                    (&extent.content, state.overlay.sealed_run(*id))
                {
                    self.chunks.memory.keep(chunk.chunk, run.parts());
                }
                state.overlay.committed(*id, extent.offset..extent.end());
            }
            (state.is_appending, state.unproven_since) = (false, None);
            match appended {
                // What was appended since goes on behind it.
                Some((from, to)) => {
                    if from != to {
                        state.share();
                    }
                    state.move_appended(from, to.max(state.size));
                }
                None => state.set_size(state.size),
            }
            state.small >= crate::compact::WORN_FROM
        });
        if is_worn {
            self.mark_worn(file);
        }
    }
}

/// A change of a file's bytes.
#[derive(Default)]
pub(crate) struct Change {
    pub extents: Vec<Extent>,
    pub size_min: u64,
    pub clears_setid: bool,
    /// Extents from here on go to the file's end.
    pub append_from: Option<u64>,
    /// Written bytes that are in it.
    pub cuts: Vec<Cut>,
}

impl Change {
    /// How long the file is afterwards, at least.
    pub fn reaches(&self) -> u64 {
        let is_hole = |extent: &&Extent| extent.content == Content::Hole;
        let reaching = self.extents.iter().rev().find(|extent| !is_hole(extent));
        reaching.map_or(0, Extent::end).max(self.size_min)
    }

    /// The extents where they are, now that the file has that size.
    fn placed(self, size: u64) -> impl Iterator<Item = Extent> {
        let end = self.extents.last().map_or(0, Extent::end);
        let append_from = self.append_from.unwrap_or(u64::MAX);
        self.extents.into_iter().map(move |extent| {
            let is_appended = extent.offset >= append_from;
            let distance = end - extent.offset;
            let offset = if is_appended { size.saturating_sub(distance) } else { extent.offset };
            Extent { offset, ..extent }
        })
    }
}

impl State {
    /// Does the error mean that what it is about will never be stored? Somebody whose ticket cannot
    /// be shown may have another before long: he is waited for like a server that is away.
    pub(crate) fn is_lost_by(&mut self, error: &Error, wait: Duration) -> bool {
        if error.kind() != ErrorKind::Unauthenticated {
            return error.kind().retry() == Retry::Never;
        }
        self.unproven_since.get_or_insert_with(Instant::now).elapsed() >= wait
    }

    /// What a sealed run held is lost: said in the log, and at fsync and close.
    pub(crate) fn lose(&mut self, file: FileId, id: SealId, error: &Error, is_kept: bool) {
        if let Some(run) = self.overlay.sealed_run(id) {
            let why = (error.kind(), error.to_string());
            self.late.lose_bytes(file, run.length() as u64, why, is_kept);
        }
        let upto = self.overlay.sealed_upto(id);
        let lost = self.overlay.remove(id);
        if let Some(range) =
            lost.clone().filter(|lost| self.appended_from().is_none_or(|from| lost.start < from))
        {
            let (start, end, space) = (range.start, range.end, Space::Placed);
            self.kept.cut(&Keep::none(), &[Cut { file, space, start, end, upto }]);
        }
        if let Some(lost) = lost
            && self.appended_from().is_some_and(|from| lost.start >= from)
        {
            // What was appended is one run.
            self.overlay.shift(lost.end, lost.start);
        }
    }

    /// What can be committed now of the runs up to one. Of appended bytes only what nothing before
    /// it is missing of.
    fn committable(&self, upto: SealId) -> Vec<(SealId, Extent)> {
        let mut arrivals = self.overlay.arrivals(EXTENTS_MAX, upto);
        let Some(from) = self.appended_from() else { return arrivals };
        let mut next = from;
        let missing = arrivals.iter().position(|(_, extent)| {
            let is_next = extent.offset == next;
            next = if is_next { extent.end() } else { next };
            extent.offset >= from && !is_next
        });
        arrivals.truncate(missing.unwrap_or(arrivals.len()));
        arrivals
    }

    /// When the bytes were written, as programs were told by a `stat` since: `git` takes a file
    /// whose time moves for another. Or what somebody has set since.
    fn mtime_to_commit(&self) -> SetTime {
        self.mtime.map_or(SetTime::Now, SetTime::At)
    }

    /// Says whether nothing waits any more, and forgets since when.
    pub(crate) fn rest(&mut self) -> bool {
        let is_clean = !self.is_dirty();
        if is_clean {
            (self.first_written, self.last_written, self.mtime) = (None, None, None);
            (self.clears_setid, self.keeps_mtime, self.deferred) = (false, false, None);
            (self.unproven_since, self.is_answered) = (None, false);
            self.promise.rest();
            self.room.rest();
            self.kept.clear();
        }
        is_clean
    }
}
