//! Metadata in bulk: asks for directories, trees and the bytes of many small files before anybody
//! waits for them, and learns what comes. [`tieline_foresight::walks`] says what and how much.
//!
//! Whoever comes to an unknown directory asks for his name alone as ever, and beside that the
//! directory is asked for: he waits for no more than he needs. Whoever comes while it is on its way
//! waits for it.
//!
//! Invariants: what comes is believed as any answer is, under leases; what a server may not tell
//! somebody is not asked of it in another's name; a server that cannot do this is not asked.

use crate::file::File;
use crate::files::Told;
use crate::shared::{Shared, lock};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_bytes::Whose;
use tieline_foresight::walks::{
    Coming, FilesJob, Flight, Job, LOADED_EXTENTS, Opened, QUIET, Rest, Run, SMALL_MAX, Under,
    VISIT_ENTRIES, Visit, Walk, Which, is_loaded, loaded,
};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    Attributes, Caller, ErrorKind, FileId, FileKind, Layout, MdtIndex, Name, ServerNumber, Version,
};
use tieline_wire::Welcome;
use tieline_wire::trees::{
    BundleList, FileBytes, FilesPage, ReadBundle, ReadFiles, ReadTree, ReadTreeReply, TreeEntry,
    TreePage,
};
use tokio::time::Instant;

/// Bytes that come with the first visit to a directory: a moment of any link.
const VISIT_BYTES: u32 = 256 << 10;
/// Bytes of a page of a walk.
const PAGE_BYTES: u32 = 1 << 20;
/// A small file in more pieces is like a large one.
const SMALL_EXTENTS_MAX: usize = 16;
/// Levels below.
const DEPTH: u32 = 64;
const VISIT_DEPTH: u32 = 3;
/// Libraries of which it is asked where they are, up to which size, and so many at once.
const LOADED_MAX: u64 = 64 << 20;
const LOADED_AT_ONCE: usize = 256;
/// Directories in one that a walk looks at.
const NEIGHBOURS_MAX: usize = 16 << 10;
/// Bytes of small files that may be on their way, or here and not read yet.
const FLYING_MAX: u64 = 16 << 20;
const REPORT_PATIENCE: Duration = Duration::from_secs(30);
/// How long whoever comes to a directory waits for what comes with the one above.
const ABOVE_PATIENCE: Duration = Duration::from_millis(250);

/// What is brought, by MDT.
#[derive(Default)]
pub(crate) struct Bulk {
    walks: Mutex<BTreeMap<MdtIndex, Walk>>,
    /// Servers that tell metadata in bulk.
    able: Mutex<BTreeSet<ServerNumber>>,
}

impl Bulk {
    pub(crate) fn with<R>(&self, mdt: MdtIndex, look: impl FnOnce(&mut Walk) -> R) -> R {
        look(lock(&self.walks).entry(mdt).or_default())
    }

    /// A server welcomed us: what it can do, and that it remembers no leases of before.
    pub fn welcomed(&self, server: ServerNumber, welcome: &Welcome) {
        if welcome.features & Welcome::TREES != 0 {
            lock(&self.able).insert(server);
        } else {
            lock(&self.able).remove(&server);
        }
        lock(&self.walks).values_mut().for_each(Walk::forget);
    }
}

async fn landed(mut flight: Flight) {
    // The sender goes when it has landed: nothing is ever sent.
    let _ = flight.changed().await;
}

impl Shared {
    fn is_far(&self, mdt: MdtIndex) -> bool {
        self.servers.mds(mdt).is_ok_and(|server| server.ways.is_far())
    }

    fn may_ask_in_bulk(&self, mdt: MdtIndex) -> bool {
        let Ok(server) = self.servers.mds(mdt) else { return false };
        let is_able = lock(&self.bulk.able).contains(&server.number);
        // Whoever is away answers nothing; what is known is told without it.
        is_able && !self.cache.lock().units.is_away(server.number)
    }

