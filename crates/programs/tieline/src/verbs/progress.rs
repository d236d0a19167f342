//! How far a long transfer is: a line on the terminal, once it has taken two seconds.

use std::io::{IsTerminal, Write};
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
