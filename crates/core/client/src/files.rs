//! The regular files that this client has something to say of.
//!
//! Files that are in use are kept whole, and so are those that were used last. Of others only what
//! an open needs is remembered ([`Closed`]), and their bytes if they are few, so that a program
//! that goes through many small files again opens and reads each without asking a server; and so
//! of files that were told in bulk before anybody opens them ([`crate::bulk`]).
//!
//! What is pinned ([`crate::pins`]) keeps its extents, whatever else is used.
//!
//! Invariants: a file is in one of the two tables at most; what is pinned takes at most
//! [`PINNED_MAX`] bytes.

use crate::file::{Budget, File, State};
use crate::shared::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use tieline_believed::door::Door;
use tieline_believed::tables::is_provisional;
use tieline_types::{Attributes, Content, Extent, FileId, Layout, OstIndex, Version};
use tieline_wire::meta::ExtentPage;

/// Files that nobody has open and that are kept whole, with their extents.
const WHOLE_MAX: usize = 4096;
/// Bytes of small files, and of what says where their bytes are, among those that are not kept
/// whole.
const BYTES_MAX: usize = 64 << 20;
/// The same of files that are pinned.
pub(crate) const PINNED_MAX: usize = 1 << 30;
/// Of files in more pieces only what is in use is remembered.
const EXTENTS_MAX: usize = 16;

pub(crate) struct Files {
    tables: Mutex<Tables>,
    budget: Arc<Budget>,
    closed_max: usize,
}

#[derive(Default)]
struct Tables {
    whole: BTreeMap<FileId, Arc<File>>,
    closed: BTreeMap<FileId, Closed>,
    /// Of the file that was closed last: most have the same.
    plan: Option<Arc<Plan>>,
    /// How many whole files there are when the next are closed.
    sweep_at: usize,
    /// Of those of `closed` that are not pinned.
    bytes: usize,
    /// Files that keep their extents, and what these take.
    pinned: BTreeMap<FileId, usize>,
    pinned_bytes: usize,
    /// Where among `closed` room was made last.
    hand: FileId,
}

/// How the bytes of a file are laid out.
#[derive(PartialEq, Eq)]
struct Plan {
    layout: Layout,
    stripe: Vec<OstIndex>,
}

/// What is remembered of a file that was not used for a while.
struct Closed {
    plan: Arc<Plan>,
    version: Version,
    as_of: Version,
    size: u64,
    /// Whose bytes the door has.
    door_has: Option<Version>,
    /// All its extents, if they are few and there is room for them.
    extents: Option<Arc<[Extent]>>,
    is_pinned: bool,
}

/// What an MDS told of a file that nobody opened yet.
pub(crate) struct Told<'a> {
    pub attributes: &'a Attributes,
    pub as_of: Version,
    pub layout: &'a Layout,
    pub stripe: Vec<OstIndex>,
    pub extents: ExtentPage,
}

impl Files {
    pub fn new(budget: Arc<Budget>, closed_max: usize) -> Self {
        Self { tables: Mutex::default(), budget, closed_max }
    }

    /// A file's state, made when it is first needed.
    pub fn get(&self, id: FileId) -> Arc<File> {
        let mut tables = lock(&self.tables);
        if let Some(file) = tables.whole.get(&id) {
            return file.clone();
        }
        let closed = tables.forget(id);
        self.enter(&mut tables, id, closed)
    }

    /// The state of a file that is in use, or was lately.
    pub fn whole(&self, id: FileId) -> Option<Arc<File>> {
        lock(&self.tables).whole.get(&id).cloned()
    }

    /// The state of a file of which enough is remembered to open it again.
    pub fn known(&self, id: FileId) -> Option<Arc<File>> {
        let mut tables = lock(&self.tables);
        if let Some(file) = tables.whole.get(&id) {
            return Some(file.clone());
        }
        let closed = tables.forget(id)?;
        Some(self.enter(&mut tables, id, Some(closed)))
    }

    /// Are all bytes of a file that is not in use known with it?
    pub fn is_inline(&self, id: FileId) -> bool {
        let is_here = |extent: &Extent| !matches!(extent.content, Content::Chunk(_));
        let tables = lock(&self.tables);
        let closed = tables.closed.get(&id).and_then(|closed| closed.extents.as_ref());
        closed.is_some_and(|extents| extents.iter().all(is_here))
    }