    /// Somebody looks for a name in a directory and the answer is here.
    pub(crate) fn walked(self: &Arc<Self>, caller: &Caller, directory: FileId) {
        let mdt = directory.mdt();
        if !self.bulk.with(mdt, |walk| walk.revisit(directory)) {
            return;
        }
        let parent = self.cache.lock().parent_of(directory);
        if let Some(parent) = parent.filter(|&id| self.bulk.with(mdt, |walk| walk.walks_in(id))) {
            let mut ids = self.below(caller, &[directory]);
            let behind = Some(directory);
            let tables = self.cache.lock();
            ids.extend(tables.unknown_directories(caller, parent, behind, NEIGHBOURS_MAX));
            drop(tables);
            self.bulk.with(mdt, |walk| walk.enqueue(ids, true));
        }
        self.go_on(mdt);
    }

    /// Somebody comes to a directory and finds that a name is not known, or that not all are.
    /// `true`: it has come meanwhile, perhaps.
    pub(crate) async fn come_to(
        self: &Arc<Self>,
        caller: &Caller,
        directory: FileId,
        name: Option<&Name>,
    ) -> bool {
        let mdt = directory.mdt();
        if !self.may_ask_in_bulk(mdt) {
            return false;
        }
        let parent = self.cache.lock().parent_of(directory);
        let visit = || {
            let mark = self.cache.lock().listing_mark(directory);
            let coming = Coming { directory, parent, name, mark };
            self.bulk.with(mdt, |walk| walk.visit(caller, &coming))
        };
        let mut visited = visit();
        if let Visit::WaitAbove(flight) = visited {
            // What else comes with it may wait for somebody.
            let _ = tokio::time::timeout(ABOVE_PATIENCE, landed(flight)).await;
            if self.cache.lock().is_complete(directory) {
                return true;
            }
            visited = visit();
        }
        match visited {
            Visit::Alone | Visit::WaitAbove(_) => false,
            Visit::Wait(flight) => {
                landed(flight).await;
                true
            }
            Visit::Ask { under, flight, is_walk, rest } => {
                let (shared, caller) = (self.clone(), caller.clone());
                let place = Place { directory, parent, rest };
                tokio::spawn(async move { shared.visit(&caller, place, is_walk, under).await });
                if name.is_none() {
                    landed(flight).await;
                }
                name.is_none()
            }
        }
    }

    /// Brings a directory; in a walk, what is below it and beside it, too.
    async fn visit(
        self: &Arc<Self>,
        caller: &Caller,
        Place { directory, parent, rest }: Place,
        is_walk: bool,
        under: Under,
    ) {
        let mdt = directory.mdt();
        // Over distance each level costs a round trip, and these are few bytes.
        let depth = if rest.is_none() && self.is_far(mdt) { VISIT_DEPTH } else { 0 };
        let message = ReadTree {
            roots: vec![directory],
            depth,
            entries: rest.as_ref().map_or(VISIT_ENTRIES, Rest::entries),
            bytes: if rest.is_some() { PAGE_BYTES } else { VISIT_BYTES },
            contents_max: SMALL_MAX,
            after: None,
            holder: self.servers.holder(),
        };
        if is_walk {
            let tables = self.cache.lock();
            let known = |parent| {
                tables.unknown_directories(caller, parent, Some(directory), NEIGHBOURS_MAX)
            };
            let neighbours = parent.map_or_else(Vec::new, known);
            drop(tables);
            self.bulk.with(mdt, |walk| walk.enqueue(neighbours, true));
            self.go_on(mdt);
        }
        let brought = self.ask_tree(caller, message, rest).await.unwrap_or_else(|error| {
            tracing::debug!(%directory, %error, "a directory does not come whole");
            Brought::default()
        });
        let mut below = brought.directories;
        let is_here = below.first().is_some_and(|(id, _)| *id == directory);
        below.drain(..usize::from(is_here));
        self.bulk.with(mdt, |walk| walk.arrived(directory, is_here, &below, brought.cut));
        if is_walk && is_here {
            let below = self.below(caller, &[directory]);
            self.bulk.with(mdt, |walk| walk.enqueue(below, true));
        }
        drop(under);
        self.ask_bundles(caller, mdt);
        self.go_on(mdt);
    }

