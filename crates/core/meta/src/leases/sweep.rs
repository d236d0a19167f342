//! What a session is given beside a unit of others that it changes ([`tieline_sessions::Sweep`]).
//!
//! Invariant: nobody is asked for them who is not asked anyway.

use super::{EVERYTHING, Held, Inner, WANTED_KEPT};
use tieline_types::{FileId, SessionId};

/// So many of what the session holds are looked at for them.
const AMONG: usize = 1024;

impl Inner {
    /// A session changes a unit that others hold. Which others will it come to? Of those that it
    /// holds like them, the nearest in the order in which they were made: trees are made as they
    /// are walked.
    pub(super) fn sweep(&mut self, session: SessionId, unit: FileId) -> Vec<FileId> {
        let Some(held) = self.sessions.get_mut(&session) else { return vec![] };
        let Held { swept, exclusive, units, .. } = held;
        let is_left = |one: &FileId| match exclusive.get(one) {
            Some(alone) => !alone.is_touched,
            // Another wanted to see it.
            None => units.contains(one),
        };
        let count = swept.changes(unit, is_left);
        let near = self.near(session, unit, count);
        if let Some(held) = self.sessions.get_mut(&session) {
            held.swept.given(&near);
        }
        near
    }

    /// What a session holds together with none but the holders of a unit, the nearest first.
    fn near(&self, session: SessionId, unit: FileId, count: usize) -> Vec<FileId> {
        let held = self.sessions.get(&session).filter(|_| count > 0);
        let Some(held) = held else { return vec![] };
        let asked = self.holders.get(&unit);
        // Who is not asked for this unit may be away.
        let is_asked =
            |other: &SessionId| *other == session || asked.is_some_and(|by| by.contains(other));
        let is_swept = |unit: &FileId| {
            let is_alone = |other: &SessionId| {
                self.sessions.get(other).is_some_and(|held| held.exclusive.contains_key(unit))
            };
            let is_wanted = self.wanted.get(unit).is_some_and(|at| at.elapsed() < WANTED_KEPT);
            let by = self.holders.get(unit).filter(|by| by.len() > 1);
            let are_shared =
                by.is_some_and(|by| by.iter().all(|other| is_asked(other) && !is_alone(other)));
            *unit != EVERYTHING && are_shared && !is_wanted
        };
        let [before, after] = [
            held.units.range(..unit).rev().take(AMONG).collect::<Vec<_>>(),
            held.units.range(unit..).skip(1).take(AMONG).collect(),
        ];
        let mut near: Vec<_> = before.into_iter().chain(after).copied().filter(is_swept).collect();
        near.sort_by_key(|other| other.0.abs_diff(unit.0));
        near.truncate(count);
        near
    }
}
