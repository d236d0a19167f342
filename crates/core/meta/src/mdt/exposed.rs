//! Pools whose files lie in directories, too: what whoever follows their changes needs of an MDT,
//! and what a change waits for.

use crate::chunks;
use crate::error::{Error, Result};
use crate::mdt::Mdt;
use crate::ops::EXTENTS_MAX;
use crate::view::{Keepers, View};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tieline_format::mdt::{Inode, NO_SESSION};
use tieline_types::{Caller, FileId, Grant, PoolName, SessionId};
use tieline_wire::Failure;
use tieline_wire::meta::ExtentPage;
use tieline_wire::notice::Recall;
use tokio::task::JoinSet;

/// How long a session is waited for that is asked what it has open.
const PATIENCE: Duration = Duration::from_secs(2);
/// Files in one question.
const FILES_MAX: usize = 1024;

impl Mdt {
    /// Has files taken away before their bytes change.
    pub(crate) async fn take_away(&self, files: BTreeMap<PoolName, Vec<FileId>>) -> Result<()> {
        for (pool, files) in files {
            let taken = self.parts.exposer.take_away(&pool, files).await;
            taken.map_err(|failure| Error::StillExposed { pool, reason: failure.detail })?;
        }
        Ok(())
    }

    pub(crate) fn tell_exposer(&self, pools: &BTreeSet<PoolName>) {
        pools.iter().for_each(|pool| self.parts.exposer.noted(pool));
    }

    /// A file as it is now, and its extents from an offset on.
    pub async fn extents_of(
        &self,
        file: FileId,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Inode, ExtentPage)>, Failure> {
        let found = async {
            let (caller, nobody, map) = (Caller::root(), Keepers::new(), self.parts.map.current());
            let scene = self.scene_of(NO_SESSION, Grant(0), &caller, &map.map, &nobody);
            let mut view = View::reading(scene, self.parts.store.begin().await?);
            let Some(inode) = view.find_inode(file).await? else { return Ok(None) };
            let page =
                chunks::page(&mut view, file, &inode, offset, limit.min(EXTENTS_MAX)).await?;
            Ok(Some((inode, page)))
        };
        found.await.map_err(|error| self.noted(error))
    }

    /// Which of these files may some client have open to be written, or hold bytes of? Of each is
    /// said who changed it last, and in which directories it has names. A client that was silent
    /// for a lease is not waited for: others do not wait for it either.
    pub async fn still_written(
        &self,
        files: &BTreeMap<FileId, (SessionId, BTreeSet<FileId>)>,
    ) -> Result<BTreeSet<FileId>, Failure> {
        let known = self.sessions.ids();
        let mut asks: BTreeMap<SessionId, Vec<FileId>> = BTreeMap::new();
        for (&file, (last, parents)) in files {
            let mut sessions = self.open_to_write(file);
            sessions.extend(self.leases.alone_in(parents));
            sessions.insert(*last);
            for session in sessions.intersection(&known) {
                asks.entry(*session).or_default().push(file);
            }
        }
        let begun = self.parts.store.begin().await;
        let at = begun.map_err(|error| self.noted(error.into()))?.version();
        let mut waiting = JoinSet::new();
        for (session, files) in asks {
            for files in files.chunks(FILES_MAX) {
                let Some(&unit) = files.first() else { continue };
                let recall = Recall {
                    files: files.to_vec(),
                    asks_open: Some(true),
                    // What clients make of it that do not know this question.
                    ..Recall::look(unit, at)
                };
                let (leases, recaller) = (self.leases.clone(), self.parts.recaller.clone());
                let files = files.to_vec();
                waiting.spawn(async move {
                    let answer = tokio::select! {
                        biased;
                        answer = recaller.recall(session, recall, PATIENCE) => answer,
                        () = leases.silent(session) => return vec![],
                    };
                    let is_silent = leases.silent_at(session);
                    let is_over = is_silent.is_none_or(|at| at <= tokio::time::Instant::now());
                    match answer {
                        // Of other files its word does not count.
                        Some(answer) => {
                            files.into_iter().filter(|file| answer.open.contains(file)).collect()
                        }
                        None if is_over => vec![],
                        None => files,
                    }
                });
            }
        }
        let mut written = BTreeSet::new();
        while let Some(joined) = waiting.join_next().await {
            written.extend(joined.unwrap_or_default());
        }
        Ok(written)
    }
}
