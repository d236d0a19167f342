//! Which sessions may have which files open.
//!
//! A file that loses its last name is kept for those whose programs hold it open. Clients do not
//! say when they close, so this is a hint on whom to ask, bounded per session; the answer to a
//! recall is what counts.

use crate::Holders;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, SessionId};

#[derive(Default)]
pub struct OpenTable {
    /// Whether it is open to be written.
    openers: Mutex<Holders<bool>>,
}

impl OpenTable {
    /// Says whether that is news.
    pub fn opened(&self, session: SessionId, file: FileId, writes: bool) -> bool {
        let mut openers = self.lock();
        match openers.get_mut(session, file) {
            Some(to_write) => {
                *to_write |= writes;
                false
            }
            None => {
                openers.insert(session, file, writes);
                true
            }
        }
    }

    /// Who may have the file open.
    pub fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.lock().of(file).map(|(session, _)| session).collect()
    }

    /// Who may have it open to be written.
    pub fn writers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.lock().of(file).filter(|(_, writes)| **writes).map(|(session, _)| session).collect()
    }

    pub fn closed(&self, session: SessionId, file: FileId) {
        self.lock().remove(session, file);
    }

    pub fn end(&self, session: SessionId) {
        self.lock().end(session);
    }

    fn lock(&self) -> MutexGuard<'_, Holders<bool>> {
        self.openers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_openers() {
        let table = OpenTable::default();
        let (a, b) = (SessionId(1), SessionId(2));
        assert!(table.opened(a, FileId(1), true) && !table.opened(a, FileId(1), false));
        table.opened(b, FileId(1), false);
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([a, b]));
        assert_eq!(table.writers(FileId(1)), BTreeSet::from([a]));
        table.closed(a, FileId(1));
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([b]));
        table.end(b);
        assert!(table.openers(FileId(1)).is_empty());
    }
}
