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
    table: Mutex<Table>,
    due: Arc<Notify>,
}

#[derive(Default)]
struct Table {
    files: BTreeMap<FileId, OpenHere>,
    /// When whoever tells looks again by himself, also if all is closed by then: a program that
    /// opens one file after the other does not wake him for each.
    looks_at: Option<Instant>,
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
        let mut table = lock(&self.table);
        table.files.insert(id, OpenHere { unit, caller: caller.clone(), tell_at });
        let looks_in_time = table.looks_at.is_some_and(|at| at <= tell_at);
        drop(table);
        if !looks_in_time {
            self.due.notify_one();
        }
    }

    pub fn has(&self, id: FileId) -> bool {
        lock(&self.table).files.contains_key(&id)
    }

    /// Its MDS knows, or nobody here has it open any more.
    pub fn settled(&self, id: FileId) {
        lock(&self.table).files.remove(&id);
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
        let table = lock(&self.table);
        table.files.iter().filter(|(_, open)| open.unit == unit).map(|(id, _)| *id).collect()
    }

    /// Of some files the MDS is told now.
    pub fn hurry(&self, is_meant: impl Fn(FileId) -> bool) {
        let now = Instant::now();
        let mut table = lock(&self.table);
        let meant = table.files.iter_mut().filter(|(id, _)| is_meant(**id));
        meant.for_each(|(_, open)| open.tell_at = now);
        drop(table);
        self.due.notify_one();
    }

    /// Some whose time has come, to be told again later if nothing settles them; and when to look
    /// again.
    pub fn take_due(&self) -> (Vec<(FileId, Caller)>, Option<Instant>) {
        let now = Instant::now();
        let mut table = lock(&self.table);
        let due = table.files.iter_mut().filter(|(_, open)| open.tell_at <= now).take(AT_ONCE);
        let due = due.map(|(id, open)| {
            open.tell_at = now + PAUSE;
            (*id, open.caller.clone())
        });
        let due = due.collect();
        table.looks_at = table.files.values().map(|open| open.tell_at).min();
        (due, table.looks_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_woken(untold: &Untold) -> bool {
        let due = untold.due();
        let notified = due.notified();
        tokio::pin!(notified);
        notified.enable()
    }

    /// A thread that is woken for each of a thousand files takes the program's processor.
    #[tokio::test(start_paused = true)]
    async fn who_tells_is_woken_once_by_a_program_that_opens_one_file_after_the_other() {
        let (untold, caller) = (Untold::default(), Caller::root());
        let open = |number| untold.note(FileId(number), FileId(1), &caller);
        open(10);
        assert!(is_woken(&untold));
        let (due, looks_at) = untold.take_due();
        assert!(due.is_empty() && looks_at == Some(Instant::now() + BEHIND));
        untold.settled(FileId(10));
        open(11);
        assert!(!is_woken(&untold), "he looks before that is due");
        tokio::time::advance(BEHIND).await;
        let (due, looks_at) = untold.take_due();
        assert!(due.len() == 1 && due[0].0 == FileId(11));
        assert_eq!(looks_at, Some(Instant::now() + PAUSE));
        open(12);
        assert!(is_woken(&untold), "it is due before he looks");
        untold.take_due();
        [11, 12].iter().for_each(|&one| untold.settled(FileId(one)));
        tokio::time::advance(BEHIND).await;
        assert_eq!(untold.take_due(), (vec![], None));
        open(13);
        assert!(is_woken(&untold));
    }
}
