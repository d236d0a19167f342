//! Names that go: unlink, rmdir, rename.
//!
//! Invariant: a file that is open here keeps its bytes when its last name goes, until its last
//! close.

use super::Spot;
use crate::file::File;
use crate::shared::Shared;
use crate::told::Told;
use crate::{At, Error, Result};
use std::sync::Arc;
use tieline_believed::{Stamp, Tables, Under};
use tieline_owed::{cause, records};
use tieline_types::{Attributes, Caller, ErrorKind, FileId, RenameMode};
use tieline_wire::meta::{ChangeReply, RemoveDirectory, Rename, Unlink};
use tieline_wire::{Call, Op, Request};

impl Shared {
    pub(crate) async fn unlink(self: &Arc<Self>, caller: &Caller, at: At<'_>) -> Result<()> {
        if self.was_done(Op::Unlink).is_some() {
            return Ok(());
        }
        self.own_room(at.parent).await;
        let before = cause::current().and_then(|cause| cause.answered_call(Op::Unlink));
        if before.is_none() && self.unlink_own(caller, at).is_some() {
            return Ok(());
        }
        self.launder_names(&[at]).await;
        let keep = match before {
            Some(Request::Unlink(before)) => before.keep,
            _ => self.kept_open(caller, at).await?,
        };
        let message = Unlink { parent: at.parent, name: at.name.clone(), keep };
        self.remove(caller, at, message, keep).await
    }

    pub(crate) async fn remove_directory(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
    ) -> Result<()> {
        if self.was_done(Op::RemoveDirectory).is_some() {
            return Ok(());
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::RemoveDirectory)
            && self.remove_directory_own(caller, at).is_some()
        {
            return Ok(());
        }
        let message = RemoveDirectory { parent: at.parent, name: at.name.clone() };
        self.remove(caller, at, message, None).await
    }

    async fn remove<C>(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        message: C,
        keep: Option<FileId>,
    ) -> Result<()>
    where
        C: Call<Reply = ChangeReply> + Clone + 'static,
    {
        let (shared, caller, spot) = (self.clone(), caller.clone(), Spot::from(at));
        self.detached(async move {
            let told = shared.change(&caller, &[spot.parent], message).await?;
            let Told { reply, stamp, busy: _busy } = told;
            let is_hidden = {
                let mut tables = shared.cache.lock();
                let gone = tables.name(spot.parent, &spot.name).and_then(|(id, _)| id);
                // Who looked there meanwhile has had us told.
                let is_hidden = keep.is_some_and(|id| tables.own_file(id).is_some());
                let known = tables.admit_mutation(stamp, &reply.lease, &[spot.parent]);
                tables.learn_name(known, spot.parent, &spot.name, None);
                let changed = reply.attributes.as_ref().map(|attributes| attributes.id);
                // Its other names may be anywhere: where its attributes are leased is not known.
                gone.into_iter().chain(changed).for_each(|id| tables.forget(id));
                is_hidden
            };
            shared.orphaned(keep, reply.attributes.as_ref(), is_hidden);
            Ok(())
        })
        .await
    }

    pub(crate) async fn rename(
        self: &Arc<Self>,
        caller: &Caller,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        if from.parent.mdt() != to.parent.mdt() {
            return Err(Error::local(ErrorKind::CrossDevice, format!("rename of {}", from.name)));
        }
        if self.was_done(Op::Rename).is_some() {
            return Ok(());
        }
        self.own_room(from.parent).await;
        let before = cause::current().and_then(|cause| cause.answered_call(Op::Rename));
        if before.is_none() && self.rename_own(caller, (from, to), mode).is_some() {
            return Ok(());
        }
        self.launder_names(&[from, to]).await;
        if before.is_none() {
            self.launder_replacing(from, to).await?;
        }
        let keep = match before {
            Some(Request::Rename(before)) => before.keep,
            _ if mode.replaces() => self.kept_open(caller, to).await?,
            _ => None,
        };
        let message = Rename {
            from_parent: from.parent,
            from_name: from.name.clone(),
            to_parent: to.parent,
            to_name: to.name.clone(),
            mode,
            keep,
        };
        let (shared, caller) = (self.clone(), caller.clone());
        let (from, to) = (Spot::from(from), Spot::from(to));
        self.detached(async move {
            let parents = [from.parent, to.parent];
            let Told { reply, stamp, busy: _busy } =
                shared.change(&caller, &parents, message).await?;
            let mut tables = shared.cache.lock();
            learn_rename(&mut tables, stamp, &reply, (&from, &to), mode);
            drop(tables);
            shared.orphaned(keep, None, false);
            Ok(())
        })
        .await
    }

