//! Messages that take any time, and changes elsewhere that do.

use super::{Fake, State};
use std::time::Duration;
use tieline_types::FileId;

/// Any sequence of numbers, the same for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    pub fn pause(&mut self) -> Duration {
        Duration::from_micros(self.below(4_000))
    }
}

impl Fake {
    /// Another client changes a file, and `window` lies between what we hear of it and the change:
    /// nobody gets a lease meanwhile.
    pub async fn elsewhere_slowly(
        &self,
        (unit, id): (FileId, FileId),
        window: Duration,
        change: impl FnOnce(&mut State),
    ) {
        self.lock().grants = false;
        let nothing = self.elsewhere(unit, &[], &[id], |state| state.version -= 1).await;
        assert!(!nothing.is_contended);
        tokio::time::sleep(window).await;
        let mut state = self.lock();
        state.version += 1;
        change(&mut state);
        state.grants = true;
    }

    /// A message is on its way.
    pub async fn wander(&self) {
        let pause = self.lock().dice.as_mut().map(|dice| dice.pause());
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
}
