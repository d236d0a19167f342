//! Which ids a session holds, since it was told of them where that was allowed.
//!
//! Invariants: at most four times [`RECENT`] ids of a session are held, and about [`ALL_MAX`] of
//! all; nothing is held by having been named, only by having been told. Of an id that is not held
//! the way is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, FileKind, SessionId};

/// Ids of a kind that are held for certain; as many again of before.
const RECENT: usize = 4096;
/// Ids of all sessions: 20 bytes each. Beyond, a session that is told of more holds few of them, so
/// that who has many sessions takes nothing away from others.
const ALL_MAX: usize = 8 << 20;
const RECENT_OF_FULL: usize = 64;

#[derive(Default)]
pub struct WalkTable(Mutex<Walks>);

#[derive(Default)]
struct Walks {
    sessions: BTreeMap<SessionId, Held>,
    count: Count,
}

/// Ids of all sessions.
struct Count {
    now: usize,
    most: usize,
}

impl Default for Count {
    fn default() -> Self {
        Self { now: 0, most: ALL_MAX }
    }
}

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
    fn hold(&mut self, id: FileId, count: &mut Count) {
        let most = if count.now < count.most { RECENT } else { RECENT_OF_FULL };
        if self.young.len() >= most && !self.young.contains(&id) {
            count.now -= self.old.len();
            self.old = take(&mut self.young);
        }
        count.now += usize::from(self.young.insert(id));
    }

    /// What is used stays.
    fn holds(&mut self, id: FileId, count: &mut Count) -> bool {
        let is_held = self.young.contains(&id) || self.old.contains(&id);
        if is_held {
            self.hold(id, count);
        }
        is_held
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

impl WalkTable {
    pub fn hold(&self, session: SessionId, id: FileId, kind: FileKind) {
        let Walks { sessions, count } = &mut *self.lock();
        let held = sessions.entry(session).or_default();
        match kind {
            FileKind::Directory => held.directories.hold(id, count),
            _ => held.files.hold(id, count),
        }
    }

    pub fn holds(&self, session: SessionId, id: FileId) -> bool {
        let Walks { sessions, count } = &mut *self.lock();
        let held = sessions.get_mut(&session);
        held.is_some_and(|held| held.directories.holds(id, count) || held.files.holds(id, count))
    }

    pub fn end(&self, session: SessionId) {
        let Walks { sessions, count } = &mut *self.lock();
        if let Some(held) = sessions.remove(&session) {
            count.now -= held.directories.len() + held.files.len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Walks> {
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
        let held = table.lock().sessions.get(&session).map(|held| held.files.len());
        assert!(held.is_some_and(|held| held <= 2 * RECENT));
        table.hold(session, FileId(3), FileKind::Regular);
        table.end(session);
        assert!(!table.holds(session, FileId(3)));
        assert_eq!(table.lock().count.now, 0);
    }

    /// As of one who lists a large directory in each of very many sessions.
    #[test]
    fn what_all_sessions_hold_is_bounded() {
        const SESSIONS: u64 = 64;
        let most = 8 * RECENT;
        let table = WalkTable::default();
        table.lock().count.most = most;
        let honest = SessionId(0);
        table.hold(honest, FileId(1 << 40), FileKind::Directory);
        for session in 1..=SESSIONS {
            for number in 0..2 * RECENT as u64 {
                table.hold(SessionId(session), FileId(number), FileKind::Regular);
            }
        }
        let held = |session| table.lock().sessions.get(&session).map_or(0, |one| one.files.len());
        let all: usize = (1..=SESSIONS).map(|session| held(SessionId(session))).sum();
        assert!(all <= most + SESSIONS as usize * 2 * RECENT_OF_FULL, "{all}");
        assert_eq!(table.lock().count.now, all + 1);
        // Who was told before holds that still, and who is told now holds some.
        assert!(table.holds(honest, FileId(1 << 40)));
        (0..100).for_each(|number| table.hold(honest, FileId(number), FileKind::Regular));
        assert!(table.holds(honest, FileId(99)) && table.holds(honest, FileId(1 << 40)));
        (1..=SESSIONS).for_each(|session| table.end(SessionId(session)));
        table.end(honest);
        assert_eq!(table.lock().count.now, 0);
    }
}
