//! One regular file at this client: what is committed, as far as it was fetched, and what was
//! written over it.
//!
//! Shared by all handles of the file. Its state is behind a short lock; commits, truncations and
//! whatever else must not overlap take [`File::gate`] first. What is committed is good while the
//! cache believes the file's attributes and their version is this one: leases are counted there,
//! not here.
//!
//! Invariant: bytes in the overlay are counted in the budget, always.

use crate::asking::Asked;
use crate::unsynced::Unsynced;
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_believed::Tables;
use tieline_believed::door::Door;
use tieline_believed::tables::is_provisional;
use tieline_granted::{FilePromise, FileRoom};
use tieline_keep::{Keep, Kept};
use tieline_owed::late::Late;
use tieline_owed::writes::{Cut, Space, Writes};
use tieline_ranges::known::Extents;
use tieline_ranges::overlay::{Overlay, SealId};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    Attributes, Caller, ChunkRef, ErrorKind, Extent, FileId, Layout, OstIndex, Place, Time, Version,
};
use tieline_wire::meta::ExtentPage;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long after another client's last write each write here is committed before it returns.
const SHARED_KEPT: Duration = Duration::from_secs(10);

pub(crate) struct File {
    pub id: FileId,
    state: Mutex<State>,
    /// Serialises what changes the file at the MDS.
    pub gate: tokio::sync::Mutex<()>,
    /// One of those who wait for tape asks.
    pub tape: tokio::sync::Mutex<()>,
    /// Woken when a sealed run has arrived or failed.
    pub moved: Notify,
    budget: Arc<Budget>,
}

#[derive(Default)]
pub(crate) struct State {
    pub handles: u32,
    /// Layout and the OSTs that new chunks go round; `None` until it was opened at the MDS.
    pub layout: Option<Layout>,
    pub stripe: Vec<OstIndex>,
    pub extents: Extents,
    /// Of `extents` and `size`.
    pub version: Version,
    pub as_of: Version,
    pub size: u64,
    pub overlay: Overlay,
    /// From here on the overlay holds what was appended: it goes to the file's end, wherever that
    /// will be. In one run from here, and nothing else beyond.
    append_from: Option<u64>,
    /// A commit of appended bytes is on its way: until its answer they stay where they are.
    pub is_appending: bool,
    /// Writes that wait for a commit, while the door may hold locks on the pages.
    pub waiting_writes: u32,
    /// Reads that wait for an MDS, while the door has their pages locked.
    pub asked: Asked,
    /// Other clients write to it too: until then each write is committed before it returns.
    pub shared_until: Option<Instant>,
    /// The same since that version, until the answer to a younger commit says nothing of them.
    pub shared_since: Option<Version>,
    /// The MDS knows that we write it, and asks us before others look ([`crate::declared`]).
    pub is_declared: bool,
    /// Opens that say so are on their way.
    pub declaring: u32,
    /// Until then nobody can be told.
    pub undeclared_until: Option<Instant>,
    /// A program closes it: the commit says that it is written no more.
    pub is_closing: bool,
    /// Of the last own write that is not committed.
    pub mtime: Option<Time>,
    /// Who writes, for calls that no handle makes.
    pub writer: Caller,
    /// It was asked for once where the file lies.
    pub way_was_asked: bool,
    pub clears_setid: bool,
    /// It was set since: the commit of what is written leaves it.
    pub keeps_mtime: bool,
    /// Closed then, and left to the background.
    pub deferred: Option<Instant>,
    pub first_written: Option<Instant>,
    pub last_written: Option<Instant>,
    pub last_committed: Option<Instant>,
    /// After a failed commit in the background.
    pub pause_until: Option<Instant>,
    /// Where chunks of this file lie that were not synced since.
    pub unsynced: Unsynced,
    /// All others were synced, whoever wrote there, and nobody else has written since.
    pub is_synced: bool,
    /// Small extents that were committed here since the file was compacted.
    pub small: usize,
    /// Of runs that could not be sent or committed.
    pub late: Late,
    /// A close was answered before what was written had arrived, or nobody holds it any more.
    pub is_answered: bool,
    /// Others have changed it since that was looked at.
    pub is_foreign: bool,
    /// A lock was lost: what was written and is not committed is to be dropped.
    pub forfeits: bool,
    /// The last sealed run that failed for now, and why: who waits for it gives up.
    pub stuck: Option<(ErrorKind, String)>,
    /// Since when servers do not know for whom it is written.
    pub unproven_since: Option<Instant>,
    /// It has no name any more and is kept for us.
    pub is_orphan: bool,
    /// Nor can anybody else have it open.
    pub is_hidden: bool,
    /// What the door's own cache has of it.
    pub door: Door,
    /// A unit that the file lies under, and its generation, of the answer that told `version`:
    /// while that is held we are told before the file changes.
    pub heard_under: Option<(FileId, u64)>,
    /// Records of what is in the overlay.
    pub kept: Writes,
    /// Bytes that may be written under quotas.
    pub promise: FilePromise,
    /// What OSTs keep for its bytes.
    pub room: FileRoom,
    /// Says to the next process that it has no name.
    pub orphan_kept: Option<Kept>,
}

