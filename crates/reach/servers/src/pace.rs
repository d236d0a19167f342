//! How fast bytes come from a server, and how many must be under way so that they do.
//!
//! The rate is the most that came in any span of late; spans in which nothing was under way do not
//! count, nor does the time to the first byte. What must be under way is rate times round trip, and
//! a quarter of it again: a way that could take more shows it then, and the next measure is higher.
//! More would only stand in queues on the way, and overflow them.

use crate::lock;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest span that says something of a rate.
const SPAN_MIN: Duration = Duration::from_millis(200);
/// A measure holds so long at least, twice as long at most.
const KEPT: Duration = Duration::from_secs(10);
/// What is under way beyond rate times round trip: requests are as large as that.
const SLACK: u64 = 1 << 20;
/// At least so much to a far server, whose rate is not known: more than one RTT of a Gbit/s.
const FAR_LEAST: u64 = 8 << 20;
/// To a near one: there memory is the limit, not the way.
pub(crate) const NEAR_LEAST: u64 = 32 << 20;
pub(crate) const MOST: u64 = 64 << 20;

#[derive(Default)]
pub struct Pace(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since when bytes are counted, and how many came since.
    span: Option<(Instant, u64)>,
    /// Bytes per second: the most of this period and of the one before.
    best: u64,
    best_before: u64,
    since: Option<Instant>,
}

impl Pace {
    /// Bytes came; `is_last` if nothing else is under way.
    pub fn came(&self, bytes: u64, is_last: bool) {
        let now = Instant::now();
        let mut state = lock(&self.0);
        let Some((from, count)) = &mut state.span else {
            // What came first was on its way before the span.
            state.span = (!is_last).then_some((now, 0));
            return;
        };
        *count += bytes;
        let (took, count) = (now - *from, *count);
        if took >= SPAN_MIN {
            let rate = (count as f64 / took.as_secs_f64()) as u64;
            state.learn(rate, now);
            state.span = Some((now, 0));
        }
        if is_last {
            state.span = None;
        }
    }

    /// Bytes per second, if they were measured.
    pub fn rate(&self) -> Option<u64> {
        let state = lock(&self.0);
        let is_fresh = state.since.is_some_and(|since| since.elapsed() < KEPT * 6);
        let best = state.best.max(state.best_before);
        (is_fresh && best > 0).then_some(best)
    }

    /// How many bytes are to be under way.
    pub fn room(&self, round_trip: Option<Duration>, is_far: bool) -> u64 {
        let least = if is_far { FAR_LEAST } else { NEAR_LEAST };
        let known = self.rate().zip(round_trip);
        let product = known.map_or(0, |(rate, trip)| (rate as f64 * trip.as_secs_f64()) as u64);
        (product + product / 4 + SLACK).clamp(least, MOST)
    }
}

impl State {
    fn learn(&mut self, rate: u64, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now - since >= KEPT {
            (self.best_before, self.best, self.since) = (self.best, 0, Some(now));
        }
        self.best = self.best.max(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of 1 MiB, one every `apart`.
    async fn arrive(pace: &Pace, count: u32, apart: Duration) {
        for index in 0..count {
            tokio::time::advance(apart).await;
            pace.came(1 << 20, index + 1 == count);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_the_best_span() {
        let (pace, trip) = (Pace::default(), Duration::from_millis(50));
        assert_eq!((pace.rate(), pace.room(Some(trip), true)), (None, FAR_LEAST));
        arrive(&pace, 40, Duration::from_millis(9)).await;
        let rate = pace.rate().unwrap();
        assert!((115_000_000..118_000_000).contains(&rate), "{rate}");
        // One piece alone says nothing, a slow span does not make it forget.
        arrive(&pace, 1, Duration::from_millis(400)).await;
        arrive(&pace, 10, Duration::from_millis(100)).await;
        assert_eq!(pace.rate(), Some(rate));
        let room = pace.room(Some(trip), true);
        assert!((8 << 20..9 << 20).contains(&room), "{room}");
        assert_eq!(pace.room(Some(Duration::from_secs(1)), true), MOST);
        arrive(&pace, 300, Duration::from_millis(100)).await;
        assert!(pace.rate().unwrap() < 12_000_000, "the way became slower");
    }
}
