//! Lock calls, from asking to answer. They are not of the store: nothing here waits for a commit.
//!
//! Whoever waits for a lock also watches its holders: one that is silent for the lease time is
//! ended, as it would be if a change were in the way of its leases.

use super::Mdt;
use crate::Asker;
use crate::error::{Error, Result};
use crate::locks::{Asked, Place, Wish};
use crate::permission::{READ, WRITE};
use crate::view::decode;
use std::time::Duration;
use tieline_format::mdt::{Inode, key};
use tieline_types::{FileId, SessionId};
use tieline_wire::Request;
use tieline_wire::locks::{
    AssertLocks, AssertLocksReply, CancelLockReply, Lock, LockOutcome, LockReply, TestLockReply,
};
use tokio::time::Instant;

/// The longest wait of one request: well below what connections and clients take for silence.
const PATIENCE_MAX: Duration = Duration::from_secs(20);
/// Locks in one assertion.
const ASSERTED_MAX: usize = 1024;

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
                outcome.map(|outcome| tieline_wire::encode(&LockReply { outcome }))
            }
            Request::TestLock(test) => {
                self.locks.grace_over().await;
                let found = self.locks.test(session, test);
                Ok(tieline_wire::encode(&TestLockReply { found }))
            }
            Request::CancelLock(cancel) => {
                let was_waiting = self.locks.cancel(session, cancel.id, cancel.ticket);
                Ok(tieline_wire::encode(&CancelLockReply { was_waiting }))
            }
            Request::AssertLocks(asserted) => self
                .assert_locks(session, asserted)
                .map(|lost| tieline_wire::encode(&AssertLocksReply { lost })),
            _ => return None,
        })
    }

    fn assert_locks(&self, session: SessionId, asserted: &AssertLocks) -> Result<Vec<u32>> {
        if asserted.locks.len() > ASSERTED_MAX {
            return Err(Error::Invalid { what: "more than 1024 locks in one assertion" });
        }
        Ok(self.locks.assert(session, &asserted.locks, asserted.is_last))
    }

    async fn lock(&self, asker: &Asker, request: &Lock) -> Result<LockOutcome> {
        let session = asker.session;
        if request.id.mdt() != self.settings.mdt {
            return Err(Error::OtherMdt { id: request.id });
        }
        let Some(mode) = request.mode else {
            return self.ask_lock(session, request).await;
        };
        self.check_lockable(asker, request.id).await?;
        self.locks.grace_over().await;
        let wish = Wish {
            owner: (session, request.owner),
            kind: request.kind,
            range: request.range,
            mode,
        };
        let outcome = self.ask_lock(session, request).await?;
        // Perhaps only one who is gone is in the way.
        if outcome == LockOutcome::Refused && self.end_silent(request.id, &wish).await? {
            return self.ask_lock(session, request).await;
        }
        Ok(outcome)
    }

    /// Who opened a file may lock it: it must be there, and be somebody's to read or to write.
    async fn check_lockable(&self, asker: &Asker, id: FileId) -> Result<()> {
        if self.parts.map.current().map.security.is_none() {
            return Ok(());
        }
        let mut transaction = self.parts.store.begin().await?;
        let value = transaction.read(&[key::inode(id)]).await?.into_iter().next().flatten();
        let inode: Inode = decode(&value.ok_or(Error::Stale { id })?, || id.to_string())?;
        self.check_handle(asker, (id, &inode), &[READ, WRITE])
    }

    async fn ask_lock(&self, session: SessionId, request: &Lock) -> Result<LockOutcome> {
        match self.locks.ask(session, request)? {
            Asked::Outcome(outcome) => Ok(outcome),
            Asked::Wait(place) => self.wait_for_lock(session, request, place).await,
        }
    }

    async fn wait_for_lock(
        &self,
        session: SessionId,
        request: &Lock,
        place: Place,
    ) -> Result<LockOutcome> {
        let patience = request.wait.map_or(0, |wait| wait.patience_ms);
        let deadline = Instant::now() + Duration::from_millis(patience.into()).min(PATIENCE_MAX);
        let mode = request.mode.unwrap_or(tieline_types::LockMode::Shared);
        let (kind, range) = (request.kind, request.range);
        let wish = Wish { owner: (session, request.owner), kind, range, mode };
        loop {
            if let Some(outcome) = self.locks.look(&place) {
                return Ok(outcome);
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
                    self.end_silent(request.id, &wish).await?;
                }
            }
        }
    }

    /// When the first of those in the way will have been silent for the lease time.
    fn first_silent_at(&self, file: FileId, wish: &Wish) -> Option<Instant> {
        let blockers = self.locks.blockers(file, wish);
        blockers.into_iter().filter_map(|session| self.leases.silent_at(session)).min()
    }

    /// Ends the sessions in the way that are silent for the lease time. Says whether there were
    /// any.
    async fn end_silent(&self, file: FileId, wish: &Wish) -> Result<bool> {
        let mut has_ended = false;
        for session in self.locks.blockers(file, wish) {
            let silent_at = self.leases.silent_at(session);
            if silent_at.is_none_or(|at| at <= Instant::now()) {
                tracing::info!(session = session.0, "session holds a lock and is silent: ended");
                self.leases.bar_silent(session, self.settings.lease);
                self.locks.end(session);
                self.end(session).await?;
                has_ended = true;
            }
        }
        Ok(has_ended)
    }
}
