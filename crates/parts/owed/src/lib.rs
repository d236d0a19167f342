//! What a client owes: to servers what it decided by itself and what programs wrote, to programs
//! the answers to what they asked; in records that outlive its process.
//!
//! * [`records`]: what is put down, and how the next process reads it.
//! * [`cause`]: what a door's request has caused, until the door has answered it.
//! * [`act`]: operations that were decided here; [`line`]: in their order, until an MDT knows them.
//! * [`writes`]: bytes that were written; [`late`]: what is to be told of those that were lost.
//! * [`untold`]: files that are open, until an MDT knows.
//! * [`spool`]: where bytes go that cannot be stored.
//!
//! Knows no server, no lease and no door: who sends what is owed is above.
//!
//! Invariant: a record is there before its effect is told, and goes after what takes its place is
//! there.

pub mod act;
pub mod cause;
pub mod late;
pub mod line;
pub mod records;
pub mod spool;
pub mod untold;
pub mod writes;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing panics while one of these is held; a poisoned lock still holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
