//! A bounded rate: a bucket that fills with time, and from which work takes tokens.
//!
//! Invariant: over any time, no more is taken than the rate allows, and one burst of a second.

use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub struct Pace {
    per_second: u64,
    /// When what was taken so far is earned.
    earned: Mutex<Option<Instant>>,
}

impl Pace {
    /// 0: as fast as it goes.
    pub fn new(per_second: u64) -> Self {
        Self { per_second, earned: Mutex::new(None) }
    }

    /// Takes tokens, and waits until they are earned (but for a second's worth).
    pub async fn take(&self, tokens: u64) {
        if self.per_second == 0 || tokens == 0 {
            return;
        }
        let cost = Duration::from_secs_f64(tokens as f64 / self.per_second as f64);
        let mut earned = self.earned.lock().await;
        let now = Instant::now();
        let from = earned.map_or(now, |earned| earned.max(now));
        *earned = Some(from + cost);
        let burst = Duration::from_secs(1);
        tokio::time::sleep_until((from + cost).checked_sub(burst).unwrap_or(now)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn takes_no_more_than_the_rate() {
        let pace = Pace::new(100);
        let start = Instant::now();
        pace.take(100).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "a burst");
        pace.take(500).await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        pace.take(100).await;
        pace.take(100).await;
        assert_eq!(start.elapsed(), Duration::from_secs(1), "idle time is not saved up");
        Pace::new(0).take(1 << 40).await;
    }
}
