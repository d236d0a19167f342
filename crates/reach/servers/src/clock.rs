//! What time it is at a server, so that what is done here is stamped as its MDS would have: files
//! have one clock, whatever those of clients say.
//!
//! A reading says between which two bounds the server's clock is ahead of ours: it was told after
//! we asked and before we heard. The bounds of all readings together are narrow, and grow with
//! time, for clocks run apart. The middle is what is believed: an answer is never heard before it
//! was given so, and what is sent arrives after it was stamped. Readings that contradict what is
//! known say that the server's clock was set.
//!
//! Our own wall clock is not asked: it may be set, or wrong. What is counted by goes on while the
//! machine sleeps, and a reading that a sleep fell into is no good.
//!
//! Invariant: what is told does not go back, but to follow a server's clock that was set back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tieline_net::Reading;
use tieline_types::Time;
use tieline_world::Clock;
use tokio::time::Instant;

/// Nanoseconds, of a time since 1970 or between two clocks.
type Nanos = i128;

const SECOND: Nanos = 1_000_000_000;
/// Two clocks run apart by one part in so many: twice what NTP lets each be pushed.
const DRIFT: Nanos = 1_000;
/// How far corrections may be waited out. Beyond it, the server's clock was set.
const STANDS_STILL: Nanos = SECOND;
/// Our two clocks run apart by less than this, but for a sleep.
const SLEEP_LEAST: Nanos = SECOND / 100;

/// The clock of one server.
pub(crate) struct ServerClock {
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Option<Bounds>,
    /// The last that was told.
    last: Nanos,
    /// How far the clock that counts on was ahead of tokio's at the last reading.
    slept: Option<Nanos>,
}

/// How far the server's clock is ahead of the one that we count by.
#[derive(Clone, Copy)]
struct Bounds {
    low: Nanos,
    high: Nanos,
    /// When that was known.
    at: Nanos,
}

impl Bounds {
    /// What is sure of them later.
    fn later(self, at: Nanos) -> Self {
        let apart = (at - self.at).max(0) / DRIFT;
        Self { low: self.low - apart, high: self.high + apart, at }
    }

    fn with(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        if low <= high { Self { low, high, ..other } } else { other }
    }
}

impl ServerClock {
    pub fn new() -> Self {
        Self { begun: Instant::now(), state: Mutex::default() }
    }

    /// Takes in what the server said.
    pub fn learn(&self, reading: Reading, clock: &dyn Clock) {
        let now = nanos(clock.steady());
        let slept = now - nanos(self.begun.elapsed());
        let heard = now - nanos(reading.heard.elapsed());
        let asked = heard - nanos(reading.heard.saturating_duration_since(reading.asked));
        let told = Nanos::from(reading.told.seconds) * SECOND + Nanos::from(reading.told.nanos);
        let mut state = self.lock();
        let before = state.slept.replace(slept);
        if before.is_some_and(|before| (slept - before).abs() > SLEEP_LEAST) {
            return;
        }
        let bounds = Bounds { low: told - heard, high: told - asked, at: heard };
        let known = state.known.map_or(bounds, |known| known.later(heard).with(bounds));
        state.known = Some(known);
    }

