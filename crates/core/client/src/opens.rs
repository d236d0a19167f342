//! Files that programs have open and whose MDS was not asked: how it comes to know.
//!
//! While the lease under which a file was opened is held, nothing need be said: before the file
//! loses its last name we are asked. After an answer to a recall nobody would ask any more: so it
//! names all that is open under the unit. And a client that is cut off answers nothing: so what
//! stays open is told behind, by an [`Open`] that no program waits for; at once, where leases were
//! lost unheard or a session was.
//!
//! Invariants: no more is remembered than is open; of what is told, [`AT_ONCE`] are on their way
//! at most.
//!
//! [`Open`]: tieline_wire::meta::Open

use crate::Access;
use crate::shared::{Shared, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_types::{Caller, FileId, Retry, ServerNumber};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Most files are closed sooner, and nothing is said of them.
const BEHIND: Duration = Duration::from_secs(1);
const AT_ONCE: usize = 16;
/// So long an MDS may take to hear of one; then it is told again after a pause.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Untold {
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

    fn put(&self, id: FileId, unit: FileId, caller: &Caller, tell_at: Instant) {
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

    pub fn under(&self, unit: FileId) -> Vec<FileId> {
        let files = lock(&self.files);
        files.iter().filter(|(_, open)| open.unit == unit).map(|(id, _)| *id).collect()
    }

    /// Of some files the MDS is told now.
    fn hurry(&self, is_meant: impl Fn(FileId) -> bool) {
        let now = Instant::now();
        let mut files = lock(&self.files);
        let meant = files.iter_mut().filter(|(id, _)| is_meant(**id));
        meant.for_each(|(_, open)| open.tell_at = now);
        drop(files);
        self.due.notify_one();
    }

    /// Some whose time has come, to be told again later if nothing settles them; and when the next
    /// one's comes.
    fn take_due(&self) -> (Vec<(FileId, Caller)>, Option<Instant>) {
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

/// Runs until the file system is gone.
pub(crate) async fn tell(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let (told, next) = strong.tell_opens().await;
        let due = strong.untold.due.clone();
        // Waiting must not keep the file system alive; its end wakes us.
        drop(strong);
        let woken = due.notified();
        match next {
            _ if told => {}
            Some(next) => tokio::select! {
                biased;
                () = woken => {}
                () = sleep_until(next) => {}
            },
            None => woken.await,
        }
    }
}

impl Shared {
    /// Tells some of what is due; says whether there was any, and when there will be.
    async fn tell_opens(self: &Arc<Self>) -> (bool, Option<Instant>) {
        if !*self.recovered.borrow() {
            // What an earlier process had open its own way back tells.
            return (false, Some(Instant::now() + BEHIND));
        }
        let (due, next) = self.untold.take_due();
        let told = !due.is_empty();
        let mut tasks = JoinSet::new();
        for (id, caller) in due {
            let shared = self.clone();
            tasks.spawn(async move { shared.tell_open(&caller, id).await });
        }
        while tasks.join_next().await.is_some() {}
        (told, next)
    }

    async fn tell_open(self: &Arc<Self>, caller: &Caller, id: FileId) {
        // Rights are the handle's.
        let open = self.open_at_server(caller, id, Access::default());
        match timeout(PATIENCE, open).await {
            // Settled, with the answer.
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.kind().retry() == Retry::Never => {
                tracing::debug!(file = %id, %error, "an MDS takes no note that a file is open");
                self.untold.settled(id);
            }
            Ok(Err(_)) | Err(_) => {
                tracing::debug!(file = %id, "an MDS is told later that a file is open");
            }
        }
    }

    /// Leases of a server were lost unheard: it asks nobody before a file goes that was opened
    /// under them.
    pub(crate) fn tell_opens_of(&self, server: ServerNumber) {
        self.untold.hurry(|id| self.is_at(id, server));
    }

    /// A server forgot what is open here, with the session that it was open in.
    pub(crate) fn tell_all_opens_of(&self, server: ServerNumber) {
        for open in self.handles.open_files() {
            if self.is_at(open.id, server) {
                let unit = self.cache.lock().parent_of(open.id).unwrap_or(open.id);
                self.untold.put(open.id, unit, &open.caller, Instant::now());
            }
        }
    }

    fn is_at(&self, id: FileId, server: ServerNumber) -> bool {
        self.servers.mds(id.mdt()).is_ok_and(|mds| mds.number == server)
    }
}
