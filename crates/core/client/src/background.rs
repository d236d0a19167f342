//! Commits what programs leave open: idle bytes after a second, long-written ones after a few, and
//! sooner when memory is short. Other clients see a log that is open for long grow, and a crash
//! loses little.

use crate::file::{File, State};
use crate::shared::{Shared, lock};
use crate::writer::How;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const TICK: Duration = Duration::from_millis(250);
/// Where much waits, to look through it takes long: after that is a rest of so many times as long.
const RESTS: u32 = 50;
const REST_MIN: Duration = Duration::from_millis(5);
const REST_MAX: Duration = Duration::from_millis(50);
/// A file that nobody wrote to for so long is committed.
const IDLE: Duration = Duration::from_secs(1);
/// Bytes wait at most about so long, even if the program goes on writing.
const AGE_MAX: Duration = Duration::from_secs(5);
/// The same where the MDS knows that others may read the file.
const AGE_SEEN: Duration = Duration::from_millis(500);
/// What has arrived at its OST is committed in portions of so many bytes, or when it is [`IDLE`]
/// old.
const ARRIVED_MAX: usize = 32 << 20;
/// After a failure the next attempt waits.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs until the file system is gone.
pub(crate) async fn run(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let dirtied = strong.dirtied.clone();
        let has_work = !lock(&strong.dirty).is_empty() || !lock(&strong.worn).is_empty();
        let begun = Instant::now();
        if has_work {
            strong.commit_due();
            strong.compact_due();
        }
        let rest = (begun.elapsed() * RESTS).clamp(REST_MIN, REST_MAX);
        // Waiting must not keep the file system alive; its end wakes us.
        drop(strong);
        let woken = dirtied.notified();
        if has_work {
            tokio::select! {
                biased;
                () = woken => sleep(rest).await,
                () = sleep(TICK) => {}
            }
        } else {
            woken.await;
        }
    }
}

impl Shared {
    /// Starts a commit of every file that is due and has none under way.
    fn commit_due(self: &Arc<Self>) {
        let files: Vec<_> = lock(&self.dirty).values().cloned().collect();
        let is_short = self.budget.is_short();
        let is_full = !self.budget.has_room(1 << 20);
        for file in files {
            let due = file.with(|state| due(state, is_short, is_full));
            if due.is_none() && file.is_dirty() {
                continue;
            }
            // Whoever holds the gate commits already.
            let Ok(_gate) = file.gate.try_lock() else { continue };
            match due {
                Some(how) => {
                    let (shared, file) = (self.clone(), file.clone());
                    tokio::spawn(async move { shared.commit_in_background(&file, how).await });
                }
                // Cut away before it was committed, or committed just now.
                None => self.rest_if_clean(&file),
            }
        }
    }

    pub(crate) async fn commit_in_background(self: &Arc<Self>, file: &Arc<File>, how: How) {
        if let Err(error) = self.launder(file, how).await {
            tracing::warn!(file = %file.id, %error, "written bytes wait for a server");
            file.with(|state| state.pause_until = Some(Instant::now() + PAUSE));
        }
    }
}

fn due(state: &mut State, is_short: bool, is_full: bool) -> Option<How> {
    let now = Instant::now();
    if !state.is_dirty() {
        return None;
    }
    if state.pause_until.is_some_and(|until| now < until) {
        return None;
    }
    state.pause_until = None;
    if state.is_deferral_over() || (state.deferred.is_some() && (is_short || is_full)) {
        return Some(How::Flush);
    }
    let (first, last) = (state.first_written?, state.last_written?);
    let arrived = state.overlay.arrived_bytes();
    let fresh = state.overlay.bytes().saturating_sub(arrived);
    let is_idle = now.duration_since(last) >= IDLE;
    // Who reads a log elsewhere waits for its lines.
    let age_max = match state.is_declared {
        true => AGE_SEEN,
        false if state.appended_from().is_some() => IDLE,
        false => AGE_MAX,
    };
    let is_old = now.duration_since(first) >= age_max;
    if is_idle || is_old || is_full || (is_short && fresh > ARRIVED_MAX) {
        return Some(How::Flush);
    }
    let since = state.last_committed.unwrap_or(first).max(first);
    let is_worth = arrived >= ARRIVED_MAX || (arrived > 0 && now.duration_since(since) >= IDLE);
    let is_due = is_worth || (is_short && arrived > 0);
    // What was written first is committed first.
    let how = if state.overlay.is_in_order() { How::Arrived } else { How::Flush };
    is_due.then_some(how)
}
