//! Back to the best address of a server, when that answers again.
//!
//! Addresses are told the best first. While another than the first is in use, the better ones are
//! tried now and then beside the connection, and at once when the machine's networks changed. When
//! one answers, the connection moves there as after a loss: what is under way is asked again.
//!
//! Invariants: nobody moves to an address that is no better; one that answers and turns us away
//! then is tried less and less often.

use super::{Action, Phase, State};
use std::time::Duration;
use tokio::time::Instant;

/// How often better addresses are tried.
const TRY_EVERY: Duration = Duration::from_secs(30);
const TRY_EVERY_MAX: Duration = Duration::from_secs(3600);

pub(super) struct Better {
    /// When they are tried next; `None`: the best one is in use.
    pub try_at: Option<Instant>,
    try_every: Duration,
}

impl Default for Better {
    fn default() -> Self {
        Self { try_at: None, try_every: TRY_EVERY }
    }
}

impl State {
    /// A connection stands.
    pub(super) fn better_connected(&mut self, now: Instant) {
        self.better = match self.backoff.better() {
            [] => Better::default(),
            _ => {
                let try_every = self.better.try_every;
                Better { try_at: Some(now + try_every), try_every }
            }
        };
    }

    /// Sees whether an address that is better than the one in use answers by now.
    pub(super) fn better_try(&mut self, now: Instant) {
        let addresses = self.backoff.better().to_vec();
        self.better.try_at = None;
        if !addresses.is_empty() && matches!(self.phase, Phase::Up(_)) {
            self.better.try_at = Some(now + self.better.try_every);
            self.actions.push_back(Action::Try { addresses });
        }
    }

    /// It does: the connection moves there, and what is under way is asked again. Who means to go
    /// away soon is not left before.
    pub(super) fn better_answers(&mut self, address: &str) {
        let is_better = self.backoff.better().iter().any(|better| better == address);
        if !is_better || self.held_until.is_some() || !matches!(self.phase, Phase::Up(_)) {
            return;
        }
        self.better.try_every = (self.better.try_every * 2).min(TRY_EVERY_MAX);
        self.backoff.prefer(address);
        self.backoff.hurry();
        self.give_up("a better address answers again");
    }
}
