//! Asking those who write files: before others look at them.

use crate::error::Result;
use crate::leases::{Change, Holder};
use crate::mdt::Mdt;
use crate::view::decode;
use std::collections::BTreeSet;
use std::time::Duration;
use tieline_format::mdt::{Inode, NameOf, key};
use tieline_sessions::WriterTable;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, FileKind, SessionId};
use tieline_wire::NoticeAnswer;
use tieline_wire::capability::FileRun;
use tieline_wire::meta::{Commit, Open};
use tieline_wire::notice::Recall;
use tokio::task::JoinSet;

/// How long an answer is waited for; clients answer sooner, with what they have done by then.
const PATIENCE: Duration = Duration::from_secs(4);
/// Files that one answer says are written, and that are looked at at once.
const WRITTEN_MAX: usize = 16_384;
const STEP: usize = 512;

impl Mdt {
    /// Does the session begin to write a file by this open, which was allowed?
    pub(crate) fn begins_to_write(&self, session: SessionId, open: &Open) -> Option<Beginning<'_>> {
        let (table, file) = (&self.writers, open.id);
        (open.writes == Some(true)).then(|| {
            let is_news = table.note(session, file);
            Beginning { table, session, file, is_news, change: self.leases.change(session) }
        })
    }

    /// Has anybody else begun to write one of these files, since that count of what was said? To be
    /// asked when leases were granted: whoever begins later finds them.
    pub(crate) fn are_begun(
        &self,
        session: SessionId,
        said: u64,
        resting: &BTreeSet<FileId>,
    ) -> bool {
        let is_written = |file: &FileId| self.writers.has_others(session, *file);
        self.writers.said() != said && resting.iter().any(is_written)
    }

    /// A session says which files it has open to be written. That counts at once, since whoever
    /// asks at the same time may be told nothing more; and stays where it could open them by
    /// itself: files in what it held alone, and those that it made or keeps.
    pub(crate) async fn note_written(&self, holder: Holder, answer: &NoticeAnswer) {
        let session = holder.session;
        let said = answer.open.iter().take(WRITTEN_MAX).copied();
        let news: Vec<FileId> = said.filter(|&file| self.writers.note(session, file)).collect();
        for files in news.chunks(STEP) {
            let doubted = self.not_its_own(holder, files).await.unwrap_or_default();
            doubted.into_iter().for_each(|file| self.writers.closed(session, file));
        }
        self.forget_ended(session);
    }

    /// Which of these files could the session not open to write without a word?
    async fn not_its_own(&self, holder: Holder, files: &[FileId]) -> Result<Vec<FileId>> {
        let Holder { session, unit } = holder;
        let keys: Vec<_> = files.iter().map(|&file| key::inode(file)).collect();
        let keeps: Vec<_> = files.iter().map(|&file| key::orphan(file, session)).collect();
        let mut transaction = self.parts.store.begin().await?;
        let (found, kept) = (transaction.read(&keys).await?, transaction.read(&keeps).await?);
        let runs = self.sessions.runs(session);
        let is_made = |file: FileId| {
            let is_in = |run: &FileRun| file.serial().wrapping_sub(run.first) < run.count.into();
            runs.iter().any(is_in)
        };
        // Of several who ask at once one is told, and may hear of it last.
        let is_alone =
            |place: &NameOf| place.parent == unit || self.leases.held_alone(session, place.parent);
        let mut doubted = vec![];
        for ((&file, value), kept) in files.iter().zip(found).zip(kept) {
            let is_in = match value {
                Some(value) => {
                    let inode: Inode = decode(&value, || file.to_string())?;
                    inode.kind == FileKind::Regular && inode.names.iter().any(is_alone)
                }
                None => false,
            };
            if !is_in && kept.is_none() && !is_made(file) {
                doubted.push(file);
            }
        }
        Ok(doubted)
    }

    /// A session has committed to a file. Says whether others write it: those who begin later ask,
    /// and their question is younger than the answer to this commit.
    pub(crate) fn wrote(&self, session: SessionId, commit: &Commit) -> bool {
        match commit.closes {
            Some(true) => self.writers.closed(session, commit.id),
            _ => self.writers.is_alone_again(session, commit.id),
        }
        self.writers.has_others(session, commit.id)
    }

    /// Has those who write these files commit what `asking` is about to see; `writes`: and each
    /// write from now on, since `asking` writes them, too.
    pub(crate) async fn ask_writers(
        &self,
        asking: SessionId,
        files: &BTreeSet<FileId>,
        writes: bool,
    ) -> Result<()> {
        let said = self.writers.said();
        let asks = self.writers.to_ask(asking, files, writes);
        if asks.is_empty() {
            return Ok(());
        }
        let at = self.parts.store.begin().await?.version();
        let mut waiting = JoinSet::new();
        for (session, files) in asks {
            let Some(&unit) = files.first() else { continue };
            let writes = writes.then_some(true);
            let recall = Recall { files, writes, ..Recall::look(unit, at) };
            let (leases, recaller) = (self.leases.clone(), self.parts.recaller.clone());
            waiting.spawn(async move {
                let answer = tokio::select! {
                    biased;
                    answer = recaller.recall(session, recall.clone(), PATIENCE) => answer,
                    () = leases.silent(session) => None,
                };
                (session, recall, answer)
            });
        }
        while let Some(joined) = waiting.join_next().await {
            let Ok((session, recall, answer)) = joined else { continue };
            let outcome = if answer.is_some() { "looked" } else { "unlooked" };
            METRICS.recalls.with_label_values(&[outcome]).inc();
            if answer.is_none() {
                // Nothing is promised then, and whoever looks into it must find that here.
                let (file, files) = (recall.unit, recall.files.len());
                tracing::info!(%session, %file, files, "a writer does not answer: another looks");
            }
            let still = answer.as_ref().map(|answer| answer.open.as_slice());
            self.writers.answered((session, said), (&recall.files, writes), still);
        }
        Ok(())
    }
}

/// A session is about to write a file: noted before others are asked, so that none of them begins
/// meanwhile without being asked in its turn. If nothing comes of it that is forgotten.
pub struct Beginning<'a> {
    pub table: &'a WriterTable,
    pub session: SessionId,
    pub file: FileId,
    /// Else nobody can believe anything of the file.
    pub is_news: bool,
    /// Covers what others believe of the file.
    pub change: Change,
}

impl Beginning<'_> {
    pub fn done(mut self) {
        self.is_news = false;
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        if self.is_news {
            self.table.closed(self.session, self.file);
        }
    }
}
