//! Where to connect next, and after which pause.
//!
//! Addresses take turns. The pause doubles with each round through them, up to the longest, and
//! half of it is left to chance, so that a farm does not come back in one instant after a server's
//! reboot.

use crate::SessionSettings;
use std::time::Duration;

pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    addresses: Vec<String>,
    /// The address in use.
    at: usize,
    /// Attempts since the last success; `None` before the very first of all.
    failed: Option<u32>,
    dice: u64,
}

impl Backoff {
    pub(super) fn new(settings: &SessionSettings, addresses: Vec<String>, seed: u64) -> Self {
        let (first, longest) = (settings.retry_first, settings.retry_longest);
        Self { first, longest, addresses, at: 0, failed: None, dice: seed }
    }

    /// The address in use.
    pub(super) fn address(&self) -> &str {
        self.addresses.get(self.at).map_or("", String::as_str)
    }

    /// The next attempt. The first one of all is at once.
    pub(super) fn next(&mut self) -> (String, Duration) {
        let Some(failed) = self.failed else {
            self.failed = Some(1);
            return (self.address().to_owned(), Duration::ZERO);
        };
        self.failed = Some(failed.saturating_add(1));
        let count = self.addresses.len().max(1);
        // After a success, the same server is the most likely to be there again.
        if failed > 0 {
            self.at = (self.at + 1) % count;
        }
        let round = failed.saturating_sub(1) / u32::try_from(count).unwrap_or(u32::MAX);
        let pause = self.first.saturating_mul(1 << round.min(16)).min(self.longest);
        (self.address().to_owned(), self.jitter(pause))
    }

    pub(super) fn succeeded(&mut self) {
        self.failed = Some(0);
    }

    /// Between half of `pause` and all of it.
    fn jitter(&mut self, pause: Duration) -> Duration {
        // A linear congruential generator (the constants are Knuth's MMIX); its high bits are good
        // enough for this.
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (self.dice >> 32) as u32;
        let half = pause / 2;
        half + half.mul_f64(f64::from(share) / f64::from(u32::MAX))
    }
}
