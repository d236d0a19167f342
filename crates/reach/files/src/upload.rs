//! A file that nobody sees before all of it is there.
//!
//! It is made without a name in the directory where it is to be, written, and gets its name in one
//! step when its bytes are durable. Until then nothing of it shows; if it is dropped, or whoever
//! writes it dies, nothing is left of it: a file without a name goes with its last handle, and with
//! the session of a process that is no more.
//!
//! What can be refused is refused before the first byte, and judged again at the end.

use crate::nouns::{Access, At, NewFile};
use crate::{Entry, Error, Files, Known, Result, Who};
use bytes::Bytes;
use std::sync::Arc;
use tieline_types::{Caller, Doing, ErrorKind, FileId, HandleId, Layout, Mode, Name};

/// How a file is to be made.
#[derive(Clone, Debug)]
pub struct NewUpload {
    pub mode: Mode,
    pub umask: Mode,
    pub layout: Option<Layout>,
    /// What has the name goes when this is there; else that is an error.
    pub replaces: bool,
}

/// A file that is being written.
pub struct Upload {
    files: Arc<dyn Files>,
    caller: Caller,
    file: FileId,
    parent: FileId,
    name: Name,
    replaces: bool,
    /// `None`: given back.
    handle: Option<HandleId>,
    end: u64,
}

impl Upload {
    pub async fn begin(
        files: Arc<dyn Files>,
        who: &Who,
        (parent, name): (&Entry, &Name),
        new: NewUpload,
    ) -> Result<Self> {
        let NewUpload { mode, umask, layout, replaces } = new;
        let (caller, directory) = (who.caller.clone(), parent.id());
        who.may(&parent.way_of(name), Doing::Create)?;
        let there = files.lookup(&caller, directory, name).await?.attributes;
        if let Some(there) = there {
            let refused = |kind| Err(Error::local(kind, format!("upload to `{name}`")));
            if !replaces {
                return refused(ErrorKind::Exists);
            }
            if there.is_directory() {
                return refused(ErrorKind::IsDirectory);
            }
            who.may(&parent.way_of(name), Doing::Modify)?;
        }
        // Who may only create replaces nothing that comes meanwhile.
        let replaces = replaces && who.may(&parent.way_of(name), Doing::Modify).is_ok();
        let access = Access { write: true, ..Access::default() };
        let file = NewFile { mode, umask, is_exclusive: true, access, layout };
        let (known, opened) = files.create_nameless(&caller, directory, file).await?;
        let (file, handle) = (known.attributes.id, Some(opened.handle));
        let (parent, name) = (directory, name.clone());
        Ok(Self { files, caller, file, parent, name, replaces, handle, end: 0 })
    }

    /// The file, which keeps its id when it gets its name.
    pub fn id(&self) -> FileId {
        self.file
    }

    /// Adds bytes at its end.
    pub async fn write(&mut self, data: Bytes) -> Result<()> {
        let length = data.len() as u64;
        self.write_at(self.end, data).await?;
        self.end += length;
        Ok(())
    }

    /// Bytes may come in any order.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        self.files.write(self.handle()?, offset, data).await
    }

    /// Gives it its name, once its bytes are durable. When this returns the file is, too.
    pub async fn finish(mut self) -> Result<Known> {
        let handle = self.handle()?;
        self.files.flush(handle).await?;
        self.files.sync(handle, false).await?;
        let at = At { parent: self.parent, name: &self.name };
        let placed = self.files.put_in_place(&self.caller, self.file, at, self.replaces).await?;
        self.handle = None;
        self.files.release(handle).await;
        Ok(placed)
    }

    /// Gives it up, and waits until that is done here.
    pub async fn abandon(mut self) {
        if let Some(handle) = self.handle.take() {
            self.files.release(handle).await;
        }
    }

    fn handle(&self) -> Result<HandleId> {
        self.handle.ok_or_else(|| Error::local(ErrorKind::BadHandle, "an upload that has ended"))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let files = self.files.clone();
        // Where nothing runs any more the session ends, and the file with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { files.release(handle).await });
        }
    }
}
