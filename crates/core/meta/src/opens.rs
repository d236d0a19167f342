//! Which sessions may have which files open.
//!
//! A file that loses its last name is kept for those whose programs hold it open. Clients do not
//! say when they close, so this is a hint on whom to ask, bounded per session; the answer to a
//! recall is what counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, SessionId};

/// Files remembered per session, the oldest forgotten first.
const OPENS_MAX: usize = 16_384;

#[derive(Default)]
pub struct OpenTable {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_file: BTreeMap<FileId, BTreeSet<SessionId>>,
    by_session: BTreeMap<SessionId, VecDeque<FileId>>,
}

impl OpenTable {
    pub fn opened(&self, session: SessionId, file: FileId) {
        let mut inner = self.lock();
        if !inner.by_file.entry(file).or_default().insert(session) {
            return;
        }
        let files = inner.by_session.entry(session).or_default();
        files.push_back(file);
        if files.len() > OPENS_MAX
            && let Some(oldest) = files.pop_front()
        {
            inner.remove(session, oldest);
        }
    }

    /// Who may have the file open.
    pub fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.lock().by_file.get(&file).cloned().unwrap_or_default()
    }

    pub fn closed(&self, session: SessionId, file: FileId) {
        let mut inner = self.lock();
        inner.remove(session, file);
        if let Some(files) = inner.by_session.get_mut(&session) {
            files.retain(|other| *other != file);
        }
    }

    pub fn end(&self, session: SessionId) {
        let mut inner = self.lock();
        for file in inner.by_session.remove(&session).unwrap_or_default() {
            inner.remove(session, file);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, session: SessionId, file: FileId) {
        if let Some(sessions) = self.by_file.get_mut(&file) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.by_file.remove(&file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_openers_within_its_bound() {
        let table = OpenTable::default();
        let (a, b) = (SessionId(1), SessionId(2));
        table.opened(a, FileId(1));
        table.opened(b, FileId(1));
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([a, b]));
        table.closed(a, FileId(1));
        assert_eq!(table.openers(FileId(1)), BTreeSet::from([b]));
        for file in 2..OPENS_MAX as u64 + 2 {
            table.opened(b, FileId(file));
        }
        assert!(table.openers(FileId(1)).is_empty());
        table.end(b);
        assert!(table.lock().by_file.is_empty());
    }
}
