//! Counts: how many files there are, and who uses how much.

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::key;
use tieline_kv::Range;
use tieline_types::FileId;

/// Records in one look.
const PAGE: usize = 1024;

/// Adds up what transactions noted for quotas.
pub struct Usage {
    parts: Arc<Parts>,
}

impl Usage {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone() }
    }
}

#[async_trait::async_trait]
impl Chore for Usage {
    fn title(&self) -> (&'static str, &'static str) {
        ("usage", "rounds")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        self.parts.mdt.add_up_usage().await?;
        status.did(1);
        Ok(())
    }
}

/// Counts the files that were there at the start, once.
pub struct Files {
    parts: Arc<Parts>,
    is_counted: bool,
}

impl Files {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone(), is_counted: false }
    }
}

#[async_trait::async_trait]
impl Chore for Files {
    fn title(&self) -> (&'static str, &'static str) {
        ("file-count", "files")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    fn is_over(&self) -> bool {
        self.is_counted
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        let first = self.parts.mdt.first_new_file();
        let mut count = 0;
        let mut start = key::inode(FileId(0));
        loop {
            let range = Range::new(start, key::inode(first));
            let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            count += page.len() as i64;
            status.did(page.len() as u64);
            start = [last.as_slice(), &[0]].concat();
            tokio::task::yield_now().await;
        }
        self.parts.mdt.files_counted(count).await?;
        self.is_counted = true;
        Ok(())
    }
}
