//! Going on where an earlier process was killed.
//!
//! First, without asking anybody: open files, locks and operations are as they were. Then, in this
//! order: the sessions are resumed and what was under way in them is sent again; operations that
//! were decided here are sent; locks that are idle or perhaps held are given back; open files are
//! looked at, and what was written to them lies over them again. Leases are not taken over:
//! everything is asked for anew.
//!
//! Invariant: nothing new is sent before the outcome of what was under way is known.

use crate::file::State;
use crate::handles::{FileHandle, access_of};
use crate::listing::Listing;
use crate::shared::{Shared, lock};
use crate::{Access, HandleId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tieline_foresight::ahead::Pattern;
use tieline_keep::Kept;
use tieline_net::Incoming;
use tieline_owed::cause::{Before, Cause};
use tieline_owed::records::{KeptHandle, LeftWrites, MARK_WRITE, Note, put_cut, put_mark, read};
use tieline_owed::spool::{Piece, Place};
use tieline_owed::writes::{Cut, Laid, Space};
use tieline_servers::LeftAnswer;
use tieline_types::{Attributes, Caller, ErrorKind, FileId, Retry};
use tieline_wire::Request;
use tieline_wire::meta::{BatchReply, ChangeReply};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Files that are looked at at once.
const FILES_AT_ONCE: usize = 64;
/// The door gives all requests again that were not answered, as soon as it serves.
const GIVEN_AGAIN: Duration = Duration::from_secs(60);

impl Shared {
    /// Takes over what needs no server.
    pub(crate) fn restore(self: &Arc<Self>) {
        let (handles, lost, orphans, acts, marks, locks) = {
            let mut left = lock(&self.left);
            for (id, _) in &left.aside {
                let id = *id;
                let what = "set aside: the mount's daemon crashed on it".to_owned();
                self.file(id).with(|state| state.late.lose(ErrorKind::Corrupt, what));
            }
            let handles = std::mem::take(&mut left.handles);
            let lost = std::mem::take(&mut left.lost);
            let orphans = std::mem::take(&mut left.orphans);
            let acts = std::mem::take(&mut left.acts);
            let marks = std::mem::take(&mut left.marks);
            (handles, lost, orphans, acts, marks, std::mem::take(&mut left.locks))
        };
        for (handle, open, kept) in handles {
            let _in_hand = kept.in_hand();
            self.restore_handle(handle, open, kept);
        }
        for (handle, why, kept) in lost {
            self.handles.restore_lost(handle, why, kept);
        }
        for (id, kept) in orphans {
            self.file(id).with(|state| (state.is_orphan, state.orphan_kept) = (true, Some(kept)));
        }
        for (cause, op, id, kept) in marks {
            self.note_done(cause, op, id, Some(kept));
        }
        for (act, _) in &acts {
            self.note_done(act.cause, act.item.op, act.item.id, None);
        }
        if !acts.is_empty() {
            self.journal.restore(acts);
        }
        for (id, (held, kept)) in locks {
            let _in_hand = kept.in_hand();
            self.locks.restore(id, &held);
        }
        let written: Vec<(FileId, u64)> = {
            let left = lock(&self.left);
            let writes =
                left.writes.iter().flat_map(|(id, left)| left.writes.iter().map(|w| (*id, w)));
            writes.map(|(id, write)| (id, write.head.cause)).collect()
        };
        for (id, cause) in written {
            self.note_done(cause, MARK_WRITE, id, None);
        }
    }

    /// Something was done for a request. A mark says so until that is answered: the record of what
    /// was done may go earlier.
    fn note_done(&self, cause: u64, op: u16, id: FileId, mark: Option<Kept>) {
        if cause == 0 {
            return;
        }
        let mark = mark.or_else(|| put_mark(&self.keep, cause, op, id));
        self.note_before(cause, |before| {
            match op {
                MARK_WRITE => before.has_written = true,
                _ => before.done.push((op, id)),
            }
            before.marks.extend(mark);
        });
    }

    fn note_before(&self, cause: u64, change: impl FnOnce(&mut Before)) {
        if cause != 0 {
            change(lock(&self.before).entry(cause).or_default());
        }
    }

    fn restore_handle(&self, handle: HandleId, open: KeptHandle, kept: Kept) {
        let KeptHandle { id, caller, access, is_directory, cause } = open;
        self.note_before(cause, |before| before.handles.push(handle));
        if is_directory {
            return self.handles.restore_directory(handle, Listing::new(id, caller), kept);
        }
        let file = self.file(id);
        let seen = file.with(|state| {
            state.handles += 1;
            state.late.seen()
        });
        let access = access_of(access);
        let pattern = Mutex::new(Pattern::new(self.settings.read_mode));
        let (looking, directory) = (tokio::sync::Mutex::default(), None);
        let open = FileHandle {
            file,
            caller,
            access,
            pattern,
            looking,
            directory,
            in_vain: Mutex::default(),
            seen,
            lost: OnceLock::new(),
        };
        self.handles.restore_file(handle, open, kept);
    }

    /// Does what an earlier process owed.
    pub(crate) async fn recover(self: &Arc<Self>) {
        self.recover_aside().await;
        let sessions: Vec<_> = lock(&self.left)
            .sessions
            .values()
            .map(|(session, _)| session.addresses.clone())
            .collect();
        if sessions.is_empty() && lock(&self.left).writes.is_empty() {
            self.recovered.send_replace(true);
            return self.journal.open();
        }
        let started = Instant::now();
        let (servers, answers) = self.servers.go_on(&sessions);
        let calls = answers.len();
        let mut greeted = JoinSet::new();
        for server in servers {
            let shared = self.clone();
            greeted.spawn(async move { shared.servers.greet(&server).await });
        }
        for answer in answers {
            self.recover_answer(answer).await;
        }
        while let Some(outcome) = greeted.join_next().await {
            if let Ok(Err(error)) = outcome {
                tracing::warn!(%error, "a server does not answer: its session is not resumed yet");
            }
        }
        // The records of these sessions were replaced when they were resumed.
        lock(&self.left).sessions.clear();
        self.journal.open();
        if let Err(error) = self.drain_all(self.servers.wait()).await {
            tracing::warn!(%error, "what an earlier process did waits for a server");
        }
        self.free_all_idle().await;
        self.recover_wishes().await;
        let files = self.recover_files().await;
        self.recovered.send_replace(true);
        self.forget_answered();
        let elapsed_ms = started.elapsed().as_millis();
        tracing::info!(calls, files, elapsed_ms, "goes on where the process before was killed");
    }

    /// Requests that are not given again soon were answered.
    fn forget_answered(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(GIVEN_AGAIN).await;
            if let Some(shared) = shared.upgrade() {
                let answered = std::mem::take(&mut *lock(&shared.before));
                drop(answered);
            }
        });
    }

    /// The outcome of what was under way.
    async fn recover_answer(self: &Arc<Self>, left: LeftAnswer) {
        let LeftAnswer { request, note, answer } = left;
        let note: Note = read(&note).unwrap_or_default();
        let outcome = match timeout(self.servers.wait(), answer).await {
            Ok(Ok(outcome)) => outcome,
            _ => return tracing::warn!(op = ?request.op(), "no server says what became of a call"),
        };
        if let Ok(incoming) = &outcome {
            self.recover_effect(&request, incoming, note.cuts).await;
        } else {
            tracing::info!(op = ?request.op(), "a call of before was refused");
        }
        self.note_before(note.cause, |before| before.answers.push((request, outcome)));
    }

    /// A call was carried out.
    async fn recover_effect(&self, request: &Request, incoming: &Incoming, mut cuts: Vec<Cut>) {
        let body = &incoming.body;
        match request {
            Request::Batch(batch) => {
                let mdt = batch.items.first().map(|item| item.id.mdt());
                if let (Some(mdt), Some(reply)) = (mdt, read::<BatchReply>(body)) {
                    self.settle_left(mdt, batch, &reply).await;
                }
            }
            Request::SetAttributes(change) => cuts.extend(change.size.map(|size| Cut {
                file: change.id,
                space: Space::Placed,
                start: size,
                end: u64::MAX,
                upto: u64::MAX,
            })),
            Request::Unlink(change) => {
                let left = read::<ChangeReply>(body).and_then(|reply| reply.attributes);
                self.orphaned(change.keep, left.as_ref(), false);
            }
            Request::Rename(change) => self.orphaned(change.keep, None, false),
            _ => {}
        }
        let mut left = lock(&self.left);
        for cut in cuts {
            if let Some(writes) = left.writes.get_mut(&cut.file) {
                // Before the call's record goes.
                writes.cuts.push((cut, put_cut(&self.keep, &cut)));
            }
        }
    }

    /// Locks that were asked for: what is known here counts.
    async fn recover_wishes(self: &Arc<Self>) {
        let wishes = std::mem::take(&mut lock(&self.left).wishes);
        for (id, wish, _kept) in wishes {
            if let Err(error) = self.undo_wish(id, wish).await {
                tracing::info!(file = %id, %error, "a lock that was asked for is not given back");
            }
        }
    }

    /// Looks at all files that are open or have bytes that no server has; says how many.
    async fn recover_files(self: &Arc<Self>) -> usize {
        let mut callers: BTreeMap<FileId, Caller> = BTreeMap::new();
        for open in self.handles.open_files() {
            callers.insert(open.id, open.caller);
        }
        let mut writes = std::mem::take(&mut lock(&self.left).writes);
        for (&id, left) in &writes {
            if let Some(last) = left.writes.last() {
                callers.entry(id).or_insert_with(|| last.head.caller.clone());
            }
        }
        let count = callers.len();
        let mut looked = JoinSet::new();
        for (id, caller) in callers {
            if looked.len() >= FILES_AT_ONCE {
                let _ = looked.join_next().await;
            }
            let (shared, left) = (self.clone(), writes.remove(&id));
            looked.spawn(async move { shared.recover_file(&caller, id, left).await });
        }
        while let Some(looked) = looked.join_next().await {
            if let Err(error) = looked {
                tracing::error!(%error, "an open file is not gone on with");
            }
        }
        self.recover_orphans().await;
        count
    }

    async fn recover_file(self: &Arc<Self>, caller: &Caller, id: FileId, left: Option<LeftWrites>) {
        let file = self.file(id);
        let opened = self.open_at_server(caller, id, Access::default()).await;
        let Some(left) = left else {
            if let Err(error) = opened {
                tracing::info!(file = %id, %error, "an open file is not looked at");
            }
            return;
        };
        if let Err(error) = &opened {
            let is_over = error.kind().retry() == Retry::Never;
            let length: usize = left.writes.iter().map(|write| write.bytes.len()).sum();
            if is_over {
                let (pieces, writer) = (left.pieces(), caller.clone());
                let why = (error.kind(), error.to_string());
                let is_kept = self.spool_left(id, pieces, why.clone(), writer).await;
                file.with(|state| state.late.lose_bytes(id, length as u64, why, is_kept));
                return;
            }
            tracing::warn!(file = %id, length, %error, "written bytes wait for a server");
        }
        let in_hand: Vec<_> = left.writes.iter().map(|write| write.kept.in_hand()).collect();
        let is_dirty = file.with(|state| {
            state.lay(&self.keep, id, left);
            state.is_answered = true;
            if let Ok(attributes) = &opened {
                state.keep_time_set(attributes);
            }
            state.is_dirty()
        });
        drop(in_hand);
        if is_dirty {
            self.deferred.restore(&file);
            self.mark_dirty(&file);
        }
    }

    /// What crashed whoever went on with it is read by nobody here: whoever looks into the fault
    /// finds it in the spool.
    async fn recover_aside(&self) {
        let aside = std::mem::take(&mut lock(&self.left).aside);
        for (id, record) in aside {
            let pieces = vec![Piece { place: Place::Record, bytes: record.into() }];
            let why = "the mount's daemon crashed on it".to_owned();
            self.spool_left(id, pieces, (ErrorKind::Corrupt, why), Caller::root()).await;
        }
    }

    /// Files without a name that nobody holds any more.
    async fn recover_orphans(self: &Arc<Self>) {
        for file in self.files.all() {
            if file.with(|state| state.is_orphan && state.handles == 0) {
                self.give_back(&Caller::root(), &file).await;
            }
        }
    }

    /// A request of the door, and what was done for it before.
    pub(crate) fn cause(self: &Arc<Self>, number: u64, is_resent: bool) -> Option<Arc<Cause>> {
        if !self.keep.is_on() {
            return None;
        }
        let mut before = match is_resent {
            true => lock(&self.before).remove(&number).unwrap_or_default(),
            false => Before::default(),
        };
        let handles = std::mem::take(&mut before.handles);
        let marks = std::mem::take(&mut before.marks);
        let cause = Arc::new(Cause::new(number, self.keep.clone(), before));
        if !marks.is_empty() {
            cause.hold(marks);
        }
        if !handles.is_empty() {
            cause.hold(Unheard { shared: Arc::downgrade(self), handles });
        }
        Some(cause)
    }
}

