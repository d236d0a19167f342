//! An MDT and its background work, plugged together: each sees the other by a trait.

use crate::peers::Peers;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_data::{ObjectSource, TapeService};
use tieline_format::map::Pool;
use tieline_format::mdt::{Inode, PayerChange};
use tieline_kv::Snapshot;
use tieline_meta::{CopyMender, Exposer, Mdt};
use tieline_tend::{Exposures, Mirrors, TapeDriver, Tended};
use tieline_types::background::Change;
use tieline_types::{
    ErrorKind, FileId, Grant, GrantedId, Layout, OstIndex, OstPlace, PoolName, SessionId,
};
use tieline_wire::Failure;
use tieline_wire::meta::ExtentPage;
use tieline_wire::mirrors::Trouble;
use tieline_wire::tape::{DriveTape, DriveTapeReply};

/// What its background work must know of an MDT's settings.
pub fn settings(settings: &tieline_meta::Settings) -> tieline_tend::Settings {
    tieline_tend::Settings {
        session_keep: settings.session_keep,
        freed_keep: settings.freed_keep,
        collect_rate: settings.collect_rate,
        stray_keep: settings.stray_keep,
    }
}

/// The MDT, as its background work sees it.
pub struct TendedMdt(pub Arc<Mdt>);

/// Whoever has copies made, as the MDT sees it.
pub struct Copies(pub Arc<Mirrors>);

impl CopyMender for Copies {
    fn suspect(&self, chunk: GrantedId, ost: OstIndex) {
        self.0.suspect(chunk, ost);
    }

    fn hurry(&self, chunk: GrantedId, file: FileId) -> Option<Trouble> {
        self.0.hurry(chunk, file)
    }
}

/// Whoever looks after exposed pools, as the MDT sees it.
pub struct Exposed(pub Arc<Exposures>);

#[async_trait::async_trait]
impl Exposer for Exposed {
    fn noted(&self, pool: &PoolName) {
        self.0.noted(pool);
    }

    async fn take_away(&self, pool: &PoolName, files: Vec<FileId>) -> Result<(), Failure> {
        self.0.take_away(pool, files).await
    }
}

#[async_trait::async_trait]
impl Tended for TendedMdt {
    async fn change(&self, change: Change) -> Result<bool, Failure> {
        self.0.change(&change).await
    }

    fn is_ended(&self) -> bool {
        self.0.trouble().is_some()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn is_tight(&self) -> bool {
        self.0.is_tight()
    }

    fn is_restored(&self) -> bool {
        self.0.is_restored()
    }

    async fn set_checked(&self) -> Result<(), Failure> {
        self.0.set_checked().await
    }

    fn store_failed(&self, error: &tieline_kv::Error) {
        self.0.store_failed(error);
    }

    fn sessions(&self) -> BTreeSet<SessionId> {
        self.0.sessions()
    }

    fn is_grant(&self, grant: Grant) -> bool {
        self.0.is_grant(grant)
    }

    async fn end_lost_sessions(&self) -> Result<u64, Failure> {
        self.0.end_lost_sessions().await
    }

    fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.0.openers(file)
    }

    async fn ask_open(
        &self,
        session: SessionId,
        files: &[FileId],
    ) -> Result<Option<Vec<FileId>>, Failure> {
        self.0.ask_open(session, files).await
    }

    fn closed(&self, session: SessionId, file: FileId) {
        self.0.closed(session, file);
    }

    fn first_new_file(&self) -> FileId {
        self.0.first_new_file()
    }

    async fn files_counted(&self, count: i64) -> Result<(), Failure> {
        self.0.files_counted(count).await
    }

    async fn add_up_usage(&self) -> Result<(), Failure> {
        self.0.add_up().await
    }

    async fn usage_missing(
        &self,
        snapshot: &mut dyn Snapshot,
    ) -> Result<Vec<PayerChange>, Failure> {
        self.0.usage_missing(snapshot).await
    }

    async fn correct_usage(&self, missing: Vec<PayerChange>) -> Result<(), Failure> {
        self.0.correct_usage(missing).await
    }

    async fn is_written(&self, file: FileId) -> Result<bool, Failure> {
        self.0.is_written(file).await
    }

    fn tape_pool(&self, inode: &Inode) -> Option<Pool> {
        self.0.tape_pool(inode)
    }

    fn is_heard(&self, ost: OstIndex, within: Duration) -> bool {
        self.0.is_heard(ost, within)
    }

    fn more_places(&self, layout: &Layout, there: &[OstIndex], count: usize) -> Vec<OstIndex> {
        self.0.more_places(layout, there, count)
    }

    fn boot(&self) -> u64 {
        self.0.boot()
    }

    async fn extents_of(
        &self,
        file: FileId,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Inode, ExtentPage)>, Failure> {
        self.0.extents_of(file, offset, limit).await
    }

    async fn still_written(
        &self,
        files: &BTreeMap<FileId, (SessionId, BTreeSet<FileId>)>,
    ) -> Result<BTreeSet<FileId>, Failure> {
        self.0.still_written(files).await
    }

    fn copy_capability(&self, to: OstIndex, file: FileId, from: &[OstPlace]) -> Option<Vec<u8>> {
        self.0.copy_capability(to, file, from)
    }
}

/// OSSs, as an MDT's background work has them drive tape: its own, if it is one.
pub struct TapeDrivers {
    pub own: Option<Arc<TapeService>>,
    pub peers: Arc<Peers>,
}

#[async_trait::async_trait]
impl TapeDriver for TapeDrivers {
    async fn drive(
        &self,
        message: DriveTape,
        patience: Duration,
    ) -> Result<DriveTapeReply, Failure> {
        if self.peers.is_own(message.ost) {
            return drive(self.own.as_ref(), &self.peers, message).await;
        }
        self.peers.drive_tape(message, patience).await
    }
}

/// Has the OSS of this process do it.
pub async fn drive(
    own: Option<&Arc<TapeService>>,
    peers: &Arc<Peers>,
    message: DriveTape,
) -> Result<DriveTapeReply, Failure> {
    let Some(own) = own else {
        let detail = "this server has no room for files on their way to tape: see its log";
        return Err(Failure::new(ErrorKind::StorageFault, detail));
    };
    // What it does not have itself it fetches through us.
    let source: Arc<dyn ObjectSource> = peers.clone();
    own.drive(message, &source).await
}