    /// Directories in these whose names are not known.
    fn below(&self, caller: &Caller, directories: &[FileId]) -> Vec<FileId> {
        let tables = self.cache.lock();
        let of = |&id: &FileId| tables.unknown_directories(caller, id, None, NEIGHBOURS_MAX);
        directories.iter().flat_map(of).collect()
    }

    /// Asks what programs opened that this one may be.
    fn ask_bundles(self: &Arc<Self>, caller: &Caller, mdt: MdtIndex) {
        while let Some(which) = self.bulk.with(mdt, Walk::wanted_list) {
            let (shared, caller) = (self.clone(), caller.clone());
            tokio::spawn(async move {
                if let Err(error) = shared.ask_bundle(&caller, which).await {
                    tracing::debug!(%error, "what a program opened does not come");
                }
            });
        }
    }

    async fn ask_bundle(self: &Arc<Self>, caller: &Caller, which: Which) -> Result<()> {
        let (Which { root, number }, mdt) = (which, which.root.mdt());
        let told = self.ask(caller, root, ReadBundle { root, number }).await?;
        let list: BundleList = open_page(&told.reply.list)?;
        self.bulk.with(mdt, |walk| walk.learn_list(which, list));
        self.go_on(mdt);
        Ok(())
    }

    /// Tells the MDS what programs open, when they have opened nothing for a while.
    async fn tell_runs(self: Arc<Self>, caller: Caller, mdt: MdtIndex) {
        loop {
            tokio::time::sleep(QUIET).await;
            let (runs, goes_on) = self.bulk.with(mdt, |walk| walk.runs_to_tell(false));
            for run in runs {
                self.tell_run(&caller, mdt, run).await;
            }
            if !goes_on {
                return;
            }
        }
    }