    /// What time it is there; `None` before the server said so.
    pub fn now(&self, clock: &dyn Clock) -> Option<Time> {
        let mut state = self.lock();
        let Bounds { low, high, .. } = state.known?;
        let now = nanos(clock.steady()) + (low + high) / 2;
        let is_held = now < state.last && state.last - now <= STANDS_STILL;
        if !is_held {
            state.last = now;
        }
        let seconds = i64::try_from(state.last.div_euclid(SECOND)).ok()?;
        Some(Time { seconds, nanos: state.last.rem_euclid(SECOND) as u32 })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanos(duration: Duration) -> Nanos {
    // Far more than any clock counts to.
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const MS: u64 = 1_000_000;

    /// Counts as tokio does, and what was slept besides.
    struct Counted {
        begun: Instant,
        slept: AtomicU64,
    }

    impl Counted {
        fn new() -> Self {
            Self { begun: Instant::now(), slept: AtomicU64::new(0) }
        }
    }

    impl Clock for Counted {
        fn wall(&self) -> Duration {
            panic!("the wall clock is not asked")
        }

        fn steady(&self) -> Duration {
            self.begun.elapsed() + Duration::from_nanos(self.slept.load(Ordering::Relaxed))
        }
    }

    /// A client, and a server whose clock is ahead of its own by so much.
    struct House {
        counted: Counted,
        clock: ServerClock,
        ahead: Nanos,
    }

    impl House {
        fn new(ahead: Nanos) -> Self {
            Self { counted: Counted::new(), clock: ServerClock::new(), ahead }
        }

        /// The server's true time.
        fn truth(&self) -> Nanos {
            nanos(self.counted.steady()) + self.ahead
        }

        async fn ask(&self, there: u64, back: u64) {
            let asked = Instant::now();
            tokio::time::advance(Duration::from_nanos(there)).await;
            let told = time(self.truth());
            tokio::time::advance(Duration::from_nanos(back)).await;
            self.clock.learn(Reading { asked, heard: Instant::now(), told }, &self.counted);
        }

        /// How far ahead of the truth it is told to be.
        fn error(&self) -> Nanos {
            let now = self.clock.now(&self.counted).unwrap();
            Nanos::from(now.seconds) * SECOND + Nanos::from(now.nanos) - self.truth()
        }
    }

    fn time(nanos: Nanos) -> Time {
        let seconds = i64::try_from(nanos.div_euclid(SECOND)).unwrap();
        Time { seconds, nanos: nanos.rem_euclid(SECOND) as u32 }
    }

    #[tokio::test(start_paused = true)]
    async fn the_best_readings_count_and_age() {
        let house = House::new(7200 * SECOND);
        assert_eq!(house.clock.now(&house.counted), None);
        house.ask(30 * MS, 10 * MS).await;
        assert_eq!(house.error(), Nanos::from(10 * MS));
        // Each end is known as well as by the reading that knows it best.
        house.ask(10 * MS, 30 * MS).await;
        assert!(house.error().abs() < SECOND / 10_000);
        tokio::time::advance(Duration::from_secs(3600)).await;
        house.ask(50 * MS, MS).await;
        assert!(house.error() > Nanos::from(20 * MS), "the old ones are too old");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_followed_and_small_corrections_are_waited_out() {
        let mut house = House::new(1_700_000_000 * SECOND);
        house.ask(MS, MS).await;
        assert_eq!(house.error(), 0);
        house.ahead -= SECOND / 2;
        let before = house.clock.now(&house.counted).unwrap();
        house.ask(MS, MS).await;
        assert_eq!(house.clock.now(&house.counted), Some(before), "it stands still");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(house.error(), 0);
        house.ahead -= 3600 * SECOND;
        house.ask(MS, MS).await;
        assert_eq!(house.error(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_changes_nothing() {
        let house = House::new(1_700_000_000 * SECOND);
        house.ask(MS, MS).await;
        // The ping was on its way meanwhile: by the clock that stood still it was a short one.
        let asked = Instant::now();
        let told = time(house.truth());
        house.counted.slept.store(60_000 * MS, Ordering::Relaxed);
        house.clock.learn(Reading { asked, heard: Instant::now(), told }, &house.counted);
        assert_eq!(house.error(), 0);
        house.ask(MS, MS).await;
        assert!(house.error().abs() <= Nanos::from(MS));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Through the server, nothing seems to happen before its cause: what was stamped here
        /// arrives later, and what it has stamped is heard later. But for what two clocks may have
        /// run apart since the best readings.
        #[test]
        fn stamps_agree_with_causes(
            ways in prop::collection::vec((1..80 * MS, 1..80 * MS), 1..12),
            ahead in -1_000_000 * SECOND..1_000_000 * SECOND,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let house = House::new(2_000_000 * SECOND + ahead);
                let (mut there_least, mut back_least) = (u64::MAX, u64::MAX);
                let (mut last, begun) = (0, Instant::now());
                for (there, back) in ways {
                    house.ask(there, back).await;
                    (there_least, back_least) = (there_least.min(there), back_least.min(back));
                    let error = house.error();
                    let told = error + house.truth();
                    let (is_held, apart) = (told == last, nanos(begun.elapsed()) / DRIFT);
                    let (there, back) = (Nanos::from(there_least), Nanos::from(back_least));
                    assert!(is_held || error <= there + apart, "arrives before it left");
                    assert!(-error <= back + apart, "heard before it was said");
                    assert!(told >= last, "goes back");
                    last = told;
                }
            });
        }
    }
}
