//! How a session goes through units that others hold: whoever changes one after the other is given
//! more with each, before he comes there. `rm -r` of a tree that another client has read is such
//! work, and each unit costs a round trip to whoever holds it.
//!
//! Who goes here and there has no use for them, and keeps those from them who have: he is given
//! less.

use std::time::Duration;
use tieline_types::FileId;
use tokio::time::Instant;

/// Who changes units of others that soon after each other goes on with it.
const PAUSE: Duration = Duration::from_secs(3);
/// More that are given with one, twice as many each time.
const GIVEN_MAX: usize = 64;
/// Of what was given, at least one in so many is to be changed: a tree of several levels is not
/// removed in the order of its units.
const USED_OF: usize = 8;

#[derive(Default)]
pub struct Sweep {
    /// The unit that was changed last, and when.
    last: Option<(FileId, Instant)>,
    /// How many others it had come from, each soon after the one before.
    times: u32,
    /// What was given with that, and with the one before.
    given: Vec<FileId>,
    given_before: Vec<FileId>,
}

impl Sweep {
    /// A unit that others hold is changed. How many more are to be given with it? `is_left`: the
    /// session has done nothing there yet.
    pub fn changes(&mut self, unit: FileId, is_left: impl Fn(&FileId) -> bool) -> usize {
        let now = Instant::now();
        let last = self.last.replace((unit, now));
        let last = last.filter(|(_, at)| now.duration_since(*at) < PAUSE);
        // Who comes back to the same one shares it with somebody, and goes nowhere.
        let moves = last.is_some_and(|(before, _)| before != unit);
        // What was done in the last given may still be on its way here.
        let before = std::mem::replace(&mut self.given_before, std::mem::take(&mut self.given));
        let used = before.iter().filter(|one| !is_left(one)).count();
        self.times = match last {
            None => 0,
            Some(_) if used * USED_OF >= before.len() => self.times + u32::from(moves),
            Some(_) => self.times / 2,
        };
        if moves && self.times >= 2 {
            GIVEN_MAX.min(1 << self.times.min(usize::BITS - 1))
        } else {
            0
        }
    }

    /// These were, with the last.
    pub fn given(&mut self, units: &[FileId]) {
        self.given = units.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const DONE: fn(&FileId) -> bool = |_| false;
    const LEFT: fn(&FileId) -> bool = |_| true;

    /// Changes units one after the other; all that may be given is there.
    fn go(
        sweep: &mut Sweep,
        units: std::ops::Range<u64>,
        is_left: fn(&FileId) -> bool,
    ) -> Vec<usize> {
        let change = |unit| {
            let count = sweep.changes(FileId(unit), is_left);
            sweep.given(&(0..count as u64).map(FileId).collect::<Vec<_>>());
            count
        };
        units.map(change).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_on_is_given_more_each_time() {
        let mut sweep = Sweep::default();
        assert_eq!(go(&mut sweep, 0..8, DONE), [0, 0, 4, 8, 16, 32, 64, 64]);
        advance(PAUSE).await;
        assert_eq!(go(&mut sweep, 9..12, DONE), [0, 0, 4]);
        assert_eq!(sweep.changes(FileId(11), DONE), 0, "who comes back goes nowhere");
    }

    #[tokio::test(start_paused = true)]
    async fn who_did_nothing_in_what_he_was_given_is_given_less() {
        let mut sweep = Sweep::default();
        assert_eq!(go(&mut sweep, 0..6, DONE), [0, 0, 4, 8, 16, 32]);
        let elsewhere = go(&mut sweep, 100..130, LEFT);
        assert!(elsewhere.iter().sum::<usize>() < 3 * elsewhere.len(), "{elsewhere:?}");
        // Half of it is enough.
        let mut sweep = Sweep::default();
        assert_eq!(go(&mut sweep, 0..7, |unit| unit.0 % 2 == 0), [0, 0, 4, 8, 16, 32, 64]);
    }
}
