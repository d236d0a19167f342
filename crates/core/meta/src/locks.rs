//! Advisory locks: who holds them, and who waits in which order.
//!
//! They live in memory, by file, and belong to an owner of a session. Who must wait takes a place
//! in the file's queue and is woken when its turn has come; those who hold nothing anywhere do not
//! overtake others whom they would block. A wait that nobody is at (the client asks again, or its
//! connection was lost) keeps its place for [`PLACE_KEPT`]; so does a grant that nobody came for.
//!
//! A session may keep *idle* locks: such that its client does not give back although no program
//! holds them. Whoever is kept out by a session that may is not refused before it was asked to free
//! them, and is woken when a session that may is granted more.
//!
//! After a start the sessions of before are *missing* until they have asserted their locks, have
//! ended, or the lease time is over; nothing new is granted before.
//!
//! Knows no store and sends nothing; `service/locking` asks, and takes locks from those who are
//! silent.
//!
//! Invariants: locks of different owners never conflict; whoever waits is woken when nothing is in
//! its way any more; queues and sets are bounded.

use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_sessions::Grace;
use tieline_types::locks::{Held, LockSet};
use tieline_types::{FileId, LockKind, LockMode, LockRange, LostLock, SessionId};
use tieline_wire::locks::{AssertedLock, Lock, LockFound, LockOutcome};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a place is kept that nobody is at.
const PLACE_KEPT: Duration = Duration::from_secs(10);
/// Locks on one file, and files with locks of one session.
const LOCKS_MAX: usize = 65_536;
/// Locks of one session on all files.
const SESSION_LOCKS_MAX: usize = 262_144;
/// Waits on one file.
const WAITS_MAX: usize = 4096;
/// Waits of one session that its connection holds requests for; others are asked again.
const PARKED_MAX: usize = 64;
/// Cancelled tickets remembered per session: a cancellation may overtake its request.
const CANCELLED_MAX: usize = 256;

/// An owner of locks. Numbers of different sessions are different owners.
pub type Owner = (SessionId, u64);

#[derive(Default)]
pub struct LockTable {
    inner: Mutex<Inner>,
    grace: Grace,
}

#[derive(Default)]
struct Inner {
    files: BTreeMap<FileId, FileLocks>,
    /// Files on which a session holds or waits.
    by_session: BTreeMap<SessionId, BTreeSet<FileId>>,
    /// Locks that a session holds.
    counts: BTreeMap<SessionId, usize>,
    /// Files with a queue.
    queued: BTreeSet<FileId>,
    cancelled: BTreeMap<SessionId, VecDeque<u64>>,
    /// Counts the times that a session was told that its locks may be idle.
    idled: u64,
}

#[derive(Default)]
struct FileLocks {
    posix: LockSet<Owner>,
    flock: LockSet<Owner>,
    queue: VecDeque<Wait>,
    /// Sessions whose `fcntl` locks here may be idle, and the count when they were told so last.
    idlers: BTreeMap<SessionId, u64>,
}

struct Wait {
    ticket: u64,
    wish: Wish,
    is_granted: bool,
    /// A request is here; else the place is kept until then.
    is_parked: bool,
    kept_until: Instant,
    turn: Arc<Notify>,
}

/// A lock that somebody wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub owner: Owner,
    pub kind: LockKind,
    pub range: LockRange,
    pub mode: LockMode,
}

impl Wish {
    fn is_in_the_way_of(&self, other: &Self) -> bool {
        let is_exclusive = [self.mode, other.mode].contains(&LockMode::Exclusive);
        self.kind == other.kind
            && self.owner != other.owner
            && is_exclusive
            && self.range.overlaps(other.range)
    }
}

/// What came of asking.
pub enum Asked {
    Outcome(LockOutcome),
    /// Wait for the turn, then look again with [`LockTable::look`].
    Wait(Place),
}

/// A place in a queue that a request is at. Dropped, it is kept for a while.
pub struct Place {
    table: Arc<LockTable>,
    file: FileId,
    session: SessionId,
    ticket: u64,
    pub turn: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.table.lock();
        if let Some(wait) = inner.wait(self.file, self.session, self.ticket) {
            wait.is_parked = false;
            wait.kept_until = Instant::now() + PLACE_KEPT;
        }
    }
}

