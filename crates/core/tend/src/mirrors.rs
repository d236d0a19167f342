//! Copies of chunks: which are bad or missing, and having them made again.
//!
//! A place is *stale* if it does not hold its chunk, or holds damage: nobody reads from it. A
//! commit records as stale what has not arrived yet; a report of damage is looked into by the OSS
//! itself ([`mend`]) and then recorded in the same way. What is recorded is noted under the chunk
//! ([`Lacking`]), so that it survives a restart, and a worker ([`worker`]) has the OSS fetch the
//! chunk from a good place, and clears the mark. A file that was given more mirrors is noted as a
//! whole and its chunks are looked through.
//!
//! Clients are told nothing: whoever believes an older list of places finds out at the place.
//!
//! Invariants: the last good place is never marked; a mark is cleared only after the OSS has
//! verified the whole chunk and made it durable; queues in memory are bounded, and what they lose
//! is noted in the store or will be reported again.

mod mend;
mod worker;

pub(crate) use mend::Copyist;
pub(crate) use worker::Copies;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{FileId, GrantedId, OstIndex, OstPlace};
use tieline_wire::mirrors::Trouble;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Reports and wishes that wait; more are refused or asked again.
const QUEUE_MAX: usize = 4096;
/// Failures that are remembered.
const TROUBLES_MAX: usize = 4096;
/// A chunk that could not be mended rests for so long.
const REST: Duration = Duration::from_secs(15);
/// The same after it was found that nobody can mend it: every report would find the same.
const REST_HOPELESS: Duration = Duration::from_secs(600);
/// An OST that did not answer rests for so long.
const REST_AWAY: Duration = Duration::from_secs(5);

/// What is to be done, and what went wrong: in memory.
#[derive(Default)]
pub struct Mirrors {
    state: Mutex<State>,
    woken: Notify,
    /// Held while objects of freed chunks are deleted, and while chunks that have none get a place
    /// again: what was looked at is so still when it is done.
    pub(crate) freeing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Places that somebody complained of.
    suspects: BTreeSet<(GrantedId, OstIndex)>,
    /// Chunks that somebody waits for, with a file that they are of.
    urgent: BTreeMap<GrantedId, FileId>,
    troubles: BTreeMap<GrantedId, Rest>,
    away: BTreeMap<OstIndex, Instant>,
    /// Copies that were made, and not told of yet.
    made: u64,
}

struct Rest {
    until: Instant,
    trouble: Trouble,
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody found a place bad: its OSS is to look.
    pub fn suspect(&self, chunk: GrantedId, ost: OstIndex) {
        let mut state = self.lock();
        let rests = state.troubles.get(&chunk).is_some_and(|rest| rest.until > Instant::now());
        if !rests && state.suspects.len() < QUEUE_MAX {
            state.suspects.insert((chunk, ost));
            drop(state);
            self.woken.notify_one();
        }
    }

    /// Puts a chunk before others, unless it was just tried; tells why that failed.
    pub fn hurry(&self, chunk: GrantedId, file: FileId) -> Option<Trouble> {
        let mut state = self.lock();
        if state.urgent.len() < QUEUE_MAX {
            state.urgent.insert(chunk, file);
        }
        self.woken.notify_one();
        state.troubles.get(&chunk).map(|rest| rest.trouble.clone())
    }

    fn trouble(&self, chunk: GrantedId, ost: OstIndex, reason: String, rest: Duration) {
        let mut state = self.lock();
        while state.troubles.len() >= TROUBLES_MAX {
            state.troubles.pop_first();
        }
        let until = Instant::now() + rest;
        state.troubles.insert(chunk, Rest { until, trouble: Trouble { ost, reason } });
    }

    /// Nobody can mend it: whoever complains of any of its places is not heard for long.
    fn hopeless(&self, chunk: GrantedId, ost: OstIndex, reason: String) {
        self.trouble(chunk, ost, reason, REST_HOPELESS);
        self.lock().suspects.retain(|(suspect, _)| *suspect != chunk);
    }

    fn is_resting(&self, chunk: GrantedId) -> bool {
        self.lock().troubles.get(&chunk).is_some_and(|rest| rest.until > Instant::now())
    }

    fn is_away(&self, ost: OstIndex) -> bool {
        self.lock().away.get(&ost).is_some_and(|until| *until > Instant::now())
    }

    fn set_away(&self, ost: OstIndex) {
        self.lock().away.insert(ost, Instant::now() + REST_AWAY);
    }

    fn made(&self) {
        self.lock().made += 1;
    }

    /// How many copies were made since this was asked.
    fn take_made(&self) -> u64 {
        std::mem::take(&mut self.lock().made)
    }

    /// What is in the way of some copy now.
    fn any_trouble(&self) -> Option<String> {
        let (state, now) = (self.lock(), Instant::now());
        let rest = state.troubles.values().find(|rest| rest.until > now)?;
        Some(rest.trouble.reason.clone())
    }

    fn mended(&self, chunk: GrantedId) {
        self.lock().troubles.remove(&chunk);
    }
}

fn osts(places: &[OstPlace]) -> BTreeSet<OstIndex> {
    places.iter().map(|place| place.ost).collect()
}

#[cfg(test)]
mod tests;
