//! Sessions that have something of files, from either side.
//!
//! Invariant: at most [`FILES_MAX`] files of a session are in it; the oldest are forgotten first.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use tieline_types::{FileId, SessionId};

const FILES_MAX: usize = 16_384;

/// What of it, for each session and file. There may be very many: a map in a map would take several
/// times as much.
pub struct Holders<T> {
    by_file: BTreeMap<(FileId, SessionId), T>,
    by_session: BTreeMap<SessionId, VecDeque<FileId>>,
}

impl<T> Default for Holders<T> {
    fn default() -> Self {
        Self { by_file: BTreeMap::new(), by_session: BTreeMap::new() }
    }
}

impl<T> Holders<T> {
    pub fn of(&self, file: FileId) -> impl Iterator<Item = (SessionId, &T)> {
        self.by_file.range(all_of(file)).map(|((_, session), has)| (*session, has))
    }

    pub fn of_mut(&mut self, file: FileId) -> impl Iterator<Item = (SessionId, &mut T)> {
        self.by_file.range_mut(all_of(file)).map(|((_, session), has)| (*session, has))
    }

    pub fn get_mut(&mut self, session: SessionId, file: FileId) -> Option<&mut T> {
        self.by_file.get_mut(&(file, session))
    }

    pub fn insert(&mut self, session: SessionId, file: FileId, has: T) {
        if self.by_file.insert((file, session), has).is_some() {
            return;
        }
        let files = self.by_session.entry(session).or_default();
        files.push_back(file);
        if files.len() > FILES_MAX
            && let Some(oldest) = files.pop_front()
        {
            self.forget(session, oldest);
        }
    }

    pub fn remove(&mut self, session: SessionId, file: FileId) {
        self.forget(session, file);
        if let Some(files) = self.by_session.get_mut(&session) {
            files.retain(|other| *other != file);
        }
    }

    pub fn end(&mut self, session: SessionId) {
        for file in self.by_session.remove(&session).unwrap_or_default() {
            self.forget(session, file);
        }
    }

    fn forget(&mut self, session: SessionId, file: FileId) {
        self.by_file.remove(&(file, session));
    }
}

fn all_of(file: FileId) -> RangeInclusive<(FileId, SessionId)> {
    (file, SessionId(0))..=(file, SessionId(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_session_are_forgotten() {
        let mut holders = Holders::default();
        let (a, b) = (SessionId(1), SessionId(2));
        for file in 0..FILES_MAX as u64 + 2 {
            holders.insert(a, FileId(file), file);
        }
        holders.insert(b, FileId(0), 7);
        holders.insert(a, FileId(5), 8);
        let of = |holders: &Holders<u64>, file| -> Vec<(SessionId, u64)> {
            holders.of(FileId(file)).map(|(session, has)| (session, *has)).collect()
        };
        assert_eq!(of(&holders, 0), [(b, 7)]);
        assert_eq!(
            (of(&holders, 1), of(&holders, 2), of(&holders, 5)),
            (vec![], vec![(a, 2)], vec![(a, 8)])
        );
        assert_eq!(holders.by_file.len(), FILES_MAX + 1);
        holders.remove(b, FileId(0));
        holders.end(a);
        assert!(holders.by_file.is_empty());
    }
}
