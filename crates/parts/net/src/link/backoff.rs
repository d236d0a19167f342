//! Where to connect next, and after which pause.
//!
//! Addresses take turns in being the first to be tried; one that answered stays it, until one that
//! was told before it is found to answer, too ([`Backoff::better`]). The pause
//! doubles with each round through them, up to the longest, and half of it is left to chance, so
//! that a farm does not come back in one instant after a server's reboot.

use crate::SessionSettings;
use std::time::Duration;

/// Between attempts at a server that announced its absence.
const UNHURRIED: Duration = Duration::from_secs(5);

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

    /// The next attempt: all addresses, in the order in which to try them. The first one of all is
    /// at once.
    pub(super) fn next(&mut self) -> (Vec<String>, Duration) {
        let Some(failed) = self.failed else {
            self.failed = Some(1);
            return (self.in_order(), Duration::ZERO);
        };
        self.failed = Some(failed.saturating_add(1));
        let count = self.addresses.len().max(1);
        // After a success, the same server is the most likely to be there again.
        if failed > 0 {
            self.at = (self.at + 1) % count;
        }
        let round = failed.saturating_sub(1) / u32::try_from(count).unwrap_or(u32::MAX);
        let pause = self.first.saturating_mul(1 << round.min(16)).min(self.longest);
        (self.in_order(), self.jitter(pause))
    }

    /// The one to begin with, then the others as they were told.
    fn in_order(&self) -> Vec<String> {
        let first = self.addresses.get(self.at);
        let others = self.addresses.iter().enumerate().filter(|(index, _)| *index != self.at);
        first.into_iter().chain(others.map(|(_, address)| address)).cloned().collect()
    }

    /// Those that are better than the one in use.
    pub(super) fn better(&self) -> &[String] {
        self.addresses.get(..self.at).unwrap_or_default()
    }

    /// This address answered: it is the one in use.
    pub(super) fn prefer(&mut self, address: &str) {
        if let Some(at) = self.addresses.iter().position(|known| known == address) {
            self.at = at;
        }
    }

    /// The next attempt, at a server that announced its absence: nobody is in a hurry.
    pub(super) fn next_unhurried(&mut self) -> (Vec<String>, Duration) {
        let (addresses, _) = self.next();
        (addresses, self.jitter(UNHURRIED))
    }

    /// The next attempt is at once, as the very first was.
    pub(super) fn hurry(&mut self) {
        self.failed = None;
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
