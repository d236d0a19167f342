//! Advisory locks, asked at the file's MDS.
//!
//! A list of what programs here hold is kept: what an owner has already, and what others here
//! have, needs no server; a close without locks costs nothing; and a server that was started anew
//! is told of them before it grants others. Frees and changes to a weaker lock commit first what
//! was written, and a lock is granted only after the door forgot bytes that it should not believe:
//! so programs that lock see each other's writes. What programs free of `fcntl` locks may stay at
//! the server: [`idle`].
//!
//! A wait is a task of its own. A caller who goes away makes it cancel at the server; a grant that
//! crossed that is given back. New locks on the file wait until that is settled. Other requests of
//! one owner follow each other: [`turns`].
//!
//! Invariants: what the list says is held at the server, unless it was lost, which is told
//! ([`lost`]); requests that wait at a server are few.

mod asserted;
mod idle;
mod lost;
mod turns;

use crate::file::File;
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::writer::How;
use crate::{Error, HandleId, LockFound, LockWish, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_keep::{Keep, Kept};
use tieline_owed::records::{self, KeptLock, KeptWish, first_number};
use tieline_types::locks::{Held, LockSet};
use tieline_types::{
    Caller, ErrorKind, FileId, LockKind, LockMode, LockRange, ServerNumber, SessionId,
};
use tieline_wire::locks::{CancelLock, Lock, LockOutcome, LockReply, LockWait, TestLock};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

/// Waits that servers hold requests for; others ask now and then.
const PARKED_MAX: usize = 32;
/// How long a server holds such a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause of a wait that finds no room among them.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A kernel tells of the last close of a file after `close(2)` has returned: a lock of an open file
/// that is in the way may be freed just now. So a `flock` that is refused is asked for again after
/// these pauses, and a lock that is told of is looked for again. (Refusals of `fcntl` locks are not
/// asked for again: programs that try often would wait for processes that hold theirs for long.)
const CLOSING: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

pub(crate) struct Locks {
    table: Mutex<BTreeMap<FileId, Own>>,
    /// Woken when a cancelled wait is settled, and when locks were freed.
    settled: Notify,
    /// When idle locks on a file were asked for last. Looked at with the table locked.
    asked: Mutex<BTreeMap<FileId, Instant>>,
    ticket: AtomicU64,
    parked: Semaphore,
    /// Of each server. Frees read, assertions write: what is asserted is held.
    asserting: Mutex<BTreeMap<ServerNumber, Arc<tokio::sync::RwLock<()>>>>,
    /// The session and boot that each server last welcomed us in.
    met: Mutex<BTreeMap<ServerNumber, (SessionId, u64)>>,
    /// The last loss that each server told of, and in which session.
    heard: Mutex<BTreeMap<ServerNumber, (SessionId, u64)>>,
    keep: Keep,
}

impl Locks {
    pub fn new(keep: Keep) -> Self {
        Self {
            keep: keep.clone(),
            table: Mutex::default(),
            settled: Notify::new(),
            asked: Mutex::default(),
            ticket: AtomicU64::new(first_number(&keep) + 1),
            parked: Semaphore::new(PARKED_MAX),
            asserting: Mutex::default(),
            met: Mutex::default(),
            heard: Mutex::default(),
        }
    }
}

/// What is held here on one file.
#[derive(Default)]
struct Own {
    posix: LockSet<u64>,
    flock: LockSet<u64>,
    /// `fcntl` locks that the server has as held: those of programs, and idle ones.
    at_server: LockSet<u64>,
    /// What is freed may be idle: the server asks for it.
    may_idle: bool,
    /// Whose number an owner of a `fcntl` lock is.
    processes: BTreeMap<u64, u32>,
    /// Through which handle an owner asked for a `fcntl` lock last. One that is an open file asks
    /// through its own alone, and ends with it.
    handles: BTreeMap<u64, HandleId>,
    /// Cancelled waits that are not settled.
    unsettled: usize,
    /// Idle locks are being freed.
    is_freeing: bool,
    /// Frees under way that programs asked for.
    leaving: usize,
    /// Requests of owners here, but for waits.
    under_way: Vec<LockWish>,
    kept: Option<Kept>,
}

impl Own {
    fn set(&mut self, kind: LockKind) -> &mut LockSet<u64> {
        match kind {
            LockKind::Posix => &mut self.posix,
            LockKind::Flock => &mut self.flock,
        }
    }

    /// The server has it so.
    fn note(&mut self, wish: &LockWish, mode: Option<LockMode>) {
        self.note_here(wish, mode);
        if wish.kind == LockKind::Posix {
            self.at_server.set(wish.owner, wish.range, mode);
        }
    }

    fn note_here(&mut self, wish: &LockWish, mode: Option<LockMode>) {
        self.set(wish.kind).set(wish.owner, wish.range, mode);
        if mode.is_some() && wish.kind == LockKind::Posix {
            self.processes.insert(wish.owner, wish.process);
        }
    }

    fn put(&self, keep: &Keep, id: FileId) -> Option<Kept> {
        if !keep.is_on() || !self.has_locks() {
            return None;
        }
        let lock = |kind, held: Held<u64>, is_idle| {
            let Held { owner, range, mode } = held;
            let process = self.processes.get(&owner).copied().unwrap_or_default();
            let is_posix = kind == LockKind::Posix;
            let handle = self.handles.get(&owner).filter(|_| is_posix).map(|handle| handle.0);
            KeptLock { kind, owner, range, mode, process, is_idle, handle }
        };
        let posix = self.posix.iter().map(|held| lock(LockKind::Posix, held, None));
        let flock = self.flock.iter().map(|held| lock(LockKind::Flock, held, None));
        let idle = self.idle().into_iter();
        let idle = idle.map(|one| lock(LockKind::Posix, one.held, Some(true)));
        records::put_locks(keep, id, &posix.chain(flock).chain(idle).collect())
    }

    fn has_locks(&self) -> bool {
        !self.posix.is_empty() || !self.flock.is_empty() || !self.at_server.is_empty()
    }

    fn is_empty(&self) -> bool {
        let is_quiet = self.is_settled() && self.leaving == 0 && self.under_way.is_empty();
        is_quiet && !self.has_locks() && self.handles.is_empty()
    }

    /// A lock of another owner here that is in the way.
    fn in_the_way(&mut self, wish: &LockWish) -> Option<LockFound> {
        let set = self.set(wish.kind);
        let held = set.conflicts(wish.owner, wish.range, wish.mode).next()?;
        let process = self.processes.get(&held.owner).copied().unwrap_or_default();
        Some(LockFound { range: held.range, mode: held.mode, process })
    }

    fn is_settled(&self) -> bool {
        self.unsettled == 0 && !self.is_freeing
    }

    /// Does a free of the range concern anything, or a close?
    fn is_freed_by(&mut self, wish: &LockWish, closes: bool) -> bool {
        let has_idle = wish.kind == LockKind::Posix && self.at_server.has(wish.owner);
        !self.set(wish.kind).of(wish.owner, wish.range).is_empty() || (closes && has_idle)
    }
}

impl Locks {
    fn with<R>(&self, id: FileId, look: impl FnOnce(&mut Own) -> R) -> R {
        let mut table = lock(&self.table);
        let own = table.entry(id).or_default();
        let result = look(own);
        let Own { posix, processes, .. } = own;
        processes.retain(|&owner, _| posix.has(owner));
        if own.is_empty() {
            table.remove(&id);
        }
        result
    }

    /// The same, for a change that outlives this process.
    fn change<R>(&self, id: FileId, change: impl FnOnce(&mut Own) -> R) -> R {
        self.with(id, |own| {
            let result = change(own);
            own.kept = own.put(&self.keep, id);
            result
        })
    }

    fn note(&self, id: FileId, wish: &LockWish, mode: Option<LockMode>) {
        self.change(id, |own| own.note(wish, mode));
    }

    /// Locks that an earlier process held.
    pub fn restore(&self, id: FileId, locks: &[KeptLock]) {
        self.change(id, |own| {
            for one in locks {
                let handle = one.handle.map(|handle| (one.owner, HandleId(handle)));
                own.handles.extend(handle);
                match one.is_idle {
                    Some(true) => own.at_server.set(one.owner, one.range, Some(one.mode)),
                    _ => own.note(&one.wish(), Some(one.mode)),
                }
            }
        });
    }

    /// The session and the start of a server that an earlier process knew.
    pub fn restore_server(&self, server: ServerNumber, session: SessionId, boot: u64) {
        lock(&self.met).entry(server).or_insert((session, boot));
    }

    fn asserting(&self, server: ServerNumber) -> Arc<tokio::sync::RwLock<()>> {
        lock(&self.asserting).entry(server).or_default().clone()
    }

    /// A lock of another owner here that is in the way, and of none that is leaving.
    async fn in_the_way(&self, id: FileId, wish: &LockWish) -> Option<LockFound> {
        let look = |own: &mut Own| {
            let found = own.in_the_way(wish);
            (found.is_none() || own.leaving == 0).then_some(found)
        };
        self.when(id, look).await
    }

    /// Owners that asked through a handle last.
    fn owners_through(&self, id: FileId, handle: HandleId) -> Vec<u64> {
        let table = lock(&self.table);
        let handles = table.get(&id).map(|own| &own.handles).into_iter().flatten();
        handles.filter(|(_, through)| **through == handle).map(|(&owner, _)| owner).collect()
    }

    fn holds(&self, id: FileId, kind: LockKind, owner: u64, range: LockRange) -> bool {
        let table = lock(&self.table);
        let Some(own) = table.get(&id) else { return false };
        let set = if kind == LockKind::Posix { &own.posix } else { &own.flock };
        !set.of(owner, range).is_empty()
    }

    /// Is there anything that a free may concern, held or still being asked for?
    fn may_free(&self, id: FileId, wish: &LockWish, closes: bool) -> bool {
        let mut table = lock(&self.table);
        let own = table.get_mut(&id);
        own.is_some_and(|own| own.is_freed_by(wish, closes) || own.has_under_way(wish))
    }

    /// Waits until `look` finds what it looks for.
    async fn when<R>(&self, id: FileId, mut look: impl FnMut(&mut Own) -> Option<R>) -> R {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if let Some(found) = self.with(id, &mut look) {
                return found;
            }
            settled.await;
        }
    }

    fn settle(&self, id: FileId, settle: impl FnOnce(&mut Own)) {
        self.change(id, settle);
        self.settled.notify_waiters();
    }
}

