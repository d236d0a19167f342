//! What is believed under leases: names, attributes, symlink targets, extended attributes, complete
//! listings.
//!
//! The lease unit is a directory ([`units`]): its names, its own attributes, and the attributes and
//! extents of non-directories in it; a file without a name is a unit of its own. Each time a unit
//! is granted anew it gets a new *generation*; everything learned remembers the generation of its
//! unit and is good while that is held ([`tables`]). So taking a lease away costs one number,
//! however much lies under it.
//!
//! Three rules keep late answers out: what was read `as_of` a version up to a recall's `at` is not
//! cached under that unit; what was asked in an earlier *epoch* of the server (before it forgot our
//! leases, or they lapsed) is not cached at all; and of two answers about one thing the one with
//! the higher `as_of` stays. A mutation of our own is not recalled from us: its reply raises the
//! same bar.
//!
//! A server that cannot be reached ([`Cache::away`]) is believed as of its last word, beyond the
//! lease, where the settings say so; its first word ends that, before anything else is answered.
//! If it goes again at once, what it was not asked meanwhile is as it was before. That holds where
//! an own change is in doubt, too: it is told as it was before the change.
//!
//! What a door's own cache has of files' bytes is in [`door`].
//!
//! Invariants: else nothing is answered from here without a lease that has not run out; what a
//! door was told to believe is remembered until it was told to forget it; the number of files is
//! bounded.

mod above;
pub mod access;
pub mod door;
mod limits;
pub mod places;
mod slept;
pub mod tables;
mod told;
pub mod units;

#[cfg(test)]
mod tests;

pub use above::Above;
pub use limits::Limits;
pub use tables::{Reply, Tables, Under};
pub use told::{Belief, Invalidation, Known};
pub use units::Stamp;

use slept::Slept;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tieline_types::{FileId, ServerNumber};
use tieline_wire::Welcome;
use tieline_wire::notice::Recall;
use tieline_world::Clock;
use tokio::sync::Notify;
use tokio::time::Instant;

pub struct Cache {
    tables: Mutex<Tables>,
    /// Orders what doors write with what listeners are told: doors read, recalls write.
    settling: RwLock<()>,
    /// Woken when a server is found to be away.
    went_away: Notify,
    slept: Slept,
}

impl Cache {
    pub fn new(inodes_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            slept: Slept::new(clock),
            tables: Mutex::new(Tables::new(inodes_max)),
            settling: RwLock::new(()),
            went_away: Notify::new(),
        }
    }

    /// Nothing was heard of the server since loss number `lost`: from now on what it told last
    /// counts; `recall` brings what was put down of that.
    pub fn away(&self, server: ServerNumber, lost: u64, recall: impl FnOnce(&mut Tables)) {
        let mut tables = self.lock();
        if tables.units.away(server, lost) {
            recall(&mut tables);
            drop(tables);
            self.went_away.notify_waiters();
        }
    }

    /// Waits until the server is away.
    pub async fn goes_away(&self, server: ServerNumber) {
        loop {
            let went = self.went_away.notified();
            tokio::pin!(went);
            // Heard from here on, also while we look.
            went.as_mut().enable();
            if self.lock().units.is_away(server) {
                return;
            }
            went.await;
        }
    }

    /// Held briefly, never across an await. After a sleep no lease is believed any more.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        // Nothing panics while it is held; a poisoned lock still holds whole values.
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if self.slept.lately() {
            tables.units.slept();
        }
        tables
    }

    /// To be taken before a request leaves.
    pub fn stamp(&self, server: ServerNumber) -> Stamp {
        self.lock().units.stamp(server)
    }

    /// A server welcomed us: whatever leases it gave before are gone, and the door must forget.
    ///
    /// That holds for a session that goes on, too: recalls may have been lost with the old
    /// connection.
    pub fn welcomed(&self, server: ServerNumber, welcome: &Welcome) -> Invalidation {
        let _settling = self.settling.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.lock();
        tables.units.welcomed(server, welcome);
        tables.drop_server(server)
    }

    /// What was sent at `sent` was received: leases last from then. If they had lapsed before, they
    /// are gone, and the door must forget.
    pub fn renewed(&self, server: ServerNumber, sent: Instant) -> Option<Invalidation> {
        {
            let mut tables = self.lock();
            if !tables.units.has_lapsed(server) {
                tables.units.renewed(server, sent);
                return None;
            }
        }
        let _settling = self.settling.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.lock();
        tables.units.renewed(server, sent);
        Some(tables.drop_server(server))
    }

    /// Gives a unit back. Says what the door must forget.
    pub fn recalled(&self, recall: &Recall) -> Invalidation {
        let _settling = self.settling.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.lock();
        let is_contended = tables.units.recall(recall.unit, recall.at);
        let mut told = tables.drop_unit(recall.unit);
        told.doubted.retain(|(_, name)| !recall.names.contains(name));
        told.entries = recall.names.iter().map(|name| (recall.unit, name.clone())).collect();
        told.data = recall.files.clone();
        told.is_contended = is_contended;
        told.moved = (recall.moves == Some(true)).then_some(recall.unit);
        told
    }

    /// Forgets what lies under a unit, without being asked.
    pub fn let_go(&self, unit: FileId) -> Invalidation {
        let _settling = self.settling.write().unwrap_or_else(PoisonError::into_inner);
        self.lock().drop_unit(unit)
    }

    /// Calls `write` with how long `belief` is good for, while no recall can pass.
    pub fn settle(&self, belief: &Belief, write: &mut dyn FnMut(Duration)) {
        let _settling = self.settling.read().unwrap_or_else(PoisonError::into_inner);
        let lasts = self.lock().units.lasts(belief);
        write(lasts);
    }

    /// See [`Tables::searched_by_all`].
    pub fn searched_by_all(&self, directory: FileId) -> Belief {
        self.lock().searched_by_all(directory)
    }

    /// An own mutation of names in these directories is under way until the guard is dropped.
    pub fn mutating(self: &Arc<Self>, directories: &[FileId]) -> Mutating {
        let mut tables = self.lock();
        for &directory in directories {
            tables.units.begin_mutation(directory);
        }
        Mutating { cache: self.clone(), directories: directories.to_vec() }
    }

    /// Drops the least recently used units while there are too many files; says what the door must
    /// forget.
    pub fn shrink(&self) -> Option<Invalidation> {
        if !self.lock().is_too_large() {
            return None;
        }
        let _settling = self.settling.write().unwrap_or_else(PoisonError::into_inner);
        Some(self.lock().shrink())
    }
}

/// Ends the mark of an own mutation.
pub struct Mutating {
    cache: Arc<Cache>,
    directories: Vec<FileId>,
}

impl Drop for Mutating {
    fn drop(&mut self) {
        let mut tables = self.cache.lock();
        for &directory in &self.directories {
            tables.units.end_mutation(directory);
        }
    }
}
