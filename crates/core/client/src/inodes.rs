//! Attributes: asking, and changing them.

use crate::file::File;
use crate::shared::Shared;
use crate::writer::How;
use crate::{AttributeChange, Belief, Error, HandleId, Known, Result};
use std::sync::Arc;
use tieline_believed::Under;
use tieline_believed::tables::is_provisional;
use tieline_owed::cause;
use tieline_types::{
    Attributes, Caller, ContentVersion, Effect, ErrorKind, FileId, FileKind, Version,
};
use tieline_wire::Op;
use tieline_wire::meta::{AttributesReply, GetAttributes, SetAttributes};

/// What was believed of a file before an own change.
pub(crate) struct Before(Option<Belief>);

impl Shared {
    pub(crate) async fn attributes(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<Known> {
        let known = self.cache.lock().attributes(id);
        let mut known = match known {
            Some(known) => known,
            None => self.fetch_attributes(caller, id).await?,
        };
        if id == self.root {
            *crate::shared::lock(&self.root_seen) = Some(known.attributes.clone());
        }
        self.patch_known(&mut known);
        Ok(known)
    }

    pub(crate) async fn content_version(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<ContentVersion> {
        self.launder_written(id).await?;
        let known = self.cache.lock().attributes(id);
        let known = known.map(|known| known.attributes);
        if let Some(known) = known.filter(|known| !is_provisional(known.version)) {
            return Ok(known.content_version());
        }
        // What was decided here alone has its number from the MDS.
        let told = self.ask(caller, id, GetAttributes { id }).await?;
        Ok(told.reply.attributes.content_version())
    }

    async fn fetch_attributes(&self, caller: &Caller, id: FileId) -> Result<Known> {
        if let Some(known) = self.made_up(id).or_else(|| self.root_seen(id)) {
            return Ok(known);
        }
        let told = match self.ask(caller, id, GetAttributes { id }).await {
            Err(error) if error.kind() == ErrorKind::Stale => {
                // A directory that is gone has no names and no links, for whoever is in it still.
                let attributes = self.cache.lock().remains(id).ok_or(error)?;
                return Ok(Known { attributes, belief: Belief::default() });
            }
            told => told?,
        };
        let AttributesReply { attributes, lease } = told.reply;
        let known = {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &lease);
            tables.learn_attributes(reply, &lease, Under::Granted, attributes)
        };
        self.shrink();
        Ok(known)
    }

    /// Adds what was written here and is not committed. Says whether there is such: the commit
    /// moves times, so that it is told for once.
    pub(crate) fn patch(&self, attributes: &mut Attributes) -> bool {
        self.patch_access(attributes);
        if attributes.kind != FileKind::Regular {
            return false;
        }
        let file = self.file_known(attributes.id);
        file.is_some_and(|file| file.with(|state| state.patch(attributes)))
    }

    pub(crate) fn patch_known(&self, known: &mut Known) {
        if self.patch(&mut known.attributes) {
            known.belief = Belief::default();
        }
    }

    pub(crate) async fn set_attributes(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        handle: Option<HandleId>,
        change: AttributeChange,
    ) -> Result<Known> {
        let open = handle.and_then(|handle| self.handles.file(handle).ok());
        let is_handle = open.as_ref().is_some_and(|open| open.access.write);
        if let Some(open) = open.filter(|_| change.size.is_some()) {
            open.check_locks()?;
        }
        if self.was_done(Op::SetAttributes).is_some() {
            return self.attributes(caller, id).await;
        }
        // With a size the kernel holds writes of the file back, until this is answered.
        if change.mtime.is_some() && change.size.is_none() {
            self.settle_stored(id).await;
        }
        self.own_room(id).await;
        if let Some(file) = self.file_known(id) {
            // What is committed just now is committed first in any case; then it may be ours.
            drop(file.gate.lock().await);
        }
        if !cause::has_answer(Op::SetAttributes)
            && let Some(mut known) = self.set_attributes_own(caller, id, is_handle, &change)
        {
            self.patch_known(&mut known);
            return Ok(known);
        }
        let known = self.cache.lock().attributes(id);
        let is_nearline = known.is_some_and(|known| known.attributes.is_nearline());
        if is_nearline && change.size.is_some_and(|size| size > 0) {
            self.bring_back_file(caller, id).await?;
        }
        let message = SetAttributes {
            id,
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime,
            mtime: change.mtime,
            is_handle,
            is_access: None,
        };
        let (shared, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            let mut known = match shared.file_known(id) {
                Some(file) => shared.change_file(&caller, &file, message).await?,
                None => shared.change_attributes(&caller, message).await?.0,
            };
            shared.patch_known(&mut known);
            Ok(known)
        })
        .await
    }

    /// Changes a file that has a state here. What was written before comes before the change.
    async fn change_file(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        message: SetAttributes,
    ) -> Result<Known> {
        let is_size_only = message.mode.is_none()
            && message.uid.is_none()
            && message.gid.is_none()
            && message.atime.is_none()
            && message.mtime.is_none();
        let is_appended = file.with(|state| state.appended_from().is_some());
        if (!is_size_only || is_appended) && file.is_dirty() {
            // A commit sets the time of the change: it must not come after `utimes`. And what was
            // appended is part of what a new size cuts.
            self.launder(file, How::Flush).await?;
        }
        let _gate = file.gate.lock().await;
        let before = self.before(file);
        let size = message.size;
        let (known, as_of) = self.change_attributes(caller, message).await?;
        let was_alone = before.is_still(&known);
        file.with(|state| {
            if let Some(size) = size {
                state.cut(&self.keep, file.id, size);
            }
            state.learn_change(as_of, &known.attributes, was_alone);
        });
        self.spool_changed(file, size.map(|size| size..u64::MAX).into_iter().collect());
        Ok(known)
    }

    /// Asks for the change and learns its outcome. Must run to its end.
    async fn change_attributes(
        &self,
        caller: &Caller,
        message: SetAttributes,
    ) -> Result<(Known, Version)> {
        let id = message.id;
        match self.ask(caller, id, message).await {
            Ok(told) => {
                let AttributesReply { attributes, lease } = told.reply;
                let mut tables = self.cache.lock();
                // A capability among them may be gone.
                tables.forget_xattrs(id);
                let reply = tables.admit(told.stamp, &lease);
                let known = tables.learn_attributes(reply, &lease, Under::Granted, attributes);
                Ok((known, lease.as_of))
            }
            Err(error) => {
                self.doubt_change(id, &error);
                Err(error)
            }
        }
    }

    /// A change of a file failed: if it may have happened, nothing that it could have changed is
    /// believed until it was asked for anew. Which version the bytes are of is known still.
    pub(crate) fn doubt_change(&self, id: FileId, error: &Error) {
        if error.kind().effect() == Effect::NotApplied {
            return;
        }
        let unit = self.cache.lock().unit_of(id);
        self.doubt(unit.as_slice());
    }

    /// To be taken before an own change of the file leaves.
    pub(crate) fn before(&self, file: &File) -> Before {
        let version = file.with(|state| state.version);
        let known = self.cache.lock().attributes(file.id);
        let known = known.filter(|known| known.attributes.version == version);
        Before(known.map(|known| known.belief))
    }
}

impl Before {
    /// Nobody else can have changed the file since: the lease was never away.
    pub(crate) fn is_still(&self, after: &Known) -> bool {
        self.0.as_ref().is_some_and(|belief| !belief.units.is_empty() && *belief == after.belief)
    }
}
