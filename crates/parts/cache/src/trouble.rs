//! A directory that fails is let alone for a while, and the log is told now and then. One that
//! cannot be written may be read all the same: that is counted by itself.

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

pub(crate) struct Trouble {
    /// For people: what does not work, and what follows.
    what: &'static str,
    since: Mutex<Option<Instant>>,
    /// When a line was written last.
    told: Mutex<Option<Instant>>,
}

impl Trouble {
    /// The directory as a whole.
    pub fn all() -> Self {
        Self::of("fails: service goes on without it")
    }

    pub fn writing() -> Self {
        Self::of("cannot be written to: what is there is served")
    }

    fn of(what: &'static str) -> Self {
        Self { what, since: Mutex::default(), told: Mutex::default() }
    }

    /// Something did not work: it is not tried for a while.
    pub fn note(&self, path: &Path, kind: &'static str, error: &dyn Display) {
        METRICS.cache_errors.with_label_values(&[kind]).inc();
        *lock(&self.since) = Some(Instant::now());
        let mut told = lock(&self.told);
        if told.is_none_or(|told| told.elapsed() >= TOLD_APART) {
            *told = Some(Instant::now());
            let (path, what) = (path.display(), self.what);
            tracing::warn!(%path, %error, "the {kind} cache {what}");
        }
    }

    /// Is it let alone now?
    pub fn is_now(&self) -> bool {
        lock(&self.since).is_some_and(|since| since.elapsed() < PAUSE)
    }

    /// It works. What was begun before it failed does not count.
    pub fn over(&self, path: &Path, kind: &'static str) {
        if self.is_now() {
            return;
        }
        if lock(&self.since).take().is_some() {
            tracing::info!(path = %path.display(), "the {kind} cache works again");
        }
    }
}