impl LockTable {
    /// After a start, sessions of before it may hold locks.
    pub fn new(lease: Duration, missing: BTreeSet<SessionId>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), grace: Grace::new(lease, missing) })
    }

    /// Takes, changes, frees, or queues up.
    pub fn ask(self: &Arc<Self>, session: SessionId, request: &Lock) -> Result<Asked> {
        let owner = (session, request.owner);
        check_range(request.range)?;
        let mut inner = self.lock();
        let Some(mode) = request.mode else {
            inner.set(request.id, request.kind, owner, request.range, None);
            inner.tidy(request.id);
            return Ok(Asked::Outcome(LockOutcome::Granted));
        };
        let wish = Wish { owner, kind: request.kind, range: request.range, mode };
        inner.check_room(session, request.id)?;
        let Some(wait) = request.wait else {
            let is_free = inner.is_free(request.id, &wish);
            if is_free {
                inner.grant(request.id, &wish);
            }
            inner.tidy(request.id);
            let outcome = if is_free { LockOutcome::Granted } else { LockOutcome::Refused };
            return Ok(Asked::Outcome(outcome));
        };
        let asked = inner.queue_up(request.id, wish, wait.ticket)?;
        inner.tidy(request.id);
        Ok(match asked {
            Ok(outcome) => Asked::Outcome(outcome),
            Err(turn) => Asked::Wait(Place {
                table: self.clone(),
                file: request.id,
                session,
                ticket: wait.ticket,
                turn,
            }),
        })
    }

    /// Has the turn come? `None`: not yet.
    pub fn look(&self, place: &Place) -> Option<LockOutcome> {
        let mut inner = self.lock();
        let Some(wait) = inner.wait(place.file, place.session, place.ticket) else {
            return Some(LockOutcome::Cancelled);
        };
        if !wait.is_granted {
            return None;
        }
        inner.remove_wait(place.file, place.session, place.ticket);
        inner.tidy(place.file);
        Some(LockOutcome::Granted)
    }

    /// Sessions whose locks are in the way of a wish.
    pub fn blockers(&self, file: FileId, wish: &Wish) -> BTreeSet<SessionId> {
        self.owners_in_the_way(file, wish).into_iter().map(|(session, _)| session).collect()
    }

    /// Owners whose locks are in the way of a wish.
    pub fn owners_in_the_way(&self, file: FileId, wish: &Wish) -> BTreeSet<Owner> {
        let inner = self.lock();
        inner.conflicts(file, wish).iter().map(|held| held.owner).collect()
    }

    /// An owner loses all that it has of a kind on a file.
    pub fn take_from(&self, owner: Owner, file: FileId, kind: LockKind) {
        let mut inner = self.lock();
        if let Some(locks) = inner.files.get_mut(&file) {
            // Nor may it come for what it was granted meanwhile.
            let is_its = |wish: &Wish| wish.owner == owner && wish.kind == kind;
            locks.queue.retain(|wait| !(wait.is_granted && is_its(&wait.wish)));
        }
        inner.set(file, kind, owner, LockRange::WHOLE, None);
        inner.tidy(file);
    }

    /// A session may keep idle locks on a file from now on.
    pub fn may_idle(&self, session: SessionId, file: FileId) {
        let mut inner = self.lock();
        inner.idled += 1;
        let count = inner.idled;
        let Some(locks) = inner.files.get_mut(&file) else { return };
        locks.idlers.insert(session, count);
        // What it was granted before may be in their way.
        locks.queue.iter().for_each(|wait| wait.turn.notify_one());
    }

    /// Sessions whose locks in the way of a wish may be idle, and when they were told so last.
    pub fn idlers(&self, file: FileId, wish: &Wish) -> BTreeMap<SessionId, u64> {
        let inner = self.lock();
        let Some(locks) = inner.files.get(&file) else { return BTreeMap::new() };
        if wish.kind != LockKind::Posix || locks.idlers.is_empty() {
            return BTreeMap::new();
        }
        let idler = |held: Held<Owner>| locks.idlers.get_key_value(&held.owner.0);
        locks.conflicts(wish).filter_map(idler).map(|(&session, &told)| (session, told)).collect()
    }

    /// A session has freed its idle locks. If it was told since that they may be, it stays so.
    pub fn idle_no_more(&self, file: FileId, session: SessionId, told: u64) {
        let mut inner = self.lock();
        if let Some(locks) = inner.files.get_mut(&file)
            && locks.idlers.get(&session) == Some(&told)
        {
            locks.idlers.remove(&session);
        }
    }

    pub fn test(&self, file: FileId, wish: &Wish) -> Option<LockFound> {
        let session = wish.owner.0;
        let found = self.lock().conflicts(file, wish).into_iter().next()?;
        let (of, number) = found.owner;
        let owner = (of == session).then_some(number);
        Some(LockFound { range: found.range, mode: found.mode, owner })
    }

    /// Gives up a place. Says whether it was still waiting.
    pub fn cancel(&self, session: SessionId, file: FileId, ticket: u64) -> bool {
        let mut inner = self.lock();
        let tickets = inner.cancelled.entry(session).or_default();
        tickets.push_back(ticket);
        if tickets.len() > CANCELLED_MAX {
            tickets.pop_front();
        }
        let Some(wait) = inner.wait(file, session, ticket) else { return false };
        let (is_granted, turn) = (wait.is_granted, wait.turn.clone());
        inner.remove_wait(file, session, ticket);
        inner.serve(file);
        inner.tidy(file);
        turn.notify_one();
        !is_granted
    }

    /// May the session say what it held before the start? Once, and whoever came later never.
    pub fn may_assert(&self, session: SessionId) -> bool {
        self.grace.is_missing(session)
    }

    /// Does the owner hold what it wishes?
    pub fn covers(&self, file: FileId, wish: &Wish) -> bool {
        let inner = self.lock();
        let held = inner.files.get(&file).map(|locks| locks.set(wish.kind));
        held.is_some_and(|held| held.suffices(wish.owner, wish.range, wish.mode))
    }

    /// A session of before the start says what it holds, and has the right to if `may` it. Which of
    /// it is lost, to others or before the start already? Those who wait by now are not overtaken.
    pub fn assert(
        &self,
        session: SessionId,
        (locks, may): (&[AssertedLock], &[bool]),
        before: &[LostLock],
        is_last: bool,
    ) -> Vec<u32> {
        let mut inner = self.lock();
        let mut lost = vec![];
        let was_lost = |lock: &AssertedLock| {
            let is_same = |lost: &LostLock| {
                (lost.id, lost.kind, lost.owner) == (lock.id, lock.kind, lock.owner)
            };
            before.iter().any(is_same)
        };
        for (index, lock) in locks.iter().enumerate() {
            let owner = (session, lock.owner);
            let wish = Wish { owner, kind: lock.kind, range: lock.range, mode: lock.mode };
            let may = may.get(index) == Some(&true) && check_range(lock.range).is_ok();
            let is_free = inner.is_free(lock.id, &wish) && !inner.would_overtake(lock.id, &wish);
            let is_free = is_free && may && !was_lost(lock);
            if is_free && inner.check_room(session, lock.id).is_ok() {
                inner.grant(lock.id, &wish);
            } else {
                lost.push(index as u32);
            }
            inner.tidy(lock.id);
        }
        drop(inner);
        if is_last {
            self.grace.found(session);
        }
        lost
    }

    /// The session is over: its locks and waits are.
    pub fn end(&self, session: SessionId) {
        let mut inner = self.lock();
        inner.cancelled.remove(&session);
        inner.counts.remove(&session);
        for file in inner.by_session.remove(&session).unwrap_or_default() {
            let Some(locks) = inner.files.get_mut(&file) else { continue };
            let is_gone = |owner: Owner| owner.0 == session;
            locks.posix.drop_owners(is_gone);
            locks.flock.drop_owners(is_gone);
            locks.queue.retain(|wait| wait.wish.owner.0 != session);
            locks.idlers.remove(&session);
            inner.serve(file);
            inner.tidy(file);
        }
        drop(inner);
        self.grace.found(session);
    }

    /// Drops places that nobody came back to.
    pub fn sweep(&self) {
        let mut inner = self.lock();
        let files: Vec<FileId> = inner.queued.iter().copied().collect();
        for file in files {
            inner.drop_stale(file);
            inner.serve(file);
            inner.tidy(file);
        }
    }

    /// Waits until all locks of before the start are known.
    pub async fn grace_over(&self) {
        self.grace.over().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_range(range: LockRange) -> Result<()> {
    if range.is_empty() || range.end > LockRange::WHOLE.end {
        return Err(Error::Invalid { what: "a lock on no bytes" });
    }
    Ok(())
}

impl FileLocks {
    fn set(&self, kind: LockKind) -> &LockSet<Owner> {
        match kind {
            LockKind::Posix => &self.posix,
            LockKind::Flock => &self.flock,
        }
    }

    fn set_mut(&mut self, kind: LockKind) -> &mut LockSet<Owner> {
        match kind {
            LockKind::Posix => &mut self.posix,
            LockKind::Flock => &mut self.flock,
        }
    }

    fn conflicts(&self, wish: &Wish) -> impl Iterator<Item = Held<Owner>> + '_ {
        self.set(wish.kind).conflicts(wish.owner, wish.range, wish.mode)
    }

    fn has(&self, owner: Owner) -> bool {
        self.posix.has(owner) || self.flock.has(owner)
    }

    fn is_of(&self, session: SessionId) -> bool {
        let is_own = |held: Held<Owner>| held.owner.0 == session;
        self.posix.iter().any(is_own)
            || self.flock.iter().any(is_own)
            || self.queue.iter().any(|wait| wait.wish.owner.0 == session)
    }

    /// When half of the room is used, one session has a quarter at most: it keeps no others out.
    fn is_full_for(&self, session: SessionId) -> bool {
        let (held, waits) = (self.posix.len() + self.flock.len(), self.queue.len());
        if held < LOCKS_MAX / 2 && waits < WAITS_MAX / 2 {
            return false;
        }
        let sets = self.posix.iter().chain(self.flock.iter());
        let own_held = sets.filter(|held| held.owner.0 == session).count();
        let own_waits = self.queue.iter().filter(|wait| wait.wish.owner.0 == session).count();
        let is_much = own_held >= LOCKS_MAX / 4 || own_waits >= WAITS_MAX / 4;
        is_much || held >= LOCKS_MAX || waits >= WAITS_MAX
    }

    fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty() && self.queue.is_empty()
    }
}