/// The OSTs that hold a chunk.
pub(crate) fn copies(chunk: &ChunkRef) -> Vec<OstIndex> {
    let good = chunk.places.iter().filter(|place| !place.is_stale);
    let mut osts: Vec<OstIndex> = good.filter_map(Place::ost).collect();
    osts.sort_unstable();
    osts
}

impl File {
    pub fn new(id: FileId, budget: Arc<Budget>) -> Self {
        Self {
            id,
            state: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
            tape: tokio::sync::Mutex::default(),
            moved: Notify::new(),
            budget,
        }
    }

    /// Looks at or changes the state, never across an await.
    pub fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.overlay.bytes();
        let result = look(&mut state);
        self.budget.change(before, state.overlay.bytes());
        result
    }

    pub fn is_dirty(&self) -> bool {
        self.with(|state| state.is_dirty())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.with(|state| state.overlay.cut(0..u64::MAX));
    }
}

impl State {
    pub fn is_dirty(&self) -> bool {
        !self.overlay.is_empty()
    }

    /// As programs here see it.
    pub fn size_here(&self) -> u64 {
        self.size.max(self.overlay.end())
    }

    /// Takes what an answer says of the committed file, unless we know better.
    pub fn learn(&mut self, as_of: Version, attributes: &Attributes) -> bool {
        if is_provisional(self.version) {
            return false;
        }
        self.door.follow(self.version);
        let is_old = as_of < self.as_of || self.door.is_behind(attributes.version);
        if is_old {
            return false;
        }
        self.as_of = as_of;
        self.door.hear(attributes.version);
        if attributes.version != self.version {
            self.is_foreign |= self.version != Version(0);
            self.forget_extents();
            self.heard_under = None;
            if self.is_dirty() && self.version != Version(0) {
                self.share();
            }
            self.version = attributes.version;
        }
        self.set_size(attributes.size);
        true
    }

    /// Are we told before the file becomes another than the one that is known here? Not by the
    /// lease of a directory that it is not in any more.
    pub fn is_heard_of(&self, id: FileId, tables: &Tables) -> bool {
        self.heard_under.is_some_and(|(unit, generation)| {
            let is_there = !self.is_orphan && tables.parent_of(id) == Some(unit);
            (unit == id || is_there) && tables.units.generation(unit) == Some(generation)
        })
    }

    /// Nothing is known of where the committed bytes are.
    pub fn forget_extents(&mut self) {
        self.extents = Extents::default();
        self.is_synced = false;
    }

