//! The names of a directory, page by page, each with what it leads to.

use crate::visitor::Visit;
use std::collections::VecDeque;
use std::sync::Arc;
use tieline_files::{Entry, Files, LastLink, Listed, Paths, Result};
use tieline_types::{Attributes, Doing, ErrorKind, FileKind, HandleId, Name};

/// Names that are read at once.
const PAGE: usize = 500;

/// See the module. Dropped, it closes its directory.
pub struct Listing {
    paths: Paths,
    visit: Visit,
    directory: Entry,
    handle: Option<HandleId>,
    from: u64,
    page: VecDeque<Listed>,
}

impl Listing {
    pub async fn open(paths: &Paths, visit: Visit, directory: Entry) -> Result<Self> {
        let who = &visit.who;
        who.may(&directory.way, Doing::Read)?;
        let handle = Some(paths.files().open_directory(&who.caller, directory.id()).await?);
        let (paths, page) = (paths.clone(), VecDeque::new());
        Ok(Self { paths, visit, directory, handle, from: 0, page })
    }

    /// The next name, with the attributes of what it leads to; `None` at the end. A link that leads
    /// nowhere, or where whoever asks may not look, is passed over: it cannot be read either.
    pub async fn next(&mut self) -> Result<Option<(Name, Attributes)>> {
        let Some(handle) = self.handle else { return Ok(None) };
        loop {
            if self.page.is_empty() {
                let page = self.files().read_directory(handle, self.from, PAGE, true).await?;
                self.from = page.last().map_or(self.from, |last| last.next);
                self.page = page.into();
            }
            let Some(listed) = self.page.pop_front() else { return Ok(None) };
            match self.attributes(&listed).await {
                Ok(attributes) => return Ok(Some((listed.name, attributes))),
                Err(error) if is_of_the_name(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn attributes(&self, listed: &Listed) -> Result<Attributes> {
        if listed.kind != FileKind::Symlink
            && let Some(known) = &listed.known
        {
            return Ok(known.attributes.clone());
        }
        let (who, name) = (&self.visit.who, listed.name.as_bytes());
        let found = self.paths.find_from(who, &self.directory, name, LastLink::Followed);
        Ok(found.await?.attributes)
    }

    fn files(&self) -> &Arc<dyn Files> {
        self.paths.files()
    }
}

/// Such an error is this name's, and not the directory's.
fn is_of_the_name(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(
        kind,
        NotFound
            | PermissionDenied
            | SymlinkLoop
            | NotSupported
            | NotDirectory
            | Stale
            | NameTooLong
    )
}

impl Drop for Listing {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let files = self.files().clone();
        // Where nothing runs any more the session ends, and with it what was open.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { files.release_directory(handle).await });
        }
    }
}
