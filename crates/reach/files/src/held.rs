//! A file that a door has open for somebody, until it is dropped.

use crate::nouns::Access;
use crate::{Entry, Files, Result, Who};
use std::sync::Arc;
use tieline_types::{Attributes, Doing, HandleId};

/// See the module.
pub struct Held {
    files: Arc<dyn Files>,
    pub handle: HandleId,
    /// As the file was when it was opened.
    pub attributes: Attributes,
}

impl Held {
    /// Opens what was found, if the scope of whoever asks allows what it is opened for.
    pub async fn open(
        files: Arc<dyn Files>,
        who: &Who,
        entry: &Entry,
        access: Access,
    ) -> Result<Self> {
        let writes = access.write || access.truncate;
        let wanted = [(access.read, Doing::Read), (writes, Doing::Modify)];
        for (_, doing) in wanted.into_iter().filter(|(is_wanted, _)| *is_wanted) {
            who.may(&entry.way, doing)?;
        }
        let opened = files.open(&who.caller, entry.id(), access).await?;
        Ok(Self { files, handle: opened.handle, attributes: opened.attributes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (files, handle) = (self.files.clone(), self.handle);
        // Where nothing runs any more the session ends, and with it what was open.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { files.release(handle).await });
        }
    }
}