    /// The file of that name, if programs here hold it open: its bytes must outlive the name.
    pub(super) async fn kept_open(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
    ) -> Result<Option<FileId>> {
        if !self.has_open_files() {
            return Ok(None);
        }
        let known = self.cache.lock().name(at.parent, at.name);
        let id = match known {
            Some((id, _)) => id,
            None => self.lookup(caller, at.parent, at.name).await?.attributes.map(|one| one.id),
        };
        Ok(id.filter(|&id| self.is_open(id)))
    }

    /// A file that was open here lost a name, perhaps its last. `is_hidden`: only programs here can
    /// have it open.
    pub(crate) fn orphaned(
        &self,
        keep: Option<FileId>,
        left: Option<&Attributes>,
        is_hidden: bool,
    ) {
        let Some(file) = keep.and_then(|id| self.file_known(id)) else { return };
        let has_names = left.is_some_and(|attributes| attributes.links > 0);
        if !has_names {
            self.orphan(&file, is_hidden);
        }
    }

    /// The file has no name any more, and is kept for us.
    pub(crate) fn orphan(&self, file: &File, is_hidden: bool) {
        file.with(|state| {
            state.is_hidden = is_hidden;
            if !std::mem::replace(&mut state.is_orphan, true) {
                state.orphan_kept = records::put_orphan(&self.keep, file.id);
            }
        });
    }
}

fn learn_rename(
    tables: &mut Tables,
    stamp: Stamp,
    reply: &ChangeReply,
    (from, to): (&Spot, &Spot),
    mode: RenameMode,
) {
    let moved = tables.name(from.parent, &from.name).and_then(|(id, _)| id);
    let target = tables.name(to.parent, &to.name).and_then(|(id, _)| id);
    let known = tables.admit_mutation(stamp, &reply.lease, &[from.parent, to.parent]);
    let id = reply.attributes.as_ref().map(|attributes| attributes.id).or(moved);
    if moved.is_some() && moved == target {
        // Two names of one file: nothing happened.
        return;
    }
    target.into_iter().chain(moved).for_each(|id| tables.forget(id));
    match (mode, id, target) {
        (RenameMode::Exchange, Some(id), Some(target)) => {
            tables.learn_name(known, from.parent, &from.name, Some(target));
            tables.learn_name(known, to.parent, &to.name, Some(id));
        }
        (RenameMode::Replace | RenameMode::NoReplace, Some(id), _) => {
            tables.learn_name(known, from.parent, &from.name, None);
            tables.learn_name(known, to.parent, &to.name, Some(id));
        }
        (RenameMode::ReplaceLeaving | RenameMode::NoReplaceLeaving, Some(id), _) => {
            // A whiteout, of which nothing was told.
            tables.forget_name(from.parent, &from.name);
            tables.learn_name(known, to.parent, &to.name, Some(id));
        }
        _ => {
            tables.forget_name(from.parent, &from.name);
            tables.forget_name(to.parent, &to.name);
        }
    }
    if let Some(attributes) = reply.attributes.clone() {
        tables.learn_attributes(known, &reply.lease, Under::Parent(to.parent), attributes);
    }
}