impl Inner {
    fn conflicts(&self, file: FileId, wish: &Wish) -> Vec<Held<Owner>> {
        self.files.get(&file).map_or_else(Vec::new, |locks| locks.conflicts(wish).collect())
    }

    fn is_free(&self, file: FileId, wish: &Wish) -> bool {
        self.files.get(&file).is_none_or(|locks| locks.conflicts(wish).next().is_none())
    }

    fn check_room(&self, session: SessionId, file: FileId) -> Result<()> {
        let files = self.by_session.get(&session);
        let is_new = files.is_none_or(|files| !files.contains(&file));
        let is_full = self.files.get(&file).is_some_and(|locks| locks.is_full_for(session));
        let held = self.counts.get(&session).copied().unwrap_or_default();
        let has_many =
            held >= SESSION_LOCKS_MAX || (is_new && files.map_or(0, BTreeSet::len) >= LOCKS_MAX);
        if is_full || has_many {
            return Err(Error::LocksFull { file });
        }
        Ok(())
    }

    /// Nothing is in its way.
    fn grant(&mut self, file: FileId, wish: &Wish) {
        self.set(file, wish.kind, wish.owner, wish.range, Some(wish.mode));
    }

    fn set(
        &mut self,
        file: FileId,
        kind: LockKind,
        owner: Owner,
        range: LockRange,
        mode: Option<LockMode>,
    ) {
        if mode.is_some() {
            self.by_session.entry(owner.0).or_default().insert(file);
        }
        self.change(file, kind, owner, range, mode);
        // Less than before may let others in.
        self.serve(file);
    }

