//! Leases that are taken away: by a recall, by a server that forgot them, by time, or for want of
//! room.
//!
//! Invariants: a recall is answered within the lease, whatever waits to be sent; what the door has
//! of open files is looked at again wherever a recall may have been missed.

use crate::door::LISTENER_PATIENCE;
use crate::file::File;
use crate::shared::{Shared, lock};
use crate::writer::How;
use crate::{CacheListener, Error, Invalidation, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_types::{Caller, ErrorKind, FileId, MdtIndex, ServerNumber, Version};
use tieline_wire::bounds::FILES_MAX;
use tieline_wire::notice::Recall;
use tieline_wire::{NoticeAnswer, Welcome};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Of a lease, what the answer to a recall takes at most.
const RECALL_USED: f64 = 0.9;

/// Pauses between two looks for a lease.
const CONFIRM_FIRST: Duration = Duration::from_millis(1);
const CONFIRM_MAX: Duration = Duration::from_secs(1);

/// Looks for a lease on a file until there is one; what the door has of versions of before goes.
///
/// Once the file is closed no lease is needed: whoever opens it next is told its version, and the
/// door's bytes are kept if they are all of that one.
pub(crate) async fn look(shared: Weak<Shared>, caller: Caller, file: Arc<File>) {
    let mut pause = CONFIRM_FIRST;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let nothing = std::slice::from_ref(&(0..0));
        let is_seen = shared.view_committed(&caller, &file, nothing).await.is_ok();
        let is_over = file.with(|state| {
            let is_sure = is_seen && shared.is_sure(file.id, state);
            (is_sure || state.handles == 0).then(|| state.was_looked_at())
        });
        if let Some(unclean) = is_over {
            if let Some(edition) = unclean {
                shared.clean(&file, edition).await;
            }
            return;
        }
        drop(shared);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CONFIRM_MAX);
    }
}

impl Shared {
    /// Forgets what lies under the unit, makes the door forget it, and only then answers.
    pub(crate) async fn take_back(self: &Arc<Self>, recall: Recall) -> NoticeAnswer {
        if recall.asks_open == Some(true) {
            let open = self.open_to_write(&recall.files);
            return NoticeAnswer { open, ..NoticeAnswer::default() };
        }
        if recall.is_shared == Some(true) && !recall.files.is_empty() {
            return self.looked_at(&recall).await;
        }
        if let Err(error) = self.hand_over(&recall).await {
            tracing::warn!(unit = %recall.unit, %error, "what was done here is not sent");
        }
        if recall.is_shared == Some(true) {
            if recall.unit.serial() == 0 {
                self.limits_changed().await;
            }
            // Who looks asks for their bytes next.
            let shared = recall.beside.as_ref().map(|beside| self.share_idle(beside, recall.at));
            let units = shared.iter().flatten().copied().chain([recall.unit]).collect();
            return NoticeAnswer { open: self.declare_under(&units), shared, is_contended: false };
        }
        let mut told = self.cache.recalled(&recall);
        self.renew_pins(recall.unit);
        self.come_back_to(recall.unit);
        for &id in &recall.files {
            self.changes_elsewhere(id);
        }
        // Names may wait for a mutation of our own, which may wait for this answer; bytes for a
        // write of our own that waits for its commit.
        let is_contended = told.is_contended;
        let is_writing = recall.files.iter().any(|&id| self.is_writing(id));
        let given = self.given_of(&recall.files);
        let data = std::mem::take(&mut told.data);
        let bytes = self.tell(Invalidation { data, ..Invalidation::default() });
        let bytes = bytes.filter(|_| !is_writing);
        let names = self.tell(told).filter(|_| !is_contended);
        let forgotten = async {
            // An end without a word is an end.
            if let Some(names) = names {
                let _ = names.await;
            }
            if let Some(bytes) = bytes {
                tokio::select! {
                    biased;
                    _ = bytes => given.into_iter().for_each(|(file, given)| {
                        file.with(|state| state.door.forgot(given));
                    }),
                    () = self.forget_around_reads(&recall.files) => {}
                }
            }
        };
        if tokio::time::timeout(LISTENER_PATIENCE, forgotten).await.is_err() {
            tracing::warn!(unit = %recall.unit, "door is slow to forget; its beliefs run out");
        }
        NoticeAnswer { is_contended, open: self.open_under(&recall), shared: None }
    }

