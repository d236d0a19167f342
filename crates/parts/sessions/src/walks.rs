//! Which ids a session holds, since it was told of them where that was allowed.
//!
//! Invariants: at most four times [`RECENT`] ids of a session are held; nothing is held by having
//! been named, only by having been told.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, FileKind, SessionId};

/// Ids of a kind that are held for certain; as many again of before.
const RECENT: usize = 4096;

#[derive(Default)]
pub struct WalkTable(Mutex<BTreeMap<SessionId, Held>>);

/// Directories are kept apart, so that a listing of many files takes no place of work away.
#[derive(Default)]
struct Held {
    directories: Recent,
    files: Recent,
}

/// The ids that came last, roughly.
#[derive(Default)]
struct Recent {
    young: BTreeSet<FileId>,
    old: BTreeSet<FileId>,
}

impl Recent {
    fn hold(&mut self, id: FileId) {
        if self.young.len() >= RECENT && !self.young.contains(&id) {
            self.old = take(&mut self.young);
        }
        self.young.insert(id);
    }

    /// What is used stays.
    fn holds(&mut self, id: FileId) -> bool {
        let is_held = self.young.contains(&id) || self.old.contains(&id);
        if is_held {
            self.hold(id);
        }
        is_held
    }
}

impl WalkTable {
    pub fn hold(&self, session: SessionId, id: FileId, kind: FileKind) {
        let mut sessions = self.lock();
        let held = sessions.entry(session).or_default();
        match kind {
            FileKind::Directory => held.directories.hold(id),
            _ => held.files.hold(id),
        }
    }

    pub fn holds(&self, session: SessionId, id: FileId) -> bool {
        let mut sessions = self.lock();
        let held = sessions.get_mut(&session);
        held.is_some_and(|held| held.directories.holds(id) || held.files.holds(id))
    }

    pub fn end(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let table = WalkTable::default();
        let session = SessionId(1);
        for number in 0..10 * RECENT as u64 {
            table.hold(session, FileId(number), FileKind::Regular);
            table.hold(session, FileId(1 << 40), FileKind::Directory);
            assert!(table.holds(session, FileId(0)), "{number}");
        }
        assert!(!table.holds(session, FileId(1)) && table.holds(session, FileId(1 << 40)));
        let held = table.lock().remove(&session).unwrap_or_default();
        assert!(held.files.young.len() + held.files.old.len() <= 2 * RECENT);
        table.hold(session, FileId(3), FileKind::Regular);
        table.end(session);
        assert!(!table.holds(session, FileId(3)));
    }
}
