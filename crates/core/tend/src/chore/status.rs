//! How one chore is: for operators, and for `/metrics`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{MdtIndex, Time};
use tieline_wire::chores::{Chore, ChoreFailure, ChoreState};

/// What a chore and its runner say, and others read.
pub struct Status {
    mdt: MdtIndex,
    told: Mutex<Told>,
}

struct Told {
    chore: Chore,
    /// What the round that runs could not do.
    trouble: Option<String>,
}

impl Status {
    pub fn new(mdt: MdtIndex, name: &str, unit: &str) -> Self {
        set_failed(mdt, name, false);
        let told = Told { chore: resting(name, unit), trouble: None };
        Self { mdt, told: Mutex::new(told) }
    }

    /// A round begins. What failed has failed until a round ends well: it may be trying for long.
    pub fn begin(&self) {
        let mut told = self.lock();
        (told.trouble, told.chore.waits_for) = (None, None);
        if told.chore.state != ChoreState::Failed {
            told.chore.state = ChoreState::Working;
        }
    }

    /// So much more is done.
    pub fn did(&self, count: u64) {
        self.lock().chore.done += count;
    }

    /// So much is left to be done, if that is known.
    pub fn set_left(&self, count: Option<u64>) {
        self.lock().chore.left = count;
    }

    /// Something could not be done in this round.
    pub fn trouble(&self, detail: String) {
        self.lock().trouble = Some(detail);
    }

    /// Nothing is done until something else is well.
    pub fn wait_for(&self, what: &str) {
        self.lock().chore.waits_for = Some(what.to_owned());
    }

    /// The round ended.
    pub fn end(&self, at: Time) {
        let mut told = self.lock();
        told.chore.ended = Some(at);
        let trouble = told.trouble.take();
        set_failed(self.mdt, &told.chore.name, trouble.is_some());
        told.chore.state = match (&trouble, &told.chore.waits_for) {
            (Some(_), _) => ChoreState::Failed,
            (None, Some(_)) => ChoreState::Waiting,
            (None, None) => ChoreState::Resting,
        };
        if let Some(detail) = trouble {
            told.chore.failure = Some(ChoreFailure { at, detail });
        }
    }

    pub fn tell(&self) -> Chore {
        self.lock().chore.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // Nothing panics while it is held.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that has done nothing yet.
pub fn resting(name: &str, unit: &str) -> Chore {
    Chore {
        name: name.to_owned(),
        state: ChoreState::Resting,
        waits_for: None,
        failure: None,
        done: 0,
        left: None,
        unit: unit.to_owned(),
        ended: None,
    }
}

/// For `/metrics`.
pub fn set_failed(mdt: MdtIndex, name: &str, is_failed: bool) {
    METRICS.chore_failed.with_label_values(&[mdt.label().as_str(), name]).set(is_failed.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_remembered_and_over_when_a_round_goes_well() {
        let status = Status::new(MdtIndex(9), "work", "pieces");
        let at = |seconds| Time { seconds, nanos: 0 };
        status.begin();
        assert_eq!(status.tell().state, ChoreState::Working);
        status.did(3);
        status.trouble("no answer".to_owned());
        status.end(at(1));
        let told = status.tell();
        assert_eq!((told.state, told.done, told.ended), (ChoreState::Failed, 3, Some(at(1))));
        let failed = METRICS.chore_failed.with_label_values(&["MDT0009", "work"]);
        assert_eq!(failed.get(), 1);
        status.begin();
        assert_eq!(status.tell().state, ChoreState::Failed);
        status.end(at(2));
        let told = status.tell();
        assert_eq!((told.state, failed.get()), (ChoreState::Resting, 0));
        let failure = ChoreFailure { at: at(1), detail: "no answer".to_owned() };
        assert_eq!(told.failure, Some(failure));
        status.begin();
        status.wait_for("room");
        status.end(at(3));
        assert_eq!(status.tell().state, ChoreState::Waiting);
    }
}
