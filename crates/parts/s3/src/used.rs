//! The bytes that objects use, against those that are given.
//!
//! A store behind S3 does not say how full it is. What is given stands in the settings; what is
//! used is counted once from a list of the objects, and kept from then on.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;

/// Bytes given and used.
#[derive(Debug)]
pub(crate) struct Used {
    pub given: u64,
    used: OnceCell<AtomicU64>,
}

impl Used {
    pub fn new(given: u64) -> Self {
        Self { given, used: OnceCell::new() }
    }

    /// Counts, if nobody has.
    pub async fn count<E>(&self, count: impl AsyncFnOnce() -> Result<u64, E>) -> Result<(), E> {
        self.used.get_or_try_init(|| async { Ok(AtomicU64::new(count().await?)) }).await.map(drop)
    }

    /// What is left; `None` until it is counted.
    pub fn free(&self) -> Option<u64> {
        Some(self.given.saturating_sub(self.used.get()?.load(Ordering::Relaxed)))
    }

    /// Takes room, if there is as much. What is not counted yet takes none.
    pub fn take(&self, bytes: u64) -> bool {
        let Some(used) = self.used.get() else { return true };
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.given);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub fn give_back(&self, bytes: u64) {
        let Some(used) = self.used.get() else { return };
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // It never fails: `less` always answers.
        let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_is_taken_up_to_what_is_given() {
        let used = Used::new(100);
        assert_eq!(used.free(), None);
        assert_eq!(used.count(async || Err("away")).await, Err("away"));
        used.count(async || Ok::<_, ()>(60)).await.unwrap();
        used.count(async || Ok::<_, ()>(1)).await.unwrap();
        assert!(!used.take(41));
        assert!(used.take(40));
        assert_eq!(used.free(), Some(0));
        used.give_back(1000);
        assert_eq!(used.free(), Some(100));
    }
}