impl Shared {
    pub(crate) async fn lock(
        self: &Arc<Self>,
        handle: HandleId,
        wish: LockWish,
        waits: bool,
    ) -> Result<()> {
        let open = self.handles.usable(handle)?;
        let id = open.file.id;
        let wish = self.wish_of(id, handle, wish);
        let looking = self.locks.when(id, |own| {
            let is_settled = own.is_settled() && !own.has_under_way(&wish);
            if is_settled && wish.kind == LockKind::Posix {
                own.handles.insert(wish.owner, handle);
            }
            let set = own.set(wish.kind);
            let held = set.of(wish.owner, wish.range);
            let is_weaker = wish.mode == LockMode::Shared;
            let weakens = is_weaker && held.iter().any(|one| one.mode == LockMode::Exclusive);
            is_settled.then(|| (set.covers(wish.owner, wish.range, wish.mode), weakens))
        });
        let (has_it, weakens) = looking.await;
        if has_it {
            return Ok(());
        }
        if weakens {
            self.commit_before_unlock(&open.file).await;
        }
        if !waits {
            self.try_lock(&open, wish).await?;
        } else if !self.take_idle(&open, &wish).await? {
            self.wait_for_lock(&open, wish).await?;
        }
        self.freshen(&open).await
    }

    async fn try_lock(self: &Arc<Self>, open: &FileHandle, wish: LockWish) -> Result<()> {
        let pauses = if wish.kind == LockKind::Flock { &CLOSING[..] } else { &[] };
        let mut pauses = pauses.iter();
        loop {
            match (self.try_once(open, wish).await, pauses.next()) {
                (Err(error), Some(&pause)) if error.kind() == ErrorKind::WouldBlock => {
                    tokio::time::sleep(pause).await;
                }
                (outcome, _) => return outcome,
            }
        }
    }

