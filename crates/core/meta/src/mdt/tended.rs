//! What whoever tends an MDT from outside needs of it: changes in the background, and what only the
//! MDT knows.

use crate::background;
use crate::error::{Error, Result};
use crate::mdt::Mdt;
use crate::placement::wall_time;
use crate::quotas::{self, Sum, Sums, count};
use crate::serials::change_superblock;
use crate::tape;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;
use tieline_format::Record;
use tieline_format::map::Pool;
use tieline_format::mdt::{Inode, NO_SESSION, PayerChange, UsageChange, key};
use tieline_kv::Snapshot;
use tieline_telemetry::metrics::METRICS;
use tieline_types::background::Change;
use tieline_types::{Caller, FileId, Grant, Layout, OstIndex, SessionId};
use tieline_wire::Failure;
use tieline_wire::notice::Recall;

impl Mdt {
    /// Makes a change that no client asked for. Says whether it is done; of a repair, whether there
    /// was something to do.
    pub async fn change(&self, change: &Change) -> Result<bool, Failure> {
        let carried = match change {
            Change::Archived(..) | Change::Restored(_) => self.carry_out_told(change).await,
            _ => self.carry_out(change).await,
        };
        carried.map_err(|error| self.noted(error))
    }

    /// The same of what others may believe to know: they are asked first, as before operations.
    async fn carry_out_told(&self, change: &Change) -> Result<bool> {
        let (caller, nobody) = (Caller::root(), BTreeSet::new());
        let map = self.parts.map.current();
        let (mut cover, mut asked) = (self.leases.change(NO_SESSION), BTreeSet::new());
        loop {
            let scene = self.scene_of(NO_SESSION, Grant(0), &caller, &map.map, &nobody);
            let mut view = View::new(scene, self.parts.store.begin().await?);
            let run = background::run(&mut view, change).await;
            let mut asks = self.alone(NO_SESSION, &view.seen, false);
            if asks.is_empty() && run.is_ok() {
                asks = self.cover(NO_SESSION, &mut cover, (&view.touched, false), &asked);
                asked.extend(asks.iter().map(|ask| ask.holder));
            }
            if !asks.is_empty() {
                drop(view);
                let asks = self.dated(asks).await?;
                self.take_back(asks, &mut BTreeSet::new()).await;
                continue;
            }
            let committed = match run {
                Ok(is_done) => view.commit().await.map(|committed| (is_done, committed)),
                Err(error) => Err(error),
            };
            match committed {
                Err(error) if error.is_conflict() => METRICS.conflicts.inc(),
                Err(error) => return Err(error),
                Ok((is_done, committed)) => {
                    cover.committed(committed.version);
                    committed.durable.await?;
                    return Ok(is_done);
                }
            }
        }
    }

    /// Does what nobody asked for, again while others are in its way.
    pub(crate) async fn carry_out(&self, change: &Change) -> Result<bool> {
        let (caller, nobody) = (Caller::root(), BTreeSet::new());
        let map = self.parts.map.current();
        loop {
            let scene = self.scene_of(NO_SESSION, Grant(0), &caller, &map.map, &nobody);
            let mut view = View::new(scene, self.parts.store.begin().await?);
            let run = background::run(&mut view, change).await;
            let counted = view.counted;
            if run.is_ok() {
                let exposed = view.still_exposed().await?;
                if !exposed.is_empty() {
                    drop(view);
                    self.take_away(exposed).await?;
                    continue;
                }
            }
            let noted = std::mem::take(&mut view.exposure.noted);
            let committed = match run {
                Ok(is_done) => view.commit().await.map(|committed| (is_done, committed)),
                Err(error) => Err(error),
            };
            match committed {
                Err(error) if error.is_conflict() => METRICS.conflicts.inc(),
                Err(error) => return Err(error),
                Ok((is_done, committed)) => {
                    self.inodes.add(counted);
                    self.tell_exposer(&noted);
                    committed.durable.await?;
                    if let Change::Purge(_, file) = change {
                        self.leases.gone(&BTreeSet::from([*file]));
                    }
                    return Ok(is_done);
                }
            }
        }
    }

    /// May anything be written to the store?
    pub fn has_room(&self) -> bool {
        self.room.check_any().is_ok()
    }

    /// Is an OST or the store full, as far as is known?
    pub fn is_tight(&self) -> bool {
        self.placement.is_tight() || self.room.is_short()
    }

    /// Ends sessions that were silent for too long. Says how many.
    pub async fn end_lost_sessions(&self) -> Result<u64, Failure> {
        // Not asked under the lock of the leases.
        let waits = self.sessions.waits();
        let wait = |session| waits.get(&session).copied().flatten();
        let lost = self.leases.lost(|session| self.settings.session_keep_for(wait(session)));
        for &session in &lost {
            self.end_session(session).await?;
        }
        self.locks.sweep();
        self.leases.count_suspended();
        Ok(lost.len() as u64)
    }

    pub fn sessions(&self) -> BTreeSet<SessionId> {
        self.sessions.ids()
    }

