//! When files were read: noted at the MDS as `relatime` means it, if the mount was asked to.
//!
//! A reader does not wait for it. Until the MDS has answered, attributes are told with the time
//! that is on its way. What the door has in its own cache is read unseen: so a file whose reading
//! is to be noted is opened without it ([`Shared::is_access_due`]).
//!
//! Invariant: one note of a file is under way at most.

use crate::settings::AccessTimes;
use crate::shared::{Shared, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tieline_believed::Under;
use tieline_types::{Attributes, Caller, FileId, SetTime, Time};
use tieline_wire::meta::{AttributesReply, SetAttributes};

impl Shared {
    fn notes_access(&self) -> bool {
        let is_wanted = self.settings.access_times == AccessTimes::Relative;
        is_wanted && !self.is_read_only.load(Ordering::Relaxed)
    }

    /// Is reading the file to be noted?
    pub(crate) fn is_access_due(&self, attributes: &Attributes) -> bool {
        self.notes_access() && is_due(attributes, self.now_of(attributes.id))
    }

    /// The file is read. `is_handle`: through a handle, whose rights were found at open.
    pub(crate) fn accessed(self: &Arc<Self>, caller: &Caller, id: FileId, is_handle: bool) {
        if !self.notes_access() {
            return;
        }
        let (known, now) = (self.cache.lock().attributes(id), self.now_of(id));
        let is_known = known.is_some();
        if known.is_some_and(|known| !is_due(&known.attributes, now)) {
            return;
        }
        if is_known && !self.begin_access(id, now) {
            return;
        }
        let (shared, caller) = (self.clone(), caller.clone());
        tokio::spawn(async move {
            if !is_known {
                let asked = shared.attributes(&caller, id).await;
                let is_wanted = asked.is_ok_and(|known| is_due(&known.attributes, now));
                if !is_wanted || !shared.begin_access(id, now) {
                    return;
                }
            }
            shared.note_access(&caller, id, now, is_handle).await;
            lock(&shared.accesses).remove(&id);
        });
    }

    /// Says whether no other note of the file is under way.
    fn begin_access(&self, id: FileId, now: Time) -> bool {
        let mut accesses = lock(&self.accesses);
        let is_first = !accesses.contains_key(&id);
        if is_first {
            accesses.insert(id, now);
        }
        is_first
    }

    async fn note_access(&self, caller: &Caller, id: FileId, now: Time, is_handle: bool) {
        let message = SetAttributes {
            id,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: Some(SetTime::At(now)),
            mtime: None,
            is_handle,
            is_access: Some(true),
        };
        match self.ask(caller, id, message).await {
            Ok(told) => {
                let AttributesReply { attributes, lease } = told.reply;
                let mut tables = self.cache.lock();
                let reply = tables.admit(told.stamp, &lease);
                tables.learn_attributes(reply, &lease, Under::Granted, attributes);
            }
            Err(error) => {
                tracing::debug!(file = %id, %error, "a time of access is not noted");
                self.doubt_change(id, &error);
            }
        }
    }

    /// Adds the time of an access that is being noted.
    pub(crate) fn patch_access(&self, attributes: &mut Attributes) {
        if self.settings.access_times == AccessTimes::Never {
            return;
        }
        if let Some(&time) = lock(&self.accesses).get(&attributes.id) {
            attributes.atime = attributes.atime.max(time);
        }
    }
}

fn is_due(attributes: &Attributes, now: Time) -> bool {
    let Attributes { atime, mtime, ctime, .. } = *attributes;
    Time::is_access_due(atime, mtime.max(ctime), now)
}
