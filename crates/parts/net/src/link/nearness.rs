//! How near a server is: the shortest time in which it answered lately.
//!
//! Answers that took long say nothing of the way: they were long, or waited. The shortest of a span
//! comes close to the round trip; what is older than two spans is forgotten, for ways change.

use std::time::Duration;
use tokio::time::Instant;

const SPAN: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Nearness {
    /// Of the span before this one.
    before: Option<Duration>,
    now: Option<Duration>,
    since: Option<Instant>,
}

impl Nearness {
    pub(super) fn learn(&mut self, took: Duration, at: Instant) {
        let since = *self.since.get_or_insert(at);
        if at.saturating_duration_since(since) >= SPAN {
            (self.before, self.now, self.since) = (self.now, None, Some(at));
        }
        self.now = Some(self.now.map_or(took, |now| now.min(took)));
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.now).min()
    }

    /// Another connection, perhaps by another way.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_shortest_counts_until_it_is_old() {
        let millis = Duration::from_millis;
        let (mut nearness, start) = (Nearness::default(), Instant::now());
        assert_eq!(nearness.round_trip(), None);
        nearness.learn(millis(60), start);
        nearness.learn(millis(50), start + millis(10));
        nearness.learn(millis(400), start + millis(20));
        assert_eq!(nearness.round_trip(), Some(millis(50)));
        nearness.learn(millis(90), start + SPAN);
        assert_eq!(nearness.round_trip(), Some(millis(50)));
        nearness.learn(millis(95), start + SPAN * 2);
        assert_eq!(nearness.round_trip(), Some(millis(90)));
        nearness.forget();
        assert_eq!(nearness.round_trip(), None);
    }
}