    /// Is it the grant of a session that lives?
    pub fn is_grant(&self, grant: Grant) -> bool {
        self.sessions.is_grant(grant)
    }

    /// Which of these files does a session have open? `None`: it does not answer.
    pub async fn ask_open(
        &self,
        session: SessionId,
        files: &[FileId],
    ) -> Result<Option<Vec<FileId>>, Failure> {
        let Some(&unit) = files.first() else { return Ok(Some(vec![])) };
        let begun = self.parts.store.begin().await;
        let at = begun.map_err(|error| self.noted(error.into()))?.version();
        let recall = Recall { files: files.to_vec(), ..Recall::of(unit, at) };
        let answer = self.parts.recaller.recall(session, recall, self.settings.lease).await;
        Ok(answer.map(|answer| answer.open))
    }

    /// A session said that it has a file open no more.
    pub fn closed(&self, session: SessionId, file: FileId) {
        self.opens.closed(session, file);
    }

    /// Was the store restored, and not checked since?
    pub fn is_restored(&self) -> bool {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whatever the OSTs hold beyond the records was looked at.
    pub async fn set_checked(&self) -> Result<(), Failure> {
        let mut restored = self.restored.lock().unwrap_or_else(PoisonError::into_inner).take();
        if restored.take().is_some() {
            let changed = change_superblock(&*self.parts.store, |block| block.restored = None);
            changed.await.map_err(|error| self.noted(error))?;
        }
        Ok(())
    }

    /// Files below this one were there when the MDT started.
    pub fn first_new_file(&self) -> FileId {
        FileId::new(self.settings.mdt, self.first_serial)
    }

    /// Those were counted: notes how many files there are.
    pub async fn files_counted(&self, count: i64) -> Result<(), Failure> {
        self.inodes.recounted(count);
        let total = self.inodes.total();
        let changed = change_superblock(&*self.parts.store, |block| block.inodes = total);
        changed.await.map_err(|error| self.noted(error))
    }

    /// Adds up what transactions noted for quotas.
    pub async fn add_up(&self) -> Result<(), Failure> {
        self.add_up_usage().await.map_err(|error| self.noted(error))
    }

    /// By what all files together use more than is noted for quotas, in one state of the store.
    pub async fn usage_missing(
        &self,
        snapshot: &mut dyn Snapshot,
    ) -> Result<Vec<PayerChange>, Failure> {
        let missing = async {
            let noted = count::noted(snapshot).await?;
            let mut missing = count::counted(snapshot).await?;
            for (payer, sum) in noted {
                let counted = missing.entry(payer).or_default();
                (counted.bytes, counted.inodes) =
                    (counted.bytes - sum.bytes, counted.inodes - sum.inodes);
            }
            missing.retain(|_, sum| *sum != Sum::default());
            Ok(quotas::records(&missing))
        };
        missing.await.map_err(|error| self.noted(error))
    }

    /// Notes such a difference.
    pub async fn correct_usage(&self, missing: Vec<PayerChange>) -> Result<(), Failure> {
        let corrected = async {
            let sum = |change: &PayerChange| Sum { bytes: change.bytes, inodes: change.inodes };
            let sums: Sums = missing.iter().map(|one| (one.payer.clone(), sum(one))).collect();
            let (boot, number) = self.quotas.change_number();
            let mut transaction = self.parts.store.begin().await?;
            let record = UsageChange { changes: missing };
            transaction.put(key::usage_change(boot, number), record.to_bytes());
            let committed = transaction.commit().await?;
            let now = wall_time(&self.parts.world);
            self.quotas.apply(NO_SESSION, &sums, &BTreeMap::new(), now);
            committed.durable.await?;
            Ok(())
        };
        corrected.await.map_err(|error: Error| self.noted(error))
    }

    /// Did the OST's server answer lately?
    pub fn is_heard(&self, ost: OstIndex, within: Duration) -> bool {
        self.placement.is_heard(ost, within)
    }

    /// OSTs for further copies of a chunk that lies on `there`: up to `count`.
    pub fn more_places(&self, layout: &Layout, there: &[OstIndex], count: usize) -> Vec<OstIndex> {
        let map = self.parts.map.current();
        self.placement.choose_more(&map.map, layout, there, count).unwrap_or_default()
    }

    /// Is it open to be written? Who may have it so is asked, and commits what it has.
    pub async fn is_written(&self, file: FileId) -> Result<bool, Failure> {
        let asked = self.ask_writers(NO_SESSION, &BTreeSet::from([file]), false).await;
        asked.map_err(|error| self.noted(error))?;
        Ok(self.writers.has_others(NO_SESSION, file))
    }

    /// The pool whose HSM archives a file.
    pub fn tape_pool(&self, inode: &Inode) -> Option<Pool> {
        tape::pool_of(&self.parts.map.current().map, inode).cloned()
    }

    pub(crate) fn noted(&self, error: Error) -> Failure {
        self.note(&error);
        error.into_failure(self.settings.mdt)
    }
}
