//! Idle locks: freed by programs, still held at the server.
//!
//! A lock and its end would cost a round trip each, every time. So what a program frees of `fcntl`
//! locks stays at the server, and is taken again without asking, until somebody is kept out by it:
//! then the server asks, and whatever no program holds is freed. For a while after that nothing is
//! left idle on the file: whoever takes turns with others should not be asked at each. A close
//! frees for good.
//!
//! What is freed for the server, or for others here, goes from the list only when the server has
//! heard it, and new locks on the file wait for that. A request for more is sent only after what is
//! idle in its range was freed. So no free overtakes a grant.
//!
//! Invariants: nothing is idle at a server that has not said it may; the server has at least what
//! programs hold, in range and strength; nothing idle is taken while the session may have ended
//! unheard.

use super::{Granted, Locks, Own, message};
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::{LockWish, Result};
use std::sync::Arc;
use std::time::Duration;
use tieline_types::locks::{Surplus, modes_conflict};
use tieline_types::{Caller, FileId, LockKind};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Nothing is left idle on a file for so long after it was asked for: asking costs two round trips,
/// which is little once in ten seconds, and much if each turn pays it.
const ASKED_REST: Duration = Duration::from_secs(10);
/// Locks at the server on one file with which nothing more is left idle there.
const IDLE_MAX: usize = 64;

/// What is to be done before a server is asked for a lock.
enum Step {
    Taken,
    Ask,
    Free(Vec<Surplus<u64>>),
}

impl Own {
    /// What the server has beyond what programs hold.
    pub fn idle(&self) -> Vec<Surplus<u64>> {
        self.at_server.beyond(&self.posix)
    }

    /// `None`: not before what is under way is over.
    fn step(&mut self, wish: &LockWish, is_heard: bool) -> Option<Step> {
        if !self.is_settled() {
            return None;
        }
        let LockWish { owner, range, mode, .. } = *wish;
        if is_heard && self.may_idle && self.at_server.suffices(owner, range, mode) {
            self.note_here(wish, Some(mode));
            return Some(Step::Taken);
        }
        let mut idle = self.idle();
        idle.retain(|one| {
            let is_own = one.held.owner == owner;
            one.held.range.overlaps(range) && (is_own || modes_conflict(one.held.mode, mode))
        });
        match (idle.is_empty(), self.leaving) {
            (true, _) => Some(Step::Ask),
            (false, 0) => {
                self.is_freeing = true;
                Some(Step::Free(idle))
            }
            (false, _) => None,
        }
    }
}

impl Locks {
    /// Would be left idle what is freed on the file?
    pub(super) fn offers_idle(&self, id: FileId, kind: LockKind) -> Option<bool> {
        let asked = lock(&self.asked).get(&id).copied();
        let offers = kind == LockKind::Posix && asked.is_none_or(|at| at.elapsed() >= ASKED_REST);
        offers.then_some(true)
    }

    /// A server granted a lock.
    pub(super) fn granted(&self, id: FileId, wish: &LockWish, granted: &Granted) {
        self.change(id, |own| {
            own.note(wish, Some(wish.mode));
            // It may have asked for what is idle after it said so.
            let asked = lock(&self.asked).get(&id).copied();
            own.may_idle |= granted.may_idle && asked.is_none_or(|at| at < granted.asked);
        });
    }

    /// A program frees a range. Says whether that was all: else the server is to be told, and
    /// counts among those that leave until it is.
    pub(super) async fn leave(&self, id: FileId, wish: &LockWish, closes: bool) -> bool {
        let is_posix = wish.kind == LockKind::Posix;
        let leave = |own: &mut Own| {
            if is_posix && own.is_freeing {
                return None;
            }
            let has_room = own.at_server.len() <= IDLE_MAX;
            let stays = is_posix && own.may_idle && !closes && has_room;
            if stays {
                own.note_here(wish, None);
                own.kept = own.put(&self.keep, id);
            } else {
                own.leaving += 1;
            }
            Some(stays)
        };
        self.when(id, leave).await
    }

    /// Nothing more is left idle on the file for a while.
    pub(crate) fn stop_idling(&self, id: FileId) {
        self.with(id, |own| {
            own.may_idle = false;
            let mut asked = lock(&self.asked);
            asked.retain(|_, at| at.elapsed() < ASKED_REST);
            asked.insert(id, Instant::now());
        });
    }