    /// The same of what goes on when the mount ends.
    pub(crate) async fn tell_last_runs(&self, patience: Duration) {
        let mdts: Vec<MdtIndex> = lock(&self.bulk.walks).keys().copied().collect();
        let all = async {
            for mdt in mdts.into_iter().filter(|mdt| self.may_ask_in_bulk(*mdt)) {
                let told = self.bulk.with(mdt, |walk| (walk.runs_to_tell(true).0, walk.caller()));
                for run in told.0 {
                    self.tell_run(&told.1, mdt, run).await;
                }
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::debug!("what was opened last is not told");
        }
    }

    async fn tell_run(&self, caller: &Caller, mdt: MdtIndex, run: Run) {
        let message = run.report(|id| self.cache.lock().way_up(id));
        let Some(message) = message else { return };
        let root = message.root;
        let patience = self.settings.wait.min(REPORT_PATIENCE);
        match self.ask_mdt(caller, mdt, message, patience).await {
            Ok(told) => {
                if let Some(number) = told.reply.number {
                    self.bulk.with(mdt, |walk| walk.told(Which { root, number }, &run));
                }
            }
            // It was worth saying, no more.
            Err(error) => tracing::debug!(%error, "what a program opened is not told"),
        }
    }

    /// Asks for what walks come to next, as much as may be on its way.
    fn go_on(self: &Arc<Self>, mdt: MdtIndex) {
        while self.cache.lock().has_room_ahead()
            && let Some(job) = self.bulk.with(mdt, Walk::next_job)
        {
            let shared = self.clone();
            tokio::spawn(async move { shared.bring_ahead(mdt, job).await });
        }
        self.go_on_with_files(mdt);
    }

    async fn bring_ahead(self: &Arc<Self>, mdt: MdtIndex, job: Job) {
        let Job { roots, rest, entries, is_followed, caller, under } = job;
        // What came by another way needs not come again.
        let wanted: Vec<FileId> = {
            let tables = self.cache.lock();
            roots.iter().copied().filter(|&id| !tables.is_complete(id)).collect()
        };
        let rest = rest.filter(|_| wanted.first() == roots.first());
        let message = ReadTree {
            roots: wanted.clone(),
            depth: if is_followed { 0 } else { DEPTH },
            entries,
            bytes: PAGE_BYTES,
            contents_max: 0,
            after: None,
            holder: self.servers.holder(),
        };
        let outcome = match wanted.is_empty() {
            true => Ok(Brought::default()),
            false => self.ask_tree(&caller, message, rest).await,
        };
        let (told, spent, unreached, below, cut) = match outcome {
            Ok(Brought { directories, reached, spent, is_cut, cut }) => {
                // Of an answer that came to nothing more would: the first is left to its visitor.
                let last = wanted.iter().rposition(|id| reached.contains(id)).unwrap_or(0);
                let behind = wanted.iter().skip(last + 1).copied();
                let unreached: Vec<FileId> = if is_cut { behind.collect() } else { vec![] };
                let ids: Vec<FileId> = directories.iter().map(|(id, _)| *id).collect();
                let goes_below = is_cut && !is_followed;
                let below = if goes_below { self.below(&caller, &ids) } else { vec![] };
                (directories, spent, unreached, below, cut)
            }
            Err(error) => {
                tracing::debug!(%error, "directories ahead of a walk do not come");
                // It is about the first; the others may do better.
                let rest = wanted.get(1..).unwrap_or_default().to_vec();
                let is_about_one = matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::Stale | ErrorKind::NotDirectory
                );
                (vec![], 0, if is_about_one { rest } else { vec![] }, vec![], None)
            }
        };
        METRICS.client_ahead.with_label_values(&["directories"]).inc_by(told.len() as u64);
        self.bulk.with(mdt, |walk| {
            if is_followed {
                walk.followed_landed(&roots, &told, &unreached, cut);
            } else {
                walk.landed((&roots, entries.saturating_sub(spent)), &told, unreached, cut);
                walk.enqueue(below, true);
            }
        });
        drop(under);
        self.ask_bundles(&caller, mdt);
        self.go_on(mdt);
    }

