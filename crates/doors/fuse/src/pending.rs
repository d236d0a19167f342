//! Requests that wait, and how an interrupt finds them.
//!
//! A request that cannot be answered at once is entered here and becomes a task. The kernel sends
//! at most one INTERRUPT per request, perhaps through another descriptor and before the request is
//! entered: such an interrupt is remembered for a while. Numbers are never used again, so one that
//! came too late does no harm.
//!
//! Invariants: at most [`PENDING_MAX`] requests wait and [`EARLY_MAX`] early interrupts are
//! remembered.

use crate::abi::bits::INTERRUPT_UNIQUE;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A waiting request holds a thread of some program, so this is far beyond what machines have.
const PENDING_MAX: usize = 1 << 14;
const EARLY_MAX: usize = 1024;

/// Requests that wait.
#[derive(Clone, Default)]
pub struct Pending(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

/// A request's place in the table, given up when dropped.
pub struct Place {
    table: Pending,
    unique: u64,
    /// Resolves when the request is interrupted.
    pub interrupted: oneshot::Receiver<()>,
}

/// There are too many already.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Pending {
    pub fn enter(&self, unique: u64) -> Result<Place, Full> {
        let (interrupt, interrupted) = oneshot::channel();
        let mut table = self.lock();
        if table.waiting.len() >= PENDING_MAX {
            return Err(Full);
        }
        if let Some(at) = table.early.iter().position(|&early| early == unique) {
            table.early.remove(at);
            // The receiver is right here.
            let _ = interrupt.send(());
        } else {
            table.waiting.insert(unique, interrupt);
        }
        drop(table);
        Ok(Place { table: self.clone(), unique, interrupted })
    }

    pub fn interrupt(&self, unique: u64) {
        let unique = unique & !INTERRUPT_UNIQUE;
        let mut table = self.lock();
        if let Some(interrupt) = table.waiting.remove(&unique) {
            // A request that is just being answered does not listen any more.
            let _ = interrupt.send(());
            return;
        }
        if table.early.len() >= EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(unique);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().waiting.remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_finds_its_request_early_or_late() {
        let pending = Pending::default();
        let mut place = pending.enter(8).unwrap();
        assert!(place.interrupted.try_recv().is_err());
        pending.interrupt(8 | INTERRUPT_UNIQUE);
        assert_eq!(place.interrupted.try_recv(), Ok(()));

        pending.interrupt(10);
        assert_eq!(pending.enter(10).unwrap().interrupted.try_recv(), Ok(()));
        assert!(pending.enter(10).unwrap().interrupted.try_recv().is_err(), "used up");
        drop(place);
        assert!(pending.lock().waiting.is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let pending = Pending::default();
        let places: Vec<Place> =
            (0..PENDING_MAX as u64).map(|number| pending.enter(number * 2).unwrap()).collect();
        assert!(matches!(pending.enter(1 << 40), Err(Full)));
        drop(places);
        assert!(pending.enter(1 << 40).is_ok());
        (0..3000).for_each(|number| pending.interrupt(number));
        assert_eq!(pending.lock().early.len(), EARLY_MAX);
    }
}
