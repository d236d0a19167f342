//! Files without names: when those who keep them have let go, and when nobody opens them any more.
//!
//! Clients do not say when they close, so they are asked. A file that was replaced lingers for
//! those who have looked its name up; then it goes over to those who have opened it, before or
//! since.
//!
//! Invariant: whoever is not heard counts as one that has the file open.

use super::Chore;
use crate::chunks;
use crate::error::Result;
use crate::mdt::Mdt;
use crate::placement::wall_time;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::mdt::NO_SESSION;
use tieline_types::{FileId, SessionId};
use tieline_wire::notice::Recall;

/// Files in one question. Others that are kept are asked about when these are settled.
const FILES_PER_CHECK: usize = 1024;
/// How long a file that was replaced stays for those who have looked its name up: for the way from
/// there to the open.
const LINGER_MS: u64 = 60_000;
/// Who was just told that a file is kept for them may not have taken note of it yet.
const ANSWER_MS: u64 = 10_000;

impl Mdt {
    /// Deletes nameless files that no known session holds.
    pub(crate) async fn collect_orphans(&self) -> Result<()> {
        let sessions = self.sessions.ids();
        let now_ms = chunks::millis(wall_time(&self.parts.world));
        let mut lingered = vec![];
        for (file, session, orphan) in self.sessions.orphans().await? {
            if session == NO_SESSION {
                if orphan.name.is_none() {
                    self.remove(file).await?;
                } else if chunks::millis(orphan.since) + LINGER_MS <= now_ms {
                    lingered.push(file);
                }
            } else if !sessions.contains(&session) {
                self.release(file, session).await?;
            }
        }
        self.end_lingering(&lingered, &sessions).await
    }

    /// Deletes files that have lingered, but for those that somebody has open.
    async fn end_lingering(&self, files: &[FileId], sessions: &BTreeSet<SessionId>) -> Result<()> {
        let mut opened: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        for &file in files {
            for session in self.openers(file).intersection(sessions) {
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
                Some(sessions) => drop(self.in_background(Chore::Keep(*file, sessions)).await?),
                None => self.remove(*file).await?,
            }
        }
        Ok(())
    }

    /// Asks a session which of these files it has open; all of those that it says nothing of.
    async fn still_open(&self, session: SessionId, files: &[FileId]) -> Result<Vec<FileId>> {
        let mut open = vec![];
        let mut parts = files.chunks(FILES_PER_CHECK);
        while let Some(part) = parts.next() {
            let Some(said) = self.ask_open(session, part).await? else {
                open.extend(part);
                open.extend(parts.flatten());
                break;
            };
            for &file in part {
                match said.contains(&file) {
                    true => open.push(file),
                    false => self.opens.closed(session, file),
                }
            }
        }
        Ok(open)
    }

    /// Asks those for whom nameless files are kept whether they still have them open. Some could
    /// not be asked when the last name went, and some lost their connection before they could say.
    pub(crate) async fn check_kept(&self) -> Result<()> {
        let mut kept: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        let now_ms = chunks::millis(wall_time(&self.parts.world));
        for (file, session, orphan) in self.sessions.orphans().await? {
            if chunks::millis(orphan.since) + ANSWER_MS <= now_ms {
                kept.entry(session).or_default().push(file);
            }
        }
        kept.remove(&NO_SESSION);
        for (session, mut files) in kept {
            files.truncate(FILES_PER_CHECK);
            let Some(open) = self.ask_open(session, &files).await? else { continue };
            for file in files.into_iter().filter(|file| !open.contains(file)) {
                self.release(file, session).await?;
            }
        }
        Ok(())
    }

    /// Which of these files does a session have open? `None`: it does not answer.
    async fn ask_open(&self, session: SessionId, files: &[FileId]) -> Result<Option<Vec<FileId>>> {
        let Some(&unit) = files.first() else { return Ok(Some(vec![])) };
        let at = self.parts.store.begin().await?.version();
        let recall = Recall {
            unit,
            at,
            names: vec![],
            files: files.to_vec(),
            is_shared: None,
            writes: None,
            moves: None,
        };
        let answer = self.parts.recaller.recall(session, recall, self.settings.lease).await;
        Ok(answer.map(|answer| answer.open))
    }
}