    /// Asks for directories and learns them. `rest`: what is left of the first.
    async fn ask_tree(
        self: &Arc<Self>,
        caller: &Caller,
        mut message: ReadTree,
        rest: Option<Rest>,
    ) -> Result<Brought> {
        let first = message.roots.first().copied().unwrap_or_default();
        // Names that are not known any more come again.
        let rest = rest.filter(|rest| self.cache.lock().listing_mark(first) == Some(rest.mark));
        message.after = rest.as_ref().map(|rest| rest.after.clone());
        let asked = Instant::now();
        let told = self.ask(caller, first, message).await?;
        let ReadTreeReply { lease, page, capabilities, has_limits } = told.reply;
        let page: TreePage = open_page(&page)?;
        for grant in capabilities.iter().flatten() {
            self.chunks.capabilities.learn(grant, asked);
        }
        self.promises.told(has_limits == Some(true));
        let mut brought = Brought { is_cut: page.is_cut, ..Brought::default() };
        let reply = self.cache.lock().admit(told.stamp, &lease);
        let (layouts, mut loaded) = (page.layouts, vec![]);
        for mut directory in page.directories {
            let id = directory.attributes.id;
            if let Some(signs) = directory.bundles.take() {
                self.bulk.with(id.mdt(), |walk| walk.learn_signs(id, signs));
            }
            let before = rest.as_ref().filter(|_| id == first);
            let (is_known, mark) = {
                let mut tables = self.cache.lock();
                tables.learn_directory((reply, &lease), &directory, caller.is_root());
                let mark = before.map(|rest| rest.mark).or_else(|| tables.listing_mark(id));
                let mark = mark.filter(|_| tables.units.admits(id, reply.stamp, reply.as_of));
                if let Some(mark) = mark.filter(|_| directory.is_end) {
                    tables.learn_complete(id, mark);
                }
                (tables.is_complete(id), mark)
            };
            let count = directory.entries.len() as u32;
            brought.reached.insert(id);
            brought.spent += count + 1;
            if is_known {
                brought.directories.push((id, count));
            } else if let (Some(mark), Some(last)) = (mark, directory.entries.last()) {
                let count = count + before.map_or(0, |rest| rest.count);
                brought.cut = Some((id, Rest { after: last.entry.name.clone(), mark, count }));
            }
            for TreeEntry { entry, file, .. } in directory.entries {
                let Some(attributes) = &entry.attributes else { continue };
                // The bytes of smaller ones would come, too.
                let is_large = attributes.size > u64::from(Layout::INLINE_MAX);
                match file {
                    Some(file) => self.learn_bytes(lease.as_of, attributes, file, &layouts),
                    None if entry.kind != FileKind::Regular || !is_large => {}
                    None if is_loaded(&entry.name, attributes.mode) => loaded.push(entry.id),
                    None => {}
                }
            }
        }
        self.shrink();
        self.ask_where(caller, first.mdt(), loaded);
        Ok(brought)
    }

    /// Whoever loads a library waits for its bytes, and not for where they are as well.
    fn ask_where(self: &Arc<Self>, caller: &Caller, mdt: MdtIndex, files: Vec<FileId>) {
        if !self.is_far(mdt) {
            return;
        }
        for files in files.chunks(LOADED_AT_ONCE) {
            let (shared, caller, files) = (self.clone(), caller.clone(), files.to_vec());
            tokio::spawn(async move {
                if let Err(error) = shared.ask_files(&caller, files, LOADED_MAX).await {
                    tracing::debug!(%error, "where libraries are does not come ahead");
                }
            });
        }
    }

    fn learn_bytes(
        &self,
        as_of: Version,
        attributes: &tieline_types::Attributes,
        file: FileBytes,
        layouts: &[Layout],
    ) {
        let Some(layout) = layouts.get(file.layout as usize) else { return };
        let FileBytes { stripe, extents, .. } = file;
        self.files.learn(Told { attributes, as_of, layout, stripe, extents });
    }

    /// A file is opened for reading. If its bytes are not known and on their way, waits for them.
    pub(crate) async fn come_to_file(self: &Arc<Self>, caller: &Caller, id: FileId, known: bool) {
        let mdt = id.mdt();
        if !self.may_ask_in_bulk(mdt) {
            return;
        }
        let (parent, size) = {
            let mut tables = self.cache.lock();
            let size = tables.attributes(id).map_or(0, |known| known.attributes.size);
            (tables.parent_of(id), size)
        };
        let Some(parent) = parent else { return };
        let is_small = size <= SMALL_MAX;
        let has_bytes =
            known && (!is_small || self.file_known(id).is_some_and(|file| self.has_bytes(&file)));
        let (is_due, flight, used) = self.bulk.with(mdt, |walk| {
            let flight = walk.flight(id).filter(|_| !known);
            let is_coming = flight.is_some() || has_bytes || known && walk.was_opened(id);
            let is_due = walk.gather(Opened { id, parent, size }, !is_coming);
            walk.wants(id, size);
            let used = is_small.then(|| walk.opened(caller, id, parent, is_coming));
            (is_due, flight.filter(|_| is_small), used)
        });
        if is_due {
            tokio::spawn(self.clone().tell_runs(caller.clone(), mdt));
        }
        METRICS.client_ahead_bytes.with_label_values(&["used"]).inc_by(used.unwrap_or(0));
        self.ask_bundles(caller, mdt);
        self.go_on(mdt);
        if is_small {
            self.file_next(caller, parent, id);
        }
        if let Some(flight) = flight {
            landed(flight).await;
        }
    }

