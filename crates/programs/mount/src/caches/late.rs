//! A cache whose directory may not be there yet, or not be fit: the mount is served without it, and
//! uses it from when it is.
//!
//! Invariants: one attempt to open it is under way, on a thread of its own, for its storage may
//! hang; a mount waits for the first one for [`FIRST_PATIENCE`] at most; the log has each reason
//! once, and the end of it.

use std::sync::Arc;
use std::time::Duration;
use tieline_base::report::chain;
use tieline_cache::Error;
use tieline_telemetry::metrics::METRICS;
use tieline_types::ErrorKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A storage that does not answer when it is first looked at.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The daemon before this one may take a moment to die.
const AGAIN: Duration = Duration::from_millis(200);
const TRIES: u32 = 25;

pub type Open<T> = Arc<dyn Fn() -> Result<T, Error> + Send + Sync>;

/// The cache, or why it is not used.
#[derive(Clone)]
pub struct Late<T>(watch::Receiver<Result<T, String>>);

impl<T: Clone + Send + Sync + 'static> Late<T> {
    /// Opens it, now or later. One that another mount has is an error, unless this daemon goes on
    /// with a mount that programs use.
    pub async fn open(kind: &'static str, is_new: bool, open: Open<T>) -> Result<Self, Error> {
        let begin = || {
            let open = open.clone();
            tokio::task::spawn_blocking(move || open())
        };
        let (mut attempt, mut tries) = (begin(), 0);
        let first = loop {
            match tokio::time::timeout(FIRST_PATIENCE, &mut attempt).await {
                Ok(Ok(Err(error))) if error.kind() == ErrorKind::Busy && tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(AGAIN).await;
                    attempt = begin();
                }
                Ok(Ok(Err(error))) if error.kind() == ErrorKind::Busy && is_new => {
                    return Err(error);
                }
                Ok(outcome) => break Some(outcome.map_or_else(|e| Err(e.to_string()), told)),
                Err(_) => break None,
            }
        };
        let under_way = first.is_none().then_some(attempt);
        let first = first.unwrap_or_else(|| Err("its storage does not answer".to_owned()));
        let (tell, state) = watch::channel(first);
        let why = tell.borrow().as_ref().err().cloned();
        if let Some(why) = why {
            noted(kind, &why);
            tokio::spawn(later(kind, open, tell, under_way));
        }
        Ok(Self(state))
    }

    pub fn now(&self) -> Option<T> {
        self.0.borrow().as_ref().ok().cloned()
    }

    /// Why it is not used.
    pub fn trouble(&self) -> Option<String> {
        self.0.borrow().as_ref().err().cloned()
    }

    /// Until it is there.
    pub async fn there(&self) {
        let mut state = self.0.clone();
        // Who would tell is gone when the process ends.
        drop(state.wait_for(Result::is_ok).await);
    }
}

fn told<T>(outcome: Result<T, Error>) -> Result<T, String> {
    outcome.map_err(|error| chain(&error))
}

fn noted(kind: &'static str, why: &str) {
    METRICS.cache_errors.with_label_values(&[kind]).inc();
    tracing::warn!(why, "the {kind} cache is not used until that is mended");
}

/// Looks again until it can be opened, or nobody wants it any more.
async fn later<T: Send + Sync + 'static>(
    kind: &'static str,
    open: Open<T>,
    tell: watch::Sender<Result<T, String>>,
    mut under_way: Option<JoinHandle<Result<T, Error>>>,
) {
    while !tell.is_closed() {
        let attempt = match under_way.take() {
            Some(attempt) => attempt,
            None => {
                tokio::time::sleep(LOOK_AGAIN).await;
                let open = open.clone();
                tokio::task::spawn_blocking(move || open())
            }
        };
        match attempt.await.map_or_else(|error| Err(error.to_string()), told) {
            Ok(cache) => {
                tracing::info!("the {kind} cache is there, and used from now on");
                let _ = tell.send(Ok(cache));
                return;
            }
            Err(why) => {
                if tell.borrow().as_ref().err() != Some(&why) {
                    noted(kind, &why);
                }
                let _ = tell.send(Err(why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn unfit() -> Error {
        Error::Unfit { path: PathBuf::from("/cache"), reason: "it is a file".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_there_is_looked_for_until_it_is() {
        let looks = Arc::new(AtomicU32::new(0));
        let open: Open<u32> = Arc::new(move || match looks.fetch_add(1, Ordering::Relaxed) {
            3 => Ok(7),
            _ => Err(unfit()),
        });
        let cache = Late::open("node", true, open).await.unwrap();
        assert_eq!(cache.now(), None);
        assert!(cache.trouble().unwrap().contains("/cache") && cache.trouble().is_some());
        let there = tokio::time::timeout(LOOK_AGAIN * 4, cache.there());
        there.await.unwrap();
        assert_eq!((cache.now(), cache.trouble()), (Some(7), None));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_another_mount_has_is_refused_but_where_a_mount_goes_on() {
        let open: Open<u32> = Arc::new(|| Err(Error::InUse { path: PathBuf::from("/cache") }));
        let refused = Late::open("node", true, open.clone()).await;
        assert!(refused.is_err_and(|error| error.kind() == ErrorKind::Busy));
        let cache = Late::open("node", false, open).await.unwrap();
        assert!(cache.trouble().unwrap().contains("directory of its own"));
    }
}