    /// Takes what was told of a file, for whoever opens it.
    pub fn learn(&self, told: Told<'_>) {
        let id = told.attributes.id;
        let mut tables = lock(&self.tables);
        if let Some(file) = tables.whole.get(&id).cloned() {
            drop(tables);
            file.with(|state| {
                state.layout.get_or_insert_with(|| told.layout.clone());
                if state.stripe.is_empty() {
                    state.stripe = told.stripe;
                }
                state.learn_page(told.as_of, told.attributes, 0, &told.extents);
            });
            return;
        }
        let before = tables.closed.get(&id);
        if before.is_some_and(|before| before.as_of > told.as_of) {
            return;
        }
        let version = told.attributes.version;
        let door_has = tables.forget(id).and_then(|before| before.door_has);
        let plan = tables.plan(told.layout, told.stripe);
        let is_good = told.extents.extents.iter().all(|extent| extent.validate().is_ok())
            && told.extents.covered >= told.attributes.size;
        let one = Closed {
            plan,
            version,
            as_of: told.as_of,
            size: told.attributes.size,
            door_has,
            extents: is_good.then(|| told.extents.extents.into()),
            is_pinned: false,
        };
        if tables.closed.len() >= self.closed_max {
            tables.clear_closed();
        }
        tables.keep_closed(id, one);
    }

    /// Has a file keep its extents; `false` if there is no room for that.
    pub fn pin(&self, id: FileId) -> bool {
        let mut tables = lock(&self.tables);
        let whole = tables.whole.get(&id).cloned();
        let bytes = match (whole, tables.closed.get(&id)) {
            (Some(file), _) => file.with(|state| {
                let all = state.extents.all(state.size, usize::MAX);
                all.map_or(0, |all| all.map(weigh).sum())
            }),
            (None, closed) => closed.map_or(0, Closed::bytes),
        };
        tables.unpin(id);
        if tables.pinned_bytes + bytes > PINNED_MAX {
            return false;
        }
        // Counted as pinned from now on.
        let closed = tables.forget(id);
        tables.pinned.insert(id, bytes);
        tables.pinned_bytes += bytes;
        if let Some(closed) = closed {
            tables.keep_closed(id, closed);
        }
        true
    }

    /// Of files that were pinned, only these still are.
    pub fn keep_pinned(&self, ids: &BTreeSet<FileId>) {
        let mut tables = lock(&self.tables);
        let gone: Vec<_> = tables.pinned.keys().filter(|id| !ids.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| tables.unpin(id));
    }

    pub fn remove(&self, id: FileId) {
        let mut tables = lock(&self.tables);
        tables.whole.remove(&id);
        tables.forget(id);
    }

    /// What is remembered of a file that is not in use is not right any more.
    pub fn forget(&self, id: FileId) {
        lock(&self.tables).forget(id);
    }

    /// Those that are whole here.
    pub fn all(&self) -> Vec<Arc<File>> {
        lock(&self.tables).whole.values().cloned().collect()
    }

    /// Do programs have any open?
    pub fn are_open(&self) -> bool {
        let files: Vec<_> = lock(&self.tables).whole.values().cloned().collect();
        files.iter().any(|file| file.with(|state| state.handles > 0))
    }

    fn enter(&self, tables: &mut Tables, id: FileId, closed: Option<Closed>) -> Arc<File> {
        if tables.whole.len() >= tables.sweep_at.max(WHOLE_MAX) {
            tables.sweep(self.closed_max);
        }
        let file = Arc::new(File::new(id, self.budget.clone()));
        if let Some(closed) = closed {
            file.with(|state| closed.open(state));
        }
        tables.whole.insert(id, file.clone());
        file
    }
}

