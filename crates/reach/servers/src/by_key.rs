//! One question at a time about one thing: whoever would ask the same waits, and who asks about
//! something else waits for nobody.
//!
//! Whoever waited hears how the question before failed, if a server was out of reach: asking again
//! would only add another wait to his own.
//!
//! Invariants: what nobody holds or waits for is not remembered; a turn is given back when it is
//! dropped, and so is the place of one who stops waiting.

use crate::{Error, Result, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tieline_types::{ErrorKind, Retry};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

pub struct ByKey<K>(Mutex<BTreeMap<K, Arc<tokio::sync::Mutex<Failed>>>>);

/// How the last question failed, and when.
type Failed = Option<(Instant, ErrorKind, String)>;

/// The right to ask.
pub struct Turn<'k, K: Ord + Copy> {
    all: &'k ByKey<K>,
    key: K,
    failed: Option<OwnedMutexGuard<Failed>>,
}

impl<K> Default for ByKey<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Copy> ByKey<K> {
    /// Waits for a turn until then.
    pub async fn wait(&self, key: K, until: Instant) -> Result<Turn<'_, K>> {
        let begun = Instant::now();
        let one = lock(&self.0).entry(key).or_default().clone();
        let mut turn = Turn { all: self, key, failed: None };
        let slow = |_| Error::local(ErrorKind::Timeout, "another question about the same");
        let failed = timeout_at(until, one.lock_owned()).await.map_err(slow)?;
        if let Some((at, kind, what)) = &*failed
            && *at >= begun
        {
            let error = Error::local(*kind, what.clone());
            turn.failed = Some(failed);
            return Err(error);
        }
        turn.failed = Some(failed);
        Ok(turn)
    }

    /// A turn, if nobody has it.
    pub fn try_wait(&self, key: K) -> Option<Turn<'_, K>> {
        let one = lock(&self.0).entry(key).or_default().clone();
        let mut turn = Turn { all: self, key, failed: None };
        turn.failed = Some(one.try_lock_owned().ok()?);
        Some(turn)
    }
}

impl<K: Ord + Copy> Turn<'_, K> {
    /// The question was answered, or not.
    pub fn note<T>(&mut self, answer: &Result<T>) {
        let Some(failed) = &mut self.failed else { return };
        **failed = match answer {
            Err(error) if error.kind().retry() != Retry::Never => {
                Some((Instant::now(), error.kind(), error.to_string()))
            }
            _ => None,
        };
    }
}

impl<K: Ord + Copy> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.failed = None;
        let mut all = lock(&self.all.0);
        // Whoever holds it or waits for it has a copy.
        if all.get(&self.key).is_some_and(|one| Arc::strong_count(one) == 1) {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn waits_do_not_add_up() {
        let turns = Arc::new(ByKey::default());
        let begun = Instant::now();
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..10u64 {
            let turns: Arc<ByKey<u64>> = turns.clone();
            asking.spawn(async move {
                let until = Instant::now() + Duration::from_secs(60);
                let mut turn = turns.wait(number % 2, until).await?;
                tokio::time::sleep(Duration::from_secs(10)).await;
                let answer: Result<()> = Err(Error::local(ErrorKind::Timeout, "nobody there"));
                turn.note(&answer);
                answer
            });
        }
        while let Some(joined) = asking.join_next().await {
            assert_eq!(joined.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        assert!(lock(&turns.0).is_empty());
        // Whoever comes later asks himself.
        assert!(turns.wait(0, Instant::now()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_in_time_and_leaves_nothing_behind() {
        let turns = ByKey::default();
        let held = turns.try_wait(1).unwrap();
        assert!(turns.try_wait(1).is_none() && turns.try_wait(2).is_some());
        let until = Instant::now() + Duration::from_secs(3);
        let error = turns.wait(1, until).await.err().unwrap();
        assert_eq!((error.kind(), Instant::now()), (ErrorKind::Timeout, until));
        drop(held);
        assert!(lock(&turns.0).is_empty());
    }
}
