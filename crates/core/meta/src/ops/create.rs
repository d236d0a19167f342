//! Create: makes a regular file and opens it, or opens the one that is there.
//!
//! For one that is there the request says not what it is to be opened for: whoever may neither read
//! nor write it is refused here, the rest is for [`super::open`].

use super::{EXTENTS_AT_OPEN, open};
use crate::error::{Error, Result};
use crate::names::{self, NewFile};
use crate::permission::{self, READ, SEARCH, WRITE};
use crate::placement;
use crate::view::View;
use tieline_format::mdt::{Entry, Inode};
use tieline_types::{FileId, FileKind};
use tieline_wire::meta::{Create, CreateReply};

pub async fn run(view: &mut View<'_>, request: &Create) -> Result<CreateReply> {
    let Create { parent, ref name, .. } = *request;
    if request.is_nameless == Some(true) {
        let directory = view.directory(parent).await?;
        return new(view, request, directory).await;
    }
    let (directory, entry) = view.directory_and_entry(parent, name).await?;
    permission::check(parent, &directory, view.scene.caller, SEARCH)?;
    let is_junction = view.scene.junction(parent, name).is_some();
    if is_junction || (entry.is_some() && request.is_exclusive) {
        return Err(Error::NameTaken { parent, name: name.clone() });
    }
    match entry {
        Some(entry) => existing(view, parent, entry).await,
        None => new(view, request, directory).await,
    }
}

async fn existing(view: &mut View<'_>, parent: FileId, entry: Entry) -> Result<CreateReply> {
    let id = entry.id;
    let inode = view.entry_inode(&entry).await?;
    open::check_kind(id, &inode)?;
    let caller = view.scene.caller;
    if !permission::is_allowed(&inode, caller, READ) {
        permission::check(id, &inode, caller, WRITE)?;
    }
    let open = open::reply(view, id, inode, EXTENTS_AT_OPEN, parent).await?;
    Ok(CreateReply { is_new: false, open })
}

async fn new(view: &mut View<'_>, request: &Create, directory: Inode) -> Result<CreateReply> {
    let parent = request.parent;
    permission::check(parent, &directory, view.scene.caller, WRITE | SEARCH)?;
    let layout = match &request.layout {
        Some(layout) => {
            layout.validate()?;
            placement::check_pool(view.scene.map, layout)?;
            layout.clone()
        }
        None => directory.layout.clone().unwrap_or_default(),
    };
    let file = NewFile {
        kind: FileKind::Regular,
        mode: request.mode,
        umask: request.umask,
        device: 0,
        target: None,
        layout: Some(layout),
    };
    let ((id, inode), unit) = if request.is_nameless == Some(true) {
        let made = names::add_nameless(view, &directory, file).await?;
        (made.clone(), made.0)
    } else {
        (names::add_file(view, (parent, directory), &request.name, file).await?, parent)
    };
    let open = open::reply(view, id, inode, EXTENTS_AT_OPEN, unit).await?;
    Ok(CreateReply { is_new: true, open })
}