impl Tables {
    /// Closes what only this table holds: nobody has it open, and nothing of it is dirty. What the
    /// MDS has given no version yet stays: its version would be of no use.
    fn sweep(&mut self, closed_max: usize) {
        if self.closed.len() + self.whole.len() > closed_max {
            self.clear_closed();
        }
        let Self { whole, pinned, plan, .. } = self;
        let mut swept = Vec::new();
        whole.retain(|&id, file| {
            if Arc::strong_count(file) > 1 {
                return true;
            }
            file.with(|state| {
                let is_kept = is_provisional(state.version);
                let extents_max = if pinned.contains_key(&id) { usize::MAX } else { EXTENTS_MAX };
                if !is_kept && let Some(one) = Closed::new(state, plan, extents_max) {
                    swept.push((id, one));
                }
                is_kept
            })
        });
        swept.into_iter().for_each(|(id, one)| self.keep_closed(id, one));
        // A sweep looks at all: the next comes when there are twice as many.
        self.sweep_at = self.whole.len() * 2;
    }

    /// Remembers a file that is not in use. Extents of others go for it, in turn.
    fn keep_closed(&mut self, id: FileId, one: Closed) {
        let one = Closed { is_pinned: self.pinned.contains_key(&id), ..one };
        self.bytes += one.bytes_counted();
        self.closed.insert(id, one);
        while self.bytes > BYTES_MAX {
            let mut behind = self.closed.range_mut((Bound::Excluded(self.hand), Bound::Unbounded));
            let Some((&next, other)) = behind.find(|(_, other)| other.bytes_counted() > 0) else {
                if self.hand == FileId(0) {
                    return;
                }
                self.hand = FileId(0);
                continue;
            };
            self.hand = next;
            self.bytes -= other.bytes();
            other.extents = None;
        }
    }

    /// Most files are laid out as the one before.
    fn plan(&mut self, layout: &Layout, stripe: Vec<OstIndex>) -> Arc<Plan> {
        match &self.plan {
            Some(same) if same.layout == *layout && same.stripe == stripe => same.clone(),
            _ => self.plan.insert(Arc::new(Plan { layout: layout.clone(), stripe })).clone(),
        }
    }

    fn forget(&mut self, id: FileId) -> Option<Closed> {
        let closed = self.closed.remove(&id)?;
        self.bytes -= closed.bytes_counted();
        Some(closed)
    }

    /// Forgets all that are not in use and not pinned.
    fn clear_closed(&mut self) {
        self.closed.retain(|_, closed| closed.is_pinned);
        self.bytes = 0;
    }

    fn unpin(&mut self, id: FileId) {
        let Some(bytes) = self.pinned.remove(&id) else { return };
        self.pinned_bytes -= bytes;
        if let Some(closed) = self.forget(id) {
            self.keep_closed(id, closed);
        }
    }
}

impl Closed {
    /// `None` for a file whose next open should ask.
    fn new(state: &mut State, last: &mut Option<Arc<Plan>>, extents_max: usize) -> Option<Self> {
        let layout = state.layout.take()?;
        if state.version == Version(0) || state.is_orphan {
            return None;
        }
        let plan = Plan { layout, stripe: std::mem::take(&mut state.stripe) };
        let plan = match last {
            Some(same) if **same == plan => same.clone(),
            _ => last.insert(Arc::new(plan)).clone(),
        };
        let extents = state.extents.whole(state.size, extents_max).map(Arc::from);
        let State { version, as_of, size, .. } = *state;
        let (door_has, is_pinned) = (state.door.has(), false);
        Some(Self { plan, version, as_of, size, door_has, extents, is_pinned })
    }

    /// What pinned ones take is counted elsewhere.
    fn bytes_counted(&self) -> usize {
        if self.is_pinned { 0 } else { self.bytes() }
    }

    fn bytes(&self) -> usize {
        self.extents.iter().flat_map(|extents| extents.iter()).map(weigh).sum()
    }

    fn open(self, state: &mut State) {
        state.layout = Some(self.plan.layout.clone());
        state.stripe.clone_from(&self.plan.stripe);
        (state.version, state.as_of) = (self.version, self.as_of);
        (state.size, state.door) = (self.size, Door::of(self.version, self.door_has));
        if let Some(extents) = self.extents {
            state.extents.learn(0, &extents, u64::MAX);
        }
    }
}

