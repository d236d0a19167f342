//! Did the machine sleep? Leases are counted by tokio's clock, which stands still meanwhile.
//!
//! Servers took back what they liked then. The world tells of a sleep a moment after it
//! to whoever listens; programs may ask before that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tieline_world::Clock;
use tokio::time::Instant;

/// Shorter sleeps are within what leases are used less than they last.
const SLEEP_LEAST: Duration = Duration::from_millis(100);

/// Compares the clock that counts on with the one that stands still.
pub(super) struct Slept {
    clock: Arc<dyn Clock>,
    begun: Instant,
    /// Milliseconds that the one was ahead of the other at most.
    apart: AtomicU64,
}

impl Slept {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let slept = Self { clock, begun: Instant::now(), apart: AtomicU64::new(0) };
        slept.apart.store(slept.apart(), Ordering::Relaxed);
        slept
    }

    /// Has it slept since this was asked last?
    pub fn lately(&self) -> bool {
        let (before, apart) = (self.apart.load(Ordering::Relaxed), self.apart());
        let has = u128::from(apart.saturating_sub(before)) >= SLEEP_LEAST.as_millis();
        if has {
            self.apart.store(apart, Ordering::Relaxed);
        }
        has
    }

    fn apart(&self) -> u64 {
        // In this order: a thread that waits in between takes it for less.
        let steady = self.clock.steady();
        let apart = steady.saturating_sub(self.begun.elapsed());
        u64::try_from(apart.as_millis()).unwrap_or(u64::MAX)
    }
}
