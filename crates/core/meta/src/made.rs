//! Which files were made by whom who acts for another.
//!
//! A scope may let somebody make files and change none that are there: he fills those that he made,
//! for as long as he is spoken for. Forgotten when the server is started anew: what was not whole
//! then is begun anew.
//!
//! Invariant: at most [`MADE_MAX`] are kept; those that end first go first.

use crate::view::Scene;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, SessionId, Uid};
use tokio::time::Instant;

const MADE_MAX: usize = 65_536;

/// Somebody in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maker {
    session: SessionId,
    proof: u64,
    /// A number may be proven anew, as another user.
    uid: Uid,
}

impl Maker {
    /// Who acts for another.
    pub fn of(scene: &Scene<'_>) -> Option<Self> {
        let delegation = scene.delegation.filter(|delegation| delegation.until.is_some())?;
        let (session, uid) = (scene.session, scene.caller.uid);
        Some(Self { session, proof: delegation.proof, uid })
    }
}

#[derive(Default)]
pub struct MadeTable(Mutex<BTreeMap<FileId, (Maker, Instant)>>);

impl MadeTable {
    pub fn note(&self, file: FileId, maker: Maker, until: Instant) {
        let mut made = self.lock();
        if made.len() >= MADE_MAX {
            let now = Instant::now();
            made.retain(|_, (_, until)| *until > now);
        }
        if made.len() >= MADE_MAX {
            let mut ends: Vec<Instant> = made.values().map(|(_, until)| *until).collect();
            let (_, middle, _) = ends.select_nth_unstable(MADE_MAX / 2);
            let middle = *middle;
            made.retain(|_, (_, until)| *until > middle);
        }
        made.insert(file, (maker, until));
    }

    pub fn is_by(&self, file: FileId, maker: Maker) -> bool {
        let made = self.lock();
        made.get(&file).is_some_and(|(by, until)| *by == maker && *until > Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FileId, (Maker, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_its_makers_while_he_is_spoken_for() {
        let table = MadeTable::default();
        let ann = Maker { session: SessionId(1), proof: 2, uid: Uid(5001) };
        let until = Instant::now() + Duration::from_secs(60);
        table.note(FileId(7), ann, until);
        assert!(table.is_by(FileId(7), ann) && !table.is_by(FileId(8), ann));
        assert!(!table.is_by(FileId(7), Maker { uid: Uid(5002), ..ann }));
        assert!(!table.is_by(FileId(7), Maker { session: SessionId(2), ..ann }));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!table.is_by(FileId(7), ann));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_end_first_go_first() {
        let table = MadeTable::default();
        let ann = Maker { session: SessionId(1), proof: 2, uid: Uid(5001) };
        let now = Instant::now();
        for file in 0..=MADE_MAX as u64 {
            table.note(FileId(file), ann, now + Duration::from_secs(60 + file));
        }
        assert!(!table.is_by(FileId(0), ann) && table.is_by(FileId(MADE_MAX as u64), ann));
        assert!(table.lock().len() <= MADE_MAX);
    }
}
