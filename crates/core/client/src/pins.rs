//! Trees that are kept here for times without servers: `tieline pin`.
//!
//! A pinned tree is walked when it is pinned, when a process takes up the pins of an earlier one,
//! whenever an MDS welcomed us anew or leases lapsed, and when one of its directories was recalled,
//! since what was known under those leases is gone then: names, attributes, targets of links,
//! extents and small files are fetched, so that they are known when the servers are away
//! ([`crate::away`]). What is still known is not asked again. The chunks of larger files are
//! brought into the node's cache, whole, and stay there; without such a cache a tree that has any
//! is refused.
//!
//! Pinned is by virtual attributes of a directory, which are read: whoever may read it may pin it,
//! also where nothing may be written. `user.tieline.pin.set` pins, `user.tieline.pin.drop` lets go,
//! `user.tieline.pin` tells how far it is, and `user.tieline.pins`, of any file, which there are.
//!
//! With a node's cache a pin lasts until it is let go: the words that it has there name the tree
//! and whoever pinned it. A user who proves himself is known again when he next opens a directory.
//!
//! What is known of the tree is put down there, too ([`seen`]): for a process that begins while the
//! servers are away.
//!
//! Invariants: at most [`PINS_MAX`] trees, together of fewer files than the cache remembers, which
//! then make no room for others; a walk has at most [`AT_ONCE`] requests for names under way, and
//! [`CHUNKS_AT_ONCE`] chunks; walks take at most a part of the time ([`APART`]).