    async fn try_once(self: &Arc<Self>, open: &FileHandle, wish: LockWish) -> Result<()> {
        let id = open.file.id;
        if self.locks.in_the_way(id, &wish).await.is_some() {
            return Err(refused(id));
        }
        if self.take_idle(open, &wish).await? {
            return Ok(());
        }
        let (shared, caller) = (self.clone(), open.caller.clone());
        self.detached(async move { shared.ask_once(&caller, id, wish).await }).await
    }

    async fn ask_once(self: &Arc<Self>, caller: &Caller, id: FileId, wish: LockWish) -> Result<()> {
        let _turn = self.lock_turn(id, &wish).await;
        let _asking = self.keep_wish(caller, id, &wish);
        let asked = Instant::now();
        let idles = self.locks.offers_idle(id, wish.kind);
        let request = Lock { idles, ..message(id, &wish, Some(wish.mode), None) };
        let LockReply { outcome, idles } = self.ask(caller, id, request).await?.reply;
        match outcome {
            LockOutcome::Granted => {
                let may_idle = idles == Some(true);
                self.locks.granted(id, &wish, &Granted { asked, may_idle });
                Ok(())
            }
            _ => Err(refused(id)),
        }
    }

    async fn wait_for_lock(self: &Arc<Self>, open: &FileHandle, wish: LockWish) -> Result<()> {
        let ticket = self.locks.ticket.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let wait = Arc::new(Wait {
            caller: open.caller.clone(),
            id: open.file.id,
            wish,
            ticket,
            fate: Mutex::new(Fate::Waiting),
        });
        let waiter = Waiter { shared: self.clone(), wait: wait.clone() };
        let shared = self.clone();
        let asking = self.keep_wish(&open.caller, open.file.id, &wish);
        tokio::spawn(async move {
            let _asking = asking;
            let outcome = shared.ask_until_granted(&wait).await;
            // A caller who went away does not hear it.
            let _ = answer.send(shared.conclude(&wait, outcome).await);
        });
        let ended = |_| Error::local(ErrorKind::Internal, "wait for a lock");
        let outcome = answered.await.map_err(ended)?;
        drop(waiter);
        outcome
    }

