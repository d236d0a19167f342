//! Asking those who write files: before others look at them.

use crate::error::Result;
use crate::mdt::Mdt;
use crate::writers::Beginning;
use std::collections::BTreeSet;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, SessionId};
use tieline_wire::meta::Commit;
use tieline_wire::notice::Recall;
use tieline_wire::{NoticeAnswer, Request};
use tokio::task::JoinSet;

/// How long an answer is waited for; clients answer sooner, with what they have done by then.
const PATIENCE: Duration = Duration::from_secs(4);

impl Mdt {
    /// Does the session begin to write a file by this request?
    pub(crate) fn begins_to_write(
        &self,
        session: SessionId,
        request: &Request,
    ) -> Option<Beginning<'_>> {
        let Request::Open(open) = request else { return None };
        let (table, file) = (&self.writers, open.id);
        (open.writes == Some(true)).then(|| {
            let is_news = table.note(session, file);
            Beginning { table, session, file, is_news, change: self.leases.change(session) }
        })
    }

    /// A session that is alone no more says which files it has open to be written.
    pub(crate) fn note_written(&self, session: SessionId, answer: &NoticeAnswer) {
        for &file in &answer.open {
            self.writers.note(session, file);
        }
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
            let recall = Recall {
                unit,
                at,
                names: vec![],
                files,
                is_shared: Some(true),
                writes,
                moves: None,
                asks_open: None,
            };
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
            self.writers.answered((session, said), &recall, still);
        }
        Ok(())
    }
}