    /// The server has forgotten what it will not be told again.
    pub(super) fn forget_idle(&self, id: FileId) {
        self.stop_idling(id);
        self.change(id, |own| own.at_server = own.posix.clone());
    }
}

impl Shared {
    /// Takes a lock that is idle. What is idle in the way, of others here or of the owner but not
    /// enough, is freed first.
    pub(super) async fn take_idle(
        self: &Arc<Self>,
        open: &FileHandle,
        wish: &LockWish,
    ) -> Result<bool> {
        if wish.kind == LockKind::Flock {
            return Ok(false);
        }
        let id = open.file.id;
        loop {
            let is_heard = self.is_heard(id);
            let step = |own: &mut Own| {
                let step = own.step(wish, is_heard);
                if matches!(step, Some(Step::Taken)) {
                    own.kept = own.put(&self.locks.keep, id);
                }
                step
            };
            match self.locks.when(id, step).await {
                Step::Taken => return Ok(true),
                Step::Ask => return Ok(false),
                Step::Free(idle) => {
                    let (shared, caller) = (self.clone(), open.caller.clone());
                    let freeing = async move {
                        shared.free_idle(&caller, id, idle).await;
                        Ok(())
                    };
                    self.detached(freeing).await?;
                }
            }
        }
    }

    /// Is the session with the file's MDS surely the one that our locks are in?
    fn is_heard(&self, id: FileId) -> bool {
        let server = self.servers.mds(id.mdt()).ok();
        server.is_some_and(|server| !self.cache.lock().units.has_lapsed(server.number))
    }

    /// A server asks: somebody may be kept out by what is idle.
    pub(crate) async fn give_locks_back(self: &Arc<Self>, id: FileId) {
        self.locks.stop_idling(id);
        let find = |own: &mut Own| {
            // Cancelled waits are not waited for: they may wait for this.
            let is_quiet = !own.is_freeing && own.leaving == 0;
            let idle = is_quiet.then(|| own.idle())?;
            own.is_freeing = !idle.is_empty();
            Some(idle)
        };
        let idle = self.locks.when(id, find).await;
        if !idle.is_empty() {
            let opened = self.handles.open_files().into_iter().find(|open| open.id == id);
            let caller = opened.map_or_else(Caller::root, |open| open.caller);
            self.free_idle(&caller, id, idle).await;
        }
    }

    /// Frees what an earlier process left idle, or was about to free.
    pub(crate) async fn free_all_idle(self: &Arc<Self>) {
        let is_idle = |(_, own): &(&FileId, &Own)| !own.idle().is_empty();
        let files: Vec<FileId> = {
            let table = lock(&self.locks.table);
            table.iter().filter(is_idle).map(|(&id, _)| id).collect()
        };
        for id in files {
            self.give_locks_back(id).await;
        }
    }

    /// Tells the server, and then takes it from the list.
    async fn free_idle(self: &Arc<Self>, caller: &Caller, id: FileId, idle: Vec<Surplus<u64>>) {
        let mut freeing = JoinSet::new();
        for Surplus { held, rest } in idle.iter().copied() {
            let (shared, caller) = (self.clone(), caller.clone());
            let (kind, owner, range, mode) = (LockKind::Posix, held.owner, held.range, held.mode);
            let wish = LockWish { kind, owner, range, mode, process: 0 };
            freeing.spawn(async move {
                let request = message(id, &wish, rest, None);
                shared.ask(&caller, id, request).await.map(drop)
            });
        }
        while let Some(joined) = freeing.join_next().await {
            // If the server cannot be asked, the session will end before long.
            if let Ok(Err(error)) = joined {
                tracing::info!(file = %id, %error, "an idle lock is not freed");
            }
        }
        self.locks.settle(id, |own| {
            for Surplus { held, rest } in idle {
                // Less, if the server forgot it meanwhile.
                for part in own.at_server.of(held.owner, held.range) {
                    own.at_server.set(held.owner, part.range.within(held.range), rest);
                }
            }
            own.is_freeing = false;
        });
    }
}