    async fn ask_until_granted(&self, wait: &Wait) -> Result<Granted> {
        loop {
            let place = self.locks.parked.try_acquire();
            let longest = PATIENCE.min(self.settings.wait / 2);
            let patience = if place.is_ok() { longest } else { Duration::ZERO };
            let patience_ms = patience.as_millis() as u32;
            let place_kept = Some(LockWait { ticket: wait.ticket, patience_ms });
            let idles = self.locks.offers_idle(wait.id, wait.wish.kind);
            let message = message(wait.id, &wait.wish, Some(wait.wish.mode), place_kept);
            let asked = Instant::now();
            let request = Lock { idles, ..message };
            let told = self.ask(&wait.caller, wait.id, request).await?;
            let may_idle = told.reply.idles == Some(true);
            match told.reply.outcome {
                LockOutcome::Granted => return Ok(Granted { asked, may_idle }),
                LockOutcome::Queued if asked.elapsed() >= ASK_AGAIN => {}
                LockOutcome::Queued => tokio::time::sleep(ASK_AGAIN).await,
                LockOutcome::Refused | LockOutcome::Cancelled => return Err(refused(wait.id)),
            }
        }
    }

    /// Says to the next process what may be held at the server alone.
    fn keep_wish(&self, caller: &Caller, id: FileId, wish: &LockWish) -> Option<Kept> {
        self.keep.is_on().then(|| {
            let wish = KeptWish { caller: caller.clone(), lock: KeptLock::of(wish) };
            records::put_wish(&self.keep, id, &wish)
        })?
    }

    /// An earlier process asked for a lock, and nobody knows whether it was granted: what is held
    /// there is made what is known here.
    pub(crate) async fn undo_wish(self: &Arc<Self>, id: FileId, left: KeptWish) -> Result<()> {
        let fate = Mutex::new(Fate::Abandoned);
        let wait = Wait { caller: left.caller, id, wish: left.lock.wish(), ticket: 0, fate };
        self.undo_grant(&wait).await
    }