    /// What programs hold open of the files that change, and of others under the unit: for after
    /// the answer nobody would ask us before they go.
    fn open_under(&self, recall: &Recall) -> Vec<FileId> {
        let changing: BTreeSet<FileId> = recall.files.iter().copied().collect();
        let beside = self.untold.under(recall.unit).into_iter();
        let beside = beside.filter(|id| !changing.contains(id));
        let all = recall.files.iter().copied().chain(beside);
        all.filter(|&id| self.is_open(id)).take(FILES_MAX).collect()
    }

    /// Nothing more is decided here about these units. Of which does nothing wait?
    fn share_idle(&self, units: &[FileId], at: Version) -> Vec<FileId> {
        let is_recovered = *self.recovered.borrow();
        let is_at_rest = |&unit: &FileId| {
            let queue = self.journal.of(unit.mdt());
            let is_sent = || queue.is_none_or(|queue| queue.last_on(unit) == 0);
            is_recovered && is_sent() && self.deferred.of(unit).is_empty()
        };
        let mut idle: Vec<FileId> = units.iter().copied().filter(is_at_rest).collect();
        let mut tables = self.cache.lock();
        idle.iter().for_each(|&unit| tables.units.share(unit, at));
        drop(tables);
        // What was decided before that is there now.
        idle.retain(is_at_rest);
        idle
    }

    /// Nothing more is decided here about the unit; what was is sent. What was done elsewhere is
    /// not waited for: it may have to wait for whoever made this change.
    async fn hand_over(self: &Arc<Self>, recall: &Recall) -> Result<()> {
        let (unit, mdt) = (recall.unit, recall.unit.mdt());
        let Some(queue) = self.journal.of(mdt) else { return Ok(()) };
        {
            let mut tables = self.cache.lock();
            if unit.serial() == 0 {
                tables.units.share_all(mdt, recall.at);
            } else {
                tables.units.share(unit, recall.at);
            }
        }
        let shared = self.clone();
        // Goes on when the answer cannot wait for it any longer: what comes later is carried out as
        // far as it still can be.
        let sending = tokio::spawn(async move {
            let laundered = shared.launder_deferred(unit, How::Flush).await;
            let last = if unit.serial() == 0 { queue.last() } else { queue.last_on(unit) };
            queue.drain(last, shared.servers.wait_for(mdt)).await.and(laundered)
        });
        let slow = |_| Error::local(ErrorKind::Timeout, "what was done here takes longer");
        let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
        let patience = self.recall_patience(mdt);
        tokio::time::timeout(patience, sending).await.map_err(slow)?.map_err(stopped)?
    }

    /// How long the answer to a recall may take before the door forgets: an MDS that hears none
    /// within a lease ends the session.
    fn recall_patience(&self, mdt: MdtIndex) -> Duration {
        let server = self.servers.mds(mdt).ok();
        let lease = server.and_then(|server| self.cache.lock().units.lease(server.number));
        lease.map_or(LISTENER_PATIENCE, |lease| {
            lease.mul_f64(RECALL_USED).saturating_sub(LISTENER_PATIENCE).max(lease / 2)
        })
    }

    /// Believes nothing under a unit any more.
    pub(crate) fn let_go(&self, unit: FileId) {
        let told = self.cache.let_go(unit);
        self.renew_pins(unit);
        self.tell(told);
    }

    /// MDTs were mounted in the tree, or taken out of it: no directory changed by that, so that
    /// nobody recalls what is believed of their names.
    pub(crate) fn junctions_changed(&self, before: &FederationMap, now: &FederationMap) {
        let gone = before.junctions.iter().filter(|one| !now.junctions.contains(one));
        let new = now.junctions.iter().filter(|one| !before.junctions.contains(one));
        for junction in gone.chain(new) {
            let mut told = self.cache.let_go(junction.parent);
            told.entries.push((junction.parent, junction.name.clone()));
            self.tell(told);
        }
    }

    pub(crate) fn met_mds(self: &Arc<Self>, server: ServerNumber, welcome: &Welcome) {
        if !welcome.is_resumed {
            self.journal.session_changed();
        }
        // Before its word counts again: idle locks rest on it.
        self.locks_welcomed(server, welcome);
        self.bulk.welcomed(server, welcome);
        let told = self.cache.welcomed(server, welcome);
        self.tell(told);
        self.confirm_open_files(server);
        self.undeclare_all(server);
        match welcome.is_resumed {
            true => self.tell_opens_of(server),
            false => self.tell_all_opens_of(server),
        }
        self.promises_welcomed();
        drop(self.take_recalled(server));
        self.pins.renew();
        if self.settings.warms && !welcome.is_resumed {
            let shared = self.clone();
            tokio::spawn(async move { shared.come_to_root(server).await });
        }
    }

