//! What MDTs say of their limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Does any MDT have limits?
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<AtomicU8>);

impl Limits {
    const NONE: u8 = 1;
    const SOME: u8 = 2;

    /// An MDT says so. Once there were limits there may be some.
    pub fn told(&self, has: bool) {
        let said = if has { Self::SOME } else { Self::NONE };
        self.0.fetch_max(said, Ordering::AcqRel);
    }

    /// As long as nobody said so there may be.
    pub fn may_be(&self) -> bool {
        self.0.load(Ordering::Acquire) != Self::NONE
    }
}