    /// A wait has ended: with a lock that is noted, or given back if nobody wants it any more.
    async fn conclude(self: &Arc<Self>, wait: &Wait, outcome: Result<Granted>) -> Result<()> {
        let is_wanted = {
            let mut fate = lock(&wait.fate);
            let is_wanted = *fate == Fate::Waiting;
            if is_wanted {
                *fate = Fate::Over;
                if let Ok(granted) = &outcome {
                    self.locks.granted(wait.id, &wait.wish, granted);
                }
            }
            is_wanted
        };
        let gives_back = !is_wanted || (outcome.is_err() && wait.wish.kind == LockKind::Flock);
        if gives_back && let Err(error) = self.undo_grant(wait).await {
            tracing::info!(file = %wait.id, %error, "cancelled lock is not given back");
        }
        if !is_wanted {
            self.locks.settle(wait.id, |own| own.unsettled -= 1);
        }
        outcome.map(drop)
    }

    /// Makes the server's idea of what the owner holds there what it was before the wait.
    async fn undo_grant(self: &Arc<Self>, wait: &Wait) -> Result<()> {
        let wish = &wait.wish;
        let _turn = self.lock_turn(wait.id, wish).await;
        if wish.kind == LockKind::Flock {
            // What is changed was given up when the wait began.
            self.locks.note(wait.id, wish, None);
        }
        let held = self.locks.change(wait.id, |own| {
            let held = own.set(wish.kind).of(wish.owner, wish.range);
            if wish.kind == LockKind::Posix {
                own.at_server.set(wish.owner, wish.range, None);
                for one in &held {
                    let range = one.range.within(wish.range);
                    own.at_server.set(wish.owner, range, Some(one.mode));
                }
            }
            held
        });
        let mut at = wish.range.start;
        for old in held {
            let range = old.range.within(wish.range);
            self.free_range(wait, LockRange { start: at, end: range.start }).await?;
            let request = message(wait.id, &LockWish { range, ..*wish }, Some(old.mode), None);
            self.ask(&wait.caller, wait.id, request).await?;
            at = range.end;
        }
        self.free_range(wait, LockRange { start: at, end: wish.range.end }).await
    }

    async fn free_range(&self, wait: &Wait, range: LockRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let request = message(wait.id, &LockWish { range, ..wait.wish }, None, None);
        self.ask(&wait.caller, wait.id, request).await.map(drop)
    }

    pub(crate) async fn unlock(self: &Arc<Self>, handle: HandleId, wish: LockWish) -> Result<()> {
        let open = self.handles.file(handle)?;
        let wish = self.wish_of(open.file.id, handle, wish);
        self.unlock_file(&open, wish, false).await
    }

    /// Frees a range, for good if the owner closes the file.
    async fn unlock_file(
        self: &Arc<Self>,
        open: &FileHandle,
        wish: LockWish,
        closes: bool,
    ) -> Result<()> {
        let (id, file) = (open.file.id, open.file.clone());
        if !self.locks.may_free(id, &wish, closes) {
            return Ok(());
        }
        let (shared, caller) = (self.clone(), open.caller.clone());
        self.detached(async move {
            let _turn = shared.lock_turn(id, &wish).await;
            if !shared.locks.with(id, |own| own.is_freed_by(&wish, closes)) {
                return Ok(());
            }
            shared.commit_before_unlock(&file).await;
            if shared.locks.leave(id, &wish, closes).await {
                return Ok(());
            }
            let server = shared.servers.mds(id.mdt()).ok();
            let asserting = server.map(|server| shared.locks.asserting(server.number));
            let _asserting = match &asserting {
                Some(asserting) => Some(asserting.read().await),
                None => None,
            };
            let request = message(id, &wish, None, None);
            let freed = shared.ask(&caller, id, request).await.map(drop);
            // If the server cannot be asked, the session will end before long.
            shared.locks.settle(id, |own| {
                own.note(&wish, None);
                own.leaving -= 1;
            });
            freed
        })
        .await
    }