    /// A file was opened. Of one that is loaded parts are brought as soon as it is known where.
    pub(crate) fn bring_loaded(&self, caller: &Caller, attributes: &Attributes) {
        let Attributes { id, mode, size, .. } = *attributes;
        let is_loaded = self.cache.lock().is_loaded(id, mode);
        if is_loaded
            && self.bulk.with(id.mdt(), |walk| walk.loads(id))
            && let Some(file) = self.file_known(id)
            && let Some(extents) = file.with(|state| state.extents.whole(size, LOADED_EXTENTS))
        {
            self.chunks.bring_far(&extents, &loaded(size), &Whose::own(id, caller));
        }
    }

    /// A small file is read. If its bytes are not here any more, those of its neighbours are
    /// brought with it: kernels and we forget them by age. Waits only where the MDS must be asked
    /// anyway.
    pub(crate) async fn come_to_bytes(self: &Arc<Self>, caller: &Caller, file: &Arc<File>) {
        let (id, mdt) = (file.id, file.id.mdt());
        let is_here = self.has_bytes(file);
        let missing = file.with(|state| {
            let knows_where = state.extents.all(state.size, SMALL_EXTENTS_MAX).is_some();
            let is_missing = state.size <= SMALL_MAX && !state.is_dirty() && !is_here;
            is_missing.then_some((state.version, knows_where))
        });
        let Some((version, knows_where)) = missing.filter(|_| self.may_ask_in_bulk(mdt)) else {
            return;
        };
        let Some(parent) = self.directory_to_read(id, version) else { return };
        let flight = self.bulk.with(mdt, |walk| {
            let flight = walk.flight(id);
            if flight.is_none() {
                walk.lost(caller, id, parent);
            }
            flight
        });
        match flight {
            Some(flight) if !knows_where => landed(flight).await,
            Some(_) => {}
            None => self.file_next(caller, parent, id),
        }
    }

    /// Are all bytes of a small file here, or on their way?
    fn has_bytes(&self, file: &File) -> bool {
        file.with(|state| {
            let extents = state.extents.all(state.size, SMALL_EXTENTS_MAX);
            extents.is_some_and(|extents| self.chunks.memory.have(extents))
        })
    }

    /// The directory of a file. What is believed under no lease is not worth bringing.
    fn directory_to_read(&self, id: FileId, version: Version) -> Option<FileId> {
        let mut tables = self.cache.lock();
        let known = tables.attributes(id)?;
        let is_held = known.attributes.version == version && !known.belief.units.is_empty();
        tables.parent_of(id).filter(|_| is_held)
    }

    /// Puts files of directories where files are opened into the queue, and asks for some.
    fn file_next(self: &Arc<Self>, caller: &Caller, parent: FileId, opened: FileId) {
        let mdt = parent.mdt();
        let way = self.cache.lock().way_up(parent);
        let levels = self.bulk.with(mdt, |walk| walk.opened_at(way.len()));
        loop {
            let tables = self.cache.lock();
            let behind = |id| tables.directory_behind(id, levels);
            let next = self.bulk.with(mdt, |walk| walk.next_to_file(parent, behind));
            let Some(next) = next else { break };
            let after = Some(opened).filter(|_| next == parent);
            let mut files = tables.small_files(caller, next, after, SMALL_MAX);
            drop(tables);
            files.retain(|(id, _)| !self.files.is_inline(*id));
            self.bulk.with(mdt, |walk| walk.enqueue_files(files, next == parent));
        }
        self.go_on_with_files(mdt);
    }

