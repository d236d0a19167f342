//! What was kept for undeleting: it goes when its time is over.

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Result, decode};
use crate::pace::Pace;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{LostName, key};
use tieline_kv::{Key, Range};
use tieline_types::background::Change;

/// Files that one round deletes, or names that it looks at.
const PER_ROUND: usize = 4096;
/// Names that one transaction forgets.
const NAMES_PER_STEP: usize = 512;

/// Deletes files that were kept long enough, the oldest first.
pub struct DeletedFiles {
    parts: Arc<Parts>,
    pace: Arc<Pace>,
}

impl DeletedFiles {
    pub fn new(parts: &Arc<Parts>, pace: &Arc<Pace>) -> Self {
        Self { parts: parts.clone(), pace: pace.clone() }
    }
}

#[async_trait::async_trait]
impl Chore for DeletedFiles {
    fn title(&self) -> (&'static str, &'static str) {
        ("deleted-files", "files")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        let end = key::deletions_from(self.parts.kept_until_ms().saturating_add(1));
        let range = Range::new(key::deletions_from(0), end);
        let page = self.parts.store.begin().await?.scan(range, PER_ROUND).await?;
        for (key, _) in page {
            let Some((at_ms, file)) = key::deletion_parts(&key) else { continue };
            self.pace.take(1).await;
            self.parts.mdt.change(Change::Purge(at_ms, file)).await?;
            status.did(1);
        }
        Ok(())
    }
}

/// Forgets names that files lost long enough ago. They are few: each round looks at a part of them,
/// from where the last one ended.
pub struct LostNames {
    parts: Arc<Parts>,
    pace: Arc<Pace>,
    from: Option<Key>,
}

impl LostNames {
    pub fn new(parts: &Arc<Parts>, pace: &Arc<Pace>) -> Self {
        Self { parts: parts.clone(), pace: pace.clone(), from: None }
    }
}

#[async_trait::async_trait]
impl Chore for LostNames {
    fn title(&self) -> (&'static str, &'static str) {
        ("lost-names", "names")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        let until_ms = self.parts.kept_until_ms();
        let start = self.from.take().unwrap_or_else(key::lost_names);
        let range = Range::new(start, key::after(&key::lost_names()));
        let page = self.parts.store.begin().await?.scan(range, PER_ROUND).await?;
        let last = page.last().filter(|_| page.len() == PER_ROUND);
        self.from = last.map(|(last, _)| [last.as_slice(), &[0]].concat());
        let mut old = vec![];
        for (key, value) in page {
            let lost: LostName = decode(&value, || "lost name".to_owned())?;
            if lost.at.millis() <= until_ms {
                old.push(key);
            }
        }
        for names in old.chunks(NAMES_PER_STEP) {
            self.pace.take(names.len() as u64).await;
            self.parts.mdt.change(Change::Forget(until_ms, names.to_vec())).await?;
            status.did(names.len() as u64);
        }
        Ok(())
    }
}
