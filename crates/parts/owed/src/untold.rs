//! Files that programs have open and whose MDS was not asked: when it is told.
//!
//! Invariants: no more is remembered than is open; of what is told, [`AT_ONCE`] are given at a
//! time at most.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::{Caller, FileId};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Most files are closed sooner, and nothing is said of them.
pub const BEHIND: Duration = Duration::from_secs(1);
const AT_ONCE: usize = 16;
/// What was told and not settled is told again after a pause.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Untold {
    files: Mutex<BTreeMap<FileId, OpenHere>>,
    due: Arc<Notify>,
}

struct OpenHere {
    /// Under whose lease it was opened.
    unit: FileId,
    caller: Caller,
    tell_at: Instant,
}

impl Untold {
    /// A file is open here, and its MDS hears of it if it stays open.
    pub fn note(&self, id: FileId, unit: FileId, caller: &Caller) {
        self.put(id, unit, caller, Instant::now() + BEHIND);
    }

    pub fn put(&self, id: FileId, unit: FileId, caller: &Caller, tell_at: Instant) {
        lock(&self.files).insert(id, OpenHere { unit, caller: caller.clone(), tell_at });
        self.due.notify_one();
    }

    pub fn has(&self, id: FileId) -> bool {
        lock(&self.files).contains_key(&id)
    }

    /// Its MDS knows, or nobody here has it open any more.
    pub fn settled(&self, id: FileId) {
        lock(&self.files).remove(&id);
    }

    /// The file system is gone.
    pub fn end(&self) {
        self.due.notify_one();
    }

    /// Is notified when something may be due, and at the end.
    pub fn due(&self) -> Arc<Notify> {
        self.due.clone()
    }

    pub fn under(&self, unit: FileId) -> Vec<FileId> {
        let files = lock(&self.files);
        files.iter().filter(|(_, open)| open.unit == unit).map(|(id, _)| *id).collect()
    }

    /// Of some files the MDS is told now.
    pub fn hurry(&self, is_meant: impl Fn(FileId) -> bool) {
        let now = Instant::now();
        let mut files = lock(&self.files);
        let meant = files.iter_mut().filter(|(id, _)| is_meant(**id));
        meant.for_each(|(_, open)| open.tell_at = now);
        drop(files);
        self.due.notify_one();
    }

    /// Some whose time has come, to be told again later if nothing settles them; and when the next
    /// one's comes.
    pub fn take_due(&self) -> (Vec<(FileId, Caller)>, Option<Instant>) {
        let now = Instant::now();
        let mut files = lock(&self.files);
        let due = files.iter_mut().filter(|(_, open)| open.tell_at <= now).take(AT_ONCE);
        let due = due.map(|(id, open)| {
            open.tell_at = now + PAUSE;
            (*id, open.caller.clone())
        });
        let due = due.collect();
        (due, files.values().map(|open| open.tell_at).min())
    }
}