    /// The committed size. What was appended moves along.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        if self.is_appending {
            return;
        }
        if let Some(from) = self.appended_from() {
            self.move_appended(from, size);
        }
    }

    /// Where what was appended begins, if there is any.
    pub fn appended_from(&self) -> Option<u64> {
        self.append_from.filter(|&from| self.overlay.end() > from)
    }

    /// What was appended from `from` on goes to `to`, or behind what was written at a place.
    pub fn move_appended(&mut self, from: u64, to: u64) {
        let to = to.max(self.overlay.end_before(from));
        self.overlay.shift(from, to);
        self.append_from = Some(to);
    }

    /// Lays an append at the end; `None` if what waits must be committed first.
    pub fn place_append(&mut self, length: u64) -> Option<u64> {
        if let Some(from) = self.appended_from() {
            debug_assert!(from <= self.overlay.end(), "appended bytes are one run");
            return Some(self.overlay.end());
        }
        if self.overlay.end() > self.size {
            return None;
        }
        if length > 0 {
            self.append_from = Some(self.size);
        }
        Some(self.size)
    }

    /// Appends what an earlier process had appended.
    pub fn append_again(&mut self, bytes: Bytes) {
        if self.appended_from().is_none() {
            self.append_from = Some(self.size_here());
        }
        let end = self.overlay.end().max(self.append_from.unwrap_or(0));
        self.overlay.write(end, bytes);
    }

    /// May something be written up to `end` at its place? Not where appended bytes wait for theirs.
    pub fn may_place(&mut self, end: u64) -> bool {
        self.append_from = self.appended_from();
        self.append_from.is_none_or(|from| end <= from)
    }

    /// The file is cut to `size` here.
    pub fn cut(&mut self, keep: &Keep, file: FileId, size: u64) {
        let end = self.appended_from().unwrap_or(u64::MAX);
        self.overlay.cut(size.min(end)..end);
        self.cut_kept(keep, file, size..u64::MAX);
        self.extents.truncate(size);
    }

    /// What was written at places in `range` so far is not to be kept.
    pub fn cut_kept(&mut self, keep: &Keep, file: FileId, range: Range<u64>) {
        let cut = self.placed_cut(file, range, self.kept.last);
        self.kept.cut(keep, &[cut]);
    }

    fn placed_cut(&self, file: FileId, range: Range<u64>, upto: u64) -> Cut {
        Cut { file, space: Space::Placed, start: range.start, end: range.end, upto }
    }

    /// What is not to be kept any more when these runs are committed.
    pub fn cuts(&self, file: FileId, arrivals: &[(SealId, Extent)]) -> Vec<Cut> {
        let from = self.appended_from().unwrap_or(u64::MAX);
        let end = arrivals.last().map_or(0, |(_, extent)| extent.end());
        let placed = arrivals.iter().filter(|(_, extent)| extent.offset < from);
        let mut cuts: Vec<Cut> = placed
            .map(|(id, extent)| {
                let upto = self.overlay.sealed_upto(*id);
                self.placed_cut(file, extent.offset..extent.end(), upto)
            })
            .collect();
        if end > from {
            let start = self.kept.append_done;
            let end = start + (end - from);
            cuts.push(Cut { file, space: Space::Appended, start, end, upto: u64::MAX });
        }
        cuts
    }

    /// Do other clients write to it too?
    pub fn is_shared(&self) -> bool {
        self.shared_since.is_some() || self.shared_until.is_some_and(|until| Instant::now() < until)
    }

    /// Another client writes to it too.
    pub fn share(&mut self) {
        self.shared_until = Some(Instant::now() + SHARED_KEPT);
    }

    pub fn learn_page(
        &mut self,
        as_of: Version,
        attributes: &Attributes,
        offset: u64,
        page: &ExtentPage,
    ) -> bool {
        let is_news = self.learn(as_of, attributes);
        if is_news {
            self.extents.learn(offset, &page.extents, page.covered);
        }
        is_news
    }

    /// An own change was answered. Extents of before stay only if nobody else can have changed the
    /// file meanwhile.
    pub fn learn_change(&mut self, as_of: Version, attributes: &Attributes, was_alone: bool) {
        if !was_alone {
            self.is_foreign = true;
            self.forget_extents();
        }
        self.as_of = self.as_of.max(as_of);
        if was_alone {
            self.door.changed_here(self.version, attributes.version);
        } else {
            self.door.hear(attributes.version);
        }
        self.version = attributes.version;
        self.set_size(attributes.size);
    }

    /// The MDS gave a version to what an own change left behind.
    pub fn settle(&mut self, left: Version, version: Version, as_of: Version) {
        if self.version == left {
            (self.version, self.as_of) = (version, self.as_of.max(as_of));
        }
        self.door.changed_here(left, version);
    }

    /// What the MDS says of the file, with what it does not know yet; says whether there is such.
    pub fn patch(&self, attributes: &mut Attributes) -> bool {
        if !self.is_dirty() {
            return false;
        }
        attributes.size = attributes.size.max(self.overlay.end());
        // `tar -S` takes a file without blocks for one hole. What is written over counts twice,
        // within the size, until it is committed.
        let stored = attributes.stored.saturating_add(self.overlay.bytes() as u64);
        attributes.stored = attributes.stored.max(stored.min(attributes.size));
        if let Some(written) = self.mtime {
            let before = (attributes.mtime, attributes.ctime);
            let after = Time::after_write(before, written);
            (attributes.mtime, attributes.ctime) =
                if self.keeps_mtime { (written, attributes.ctime) } else { after };
        }
        if self.clears_setid {
            let may_setgid = self.writer.may_setgid(attributes.gid);
            attributes.mode = attributes.mode.without_setid(may_setgid);
        }
        true
    }
}

/// How many written bytes may be held at once.
pub(crate) struct Budget {
    used: Mutex<usize>,
    max: usize,
    freed: Notify,
}

impl Budget {
    pub fn new(max: usize) -> Self {
        Self { used: Mutex::new(0), max, freed: Notify::new() }
    }

    fn change(&self, before: usize, after: usize) {
        if before == after {
            return;
        }
        {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            *used = (*used + after).saturating_sub(before);
            METRICS.client_dirty_bytes.set(*used as i64);
        }
        if after < before {
            self.freed.notify_waiters();
        }
    }

    pub fn used(&self) -> usize {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is there room for a writer? One larger than all the room may write alone.
    pub fn has_room(&self, bytes: usize) -> bool {
        let used = self.used();
        used == 0 || used + bytes <= self.max
    }

    /// Past this, runs are sent before they are whole.
    pub fn is_short(&self) -> bool {
        self.used() > self.max / 2
    }

    /// Waits until `bytes` more may be held.
    pub async fn room(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.has_room(bytes) {
                return;
            }
            freed.await;
        }
    }
}
