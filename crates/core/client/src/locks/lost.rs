//! Locks that are lost: a server took them while we were silent, or ended our session, or had given
//! them to others when it was told of them after a start.
//!
//! Programs that believed to hold one may have read under it what is not so any more, and would
//! write it. The kernel does not say for which owner it reads and writes: so of the file nothing
//! more is read and written through any handle that was open here, until it is closed. What was
//! written to it and is not committed is dropped, and told as lost.
//!
//! A server that took a lock refuses what is written to the file until it is told that we know.
//! That is when nothing of before is on its way any more.
//!
//! Invariants: a handle is lost before the list of locks forgets what it was lost for; a server is
//! told that a loss is known after what it concerns is dropped.

use super::Own;
use crate::file::File;
use crate::locks::Locks;
use crate::shared::{Shared, lock};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use tieline_types::{
    Caller, ErrorKind, FileId, LockKind, LockRange, LostLock, MdtIndex, ServerNumber,
};
use tieline_wire::Welcome;
use tieline_wire::locks::AssertLocks;

impl Own {
    fn lose(&mut self, kind: LockKind, owner: u64) {
        self.set(kind).set(owner, LockRange::WHOLE, None);
        if kind == LockKind::Posix {
            self.at_server.set(owner, LockRange::WHOLE, None);
        }
    }
}

impl Locks {
    /// Takes note of losses; says which of them are news.
    fn hear(&self, server: ServerNumber, welcome: &Welcome) -> Vec<LostLock> {
        let mut heard = lock(&self.heard);
        let known = heard.get(&server).filter(|(session, _)| *session == welcome.session);
        let known = known.map_or(0, |(_, number)| *number);
        let lost = welcome.lost_locks.iter().flatten();
        let news: Vec<_> = lost.filter(|one| one.number > known).cloned().collect();
        let last = news.last().map_or(known, |one| one.number);
        heard.insert(server, (welcome.session, last));
        news
    }
}

impl Shared {
    /// A server that welcomed us took locks while we were silent.
    pub(super) fn hear_of_losses(self: &Arc<Self>, server: ServerNumber, welcome: &Welcome) {
        for LostLock { id, kind, owner, by, .. } in self.locks.hear(server, welcome) {
            // One that was idle no program held. An earlier process may have forgotten it already.
            let is_held = self.locks.holds(id, kind, owner, LockRange::WHOLE);
            let was_held = !*self.recovered.borrow() && self.handles.is_lost(id);
            if is_held || was_held {
                tracing::error!(
                    file = %id, owner, by,
                    "a lock is lost: its server did not hear from us, and another client wanted it"
                );
                self.lose_handles(id, &format!("a lock on {id} was lost to {by}"));
            }
            self.locks.change(id, |own| own.lose(kind, owner));
        }
        let lost = welcome.lost_locks.iter().flatten();
        let files: BTreeSet<FileId> = lost.clone().map(|one| one.id).collect();
        let upto = lost.map(|one| one.number).max();
        if let (Some(upto), Some(mdt)) = (upto, self.servers.mdt_of(server)) {
            let shared = self.clone();
            tokio::spawn(async move {
                if let Err(error) = shared.tell_heard(mdt, files, upto).await {
                    tracing::warn!(%error, "lost locks are known here, and the server is not told");
                }
            });
        }
    }

    async fn tell_heard(
        self: &Arc<Self>,
        mdt: MdtIndex,
        files: BTreeSet<FileId>,
        upto: u64,
    ) -> Result<()> {
        let patience = self.servers.wait_for(mdt);
        for id in files {
            if let Some(file) = self.file_known(id) {
                self.forfeit(&file).await;
            }
            if let Some(queue) = self.journal.of(mdt) {
                queue.drain(queue.last_on(id), patience).await?;
            }
        }
        let request = AssertLocks { locks: vec![], is_last: false, heard: Some(upto) };
        self.ask_mdt(&Caller::root(), mdt, request, patience).await.map(drop)
    }

    /// A lock on a file was lost that a program here believes to hold.
    pub(super) fn lose_handles(self: &Arc<Self>, id: FileId, why: &str) {
        self.handles.lose(id, why);
        let Some(file) = self.file_known(id) else { return };
        file.with(|state| state.forfeits = true);
        let shared = self.clone();
        tokio::spawn(async move { shared.forfeit(&file).await });
    }

    /// Drops what was written before a lock was lost, also by an earlier process, and has the door
    /// forget it.
    async fn forfeit(&self, file: &File) {
        let mut recovered = self.recovered.subscribe();
        // It is said as long as we are here.
        let _ = recovered.wait_for(|is_over| *is_over).await;
        let gate = file.gate.lock().await;
        self.forfeit_gated(file).await;
        drop(gate);
        self.forget_at_door(file.id).await;
    }

    /// The same, for those who hold the file's gate.
    pub(crate) async fn forfeit_gated(&self, file: &File) {
        let id = file.id;
        let what = format!("bytes that were written to {id} before a lock on it was lost");
        let error = Error::local(ErrorKind::LockLost, what.clone());
        loop {
            let due = file.with(|state| {
                let is_due = state.forfeits && *self.recovered.borrow();
                is_due.then(|| (state.overlay.written, !state.overlay.is_empty()))
            });
            let Some((written, has_bytes)) = due else { return };
            let is_kept = has_bytes && self.spool_forfeited(file, &error).await;
            let length = file.with(|state| {
                if state.overlay.written != written {
                    return None;
                }
                state.forfeits = false;
                state.door.spoil();
                let length = state.overlay.bytes() as u64;
                state.overlay.cut(0..u64::MAX);
                let cuts = state.kept.all(id);
                state.kept.cut(&self.keep, &cuts);
                state.rest();
                if length > 0 {
                    let why = (error.kind(), error.to_string());
                    state.late.lose_bytes(id, length, why, is_kept);
                    state.late.say(id);
                }
                Some(length)
            });
            match length {
                // Written meanwhile, through a handle that is newer than the loss.
                None => {}
                Some(0) => return,
                Some(_) => return self.note_loss(id, &error),
            }
        }
    }
}
