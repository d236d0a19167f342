//! Files that programs have open and whose MDS was not asked: how it comes to know.
//!
//! While the lease under which a file was opened is held, nothing need be said: before the file
//! loses its last name we are asked. After an answer to a recall nobody would ask any more: so it
//! names all that is open under the unit. And a client that is cut off answers nothing: so what
//! stays open is told behind, by an [`Open`] that no program waits for; at once, where leases were
//! lost unheard or a session was.
//!
//! When which is told: [`tieline_owed::untold`].
//!
//! [`Open`]: tieline_wire::meta::Open

use crate::Access;
use crate::shared::Shared;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tieline_owed::untold::BEHIND;
use tieline_types::{Caller, FileId, Retry, ServerNumber};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// So long an MDS may take to hear of one; then it is told again after a pause.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs until the file system is gone.
pub(crate) async fn tell(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let (told, next) = strong.tell_opens().await;
        let due = strong.untold.due();
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