/// Memory that an extent takes, roughly.
fn weigh(extent: &Extent) -> usize {
    match &extent.content {
        Content::Inline(bytes) => bytes.len() + 64,
        Content::Chunk(chunk) => 160 + 96 * chunk.places.len(),
        Content::Hole => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::MdtIndex;

    fn id(serial: u64) -> FileId {
        FileId::new(MdtIndex(0), serial)
    }

    fn opened(files: &Files, serial: u64, version: u64) -> Arc<File> {
        let file = files.get(id(serial));
        file.with(|state| {
            state.layout = Some(Layout::default());
            state.version = Version(version);
            state.door = Door::of(Version(version), Some(Version(version)));
            state.size = 3;
            let content = Content::Inline(format!("{serial:03}").into_bytes()[..3].to_vec());
            state.extents.commit(&Extent { offset: 0, length: 3, content });
        });
        file
    }

    #[test]
    fn what_an_open_needs_is_remembered_of_many_files() {
        let files = Files::new(Arc::new(Budget::new(1 << 20)), 1 << 20);
        let count = 5 * WHOLE_MAX as u64;
        let held = opened(&files, 1, 7);
        (2..count).for_each(|serial| drop(opened(&files, serial, 7)));
        assert!(lock(&files.tables).whole.len() <= WHOLE_MAX + 1);
        assert!(Arc::ptr_eq(&held, &files.known(id(1)).unwrap()), "it is in use");
        for serial in 2..count {
            let file = files.known(id(serial)).expect("it was there");
            let known = file.with(|state| (state.version, state.door.has(), state.size));
            assert_eq!(known, (Version(7), Some(Version(7)), 3));
            assert!(file.with(|state| state.layout.is_some()));
            let bytes = file.with(|state| state.extents.whole(3, 1)).unwrap().remove(0).content;
            assert_eq!(bytes, Content::Inline(format!("{serial:03}").into_bytes()[..3].to_vec()));
        }
        files.remove(id(2));
        assert!(files.known(id(2)).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let files = Files::new(Arc::new(Budget::new(1 << 20)), 6000);
        (1..30_000).for_each(|serial| drop(opened(&files, serial, 7)));
        let tables = lock(&files.tables);
        assert!(tables.whole.len() + tables.closed.len() <= 6000 + WHOLE_MAX);
    }

    #[test]
    fn what_is_pinned_keeps_its_bytes_whatever_comes_later() {
        const SIZE: usize = 16 << 10;
        let files = Files::new(Arc::new(Budget::new(1 << 20)), 12_000);
        let count = 2 * (BYTES_MAX / SIZE) as u64;
        let told = |serial: u64| {
            let file = files.get(id(serial));
            file.with(|state| {
                state.layout = Some(Layout::default());
                (state.version, state.size) = (Version(7), SIZE as u64);
                // In more pieces than are remembered of others.
                for piece in 0..=EXTENTS_MAX {
                    let (offset, length) = ((piece * SIZE / 32) as u64, (SIZE / 32) as u64);
                    let is_last = piece == EXTENTS_MAX;
                    let length = if is_last { SIZE as u64 - offset } else { length };
                    let content = Content::Inline(vec![serial as u8; length as usize]);
                    state.extents.commit(&Extent { offset, length, content });
                }
            });
        };
        let is_whole = |serial| {
            let known = files.known(id(serial));
            known.is_some_and(|file| {
                file.with(|state| state.extents.whole(SIZE as u64, usize::MAX).is_some())
            })
        };
        for serial in 1..=count {
            told(serial);
            assert!(files.pin(id(serial)));
        }
        (count + 1..=2 * count).for_each(told);
        assert!((1..=count).all(is_whole));
        let tables = lock(&files.tables);
        assert!(tables.pinned_bytes > BYTES_MAX && tables.bytes <= BYTES_MAX);
        drop(tables);
        files.keep_pinned(&BTreeSet::new());
        let tables = lock(&files.tables);
        assert!(tables.pinned_bytes == 0 && tables.bytes <= BYTES_MAX);
    }

    #[test]
    fn what_the_mds_does_not_know_yet_stays_whole() {
        let files = Files::new(Arc::new(Budget::new(1 << 20)), 1 << 20);
        let own = tieline_believed::tables::provisional(3);
        drop(opened(&files, 1, own.0));
        (2..3 * WHOLE_MAX as u64).for_each(|serial| drop(opened(&files, serial, 7)));
        let file = files.known(id(1)).unwrap();
        file.with(|state| state.settle(own, Version(9), Version(9)));
        assert_eq!(file.with(|state| state.version), Version(9));
    }
}
