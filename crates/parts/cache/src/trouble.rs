//! A directory that fails is let alone for a while, and the log is told now and then.

use crate::lock;
use std::fmt::Display;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tokio::time::Instant;

/// A cache that failed is tried again after so long.
const PAUSE: Duration = Duration::from_secs(10);
/// One that fails again and again is told of at most so often.
const TOLD_APART: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct Trouble {
    since: Mutex<Option<Instant>>,
    /// When a line was written last.
    told: Mutex<Option<Instant>>,
}

impl Trouble {
    /// Something did not work: the cache is not asked for a while.
    pub fn note(&self, path: &Path, kind: &'static str, error: &dyn Display) {
        METRICS.cache_errors.with_label_values(&[kind]).inc();
        *lock(&self.since) = Some(Instant::now());
        let mut told = lock(&self.told);
        if told.is_none_or(|told| told.elapsed() >= TOLD_APART) {
            *told = Some(Instant::now());
            let path = path.display();
            tracing::warn!(%path, %error, "the {kind} cache fails: service goes on without it");
        }
    }

    /// Is it let alone now?
    pub fn is_now(&self) -> bool {
        lock(&self.since).is_some_and(|since| since.elapsed() < PAUSE)
    }

    /// It was written to. What was begun before it failed does not count.
    pub fn over(&self, path: &Path, kind: &'static str) {
        if self.is_now() {
            return;
        }
        if lock(&self.since).take().is_some() {
            tracing::info!(path = %path.display(), "the {kind} cache works again");
        }
    }
}
