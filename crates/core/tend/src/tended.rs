//! The MDT that is tended, as its background work needs it.
//!
//! Whoever plugs rooms together implements it over the MDT itself. Failures name the MDT already,
//! and it knows of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tieline_format::map::Pool;
use tieline_format::mdt::{Inode, PayerChange};
use tieline_kv::Snapshot;
use tieline_types::background::Change;
use tieline_types::{FileId, Grant, Layout, OstIndex, OstPlace, SessionId};
use tieline_wire::Failure;
use tieline_wire::meta::ExtentPage;

#[async_trait::async_trait]
pub trait Tended: Send + Sync {
    /// Carries a change out in a transaction of its own, again while others are in its way. Says
    /// whether it is done; of a repair, whether there was something to do.
    async fn change(&self, change: Change) -> Result<bool, Failure>;

    // How it is.

    /// It cannot serve any more.
    fn is_ended(&self) -> bool;

    /// May anything be written to its store?
    fn has_room(&self) -> bool;

    /// Is an OST or the store full, as far as is known?
    fn is_tight(&self) -> bool;

    /// Was the store restored, and not checked since?
    fn is_restored(&self) -> bool;

    /// Whatever the OSTs hold beyond its records was looked at.
    async fn set_checked(&self) -> Result<(), Failure>;

    /// Its store failed under us.
    fn store_failed(&self, error: &tieline_kv::Error);

    // Sessions, and what they have open.

    fn sessions(&self) -> BTreeSet<SessionId>;

    /// Is it the grant of a session that lives?
    fn is_grant(&self, grant: Grant) -> bool;

    /// Ends sessions that were silent for too long. Says how many.
    async fn end_lost_sessions(&self) -> Result<u64, Failure>;

    /// Sessions that may have a file open.
    fn openers(&self, file: FileId) -> BTreeSet<SessionId>;

    /// Which of these files does a session have open? `None`: it does not answer.
    async fn ask_open(
        &self,
        session: SessionId,
        files: &[FileId],
    ) -> Result<Option<Vec<FileId>>, Failure>;

    /// A session said that it has a file open no more.
    fn closed(&self, session: SessionId, file: FileId);

    // Counts.

    /// Files below this one were there when it started.
    fn first_new_file(&self) -> FileId;

    /// Those were counted.
    async fn files_counted(&self, count: i64) -> Result<(), Failure>;

    /// Adds up what its transactions noted for quotas.
    async fn add_up_usage(&self) -> Result<(), Failure>;

    /// By what all files together use more than is noted for quotas, in one state of the store.
    async fn usage_missing(&self, snapshot: &mut dyn Snapshot)
    -> Result<Vec<PayerChange>, Failure>;

    /// Notes such a difference.
    async fn correct_usage(&self, missing: Vec<PayerChange>) -> Result<(), Failure>;

    // Tape.

    /// Is it open to be written? Who may have it so is asked.
    async fn is_written(&self, file: FileId) -> Result<bool, Failure>;

    /// The pool whose HSM archives a file.
    fn tape_pool(&self, inode: &Inode) -> Option<Pool>;

    // Places of copies.

    /// Did the OST's server answer lately?
    fn is_heard(&self, ost: OstIndex, within: Duration) -> bool;

    /// OSTs for further copies of a chunk that lies on `there`: up to `count`.
    fn more_places(&self, layout: &Layout, there: &[OstIndex], count: usize) -> Vec<OstIndex>;

    // Exposed pools.

    /// How often it was started.
    fn boot(&self) -> u64;

    /// A file as it is now, and its extents from an offset on.
    async fn extents_of(
        &self,
        file: FileId,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Inode, ExtentPage)>, Failure>;

    /// Which of these files may some client have open to be written? Of each is said who changed it
    /// last, and in which directories it has names.
    async fn still_written(
        &self,
        files: &BTreeMap<FileId, (SessionId, BTreeSet<FileId>)>,
    ) -> Result<BTreeSet<FileId>, Failure>;

    /// For an OSS that is to fetch a file's chunk from others.
    fn copy_capability(&self, to: OstIndex, file: FileId, from: &[OstPlace]) -> Option<Vec<u8>>;
}
