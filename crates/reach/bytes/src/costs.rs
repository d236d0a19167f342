//! What it costs to read from each OST, as measured: the round trip, and how long each byte takes
//! that is under way or waits for its turn.
//!
//! Only what lies within a factor of two is told apart, so that places that are about equally near
//! share the load: what is under way counts, so the one that has less to do comes next. A measure
//! counts until there is a better one. When it is older than a minute, one request is made beside
//! the reader's ([`Costs::begin_probe`]); nothing else goes there because of that until it is
//! answered. The same holds for a place that was never measured, once another was.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tieline_types::OstIndex;
use tokio::time::Instant;

const KEPT: Duration = Duration::from_secs(60);
/// Differences below this are those of two requests, not of two places.
const GRAIN: Duration = Duration::from_millis(4);
/// How long the best place may take before the next is asked beside it.
const PATIENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(300)..=Duration::from_secs(3);
const PATIENCE_UNKNOWN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Costs(Mutex<BTreeMap<OstIndex, Cost>>);

#[derive(Clone, Copy, Default)]
struct Cost {
    measured: Option<Measured>,
    /// When it was last asked only to be measured.
    probed: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Measured {
    /// Of whole requests.
    mean: Duration,
    /// Picoseconds for each byte beyond the round trip.
    per_byte: u64,
    at: Instant,
}

/// What a way carries when something is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    pub round_trip: Option<Duration>,
    /// Bytes that come before the last one asked for, and that.
    pub bytes: u64,
}

const PICOS: u128 = 1000;

impl Costs {
    /// For comparing: the less the nearer.
    pub fn of(&self, ost: OstIndex, load: Load) -> u32 {
        let Some(known) = lock(&self.0).get(&ost).and_then(|cost| cost.measured) else {
            return u32::MAX;
        };
        let moving = u128::from(known.per_byte) * u128::from(load.bytes) / PICOS;
        let time = load.round_trip.unwrap_or_default().as_nanos() + moving;
        (time / GRAIN.as_nanos() + 1).ilog2()
    }

    /// Is the place to be asked only to be measured, now? Whoever is told so does it.
    pub fn begin_probe(&self, ost: OstIndex) -> bool {
        let mut costs = lock(&self.0);
        let cost = costs.entry(ost).or_default();
        let is_known = cost.measured.is_some_and(|known| known.at.elapsed() < KEPT);
        let is_due = !is_known && cost.probed.is_none_or(|at| at.elapsed() >= KEPT);
        if is_due {
            cost.probed = Some(Instant::now());
        }
        is_due
    }

    /// A request was answered that was made when `load` was on the way.
    pub fn learn(&self, ost: OstIndex, took: Duration, load: Load) {
        let moving = took.saturating_sub(load.round_trip.unwrap_or_default()).as_nanos() * PICOS;
        let per_byte = u64::try_from(moving / u128::from(load.bytes.max(1))).unwrap_or(u64::MAX);
        let mut costs = lock(&self.0);
        let cost = costs.entry(ost).or_default();
        let fresh = cost.measured.filter(|known| known.at.elapsed() < KEPT);
        let (mean, per_byte) = match fresh {
            Some(known) => {
                ((known.mean * 3 + took) / 4, known.per_byte - known.per_byte / 4 + per_byte / 4)
            }
            None => (took, per_byte),
        };
        cost.measured = Some(Measured { mean, per_byte, at: Instant::now() });
    }

    /// How long it may take before somebody else is asked too.
    pub fn patience(&self, ost: OstIndex) -> Duration {
        match lock(&self.0).get(&ost).and_then(|cost| cost.measured) {
            Some(known) => (known.mean * 8).clamp(*PATIENCE.start(), *PATIENCE.end()),
            None => PATIENCE_UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: OstIndex = OstIndex(0);
    const FAR: OstIndex = OstIndex(1);
    const TRIP: Duration = Duration::from_millis(50);
    const REQUEST: u64 = 128 << 10;

    fn load(bytes: u64) -> Load {
        Load { round_trip: Some(TRIP), bytes }
    }

    /// What a line of so many bytes per second takes for it.
    fn took(load: Load, rate: u64) -> Duration {
        TRIP + Duration::from_secs_f64(load.bytes as f64 / rate as f64)
    }

    #[tokio::test(start_paused = true)]
    async fn the_nearer_is_known_by_its_measure_until_there_is_a_better_one() {
        let costs = Costs::default();
        let near = Load { round_trip: Some(Duration::from_millis(2)), bytes: REQUEST };
        assert_eq!(costs.of(NEAR, near), costs.of(FAR, load(REQUEST)));
        costs.learn(NEAR, Duration::from_millis(3), near);
        assert_eq!(costs.of(FAR, load(REQUEST)), u32::MAX, "it is not tried by readers");
        costs.learn(FAR, took(load(REQUEST), 100 << 20), load(REQUEST));
        assert!(costs.patience(NEAR) <= costs.patience(FAR));
        for _ in 0..3 {
            assert!(costs.of(NEAR, near) < costs.of(FAR, load(REQUEST)));
            tokio::time::advance(KEPT).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_asked_once_a_minute_until_it_answers() {
        let costs = Costs::default();
        assert!(costs.begin_probe(FAR) && !costs.begin_probe(FAR));
        tokio::time::advance(KEPT / 2).await;
        assert!(!costs.begin_probe(FAR), "it may still be under way");
        costs.learn(FAR, took(load(REQUEST), 1 << 20), load(REQUEST));
        tokio::time::advance(KEPT / 2).await;
        assert!(!costs.begin_probe(FAR), "it is known");
        tokio::time::advance(KEPT).await;
        assert!(costs.begin_probe(FAR) && !costs.begin_probe(FAR));
    }

    /// Two places, one at the end of a line that was stepped down to 8 Mbit/s.
    #[tokio::test(start_paused = true)]
    async fn a_slow_line_gets_next_to_nothing() {
        let (costs, slow, fast) = (Costs::default(), 1 << 20, 90 << 20);
        costs.learn(NEAR, took(load(REQUEST), fast), load(REQUEST));
        costs.learn(FAR, took(load(REQUEST), slow), load(REQUEST));
        let mut under_way = (0, 0);
        for _ in 0..(32 << 20) / REQUEST {
            let near = costs.of(NEAR, load(under_way.0 + REQUEST));
            let far = costs.of(FAR, load(under_way.1 + REQUEST));
            if near <= far {
                under_way.0 += REQUEST;
            } else {
                under_way.1 += REQUEST;
            }
        }
        assert!(under_way.1 <= 4 * REQUEST, "{under_way:?}");
        // The queue of before says nothing of the line.
        costs.learn(NEAR, took(load(under_way.0), fast), load(under_way.0));
        assert!(costs.of(NEAR, load(REQUEST)) < costs.of(FAR, load(REQUEST)));
    }

    #[tokio::test(start_paused = true)]
    async fn equal_places_share() {
        let (costs, rate) = (Costs::default(), 100 << 20);
        let mut under_way = [0, 0];
        for ost in [NEAR, FAR] {
            costs.learn(ost, took(load(REQUEST), rate), load(REQUEST));
        }
        for _ in 0..(64 << 20) / REQUEST {
            let cost = |at: &usize| costs.of(OstIndex(*at as u16), load(under_way[*at] + REQUEST));
            let next = [0, 1].into_iter().min_by_key(cost).unwrap_or(0);
            under_way[next] += REQUEST;
        }
        let (least, most) = (under_way[0].min(under_way[1]), under_way[0].max(under_way[1]));
        assert!(least * 3 >= most, "{under_way:?}");
    }
}
