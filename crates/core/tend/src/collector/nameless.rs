//! Files without names: when those who keep them have let go, and when nobody opens them any more.
//!
//! Clients do not say when they close, so they are asked. A file that was replaced lingers for
//! those who have looked its name up; then it goes over to those who have opened it, before or
//! since.
//!
//! Invariant: whoever is not heard counts as one that has the file open.

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Result, decode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{NO_SESSION, Orphan, key};
use tieline_kv::Range;
use tieline_types::background::Change;
use tieline_types::{FileId, SessionId};

/// Files in one question. Others that are kept are asked about when these are settled.
const FILES_PER_CHECK: usize = 1024;
/// How long a file that was replaced stays for those who have looked its name up: for the way from
/// there to the open.
const LINGER_MS: u64 = 60_000;
/// Who was just told that a file is kept for them may not have taken note of it yet.
const ANSWER_MS: u64 = 10_000;

/// Rounds between two questions whether kept files are still open: about a minute.
const ROUNDS_PER_CHECK: u64 = 12;
/// Records in one look.
const PAGE: usize = 512;

/// Deletes files that nobody can name.
pub struct Nameless {
    parts: Arc<Parts>,
    round: u64,
}

#[async_trait::async_trait]
impl Chore for Nameless {
    fn title(&self) -> (&'static str, &'static str) {
        ("nameless-files", "files")
    }

    fn pause(&self) -> Duration {
        self.parts.settings.pause()
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        self.round += 1;
        self.collect(status).await?;
        if self.round.is_multiple_of(ROUNDS_PER_CHECK) {
            self.check_kept(status).await?;
        }
        Ok(())
    }
}

impl Nameless {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone(), round: 0 }
    }

    /// Deletes nameless files that no known session holds.
    pub(super) async fn collect(&self, status: &Status) -> Result<()> {
        let sessions = self.parts.mdt.sessions();
        let now_ms = self.parts.now().millis();
        let mut start = key::orphans();
        loop {
            let page = self.page(&mut start).await?;
            if page.is_empty() {
                return Ok(());
            }
            let mut lingered = vec![];
            for (file, session, orphan) in page {
                if session == NO_SESSION {
                    if orphan.name.is_none() {
                        self.parts.remove(file).await?;
                        status.did(1);
                    } else if orphan.since.millis() + LINGER_MS <= now_ms {
                        lingered.push(file);
                    }
                } else if !sessions.contains(&session) {
                    self.release(file, session).await?;
                    status.did(1);
                }
            }
            self.end_lingering(&lingered, &sessions, status).await?;
        }
    }

    /// Deletes files that have lingered, but for those that somebody has open.
    async fn end_lingering(
        &self,
        files: &[FileId],
        sessions: &BTreeSet<SessionId>,
        status: &Status,
    ) -> Result<()> {
        let mut opened: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        for &file in files {
            for session in self.parts.mdt.openers(file).intersection(sessions) {
                opened.entry(*session).or_default().push(file);
            }
        }
        let mut keepers: BTreeMap<FileId, BTreeSet<SessionId>> = BTreeMap::new();
        for (session, files) in opened {
            for file in self.still_open(session, &files).await? {
                keepers.entry(file).or_default().insert(session);
            }
        }
        for file in files {
            match keepers.remove(file) {
                Some(sessions) => drop(self.parts.mdt.change(Change::Keep(*file, sessions)).await?),
                None => {
                    self.parts.remove(*file).await?;
                    status.did(1);
                }
            }
        }
        Ok(())
    }

    /// Asks a session which of these files it has open; all of those that it says nothing of.
    async fn still_open(&self, session: SessionId, files: &[FileId]) -> Result<Vec<FileId>> {
        let mut open = vec![];
        let mut parts = files.chunks(FILES_PER_CHECK);
        while let Some(part) = parts.next() {
            let Some(said) = self.parts.mdt.ask_open(session, part).await? else {
                open.extend(part);
                open.extend(parts.flatten());
                break;
            };
            for &file in part {
                match said.contains(&file) {
                    true => open.push(file),
                    false => self.parts.mdt.closed(session, file),
                }
            }
        }
        Ok(open)
    }

    /// Asks those for whom nameless files are kept whether they still have them open. Some could
    /// not be asked when the last name went, and some lost their connection before they could say.
    pub(super) async fn check_kept(&self, status: &Status) -> Result<()> {
        let mut kept: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        let now_ms = self.parts.now().millis();
        let mut start = key::orphans();
        loop {
            let page = self.page(&mut start).await?;
            if page.is_empty() {
                break;
            }
            for (file, session, orphan) in page {
                let files = kept.entry(session).or_default();
                if orphan.since.millis() + ANSWER_MS <= now_ms && files.len() < FILES_PER_CHECK {
                    files.push(file);
                }
            }
        }
        kept.remove(&NO_SESSION);
        for (session, files) in kept {
            let Some(open) = self.parts.mdt.ask_open(session, &files).await? else { continue };
            for file in files.into_iter().filter(|file| !open.contains(file)) {
                self.release(file, session).await?;
                status.did(1);
            }
        }
        Ok(())
    }

    /// A session lets go.
    async fn release(&self, file: FileId, session: SessionId) -> Result<()> {
        self.parts.mdt.change(Change::Release(file, session)).await?;
        Ok(())
    }

    /// Nameless files with those who keep them, from `start` on, which goes on behind them: a
    /// client may keep as many as it can make.
    async fn page(&self, start: &mut Vec<u8>) -> Result<Vec<(FileId, SessionId, Orphan)>> {
        let range = Range::new(start.clone(), key::after(&key::orphans()));
        let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(Vec::new()) };
        *start = [last.as_slice(), &[0]].concat();
        let mut orphans = vec![];
        for (key, value) in &page {
            let orphan: Orphan = decode(value, || "orphan".to_owned())?;
            let parts = key::orphan_parts(key);
            orphans.extend(parts.map(|(file, session)| (file, session, orphan)));
        }
        Ok(orphans)
    }
}

impl Parts {
    /// Has a nameless file deleted, or what is left of one, a bounded part at a time.
    pub(crate) async fn remove(&self, file: FileId) -> Result<()> {
        while !self.mdt.change(Change::Remove(file)).await? {}
        Ok(())
    }
}
