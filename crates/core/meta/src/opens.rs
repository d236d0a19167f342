//! Which sessions may have which files open.
//!
//! A file that loses its last name is kept for those whose programs hold it open. Clients do not
//! say when they close, so this is a hint on whom to ask, bounded per session; the answer to a
//! recall is what counts.

use crate::holders::Holders;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, SessionId};

#[derive(Default)]
pub struct OpenTable {
    openers: Mutex<Holders<()>>,
}

impl OpenTable {
    pub fn opened(&self, session: SessionId, file: FileId) {
        self.lock().insert(session, file, ());
    }

    /// Who may have the file open.
    pub fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.lock().of(file).map(|(session, ())| session).collect()
    }

    pub fn closed(&self, session: SessionId, file: FileId) {
        self.lock().remove(session, file);
    }

    pub fn end(&self, session: SessionId) {
        self.lock().end(session);
    }

    fn lock(&self) -> MutexGuard<'_, Holders<()>> {
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
        table.opened(a, FileId(1));
        table.opened(b, FileId(1));
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([a, b]));
        table.closed(a, FileId(1));
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([b]));
        table.end(b);
        assert!(table.openers(FileId(1)).is_empty());
    }
}
