//! Lock calls, from asking to answer. They are not of the store: nothing here waits for a commit,
//! but what is taken from somebody.
//!
//! Whoever waits for a lock also watches its holders: an owner whose session is silent for the
//! lease time loses what it has of that kind on the file, and its session goes on. Its client is
//! told when it is back, and writes nothing to the file before it says that it knows. Whoever is
//! kept out by locks that may be idle has them freed before it is answered.

use super::Mdt;
use crate::Asker;
use crate::error::{Error, Result};
use crate::locks::{Asked, Owner, Place, Wish};
use crate::permission::{READ, WRITE};
use crate::view::{Keepers, View, decode};
use crate::walked;
use std::collections::BTreeSet;
use std::time::Duration;
use tieline_format::mdt::{Inode, key};
use tieline_types::{ErrorKind, FileId, Grant, LockKind, LockMode, LostLock, SessionId};
use tieline_wire::Request;
use tieline_wire::locks::{
    AssertLocks, AssertLocksReply, CancelLockReply, Lock, LockFound, LockOutcome, LockReply,
    LockWait, TestLock, TestLockReply,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// A session that is not connected is asked again so often: it may be back.
const AWAY_PAUSE: Duration = Duration::from_millis(50);
/// The longest wait of one request: well below what connections and clients take for silence.
const PATIENCE_MAX: Duration = Duration::from_secs(20);

impl Mdt {
    /// Answers a lock call; `None` if it is none.
    pub(super) async fn locking(
        &self,
        asker: &Asker,
        request: &Request,
    ) -> Option<Result<Vec<u8>>> {
        let session = asker.session;
        Some(match request {
            Request::Lock(lock) => {
                let outcome = self.lock(asker, lock).await;
                outcome.map(|outcome| {
                    let idles = self.may_idle(session, lock, outcome).then_some(true);
                    tieline_wire::encode(&LockReply { outcome, idles })
                })
            }
            Request::TestLock(test) => {
                let found = self.test_lock(asker, test).await;
                found.map(|found| tieline_wire::encode(&TestLockReply { found }))
            }
            Request::CancelLock(cancel) => {
                let was_waiting = self.locks.cancel(session, cancel.id, cancel.ticket);
                Ok(tieline_wire::encode(&CancelLockReply { was_waiting }))
            }
            Request::AssertLocks(asserted) => {
                let lost = self.assert_locks(asker, asserted).await;
                lost.map(|lost| tieline_wire::encode(&AssertLocksReply { lost }))
            }
            _ => return None,
        })
    }

    async fn test_lock(&self, asker: &Asker, test: &TestLock) -> Result<Option<LockFound>> {
        let TestLock { id, kind, range, mode, .. } = *test;
        // Whoever looks locks nothing, whatever it is that he looks for.
        self.check_reached(asker, id).await?;
        self.check_lockable(asker, id, &[READ, WRITE]).await?;
        self.locks.grace_over().await;
        let wish = Wish { owner: (asker.session, test.owner), kind, range, mode };
        self.free_idle(id, &wish, Instant::now() + self.settings.lease).await?;
        Ok(self.locks.test(id, &wish))
    }

    async fn assert_locks(&self, asker: &Asker, asserted: &AssertLocks) -> Result<Vec<u32>> {
        let session = asker.session;
        let before = self.sessions.losses(session);
        if let Some(upto) = asserted.heard {
            self.sessions.heard_of_losses(session, upto).await?;
        }
        let may_assert = self.locks.may_assert(session);
        let mut may = Vec::with_capacity(asserted.locks.len());
        for lock in &asserted.locks {
            let wishes = wishes(lock.kind, lock.mode);
            may.push(match self.check_lockable(asker, lock.id, wishes).await {
                Err(error) if error.kind() == ErrorKind::StorageFault => return Err(error),
                checked => may_assert && checked.is_ok(),
            });
        }
        Ok(self.locks.assert(session, (&asserted.locks, &may), &before, asserted.is_last))
    }

    /// What a session that was just heard has lost, for its welcome. Nothing more is taken from it
    /// while it is heard.
    pub(crate) async fn lost_locks(&self, session: SessionId) -> Vec<LostLock> {
        let _taking = self.taking.lock().await;
        self.sessions.tell_losses(session)
    }

    async fn lock(&self, asker: &Asker, request: &Lock) -> Result<LockOutcome> {
        let session = asker.session;
        if request.id.mdt() != self.settings.mdt {
            return Err(Error::OtherMdt { id: request.id });
        }
        let Some(mode) = request.mode else {
            return self.ask_lock(session, request, Instant::now()).await;
        };
        let wish = Wish {
            owner: (session, request.owner),
            kind: request.kind,
            range: request.range,
            mode,
        };
        // What it holds it may make weaker, whatever its right is by now.
        if !self.locks.covers(request.id, &wish) {
            self.check_reached(asker, request.id).await?;
            self.check_lockable(asker, request.id, wishes(request.kind, mode)).await?;
        }
        self.locks.grace_over().await;
        let deadline = Instant::now() + request.wait.map_or(self.settings.lease, patience);
        self.free_idle(request.id, &wish, deadline).await?;
        let outcome = self.ask_lock(session, request, deadline).await?;
        // Perhaps only one who is gone is in the way.
        if outcome == LockOutcome::Refused && self.take_silent(request.id, &wish).await? {
            return self.ask_lock(session, request, deadline).await;
        }
        Ok(outcome)
    }

    /// May the session keep idle locks on the file from now on?
    fn may_idle(&self, session: SessionId, request: &Lock, outcome: LockOutcome) -> bool {
        let is_taken = outcome == LockOutcome::Granted && request.mode.is_some();
        let may = is_taken && request.kind == LockKind::Posix && request.idles == Some(true);
        if may {
            self.locks.may_idle(session, request.id);
        }
        may
    }

    /// Has idle locks in the way of a wish freed, unless that takes too long: then they count as
    /// held.
    async fn free_idle(&self, file: FileId, wish: &Wish, deadline: Instant) -> Result<()> {
        loop {
            let idlers = self.locks.idlers(file, wish);
            if idlers.is_empty() {
                return Ok(());
            }
            let mut asking = JoinSet::new();
            for (session, told) in idlers {
                // Goes on if nobody waits for it any more: whoever asks again finds them freed.
                let asked = tokio::spawn(self.ask_idler(file, session, told));
                asking.spawn(async move { asked.await.unwrap_or(false) });
            }
            let silent_at = self.first_silent_at(file, wish);
            let until = silent_at.map_or(deadline, |at| at.min(deadline));
            let mut all_freed = true;
            while let Some(has_freed) =
                timeout_at(until, asking.join_next()).await.unwrap_or(Some(Ok(false)))
            {
                if !has_freed.unwrap_or(false) {
                    all_freed = false;
                    break;
                }
            }
            if all_freed {
                continue;
            }
            self.take_silent(file, wish).await?;
            if Instant::now() >= deadline {
                return Ok(());
            }
            // It may be away, and back soon.
            tokio::time::sleep(AWAY_PAUSE).await;
        }
    }

    /// Has a session free its idle locks on a file. One that is heard of but does not answer
    /// within the lease is asked over another connection, and barred if that does not help, as in a
    /// recall.
    fn ask_idler(
        &self,
        file: FileId,
        session: SessionId,
        told: u64,
    ) -> impl Future<Output = bool> + use<> {
        let (locks, leases) = (self.locks.clone(), self.leases.clone());
        let (recaller, lease) = (self.parts.recaller.clone(), self.settings.lease);
        async move {
            let is_heard = |after| leases.silent_at(session).is_some_and(|at| at > after);
            let mut give_up = Instant::now() + lease;
            let mut has_freed = recaller.free_locks(session, file, lease).await;
            if !has_freed && Instant::now() >= give_up && is_heard(give_up) {
                // It may hear nothing: over another connection it will.
                recaller.hang_up(session);
                give_up = Instant::now() + lease;
                while !has_freed && Instant::now() < give_up {
                    tokio::time::sleep(AWAY_PAUSE).await;
                    let left = give_up.saturating_duration_since(Instant::now());
                    has_freed = recaller.free_locks(session, file, left).await;
                }
                if !has_freed && is_heard(give_up) {
                    leases.bar(session);
                    leases.ran_out(session);
                }
            }
            if has_freed {
                locks.idle_no_more(file, session, told);
            }
            has_freed
        }
    }

    /// Who guesses a file's id keeps nobody waiting by it.
    async fn check_reached(&self, asker: &Asker, id: FileId) -> Result<()> {
        let (current, nobody) = (self.parts.map.current(), Keepers::new());
        let scene = self.scene(asker, Grant(0), &current.map, &nobody);
        if scene.walks.is_none() {
            return Ok(());
        }
        let mut view = View::new(scene, self.parts.store.begin().await?);
        walked::reach(&mut view, id).await
    }

    /// Who opened a file may lock it: it must be there, and be the asker's to do one of `wishes`.
    async fn check_lockable(&self, asker: &Asker, id: FileId, wishes: &[u32]) -> Result<()> {
        if self.parts.map.current().map.security.is_none() {
            return Ok(());
        }
        let mut transaction = self.parts.store.begin().await?;
        let value = transaction.read(&[key::inode(id)]).await?.into_iter().next().flatten();
        let inode: Inode = decode(&value.ok_or(Error::Stale { id })?, || id.to_string())?;
        self.check_handle(asker, (id, &inode), wishes)
    }

    async fn ask_lock(
        &self,
        session: SessionId,
        request: &Lock,
        deadline: Instant,
    ) -> Result<LockOutcome> {
        match self.locks.ask(session, request)? {
            Asked::Outcome(outcome) => Ok(outcome),
            Asked::Wait(place) => self.wait_for_lock(session, request, place, deadline).await,
        }
    }

    async fn wait_for_lock(
        &self,
        session: SessionId,
        request: &Lock,
        place: Place,
        deadline: Instant,
    ) -> Result<LockOutcome> {
        let mode = request.mode.unwrap_or(LockMode::Shared);
        let (kind, range) = (request.kind, request.range);
        let wish = Wish { owner: (session, request.owner), kind, range, mode };
        loop {
            if let Some(outcome) = self.locks.look(&place) {
                return Ok(outcome);
            }
            if !self.locks.idlers(request.id, &wish).is_empty() {
                tokio::select! {
                    biased;
                    () = place.turn.notified() => continue,
                    freed = self.free_idle(request.id, &wish, deadline) => freed?,
                }
            }
            if Instant::now() >= deadline {
                return Ok(LockOutcome::Queued);
            }
            let silent_at = self.first_silent_at(request.id, &wish);
            let until = silent_at.map_or(deadline, |at| at.min(deadline));
            tokio::select! {
                biased;
                () = place.turn.notified() => {}
                () = tokio::time::sleep_until(until) => {
                    self.take_silent(request.id, &wish).await?;
                }
            }
        }
    }

    /// When the first of those in the way will have been silent for the lease time.
    fn first_silent_at(&self, file: FileId, wish: &Wish) -> Option<Instant> {
        let blockers = self.locks.blockers(file, wish);
        blockers.into_iter().filter_map(|session| self.leases.silent_at(session)).min()
    }

    /// Takes the locks in the way from those whose sessions are silent for the lease time. Says
    /// whether there were any.
    async fn take_silent(&self, file: FileId, wish: &Wish) -> Result<bool> {
        let taking = self.taking.lock().await;
        let mut ending = BTreeSet::new();
        let mut has_taken = false;
        for owner in self.locks.owners_in_the_way(file, wish) {
            let silent_at = self.leases.silent_at(owner.0);
            if silent_at.is_some_and(|at| at > Instant::now()) {
                continue;
            }
            has_taken = true;
            if !self.take_lock(file, wish, owner).await? {
                // What it lost cannot be kept for it.
                self.leases.bar_silent(owner.0);
                self.locks.end(owner.0);
                ending.insert(owner.0);
            }
        }
        drop(taking);
        for session in ending {
            tracing::info!(session = session.0, "session holds a lock and is silent: ended");
            self.end(session).await?;
        }
        Ok(has_taken)
    }

    /// Takes an owner's locks for a wish, if its session can be told.
    async fn take_lock(&self, file: FileId, wish: &Wish, owner: Owner) -> Result<bool> {
        let ((session, number), to) = (owner, wish.owner.0);
        if !self.sessions.lose_lock(session, (file, wish.kind, number), to).await? {
            return Ok(false);
        }
        self.locks.take_from(owner, file, wish.kind);
        self.parts.recaller.hang_up(session);
        let (session, to) = (session.0, to.0);
        tracing::info!(session, owner = number, %file, to, "lock taken: its client is silent");
        Ok(true)
    }
}

/// What a lock is for. As on Linux `fcntl` asks for a descriptor that is open for it, and `flock`
/// for any.
fn wishes(kind: LockKind, mode: LockMode) -> &'static [u32] {
    match (kind, mode) {
        (LockKind::Posix, LockMode::Shared) => &[READ],
        (LockKind::Posix, LockMode::Exclusive) => &[WRITE],
        (LockKind::Flock, _) => &[READ, WRITE],
    }
}

fn patience(wait: LockWait) -> Duration {
    Duration::from_millis(wait.patience_ms.into()).min(PATIENCE_MAX)
}