    fn go_on_with_files(self: &Arc<Self>, mdt: MdtIndex) {
        loop {
            let (has_files, is_led) = self.bulk.with(mdt, |walk| (walk.has_files(), walk.is_led()));
            if !has_files {
                return;
            }
            let most = self.servers.room_ahead(is_led).min(FLYING_MAX);
            let room = most.saturating_sub(self.chunks.memory.flying() as u64);
            let room = room.min(self.chunks.memory.room_ahead() as u64);
            let Some(job) = self.bulk.with(mdt, |walk| walk.next_files(room)) else { return };
            let shared = self.clone();
            tokio::spawn(async move { shared.bring_files(mdt, job).await });
        }
    }

    async fn bring_files(self: &Arc<Self>, mdt: MdtIndex, job: FilesJob) {
        let FilesJob { files, caller, under } = job;
        let ids = files.iter().map(|(id, _)| *id).collect();
        let asked = self.ask_files(&caller, ids, SMALL_MAX);
        let (told, count) = asked.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "bytes of small files do not come ahead");
            (BTreeSet::new(), files.len())
        });
        let unreached = files.get(count..).unwrap_or_default();
        let bytes = files.iter().filter(|(id, _)| told.contains(id)).map(|(_, size)| size);
        METRICS.client_ahead_bytes.with_label_values(&["brought"]).inc_by(bytes.sum());
        self.bulk.with(mdt, |walk| walk.files_landed(&files, &told, unreached));
        drop(under);
        self.go_on_with_files(mdt);
    }

    /// Asks where the bytes of files are, learns it, and has chunks of small ones fetched. Gives
    /// those that were told, and how many were looked at.
    async fn ask_files(
        self: &Arc<Self>,
        caller: &Caller,
        ids: Vec<FileId>,
        contents_max: u64,
    ) -> Result<(BTreeSet<FileId>, usize)> {
        let first = ids.first().copied().unwrap_or_default();
        let (bytes, holder) = (PAGE_BYTES, self.servers.holder());
        let message = ReadFiles { ids, bytes, contents_max, holder };
        let asked = Instant::now();
        let told = self.ask(caller, first, message).await?;
        let (reply, stamp) = (told.reply, told.stamp);
        let page: FilesPage = open_page(&reply.page)?;
        for grant in reply.capabilities.iter().flatten() {
            self.chunks.capabilities.learn(grant, asked);
        }
        self.promises.told(reply.has_limits == Some(true));
        let lease = reply.lease;
        let basis = self.cache.lock().admit(stamp, &lease);
        let mut ids = BTreeSet::new();
        for file in page.files {
            let id = file.attributes.id;
            self.cache.lock().learn_told((basis, &lease), &file);
            if contents_max == SMALL_MAX {
                let extents = &file.bytes.extents.extents;
                self.chunks.bring_small(extents, &Whose::own(id, caller));
            }
            self.learn_bytes(lease.as_of, &file.attributes, file.bytes, &page.layouts);
            ids.insert(id);
        }
        self.shrink();
        Ok((ids, page.count as usize))
    }
}

/// What came with an answer about directories.
#[derive(Default)]
struct Brought {
    /// Those that are known whole now, with the number of their entries.
    directories: Vec<(FileId, u32)>,
    /// Those and the ones that came in part, or under no lease: asking again brings no more.
    reached: BTreeSet<FileId>,
    /// Entries of all of them, and themselves.
    spent: u32,
    is_cut: bool,
    /// What is left of the last.
    cut: Option<(FileId, Rest)>,
}

/// A directory that somebody came to.
struct Place {
    directory: FileId,
    parent: Option<FileId>,
    rest: Option<Rest>,
}

fn open_page<T>(packed: &tieline_wire::trees::Packed) -> Result<T>
where
    T: for<'b> minicbor::Decode<'b, ()>,
{
    let unreadable = |_| Error::local(ErrorKind::Protocol, "what an MDS tells in bulk");
    packed.open().map_err(unreadable)
}