    /// Changes the set, and counts: a change may cut locks in two, or join them.
    fn change(
        &mut self,
        file: FileId,
        kind: LockKind,
        owner: Owner,
        range: LockRange,
        mode: Option<LockMode>,
    ) {
        let set = self.files.entry(file).or_default().set_mut(kind);
        let before = set.len();
        set.set(owner, range, mode);
        let after = set.len();
        let count = self.counts.entry(owner.0).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            self.counts.remove(&owner.0);
        }
    }

    /// A place in the queue, or what came of asking at once.
    fn queue_up(
        &mut self,
        file: FileId,
        wish: Wish,
        ticket: u64,
    ) -> Result<Result<LockOutcome, Arc<Notify>>> {
        let session = wish.owner.0;
        if self.cancelled.get(&session).is_some_and(|tickets| tickets.contains(&ticket)) {
            return Ok(Ok(LockOutcome::Cancelled));
        }
        self.drop_stale(file);
        let is_known = self.wait(file, session, ticket).is_some();
        if !is_known {
            if self.is_free(file, &wish) && !self.would_overtake(file, &wish) {
                self.grant(file, &wish);
                return Ok(Ok(LockOutcome::Granted));
            }
            if wish.kind == LockKind::Flock {
                // As on Linux, a lock that is changed is given up first: two that wait for each
                // other to give way would wait for ever.
                self.set(file, wish.kind, wish.owner, wish.range, None);
            } else if self.would_close_a_ring(file, &wish) {
                return Err(Error::Deadlock { file });
            }
            self.enqueue(file, wish, ticket);
            self.serve(file);
        }
        let has_room = self.parked(session) < PARKED_MAX;
        let Some(wait) = self.wait(file, session, ticket) else {
            return Ok(Ok(LockOutcome::Cancelled));
        };
        if wait.is_granted {
            self.remove_wait(file, session, ticket);
            return Ok(Ok(LockOutcome::Granted));
        }
        wait.kept_until = Instant::now() + PLACE_KEPT;
        wait.is_parked = has_room;
        Ok(if has_room { Err(wait.turn.clone()) } else { Ok(LockOutcome::Queued) })
    }

    fn enqueue(&mut self, file: FileId, wish: Wish, ticket: u64) {
        let kept_until = Instant::now() + PLACE_KEPT;
        let turn = Arc::new(Notify::new());
        let wait = Wait { ticket, wish, is_granted: false, is_parked: false, kept_until, turn };
        self.files.entry(file).or_default().queue.push_back(wait);
        self.by_session.entry(wish.owner.0).or_default().insert(file);
        self.queued.insert(file);
    }

    fn parked(&self, session: SessionId) -> usize {
        let files = self.by_session.get(&session).into_iter().flatten();
        let queues = files.filter_map(|file| self.files.get(file)).flat_map(|locks| &locks.queue);
        queues.filter(|wait| wait.is_parked && wait.wish.owner.0 == session).count()
    }

    /// Would it be granted before somebody who waits longer and whom it would keep waiting? Those
    /// who hold something may: else they could wait for whoever waits for them.
    fn would_overtake(&self, file: FileId, wish: &Wish) -> bool {
        if self.holds_anything(wish.owner) {
            return false;
        }
        let queue = self.files.get(&file).into_iter().flat_map(|locks| &locks.queue);
        queue.filter(|wait| !wait.is_granted).any(|wait| wish.is_in_the_way_of(&wait.wish))
    }

    fn holds_anything(&self, owner: Owner) -> bool {
        let files = self.by_session.get(&owner.0).into_iter().flatten();
        files.filter_map(|file| self.files.get(file)).any(|locks| locks.has(owner))
    }

    /// Grants what can be granted, in order.
    fn serve(&mut self, file: FileId) {
        if !self.queued.contains(&file) {
            return;
        }
        let mut at = 0;
        while let Some(wait) = self.files.get(&file).and_then(|locks| locks.queue.get(at)) {
            let wish = wait.wish;
            if !wait.is_granted && self.is_free(file, &wish) && !self.is_behind(file, at, &wish) {
                self.by_session.entry(wish.owner.0).or_default().insert(file);
                self.change(file, wish.kind, wish.owner, wish.range, Some(wish.mode));
                let locks = self.files.get_mut(&file);
                if let Some(wait) = locks.and_then(|locks| locks.queue.get_mut(at)) {
                    wait.is_granted = true;
                    wait.kept_until = Instant::now() + PLACE_KEPT;
                    wait.turn.notify_one();
                }
            }
            at += 1;
        }
    }

    /// Must the wait at that place let somebody before it go first?
    fn is_behind(&self, file: FileId, at: usize, wish: &Wish) -> bool {
        if self.holds_anything(wish.owner) {
            return false;
        }
        let queue = self.files.get(&file).into_iter().flat_map(|locks| locks.queue.iter().take(at));
        queue.filter(|wait| !wait.is_granted).any(|wait| wish.is_in_the_way_of(&wait.wish))
    }

    /// Does somebody in its way wait, over however many others, for its owner?
    fn would_close_a_ring(&self, file: FileId, wish: &Wish) -> bool {
        let mut seen = BTreeSet::new();
        let mut next: Vec<Owner> =
            self.conflicts(file, wish).into_iter().map(|held| held.owner).collect();
        while let Some(owner) = next.pop() {
            if owner == wish.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for &other in &self.queued {
                let Some(locks) = self.files.get(&other) else { continue };
                let waits = locks.queue.iter().filter(|wait| {
                    wait.wish.owner == owner
                        && wait.wish.kind == LockKind::Posix
                        && !wait.is_granted
                });
                for wait in waits {
                    next.extend(locks.conflicts(&wait.wish).map(|held| held.owner));
                }
            }
        }
        false
    }

    fn wait(&mut self, file: FileId, session: SessionId, ticket: u64) -> Option<&mut Wait> {
        let queue = &mut self.files.get_mut(&file)?.queue;
        queue.iter_mut().find(|wait| wait.ticket == ticket && wait.wish.owner.0 == session)
    }

    fn remove_wait(&mut self, file: FileId, session: SessionId, ticket: u64) {
        if let Some(locks) = self.files.get_mut(&file) {
            locks.queue.retain(|wait| wait.ticket != ticket || wait.wish.owner.0 != session);
        }
    }

    /// Drops places that nobody came back to, and frees what was granted there.
    fn drop_stale(&mut self, file: FileId) {
        let now = Instant::now();
        let Some(locks) = self.files.get_mut(&file) else { return };
        let is_stale = |wait: &Wait| !wait.is_parked && wait.kept_until <= now;
        let stale: Vec<(Wish, bool)> = locks
            .queue
            .iter()
            .filter(|wait| is_stale(wait))
            .map(|wait| (wait.wish, wait.is_granted))
            .collect();
        locks.queue.retain(|wait| !is_stale(wait));
        for (wish, _) in stale.into_iter().filter(|(_, is_granted)| *is_granted) {
            self.change(file, wish.kind, wish.owner, wish.range, None);
        }
    }

    /// Forgets what is empty.
    fn tidy(&mut self, file: FileId) {
        let Some(locks) = self.files.get(&file) else { return };
        if locks.queue.is_empty() {
            self.queued.remove(&file);
        }
        if locks.is_empty() {
            self.files.remove(&file);
        }
        let mut locks = self.files.get_mut(&file);
        self.by_session.retain(|&session, files| {
            if files.contains(&file) && locks.as_ref().is_none_or(|locks| !locks.is_of(session)) {
                files.remove(&file);
                if let Some(locks) = &mut locks {
                    locks.idlers.remove(&session);
                }
            }
            !files.is_empty()
        });
    }
}

#[cfg(test)]
mod tests;
