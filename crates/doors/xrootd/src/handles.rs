//! What one connection has open.
//!
//! Invariants: at most [`OPEN_MAX`] files, and [`OPEN_ALL_MAX`] of all connections; a file stays
//! open while something is read of it, also when it was closed meanwhile; numbers are used again as
//! late as can be.

use crate::refusal::{Code, Refusal};
use crate::wire::Handle;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_files::Held;
use tokio::sync::OwnedSemaphorePermit;

/// More than a job keeps open.
pub const OPEN_MAX: usize = 1024;

/// Of all connections: servers remember each.
pub const OPEN_ALL_MAX: usize = 65_536;

pub struct OpenFile {
    pub held: Held,
    /// For people.
    pub path: String,
    /// Its place among those of all.
    pub _place: OwnedSemaphorePermit,
}

#[derive(Default)]
pub struct Handles(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: Handle,
    open: BTreeMap<Handle, Arc<OpenFile>>,
}

impl Handles {
    pub fn add(&self, file: OpenFile) -> Result<Handle, Refusal> {
        let mut table = self.lock();
        if table.open.len() >= OPEN_MAX {
            let what = format!("{OPEN_MAX} files are open on this connection: close some first");
            return Err(Refusal::new(Code::NoMemory, what));
        }
        while table.open.contains_key(&table.next) {
            table.next = table.next.wrapping_add(1);
        }
        let handle = table.next;
        table.next = handle.wrapping_add(1);
        table.open.insert(handle, Arc::new(file));
        Ok(handle)
    }

    pub fn get(&self, handle: Handle) -> Result<Arc<OpenFile>, Refusal> {
        self.lock().open.get(&handle).cloned().ok_or_else(|| not_open(handle))
    }

    pub fn remove(&self, handle: Handle) -> Result<(), Refusal> {
        self.lock().open.remove(&handle).map(drop).ok_or_else(|| not_open(handle))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_open(handle: Handle) -> Refusal {
    Refusal::new(Code::FileNotOpen, format!("no file is open as {handle} on this connection"))
}
