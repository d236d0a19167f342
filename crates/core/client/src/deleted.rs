//! What was deleted and can be brought back: files, and names of files that had others. And which
//! names a file has.

use crate::shared::Shared;
use crate::{At, Error, Known, Result, Volume};
use std::sync::Arc;
use tieline_types::{Caller, ErrorKind, FileId, Name};
use tieline_wire::ledger::{ListDeleted, ListDeletedReply, Undelete};
use tieline_wire::meta::{LookupParent, NameAt};

/// Deleted files in one page.
const DELETED_PAGE: u32 = 1024;

impl Volume {
    /// The names of a directory or file, with the directories they are in; none of the root.
    pub async fn names(&self, caller: &Caller, id: FileId) -> Result<Vec<NameAt>> {
        let reply = self.shared().ask(caller, id, LookupParent { id }).await?.reply;
        let first = reply.name.map(|name| NameAt { parent: reply.parent, name });
        Ok(first.into_iter().chain(reply.others.unwrap_or_default()).collect())
    }

    /// Names that files lost in a directory while they had others, after one of them.
    pub async fn lost_names(
        &self,
        caller: &Caller,
        directory: FileId,
        after: Option<(FileId, Name)>,
    ) -> Result<ListDeletedReply> {
        let (after, after_name) = after.unzip();
        let limit = DELETED_PAGE;
        let message = ListDeleted { directory, after, limit, is_lost: Some(true), after_name };
        Ok(self.shared().ask(caller, directory, message).await?.reply)
    }

    /// Gives a file a name for one that it lost in `from` while it had others.
    pub async fn undelete_name(
        &self,
        caller: &Caller,
        id: FileId,
        (from, lost): (FileId, &Name),
        to: At<'_>,
    ) -> Result<Known> {
        self.shared().undelete(caller, id, (from, Some(lost)), to).await
    }
}

impl Shared {
    pub(crate) async fn undelete(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        (from, lost): (FileId, Option<&Name>),
        to: At<'_>,
    ) -> Result<Known> {
        if id.mdt() != to.parent.mdt() {
            return Err(Error::local(ErrorKind::CrossDevice, format!("undelete as {}", to.name)));
        }
        let (parent, name) = (to.parent, to.name.clone());
        let message = Undelete { id, from, parent, name, lost: lost.cloned() };
        self.make(caller, to, message).await
    }

    pub(crate) async fn deleted(
        &self,
        caller: &Caller,
        directory: FileId,
        after: Option<FileId>,
    ) -> Result<ListDeletedReply> {
        let limit = DELETED_PAGE;
        let message = ListDeleted { directory, after, limit, is_lost: None, after_name: None };
        Ok(self.ask(caller, directory, message).await?.reply)
    }
}