    /// Whoever locks next sees what was written. What goes wrong is told at fsync or close.
    async fn commit_before_unlock(self: &Arc<Self>, file: &Arc<File>) {
        if file.is_dirty()
            && let Err(error) = self.launder(file, How::Flush).await
        {
            let file = file.id;
            tracing::warn!(%file, %error, "unlocked before what was written is committed");
        }
    }

    pub(crate) async fn drop_locks(self: &Arc<Self>, handle: HandleId, kind: LockKind, owner: u64) {
        let Ok(open) = self.handles.file(handle) else { return };
        let (range, mode) = (LockRange::WHOLE, LockMode::Shared);
        let wish = LockWish { kind, owner, range, mode, process: 0 };
        let id = open.file.id;
        let wish = self.wish_of(id, handle, wish);
        if let Err(error) = self.unlock_file(&open, wish, true).await {
            tracing::warn!(file = %id, %error, "locks of a closed file are not freed");
        }
        if kind == LockKind::Posix {
            self.locks.with(id, |own| own.handles.remove(&owner));
        }
    }

    /// A handle's last close. Processes have freed what was theirs: what is left was the open
    /// file's own (`F_OFD_SETLK`).
    pub(crate) async fn drop_locks_through(self: &Arc<Self>, handle: HandleId) {
        let Ok(open) = self.handles.file(handle) else { return };
        for owner in self.locks.owners_through(open.file.id, handle) {
            self.drop_locks(handle, LockKind::Posix, owner).await;
        }
    }

    pub(crate) async fn test_lock(
        &self,
        handle: HandleId,
        wish: LockWish,
    ) -> Result<Option<LockFound>> {
        let open = self.handles.file(handle)?;
        let id = open.file.id;
        let wish = self.wish_of(id, handle, wish);
        let mut pauses = CLOSING.iter();
        while let Some(found) = self.locks.in_the_way(id, &wish).await {
            let Some(&pause) = pauses.next() else { return Ok(Some(found)) };
            tokio::time::sleep(pause).await;
        }
        let LockWish { kind, owner, range, mode, .. } = wish;
        let request = TestLock { id, kind, owner, range, mode };
        let found = self.ask(&open.caller, id, request).await?.reply.found;
        Ok(found.map(|found| LockFound { range: found.range, mode: found.mode, process: 0 }))
    }

    /// Whoever was granted a lock reads what its last holder wrote: the door forgets bytes of
    /// which that is not sure.
    async fn freshen(&self, open: &FileHandle) -> Result<()> {
        let file = &open.file;
        if !self.has_door() {
            return Ok(());
        }
        self.view(&open.caller, file, 0..0).await?;
        if let Some(edition) = file.with(|state| state.door.tell(state.version)) {
            self.clean(file, edition).await;
        }
        Ok(())
    }
}

fn message(id: FileId, wish: &LockWish, mode: Option<LockMode>, wait: Option<LockWait>) -> Lock {
    let LockWish { kind, owner, range, .. } = *wish;
    Lock { id, kind, owner, range, mode, wait, idles: None }
}

fn refused(id: FileId) -> Error {
    Error::local(ErrorKind::WouldBlock, format!("lock on {id}"))
}

/// What a server said with a grant.
struct Granted {
    /// When it was asked.
    asked: Instant,
    may_idle: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Waiting,
    Abandoned,
    Over,
}

/// A wait for a lock, shared by its caller and its task.
struct Wait {
    caller: Caller,
    id: FileId,
    wish: LockWish,
    ticket: u64,
    fate: Mutex<Fate>,
}

/// The caller's end of a wait. Dropped before the wait is over, it cancels.
struct Waiter {
    shared: Arc<Shared>,
    wait: Arc<Wait>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        {
            let mut fate = lock(&self.wait.fate);
            if *fate != Fate::Waiting {
                return;
            }
            *fate = Fate::Abandoned;
            self.shared.locks.with(self.wait.id, |own| own.unsettled += 1);
        }
        let (shared, wait) = (self.shared.clone(), self.wait.clone());
        tokio::spawn(async move {
            let request = CancelLock { id: wait.id, ticket: wait.ticket };
            // If it does not get through, the wait is over with its session.
            let _ = shared.ask(&wait.caller, wait.id, request).await;
        });
    }
}