use crate::file::File;
use crate::files::PINNED_MAX;
use crate::shared::{Shared, lock};
use crate::{Error, Listed, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_bytes::Whose;
use tieline_types::{
    Caller, ChunkId, ChunkRef, Content, ErrorKind, FileId, FileKind, Gid, Uid, XattrName,
};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

mod seen;
use seen::Seen;

pub(crate) const NAME: &[u8] = b"user.tieline.pin";
pub(crate) const ALL: &[u8] = b"user.tieline.pins";
pub(crate) const SET: &[u8] = b"user.tieline.pin.set";
pub(crate) const DROP: &[u8] = b"user.tieline.pin.drop";
const PINS_MAX: usize = 64;
const AT_ONCE: usize = 16;
const CHUNKS_AT_ONCE: usize = 8;
const ENTRIES: usize = 1024;
/// Welcomes come in swarms, and other work goes first.
const SWARM: Duration = Duration::from_millis(500);
/// A walk that did not reach everything is repeated.
const AGAIN: Duration = Duration::from_secs(15);
/// A walk that took long is not repeated soon, whatever others change meanwhile.
const APART: u32 = 9;
const APART_MAX: Duration = Duration::from_secs(60);
/// What words of pins of ours begin with, in the cache.
const WORDS: &str = "tree ";

/// Names whose reading does something: once.
pub(crate) fn is_order(name: &XattrName) -> bool {
    [SET, DROP].contains(&name.as_bytes())
}

/// All pins of a mount.
#[derive(Default)]
pub(crate) struct Pins {
    trees: Mutex<BTreeMap<FileId, Arc<Pin>>>,
    due: Arc<Notify>,
    /// There are trees of users who prove themselves.
    has_provers: AtomicBool,
    /// What an earlier process knew, until the servers are met or found to be away.
    recalled: Mutex<Seen>,
}

struct Pin {
    caller: Mutex<Caller>,
    /// Under which words the cache has it.
    words: String,
    progress: Mutex<Progress>,
    /// What the cache keeps for it.
    chunks: Mutex<BTreeSet<ChunkId>>,
    /// What its walks found, and memory keeps for it.
    held: Mutex<Held>,
    /// Of what was put down last.
    saved: Mutex<Option<blake3::Hash>>,
}

#[derive(Clone, Default)]
struct Held {
    directories: BTreeSet<FileId>,
    files: BTreeSet<FileId>,
}

/// What the last walk found.
#[derive(Clone, Default)]
struct Progress {
    files: u64,
    bytes: u64,
    failed: u64,
    is_done: bool,
    /// Without a cache it cannot be kept: it is not walked again.
    is_refused: bool,
    /// The first thing that failed.
    why: Option<String>,
}

/// A chunk of a file of the tree.
struct Wanted {
    chunk: ChunkRef,
    whose: Whose,
}

impl Progress {
    fn fail(&mut self, why: String) {
        self.failed += 1;
        self.why.get_or_insert(why);
    }

    /// As JSON.
    fn text(&self) -> String {
        let Self { files, bytes, failed, is_done, is_refused, why } = self;
        let why = plain(why.as_deref().unwrap_or_default());
        format!(
            "{{\"is_done\":{is_done},\"is_refused\":{is_refused},\"files\":{files},\
             \"bytes\":{bytes},\"failed\":{failed},\"why\":\"{why}\"}}"
        )
    }
}

impl Held {
    /// Takes what a walk found: if that is not all, what was not seen may be there still.
    fn take(&mut self, listed: &[(FileId, Vec<Listed>)], is_all: bool) {
        if is_all {
            *self = Self::default();
        }
        self.directories.extend(listed.iter().map(|(id, _)| *id));
        let entries = listed.iter().flat_map(|(_, entries)| entries);
        let files = entries.filter(|entry| entry.kind == FileKind::Regular);
        self.files.extend(files.map(|entry| entry.id));
    }
}

impl Pin {
    fn new(caller: Caller, words: String) -> Arc<Self> {
        Arc::new(Self {
            caller: Mutex::new(caller),
            words,
            progress: Mutex::default(),
            chunks: Mutex::default(),
            held: Mutex::default(),
            saved: Mutex::default(),
        })
    }

    fn caller(&self) -> Caller {
        lock(&self.caller).clone()
    }
}

impl Pins {
    /// What was known is gone: the trees are fetched again.
    pub fn renew(&self) {
        if !lock(&self.trees).is_empty() {
            self.due.notify_one();
        }
    }

    /// A user is here: with another proof than his pins know him by, perhaps.
    pub fn note(&self, caller: &Caller) {
        if caller.proof.is_none() || !self.has_provers.load(Ordering::Relaxed) {
            return;
        }
        let mut is_news = false;
        for pin in lock(&self.trees).values() {
            let mut known = lock(&pin.caller);
            if known.uid == caller.uid && known.proof != caller.proof {
                *known = caller.clone();
                is_news = true;
            }
        }
        if is_news {
            self.due.notify_one();
        }
    }

    fn has(&self, words: &str) -> bool {
        lock(&self.trees).values().any(|pin| pin.words == words)
    }

    fn words(&self) -> Vec<String> {
        lock(&self.trees).values().map(|pin| pin.words.clone()).collect()
    }

    /// Was each walked here without a failure?
    fn are_whole(&self) -> bool {
        lock(&self.trees).values().all(|pin| {
            let progress = lock(&pin.progress);
            progress.is_done && progress.failed == 0
        })
    }

    fn add(&self, id: FileId, pin: Arc<Pin>) {
        if !pin.caller().is_root() {
            self.has_provers.store(true, Ordering::Relaxed);
        }
        lock(&self.trees).insert(id, pin);
        self.due.notify_one();
    }
}

/// Goes on with the pins of an earlier process, once the cache is there that has them.
async fn take_up(shared: Weak<Shared>) {
    let node = shared.upgrade().and_then(|shared| shared.near.node.clone());
    let Some(node) = node else { return };
    node.there().await;
    for words in node.pinned().await {
        let (Some(shared), Some((id, caller))) = (shared.upgrade(), tree_of(&words)) else {
            continue;
        };
        shared.load_seen(&words).await;
        if !shared.pins.has(&words) {
            shared.pins.add(id, Pin::new(caller, words));
        }
    }
}

/// Walks pinned trees when there is reason to.
pub(crate) async fn run(shared: Weak<Shared>) {
    let Some(due) = shared.upgrade().map(|shared| shared.pins.due.clone()) else { return };
    tokio::spawn(take_up(shared.clone()));
    let (mut is_whole, mut earliest) = (true, Instant::now());
    loop {
        match is_whole {
            true => due.notified().await,
            false => drop(tokio::time::timeout(AGAIN, due.notified()).await),
        }
        tokio::time::sleep_until(earliest.max(Instant::now() + SWARM)).await;
        let begun = Instant::now();
        let Some(shared) = shared.upgrade() else { return };
        let trees: Vec<_> =
            lock(&shared.pins.trees).iter().map(|(id, pin)| (*id, pin.clone())).collect();
        is_whole = true;
        for (id, pin) in trees {
            if lock(&pin.progress).is_refused {
                continue;
            }
            let progress = shared.walk(id, &pin).await;
            is_whole &= progress.failed == 0 && shared.is_held(&pin);
            *lock(&pin.progress) = progress;
        }
        earliest = Instant::now() + (begun.elapsed() * APART).min(APART_MAX);
    }
}

impl Shared {
    pub(crate) async fn pin(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<()> {
        if !self.attributes(caller, id).await?.attributes.is_directory() {
            return Err(Error::local(ErrorKind::NotDirectory, "only directories are pinned"));
        }
        let known = lock(&self.pins.trees).get(&id).cloned();
        if known.is_none() && lock(&self.pins.trees).len() >= PINS_MAX {
            let text = format!("{PINS_MAX} trees are pinned already");
            return Err(Error::local(ErrorKind::NoSpace, text));
        }
        let words = known.map_or_else(|| words_of(id, caller), |known| known.words.clone());
        if let Some(node) = &self.near.node {
            let chunks = Some(Vec::new());
            let failed = |why| Error::local(ErrorKind::StorageFault, why);
            let is_there = node.pinned().await.contains(&words);
            if !is_there {
                node.pin(&words, chunks).await.map_err(failed)?;
            }
        }
        self.pins.add(id, Pin::new(caller.clone(), words));
        Ok(())
    }

    /// Only who pinned a tree lets it go, or root.
    pub(crate) async fn unpin(&self, caller: &Caller, id: FileId) -> Result<()> {
        let none = || Error::local(ErrorKind::NoAttribute, "a pin");
        let pin = lock(&self.pins.trees).get(&id).cloned().ok_or_else(none)?;
        if !caller.is_root() && pin.caller().uid != caller.uid {
            return Err(Error::local(ErrorKind::NotPermitted, "another user's pin"));
        }
        lock(&self.pins.trees).remove(&id);
        self.hold_names();
        if let Some(node) = &self.near.node {
            let failed = |why| Error::local(ErrorKind::StorageFault, why);
            node.pin(&pin.words, None).await.map_err(failed)?;
        }
        Ok(())
    }

    /// How far a pinned tree is here, as JSON.
    pub(crate) fn pinned(&self, id: FileId) -> Option<String> {
        let pin = lock(&self.pins.trees).get(&id).cloned()?;
        let text = lock(&pin.progress).text();
        Some(text)
    }

    /// The pins of a user, or all for root, as a JSON list: where each tree is, as far as that is
    /// known, the words under which the cache has it, and how far it is here.
    pub(crate) fn all_pinned(&self, caller: &Caller) -> String {
        let trees: Vec<_> =
            lock(&self.pins.trees).iter().map(|(id, pin)| (*id, pin.clone())).collect();
        let row = |(id, pin): &(FileId, Arc<Pin>)| {
            let tables = self.cache.lock();
            let is_placed = tables.unplaced(*id).is_none_or(|top| top == self.root);
            let path = String::from_utf8_lossy(&tables.path(*id)).into_owned();
            drop(tables);
            let path = is_placed.then(|| format!("\"/{}\"", plain(&path)));
            let path = path.unwrap_or_else(|| "null".to_owned());
            let (uid, words, state) = (pin.caller().uid, &pin.words, lock(&pin.progress).text());
            let tree = format!("\"path\":{path},\"uid\":{uid},\"words\":\"{words}\"");
            format!("{{{tree},\"state\":{state}}}")
        };
        let own =
            trees.iter().filter(|(_, pin)| caller.is_root() || pin.caller().uid == caller.uid);
        format!("[{}]", own.map(row).collect::<Vec<_>>().join(","))
    }

    /// A unit was taken away or let go: is it of a pinned tree?
    pub(crate) fn renew_pins(&self, unit: FileId) {
        if self.cache.lock().pinned.contains(&unit) {
            self.pins.renew();
        }
    }

    /// Is the tree known as the walk left it? Where others write all the time no lease is had.
    fn is_held(&self, pin: &Pin) -> bool {
        let tables = self.cache.lock();
        lock(&pin.held).directories.iter().all(|&id| tables.is_complete(id))
    }

    /// What all trees have makes no room for others; what none has any more does.
    fn hold_names(&self) {
        let mut all = Held::default();
        for pin in lock(&self.pins.trees).values() {
            let held = lock(&pin.held).clone();
            all.directories.extend(held.directories);
            all.files.extend(held.files);
        }
        self.cache.lock().pinned = all.directories;
        self.files.keep_pinned(&all.files);
    }

    /// How many files may be walked for a tree, beside those of the others: some of the room is for
    /// what is not pinned.
    fn files_max(&self, top: FileId) -> u64 {
        let trees = lock(&self.pins.trees);
        let others = trees.iter().filter(|(id, _)| **id != top);
        let others: u64 = others.map(|(_, pin)| lock(&pin.progress).files).sum();
        let room = self.settings.inodes_max as u64;
        (room - room / 4).saturating_sub(others)
    }

    /// Fetches a tree.
    async fn walk(self: &Arc<Self>, top: FileId, pin: &Pin) -> Progress {
        let caller = pin.caller();
        let (mut progress, wanted, listed) = self.walk_names(top, &caller).await;
        if self.near.node.is_none() && !wanted.is_empty() {
            *lock(&pin.held) = Held::default();
            self.hold_names();
            let files: BTreeSet<_> = wanted.iter().map(|wanted| wanted.whose.file).collect();
            let why = format!("{} files are too large to be kept without a cache", files.len());
            return Progress { is_refused: true, why: Some(why), ..progress };
        }
        lock(&pin.held).take(&listed, progress.failed == 0);
        self.hold_names();
        let chunks = wanted.iter().map(|one| one.chunk.chunk).collect();
        if let Err(why) = self.hold(pin, chunks, progress.failed == 0).await {
            progress.fail(why);
        }
        self.store_all(wanted, &mut progress).await;
        if progress.failed == 0
            && self.pins.has(&pin.words)
            && self.near.node.is_some()
            && let Err(why) = self.save_seen(pin, self.see(top, &listed)).await
        {
            progress.fail(why);
        }
        progress
    }

    /// Has the chunks of a tree stay in the cache, before they are brought.
    async fn hold(
        &self,
        pin: &Pin,
        mut chunks: BTreeSet<ChunkId>,
        is_all: bool,
    ) -> Result<(), String> {
        let Some(node) = &self.near.node else { return Ok(()) };
        if !is_all {
            let before = lock(&pin.chunks).clone();
            // An earlier process knew more than a walk that failed.
            if before.is_empty() {
                return Ok(());
            }
            // What was not seen this time may be there still.
            chunks.extend(before);
        }
        node.pin(&pin.words, Some(chunks.iter().copied().collect())).await?;
        *lock(&pin.chunks) = chunks;
        if !self.pins.has(&pin.words) {
            // It was let go during the walk.
            node.pin(&pin.words, None).await?;
        }
        Ok(())
    }

    /// Fetches names, attributes and extents of a tree; gives back its chunks, and what directories
    /// hold.
    async fn walk_names(
        self: &Arc<Self>,
        top: FileId,
        caller: &Caller,
    ) -> (Progress, Vec<Wanted>, Vec<(FileId, Vec<Listed>)>) {
        let (mut progress, mut wanted) =
            (Progress { is_done: true, ..Progress::default() }, vec![]);
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let (mut directories, mut files) = (vec![top], JoinSet::new());
        let (mut listed, files_max) = (Vec::new(), self.files_max(top));
        while let Some(directory) = directories.pop() {
            // From here on a recall of it is heard of.
            self.cache.lock().pinned.insert(directory);
            let entries = match self.entries(caller, directory).await {
                Ok(entries) => entries,
                Err(error) => {
                    progress.fail(error.to_string());
                    continue;
                }
            };
            for entry in &entries {
                let (id, kind) = (entry.id, entry.kind);
                progress.files += 1;
                if progress.files > files_max {
                    progress.fail("there are more files than can be remembered".to_owned());
                    continue;
                }
                if kind == FileKind::Directory {
                    directories.push(id);
                    continue;
                }
                let Ok(place) = places.clone().acquire_owned().await else { continue };
                let (shared, caller) = (self.clone(), caller.clone());
                files.spawn(async move {
                    let _place = place;
                    shared.fetch_names(&caller, id, kind).await
                });
                while let Some(joined) = files.try_join_next() {
                    progress.take(joined, &mut wanted);
                }
            }
            listed.push((directory, entries));
        }
        while let Some(joined) = files.join_next().await {
            progress.take(joined, &mut wanted);
        }
        (progress, wanted, listed)
    }

    /// Brings chunks into the node's cache.
    async fn store_all(self: &Arc<Self>, wanted: Vec<Wanted>, progress: &mut Progress) {
        let mut storing = JoinSet::new();
        // Files are counted, not their chunks.
        let mut lacking = BTreeSet::new();
        let mut stored =
            |joined: Result<(FileId, Result<(), String>), tokio::task::JoinError>| match joined {
                Ok((_, Ok(()))) => {}
                Ok((file, Err(why))) => {
                    if lacking.insert(file) {
                        progress.fail(why);
                    }
                }
                Err(error) => progress.fail(error.to_string()),
            };
        for Wanted { chunk, whose } in wanted {
            if storing.len() >= CHUNKS_AT_ONCE
                && let Some(joined) = storing.join_next().await
            {
                stored(joined);
            }
            let shared = self.clone();
            storing.spawn(
                async move { (whose.file, shared.chunks.store_whole(&chunk, &whose).await) },
            );
        }
        while let Some(joined) = storing.join_next().await {
            stored(joined);
        }
    }

    /// All entries of a directory.
    async fn entries(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<Vec<Listed>> {
        let handle = self.open_directory(caller, id).await?;
        let (mut entries, mut from): (Vec<Listed>, u64) = (Vec::new(), 0);
        let outcome = loop {
            match self.read_directory(handle, from, ENTRIES, true).await {
                Ok(page) => {
                    let Some(last) = page.last() else { break Ok(()) };
                    from = last.next;
                    entries.extend(page);
                }
                Err(error) => break Err(error),
            }
        };
        self.handles.remove(handle);
        outcome.map(|()| entries)
    }

    /// Fetches what is known of a file, and its bytes if it is small: how many it has, and chunks.
    async fn fetch_names(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        kind: FileKind,
    ) -> Result<(u64, Vec<Wanted>)> {
        match kind {
            FileKind::Symlink => {
                return self.read_symlink(caller, id).await.map(|_| (0, Vec::new()));
            }
            FileKind::Regular => {}
            _ => return Ok((0, Vec::new())),
        }
        // What was written here is to be there, too.
        if let Some(file) = self.file_known(id).filter(|file| file.is_dirty()) {
            self.launder(&file, crate::writer::How::Flush).await?;
        }
        let access = crate::Access { read: true, ..crate::Access::default() };
        let whole = |file: &File| file.with(|state| state.extents.whole(state.size, usize::MAX));
        let known = self.open_cached(caller, id, access);
        let known = known.and_then(|known| Some((known, whole(&*self.file_known(id)?)?)));
        let (opened, extents) = match known {
            Some(known) => known,
            None => {
                let opened = self.open_at_server(caller, id, access).await?;
                let file = self.file(id);
                self.view(caller, &file, 0..opened.size).await?;
                let changed = || Error::local(ErrorKind::Conflict, format!("file {id} changes"));
                (opened, whole(&file).ok_or_else(changed)?)
            }
        };
        if !self.files.pin(id) {
            let what = format!("small files take more than {} MiB", PINNED_MAX >> 20);
            return Err(Error::local(ErrorKind::NoSpace, what));
        }
        let chunks = extents.into_iter().filter_map(|extent| match extent.content {
            Content::Chunk(chunk) => {
                let is_wanted = Arc::new(AtomicBool::new(true));
                let own = Whose::own(id, caller);
                let whose = Whose { offset: extent.offset, is_wanted, ..own };
                Some(Wanted { chunk, whose })
            }
            _ => None,
        });
        Ok((opened.size, chunks.collect()))
    }
}

impl Progress {
    /// Counts a file.
    fn take(
        &mut self,
        joined: Result<Result<(u64, Vec<Wanted>)>, tokio::task::JoinError>,
        wanted: &mut Vec<Wanted>,
    ) {
        match joined {
            Ok(Ok((bytes, chunks))) => {
                self.bytes += bytes;
                wanted.extend(chunks);
            }
            // It went while we looked.
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {}
            Ok(Err(error)) => self.fail(error.to_string()),
            Err(error) => self.fail(error.to_string()),
        }
    }
}

/// Without what would have to be escaped in JSON.
fn plain(text: &str) -> String {
    let is_plain = |letter: &char| !letter.is_control() && !['"', '\\'].contains(letter);
    text.chars().filter(is_plain).collect()
}

/// Which tree is pinned, for whom.
fn words_of(id: FileId, caller: &Caller) -> String {
    let groups: Vec<String> = caller.groups.iter().map(|gid| gid.0.to_string()).collect();
    format!("{WORDS}{:x} for {}:{}:{}", id.0, caller.uid.0, caller.gid.0, groups.join(","))
}

/// The same, read.
fn tree_of(words: &str) -> Option<(FileId, Caller)> {
    let (id, caller) = words.strip_prefix(WORDS)?.split_once(" for ")?;
    let id = FileId(u64::from_str_radix(id, 16).ok()?);
    let mut parts = caller.splitn(3, ':');
    let uid = Uid(parts.next()?.parse().ok()?);
    let gid = Gid(parts.next()?.parse().ok()?);
    let groups = parts.next()?.split(',').filter(|gid| !gid.is_empty());
    let groups = groups.map(|gid| gid.parse().map(Gid)).collect::<Result<_, _>>().ok()?;
    Some((id, Caller { uid, gid, groups, proof: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_the_tree_and_whose_it_is() {
        for groups in [vec![], vec![Gid(4), Gid(24)]] {
            let caller = Caller { uid: Uid(1000), gid: Gid(100), groups, proof: Some(7) };
            let id = FileId(0x3_0000_0000_0042);
            let (read, whose) = tree_of(&words_of(id, &caller)).unwrap();
            assert_eq!((read, whose), (id, Caller { proof: None, ..caller }));
        }
        for other in ["/extenci/aux", "tree x for 1:1:", "tree 1", "tree 1 for 1:x:"] {
            assert!(tree_of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn progress_is_json_whatever_failed() {
        let mut progress = Progress { files: 2, ..Progress::default() };
        progress.fail("a \"quoted\" \\ line\n".to_owned());
        progress.fail("another".to_owned());
        let text = progress.text();
        assert!(text.ends_with("\"failed\":2,\"why\":\"a quoted  line\"}"), "{text}");
    }
}