/// Handles whose opening no program was told of. The request opens another one; then they go.
struct Unheard {
    shared: Weak<Shared>,
    handles: Vec<HandleId>,
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        self.handles.iter().for_each(|&handle| shared.release(handle));
    }
}

impl State {
    /// What an earlier process held of the file's written bytes.
    fn lay(&mut self, keep: &tieline_keep::Keep, id: FileId, left: LeftWrites) {
        if let Some(last) = left.writes.iter().max_by_key(|write| write.head.number) {
            let head = &last.head;
            (self.writer, self.mtime) = (head.caller.clone(), Some(head.mtime));
        }
        self.clears_setid |= left.writes.iter().any(|write| write.head.clears_setid);
        let cuts: Vec<Cut> = left.cuts.iter().map(|(cut, _)| *cut).collect();
        let laid = self.kept.restore(id, left);
        for Laid { space, start, bytes } in laid {
            match space {
                Space::Placed => self.overlay.write(start, bytes),
                // They come last, in their order.
                Space::Appended => self.append_again(bytes),
            }
        }
        self.overlay.written = self.kept.last;
        self.kept.cut(keep, &cuts);
        self.first_written = Some(Instant::now());
        self.last_written = self.first_written;
    }
    /// A time that was set after the last write came to the MDS before it, and is still the file's.
    /// So is the write's own, if its commit came there and the answer did not come here.
    fn keep_time_set(&mut self, attributes: &Attributes) {
        let Attributes { mtime, ctime, .. } = *attributes;
        let is_told = self.mtime == Some(mtime) || mtime != ctime;
        if self.mtime.is_some_and(|written| written <= ctime) && is_told {
            (self.mtime, self.keeps_mtime) = (Some(mtime), true);
        }
    }
}