    /// Whoever comes first, he comes by the root.
    async fn come_to_root(self: &Arc<Self>, server: ServerNumber) {
        let is_there = self.servers.mds(self.root.mdt()).is_ok_and(|mds| mds.number == server);
        if is_there && !self.cache.lock().is_complete(self.root) {
            self.come_to(&Caller::root(), self.root, None).await;
        }
    }

    pub(crate) fn leases_renewed(self: &Arc<Self>, server: ServerNumber, sent: Instant) {
        if let Some(told) = self.cache.renewed(server, sent) {
            self.tell(told);
            self.confirm_open_files(server);
            self.tell_opens_of(server);
            self.pins.renew();
        }
    }

    /// A recall may have been missed: are the door's bytes of open files still right?
    fn confirm_open_files(self: &Arc<Self>, server: ServerNumber) {
        if lock(&self.listener).is_none() {
            return;
        }
        for open in self.handles.open_files() {
            let is_there =
                self.servers.mds(open.id.mdt()).is_ok_and(|holder| holder.number == server);
            let file = self.file_known(open.id).filter(|_| is_there);
            if let Some(file) = file {
                self.look_at_door(&open.caller, &file);
            }
        }
    }

    /// An own mutation in these directories may or may not have happened.
    pub(crate) fn doubt(&self, directories: &[FileId]) {
        for &directory in directories {
            let told = self.cache.lock().doubt(directory);
            self.tell(told);
        }
    }

    /// Makes room if too many files are remembered.
    pub(crate) fn shrink(&self) {
        if let Some(told) = self.cache.shrink() {
            self.tell(told);
        }
    }

    /// The file's bytes change elsewhere: the door's own cache of them is not right any more. If
    /// they are written here too, each write is committed at once for a while.
    fn changes_elsewhere(self: &Arc<Self>, id: FileId) {
        let Some(file) = self.file_known(id) else { return self.files.forget(id) };
        let is_dirty = file.with(|state| {
            state.promise.doubt_payers();
            if state.last_written.is_some() {
                state.share();
            }
            state.is_dirty()
        });
        if is_dirty {
            let shared = self.clone();
            tokio::spawn(async move { shared.commit_in_background(&file, How::Flush).await });
        }
    }

    pub(crate) fn is_writing(&self, id: FileId) -> bool {
        self.file_known(id).is_some_and(|file| file.with(|state| state.waiting_writes > 0))
    }

    /// What the door has got of files so far.
    fn given_of(&self, files: &[FileId]) -> Vec<(Arc<File>, u64)> {
        let known = files.iter().filter_map(|&id| self.file_known(id));
        known.map(|file| (file.clone(), file.with(|state| state.door.given()))).collect()
    }

    /// Makes the door forget a file's bytes, and waits until it has.
    pub(crate) async fn forget_at_door(&self, id: FileId) {
        let (attributes, data) = (vec![id], vec![id]);
        let told = self.tell(Invalidation { attributes, data, ..Invalidation::default() });
        if let Some(forgotten) = told {
            // What is slow is forgotten later.
            let _ = tokio::time::timeout(LISTENER_PATIENCE, forgotten).await;
        }
    }

    /// Tells the door what to forget. The receiver ends when it has.
    pub(crate) fn tell(&self, what: Invalidation) -> Option<oneshot::Receiver<()>> {
        let nothing = Invalidation { is_contended: what.is_contended, ..Invalidation::default() };
        let is_empty = what == nothing;
        let listener: Option<Arc<dyn CacheListener>> = lock(&self.listener).clone();
        let listener = listener.filter(|_| !is_empty)?;
        let (done, forgotten) = oneshot::channel();
        let done = Mutex::new(Some(done));
        listener.invalidate(
            what,
            Box::new(move || {
                if let Some(done) = lock(&done).take() {
                    // The recall may have stopped waiting.
                    let _ = done.send(());
                }
            }),
        );
        Some(forgotten)
    }
}
