//! Locks, as the fake MDT grants them: nobody's turn comes, whoever waits asks again.

use super::channel::done;
use super::{Answer, Fake, State};
use tieline_types::{FileId, LockRange, LostLock};
use tieline_wire::locks::*;
use tieline_wire::{Notice, Welcome};
use tokio::time::Instant;

impl Fake {
    /// Another client is kept out by locks on a file.
    pub async fn wants_locks(&self, id: FileId) {
        let sink = {
            let state = self.lock();
            let mds = state.sinks.iter().rev().find(|(is_mds, _)| *is_mds);
            mds.unwrap().1.clone()
        };
        sink.notice(Notice::FreeLocks(id)).await;
    }
}

impl Fake {
    /// A lock is taken from the client, which is welcomed back.
    pub fn takes(&self, lost: LostLock) {
        {
            let mut state = self.lock();
            let session = state.session;
            let set = state.locks.entry((lost.id, lost.kind)).or_default();
            set.set((session, lost.owner), LockRange::WHOLE, None);
            state.lost_locks.push(lost);
        }
        let welcome = Welcome { is_resumed: true, ..self.welcome() };
        for sink in self.mds_sinks() {
            sink.connected(&welcome);
            sink.renewed(Instant::now());
        }
    }
}

impl State {
    pub(super) fn take_lock(&mut self, call: &Lock) -> Answer {
        let owner = (self.session, call.owner);
        let set = self.locks.entry((call.id, call.kind)).or_default();
        let is_free =
            call.mode.is_none_or(|mode| set.conflicts(owner, call.range, mode).next().is_none());
        let outcome = match (is_free, call.wait) {
            (true, _) => LockOutcome::Granted,
            (false, None) => LockOutcome::Refused,
            (false, Some(wait)) if self.cancelled.contains(&wait.ticket) => LockOutcome::Cancelled,
            (false, Some(_)) => LockOutcome::Queued,
        };
        if is_free {
            set.set(owner, call.range, call.mode);
        }
        let idles = call.idles.filter(|_| is_free && call.mode.is_some());
        done::<Lock>(&LockReply { outcome, idles })
    }

    pub(super) fn test_lock(&mut self, call: &TestLock) -> Answer {
        let owner = (self.session, call.owner);
        let set = self.locks.entry((call.id, call.kind)).or_default();
        let found = set.conflicts(owner, call.range, call.mode).next();
        let found = found.map(|held| LockFound { range: held.range, mode: held.mode, owner: None });
        done::<TestLock>(&TestLockReply { found })
    }

    pub(super) fn cancel_lock(&mut self, call: &CancelLock) -> Answer {
        self.cancelled.insert(call.ticket);
        done::<CancelLock>(&CancelLockReply { was_waiting: true })
    }

    pub(super) fn assert_locks(&mut self, call: AssertLocks) -> Answer {
        self.lost_locks.retain(|lost| call.heard.is_none_or(|upto| lost.number > upto));
        for lock in call.locks {
            let set = self.locks.entry((lock.id, lock.kind)).or_default();
            set.set((self.session, lock.owner), lock.range, Some(lock.mode));
        }
        done::<AssertLocks>(&AssertLocksReply { lost: Vec::new() })
    }
}
