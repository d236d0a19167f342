//! A server that welcomes us again: told of the locks held here, if it was started anew.
//!
//! Invariant: what is asserted is held by programs; what was idle there is forgotten.

use crate::shared::{Shared, lock};
use crate::{HandleId, LockWish, OpenFile, Result};
use std::sync::Arc;
use tieline_types::locks::Held;
use tieline_types::{Caller, ErrorKind, FileId, LockKind, LockMode, MdtIndex, ServerNumber};
use tieline_wire::Welcome;
use tieline_wire::locks::{AssertLocks, AssertedLock};

/// Locks in one assertion.
const ASSERTED_MAX: usize = 1024;
/// So a server says that a user is nobody to it any more.
const REFUSALS: [ErrorKind; 3] =
    [ErrorKind::Unauthenticated, ErrorKind::PermissionDenied, ErrorKind::NotPermitted];

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
        let Some(mdt) = self.servers.mdt_of(server) else { return };
        for (caller, locks) in self.held_by_callers(server) {
            for part in locks.chunks(ASSERTED_MAX) {
                self.assert_part(mdt, &caller, part).await;
            }
        }
        // Others wait until all is said.
        if let Err(error) = self.ask_assert(mdt, &Caller::root(), &[], true).await {
            tracing::warn!(%error, "locks are not asserted");
        }
    }

    /// Locks at a server, by whose handles they are held through: a server judges each.
    fn held_by_callers(&self, server: ServerNumber) -> Vec<(Caller, Vec<AssertedLock>)> {
        let open = self.handles.open_files();
        let mut by_callers: Vec<(Caller, Vec<AssertedLock>)> = vec![];
        for id in self.locked_files(server) {
            let open: Vec<&OpenFile> = open.iter().filter(|open| open.id == id).collect();
            for kind in [LockKind::Posix, LockKind::Flock] {
                let (held, handles) = self.locks.with(id, |own| {
                    (own.set(kind).iter().collect::<Vec<_>>(), own.handles.clone())
                });
                for Held { owner, range, mode } in held {
                    let handle = handles.get(&owner).filter(|_| kind == LockKind::Posix);
                    let caller = caller_of(&open, handle, mode);
                    let lock = AssertedLock { id, kind, owner, range, mode };
                    match by_callers.iter_mut().find(|(other, _)| *other == caller) {
                        Some((_, locks)) => locks.push(lock),
                        None => by_callers.push((caller, vec![lock])),
                    }
                }
            }
        }
        by_callers
    }

    async fn ask_assert(
        &self,
        mdt: MdtIndex,
        caller: &Caller,
        locks: &[AssertedLock],
        is_last: bool,
    ) -> Result<Vec<u32>> {
        let request = AssertLocks { locks: locks.to_vec(), is_last, heard: None };
        let told = self.ask_mdt(caller, mdt, request, self.servers.wait_for(mdt)).await?;
        Ok(told.reply.lost)
    }

    async fn assert_part(self: &Arc<Self>, mdt: MdtIndex, caller: &Caller, part: &[AssertedLock]) {
        let lost = match self.ask_assert(mdt, caller, part, false).await {
            Ok(lost) => lost,
            Err(error) if REFUSALS.contains(&error.kind()) => {
                tracing::warn!(%error, "locks are not asserted: their user has no right any more");
                (0..part.len() as u32).collect()
            }
            Err(error) => return tracing::warn!(%error, "locks are not asserted"),
        };
        for one in lost.iter().filter_map(|&at| part.get(at as usize)) {
            let AssertedLock { id, kind, owner, range, mode } = *one;
            let taken = "a lock is lost: another client took it, or the right to it";
            tracing::error!(file = %id, "{taken}");
            let wish = LockWish { kind, owner, range, mode, process: 0 };
            self.lose_handles(id, &format!("a lock on {id} was lost"));
            self.locks.note(id, &wish, None);
        }
    }
}

/// Through whose handle is a lock held? Which one it was that a `flock` came through is not known:
/// one is taken that is open for as much.
fn caller_of(open: &[&OpenFile], handle: Option<&HandleId>, mode: LockMode) -> Caller {
    let is_its = |open: &&&OpenFile| handle == Some(&open.handle);
    let suffices = |open: &&&OpenFile| mode == LockMode::Shared || open.access.write;
    let found = open.iter().find(is_its).or_else(|| open.iter().find(suffices));
    found.or(open.first()).map_or_else(Caller::root, |open| open.caller.clone())
}
