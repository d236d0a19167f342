//! A server that welcomes us again: told of the locks held here, if it was started anew.
//!
//! Invariant: what is asserted is held by programs; what was idle there is forgotten.

use crate::LockWish;
use crate::shared::{Shared, lock};
use std::sync::Arc;
use tieline_types::{Caller, FileId, LockKind, ServerNumber};
use tieline_wire::Welcome;
use tieline_wire::locks::{AssertLocks, AssertedLock};

/// Locks in one assertion.
const ASSERTED_MAX: usize = 1024;

impl Shared {
    /// A server welcomed us. A new start of it has forgotten our locks, a new session has lost
    /// them; and it may have taken some.
    pub(crate) fn locks_welcomed(self: &Arc<Self>, server: ServerNumber, welcome: &Welcome) {
        let now = (welcome.session, welcome.boot);
        let before = lock(&self.locks.met).insert(server, now);
        self.hear_of_losses(server, welcome);
        let Some((session, boot)) = before else { return };
        if welcome.is_resumed && session == welcome.session {
            if boot != welcome.boot {
                self.locked_files(server).into_iter().for_each(|id| self.locks.forget_idle(id));
                let shared = self.clone();
                tokio::spawn(async move { shared.assert_locks(server).await });
            }
            return;
        }
        for id in self.locked_files(server) {
            self.locks.forget_idle(id);
            if self.locks.with(id, |own| !own.posix.is_empty() || !own.flock.is_empty()) {
                tracing::error!(file = %id, "locks are lost: the session with the server ended");
                self.lose_handles(id, &format!("locks on {id} were lost with the session"));
            }
            self.locks.change(id, |own| {
                (own.posix, own.flock, own.at_server) = Default::default();
            });
        }
    }

    fn locked_files(&self, server: ServerNumber) -> Vec<FileId> {
        let files: Vec<FileId> = lock(&self.locks.table).keys().copied().collect();
        let is_there =
            |id: &FileId| self.servers.mds(id.mdt()).is_ok_and(|holder| holder.number == server);
        files.into_iter().filter(is_there).collect()
    }

    async fn assert_locks(self: Arc<Self>, server: ServerNumber) {
        let asserting = self.locks.asserting(server);
        let _asserting = asserting.write().await;
        let mut locks = Vec::new();
        for id in self.locked_files(server) {
            for kind in [LockKind::Posix, LockKind::Flock] {
                let held: Vec<_> = self.locks.with(id, |own| own.set(kind).iter().collect());
                locks.extend(held.into_iter().map(|held| AssertedLock {
                    id,
                    kind,
                    owner: held.owner,
                    range: held.range,
                    mode: held.mode,
                }));
            }
        }
        let Some(mdt) = self.servers.mdt_of(server) else { return };
        let mut parts: Vec<Vec<AssertedLock>> =
            locks.chunks(ASSERTED_MAX).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            let request =
                AssertLocks { locks: part.clone(), is_last: index + 1 == count, heard: None };
            let wait = self.servers.wait_for(mdt);
            let told = self.ask_mdt(&Caller::root(), mdt, request, wait).await;
            match told {
                Ok(told) => {
                    let lost = told.reply.lost.iter().filter_map(|&at| part.get(at as usize));
                    for one in lost {
                        tracing::error!(file = %one.id, "a lock is lost: another client took it");
                        let AssertedLock { id, kind, owner, range, mode } = *one;
                        let wish = LockWish { kind, owner, range, mode, process: 0 };
                        self.lose_handles(id, &format!("a lock on {id} was lost"));
                        self.locks.note(id, &wish, None);
                    }
                }
                Err(error) => return tracing::warn!(%error, "locks are not asserted"),
            }
        }
    }
}
