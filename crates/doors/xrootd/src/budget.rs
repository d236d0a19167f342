//! How many bytes are in memory on their way to clients.
//!
//! All connections share one room. A connection that finds it full takes from a small room of its
//! own, which nobody else can fill: so those who do not read what they asked for keep nobody
//! waiting.
//!
//! Invariants: no more than the shared room, and [`OWN`] for each connection; what was taken is
//! given back when the bytes have left.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of each connection: the largest piece that must be whole.
pub const OWN: usize = 2 << 20;
/// Counted in pieces of so many bytes.
const GRAIN: usize = 4 << 10;

/// The room of all.
#[derive(Clone)]
pub struct Shared(Arc<Semaphore>);

/// As one connection sees it.
pub struct Budget {
    shared: Shared,
    own: Arc<Semaphore>,
}

/// Room for some bytes until they have left.
pub struct Taken {
    /// How many there may be.
    pub bytes: usize,
    _permit: OwnedSemaphorePermit,
}

impl Shared {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(grains(bytes) as usize)))
    }
}

impl Budget {
    pub fn new(shared: Shared) -> Self {
        Self { shared, own: Arc::new(Semaphore::new(grains(OWN) as usize)) }
    }

    /// Room for as many bytes as are wanted, if all have it now; else for `least`, which is
    /// [`OWN`] at most, from this connection's own. `None`: the door ends.
    pub async fn take(&self, wanted: usize, least: usize) -> Option<Taken> {
        let shared = self.shared.0.clone().try_acquire_many_owned(grains(wanted));
        if let Ok(permit) = shared {
            return Some(Taken { bytes: wanted, _permit: permit });
        }
        let bytes = least.min(OWN).min(wanted);
        let permit = self.own.clone().acquire_many_owned(grains(bytes)).await.ok()?;
        Some(Taken { bytes, _permit: permit })
    }
}

fn grains(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(GRAIN)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn who_holds_all_keeps_nobody_else_waiting() {
        let shared = Shared::new(8 << 20);
        let (greedy, other) = (Budget::new(shared.clone()), Budget::new(shared));
        let all = greedy.take(8 << 20, OWN).await.unwrap();
        let more = greedy.take(8 << 20, OWN).await.unwrap();
        assert_eq!((all.bytes, more.bytes), (8 << 20, OWN));
        let waits = tokio::time::timeout(Duration::from_secs(60), greedy.take(1, 1)).await;
        assert!(waits.is_err(), "it has its own and all the rest");
        assert_eq!(other.take(4 << 20, 1 << 20).await.unwrap().bytes, 1 << 20);
        drop(all);
        assert_eq!(other.take(4 << 20, 1 << 20).await.unwrap().bytes, 4 << 20);
    }
}
