//! What it costs to read from each OST, as measured: the time from asking to the last byte, or the
//! round trip and what is under way at the rate at which it comes.
//!
//! Only what lies within a factor of two is told apart, so that places that are about equally near
//! share the load. A measure is forgotten after a minute; then one reader tries the place again.

use crate::volume::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tieline_types::OstIndex;
use tokio::time::Instant;

const KEPT: Duration = Duration::from_secs(60);
/// While one reader tries a place that was not measured, others go where they know the cost.
const TRYING: Duration = Duration::from_secs(2);
/// Differences below this are those of two requests, not of two places.
const GRAIN: Duration = Duration::from_millis(4);
/// How long the best place may take before the next is asked beside it.
const PATIENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(300)..=Duration::from_secs(3);
const PATIENCE_UNKNOWN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Costs(Mutex<BTreeMap<OstIndex, Cost>>);

#[derive(Clone, Copy)]
struct Cost {
    mean: Option<Duration>,
    at: Instant,
}

impl Cost {
    fn known(&self) -> Option<Duration> {
        self.mean.filter(|_| self.at.elapsed() < KEPT)
    }
}

impl Costs {
    /// For comparing: the less the nearer. `estimate` is what a request would take now, where both
    /// the way and its rate are known; else it is taken from the requests of late.
    pub fn of(&self, ost: OstIndex, estimate: Option<Duration>) -> u32 {
        match lock(&self.0).get(&ost) {
            None => 0,
            Some(cost) => match cost.known() {
                Some(mean) => {
                    let time = estimate.unwrap_or(mean);
                    (time.as_micros() / GRAIN.as_micros() + 1).ilog2()
                }
                None if cost.mean.is_none() && cost.at.elapsed() < TRYING => u32::MAX,
                None => 0,
            },
        }
    }

    /// A place is about to be asked first. If it was not measured, others wait for the outcome.
    pub fn chosen(&self, ost: OstIndex) {
        let mut costs = lock(&self.0);
        let known = costs.get(&ost).and_then(Cost::known);
        if known.is_none() {
            costs.insert(ost, Cost { mean: None, at: Instant::now() });
        }
    }

    pub fn learn(&self, ost: OstIndex, took: Duration) {
        let mut costs = lock(&self.0);
        let mean = match costs.get(&ost).and_then(Cost::known) {
            Some(mean) => (mean * 3 + took) / 4,
            None => took,
        };
        costs.insert(ost, Cost { mean: Some(mean), at: Instant::now() });
    }

    /// How long it may take before somebody else is asked too.
    pub fn patience(&self, ost: OstIndex) -> Duration {
        match lock(&self.0).get(&ost).and_then(Cost::known) {
            Some(mean) => (mean * 8).clamp(*PATIENCE.start(), *PATIENCE.end()),
            None => PATIENCE_UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: OstIndex = OstIndex(0);
    const FAR: OstIndex = OstIndex(1);

    #[tokio::test(start_paused = true)]
    async fn the_nearer_is_known_by_its_measure_for_a_minute() {
        let costs = Costs::default();
        assert_eq!(costs.of(NEAR, None), costs.of(FAR, None));
        costs.learn(NEAR, Duration::from_millis(2));
        costs.learn(FAR, Duration::from_millis(50));
        assert!(costs.of(NEAR, None) < costs.of(FAR, None));
        assert!(costs.patience(NEAR) < costs.patience(FAR));
        costs.learn(FAR, Duration::from_millis(40));
        assert!(costs.of(NEAR, None) < costs.of(FAR, None));
        tokio::time::advance(KEPT).await;
        assert_eq!(costs.of(FAR, None), 0, "it is tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_reader_tries_an_unknown_place() {
        let costs = Costs::default();
        costs.learn(NEAR, Duration::from_millis(2));
        costs.chosen(FAR);
        assert!(costs.of(NEAR, None) < costs.of(FAR, None));
        tokio::time::advance(TRYING).await;
        assert_eq!(costs.of(FAR, None), 0);
    }
}
