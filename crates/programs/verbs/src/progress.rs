//! How far a long transfer is: a line on the terminal, once it has taken two seconds.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tieline_types::ByteSize;

/// Shorter transfers need no news.
const QUIET: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(500);

/// The progress of one file.
pub struct Progress {
    name: String,
    total: u64,
    done: u64,
    started: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub fn new(name: impl Into<String>, total: u64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            name: name.into(),
            total,
            done: 0,
            started: Instant::now(),
            shown: None,
            is_terminal,
        }
    }

    /// More is to be done than was known.
    pub fn widen(&mut self, bytes: u64) {
        self.total += bytes;
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let since = self.shown.map_or(self.started + QUIET - EVERY, |shown| shown);
        if self.is_terminal && since.elapsed() >= EVERY && self.started.elapsed() >= QUIET {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line());
        }
    }

    /// Says how it went, if it took long.
    pub fn end(self) {
        if self.started.elapsed() >= QUIET {
            let start = if self.shown.is_some() { "\r\x1b[K" } else { "" };
            eprintln!("{start}{}", self.line());
        }
    }

    fn line(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = ByteSize((self.done as f64 / seconds) as u64);
        let (done, total) = (ByteSize(self.done), ByteSize(self.total));
        format!("{}: {done} of {total}, {rate}/s, {seconds:.0} s", self.name)
    }
}

/// News of work that may stand still for long: every two seconds, on a terminal, what was counted
/// so far. Ends when it is dropped.
pub struct Ticker {
    count: Arc<AtomicU64>,
    thread: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Ticker {
    /// `what` is done to `unit`s; without a unit only the time is told.
    pub fn new(what: impl Into<String>, unit: &'static str) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        if !std::io::stderr().is_terminal() {
            return Self { count, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let (what, counted) = (what.into(), count.clone());
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            while stopped.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                let (count, seconds) = (counted.load(Ordering::Relaxed), started.elapsed());
                let so_far = match unit {
                    "" => String::new(),
                    unit => format!("{count} {unit}, "),
                };
                let line = format!("{what}: {so_far}{} s", seconds.as_secs());
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            }
            if started.elapsed() >= QUIET {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        });
        Self { count, thread: Some((stop, thread)) }
    }

    pub fn add(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}
