//! Files in memory, for tests of doors: a tree and vectors of bytes, too simple to be wrong.
//!
//! It can be frozen, so that calls wait until it thaws; changed behind a door's back; told how long
//! beliefs hold; and told of directories whose server is not heard. It checks no permissions, but
//! tells strangers no attributes.

mod kept;

use crate::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tieline_owed::cause::Cause;
use tieline_types::locks::LockSet;
use tieline_types::*;
use tokio::sync::watch;

pub struct Memory {
    root: FileId,
    state: Mutex<State>,
    listener: Mutex<Option<Arc<dyn CacheListener>>>,
    /// Names of the calls that wait.
    frozen: watch::Sender<Vec<&'static str>>,
    waiting: watch::Sender<usize>,
    pub valid: Duration,
    pub keeps_cache: bool,
    /// Files may be made without a name.
    pub has_nameless: bool,
    pub callers: Mutex<Vec<Caller>>,
    pub lookups: AtomicU64,
    /// Directories of which only the map tells what is mounted in them.
    pub unheard: Mutex<Vec<FileId>>,
    /// What was said to be read from end to end.
    pub announced: Mutex<Vec<Range<u64>>>,
    pub flushes: AtomicU64,
    /// Whether each was of data only.
    pub syncs: Mutex<Vec<bool>>,
    freed: tokio::sync::Notify,
}

struct State {
    nodes: BTreeMap<FileId, Node>,
    handles: BTreeMap<HandleId, Handle>,
    locks: BTreeMap<(FileId, LockKind), LockSet<u64>>,
    counter: u64,
    /// Beliefs of older generations are overtaken.
    generation: u64,
}

#[derive(Clone)]
struct Node {
    attributes: Attributes,
    parent: FileId,
    bytes: Vec<u8>,
    entries: BTreeMap<Name, FileId>,
    xattrs: BTreeMap<XattrName, Vec<u8>>,
}

struct Handle {
    id: FileId,
    access: Access,
    caller: Caller,
    listing: Vec<(Name, FileId)>,
}

fn error(kind: ErrorKind) -> Error {
    Error::local(kind, "memory")
}

impl Memory {
    pub fn new(root: u64) -> Self {
        let root = FileId(root);
        let mut state = State {
            nodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            locks: BTreeMap::new(),
            counter: 1000,
            generation: 1,
        };
        let mut attributes = state.attributes(FileKind::Directory, Mode::new(0o755));
        attributes.id = root;
        state.insert(attributes, root, Vec::new());
        Self {
            root,
            state: Mutex::new(state),
            listener: Mutex::default(),
            frozen: watch::channel(Vec::new()).0,
            waiting: watch::channel(0).0,
            valid: Duration::from_secs(3600),
            keeps_cache: true,
            has_nameless: true,
            callers: Mutex::default(),
            lookups: AtomicU64::new(0),
            unheard: Mutex::default(),
            announced: Mutex::default(),
            flushes: AtomicU64::new(0),
            syncs: Mutex::default(),
            freed: tokio::sync::Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Calls of that name wait from now on.
    pub fn freeze(&self, call: &'static str) {
        self.frozen.send_modify(|frozen| frozen.push(call));
    }

    pub fn thaw(&self) {
        self.frozen.send_modify(Vec::clear);
    }

    /// Blocks until that many calls wait.
    pub fn wait_until_waiting(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        let enough = async { waiting.wait_for(|now| *now >= count).await.unwrap().to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(20), enough).await.expect("nobody waits")
        });
    }

    async fn gate(&self, call: &'static str) {
        if !self.frozen.borrow().contains(&call) {
            return;
        }
        struct Leave<'a>(&'a watch::Sender<usize>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|waiting| *waiting -= 1);
            }
        }
        let mut frozen = self.frozen.subscribe();
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _leave = Leave(&self.waiting);
        frozen.wait_for(|frozen| !frozen.contains(&call)).await.unwrap();
    }

    /// Another client's doing: nobody here is told.
    pub fn put_elsewhere(&self, name: &str, bytes: &[u8]) -> FileId {
        let mut state = self.lock();
        state.generation += 1;
        let name: Name = name.parse().unwrap();
        let root = self.root;
        let id = match state.nodes[&root].entries.get(&name) {
            Some(&id) => id,
            None => state.make(root, &name, FileKind::Regular, Mode::new(0o644)).unwrap(),
        };
        state.nodes.get_mut(&id).unwrap().bytes = bytes.to_vec();
        state.touch(id);
        id
    }

    pub fn remove_elsewhere(&self, name: &str) {
        let mut state = self.lock();
        state.generation += 1;
        let root = self.root;
        state.nodes.get_mut(&root).unwrap().entries.remove(&name.parse().unwrap());
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.try_bytes(name).expect("a file of that name")
    }

    pub fn try_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        let id = state.nodes[&self.root].entries.get(&name.parse::<Name>().unwrap())?;
        Some(state.nodes[id].bytes.clone())
    }

    pub fn handles(&self) -> usize {
        self.lock().handles.len()
    }

    /// Sends an invalidation and says when it is done.
    pub fn invalidate(&self, what: Invalidation) -> std::sync::mpsc::Receiver<()> {
        let (done, is_done) = std::sync::mpsc::channel();
        let listener = self.listener.lock().unwrap().clone().expect("somebody listens");
        listener.invalidate(what, Box::new(move || done.send(()).unwrap_or_default()));
        is_done
    }

    fn known(&self, id: FileId) -> Result<Known> {
        let state = self.lock();
        let node = state.node(id)?;
        let belief = Belief { units: vec![(node.parent, state.generation)] };
        Ok(Known { attributes: node.attributes.clone(), belief })
    }

    fn opened(&self, caller: &Caller, id: FileId, access: Access) -> Result<Opened> {
        let mut state = self.lock();
        if access.truncate {
            state.node_mut(id)?.bytes.clear();
            state.touch(id);
        }
        let attributes = state.node(id)?.attributes.clone();
        state.counter += 1;
        let handle = HandleId(state.counter);
        let (caller, listing) = (caller.clone(), Vec::new());
        state.handles.insert(handle, Handle { id, access, caller, listing });
        Ok(Opened { handle, attributes, keeps_cache: self.keeps_cache, is_direct: false })
    }

    fn made(&self, caller: &Caller, at: At<'_>, kind: FileKind, mode: Mode) -> Result<FileId> {
        self.callers.lock().unwrap().push(caller.clone());
        let mut state = self.lock();
        let id = state.make(at.parent, at.name, kind, mode)?;
        let attributes = &mut state.node_mut(id)?.attributes;
        (attributes.uid, attributes.gid) = (caller.uid, caller.gid);
        Ok(id)
    }
}

impl State {
    fn attributes(&mut self, kind: FileKind, mode: Mode) -> Attributes {
        self.counter += 1;
        let time = Time { seconds: 1_700_000_000 + self.counter as i64, nanos: 7 };
        Attributes {
            version: Version(self.counter),
            ..Attributes::new(FileId(self.counter), kind, mode, time)
        }
    }

    fn insert(&mut self, attributes: Attributes, parent: FileId, bytes: Vec<u8>) {
        let (entries, xattrs) = (BTreeMap::new(), BTreeMap::new());
        self.nodes.insert(attributes.id, Node { attributes, parent, bytes, entries, xattrs });
    }

    fn node(&self, id: FileId) -> Result<&Node> {
        self.nodes.get(&id).ok_or_else(|| error(ErrorKind::Stale))
    }

    fn node_mut(&mut self, id: FileId) -> Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or_else(|| error(ErrorKind::Stale))
    }

    fn handle(&self, handle: HandleId) -> Result<&Handle> {
        self.handles.get(&handle).ok_or_else(|| error(ErrorKind::BadHandle))
    }

    fn entry(&self, at: At<'_>) -> Result<FileId> {
        let entries = &self.node(at.parent)?.entries;
        entries.get(at.name).copied().ok_or_else(|| error(ErrorKind::NotFound))
    }

    fn make(&mut self, parent: FileId, name: &Name, kind: FileKind, mode: Mode) -> Result<FileId> {
        if self.node(parent)?.entries.contains_key(name) {
            return Err(error(ErrorKind::Exists));
        }
        let attributes = self.attributes(kind, mode);
        let id = attributes.id;
        self.insert(attributes, parent, Vec::new());
        self.node_mut(parent)?.entries.insert(name.clone(), id);
        Ok(id)
    }

    fn touch(&mut self, id: FileId) {
        self.counter += 1;
        let now = Time { seconds: 1_700_000_000 + self.counter as i64, nanos: 0 };
        let version = Version(self.counter);
        let Ok(node) = self.node_mut(id) else { return };
        let size = node.bytes.len() as u64;
        let attributes = &mut node.attributes;
        (attributes.mtime, attributes.ctime, attributes.version) = (now, now, version);
        (attributes.size, attributes.stored) = (size, size);
    }

    fn clear_privileges(&mut self, id: FileId) -> Result<()> {
        let attributes = &mut self.node_mut(id)?.attributes;
        attributes.mode = attributes.mode.without(Mode::SETUID | Mode::SETGID);
        Ok(())
    }

    fn drop_link(&mut self, id: FileId) -> Result<()> {
        self.node_mut(id)?.attributes.links -= 1;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Files for Memory {
    fn root(&self) -> FileId {
        self.root
    }

    async fn lookup(&self, _: &Caller, parent: FileId, name: &Name) -> Result<Found> {
        self.gate("lookup").await;
        self.lookups.fetch_add(1, Ordering::Relaxed);
        assert_ne!(name.as_bytes(), b"panic", "a request that panics");
        let state = self.lock();
        let belief = Belief { units: vec![(parent, state.generation)] };
        let attributes = match state.entry(At { parent, name }) {
            Ok(id) => Some(state.node(id)?.attributes.clone()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Found { attributes, entry: belief.clone(), belief })
    }

    fn mounted_at(&self, parent: FileId, name: &Name) -> Option<FileId> {
        let is_unheard = self.unheard.lock().unwrap().contains(&parent);
        if is_unheard { self.lock().entry(At { parent, name }).ok() } else { None }
    }

    async fn parent(&self, _: &Caller, directory: FileId) -> Result<FileId> {
        Ok(self.lock().node(directory)?.parent)
    }

    async fn way_to(&self, _: &Caller, directory: FileId) -> Result<Vec<Name>> {
        let (state, mut at, mut way) = (self.lock(), directory, Vec::new());
        while at != self.root {
            let parent = state.node(at)?.parent;
            let mut entries = state.node(parent)?.entries.iter();
            let (name, _) = entries.find(|(_, id)| **id == at).ok_or(error(ErrorKind::NotFound))?;
            way.insert(0, name.clone());
            at = parent;
        }
        Ok(way)
    }

    async fn attributes(&self, caller: &Caller, id: FileId) -> Result<Known> {
        self.gate("attributes").await;
        if *caller == Caller::stranger() {
            return Err(error(ErrorKind::PermissionDenied));
        }
        self.known(id)
    }

    async fn set_attributes(
        &self,
        _: &Caller,
        id: FileId,
        _: Option<HandleId>,
        change: AttributeChange,
    ) -> Result<Known> {
        let mut state = self.lock();
        if let Some(size) = change.size {
            state.node_mut(id)?.bytes.resize(size as usize, 0);
            state.touch(id);
        }
        let now = state.attributes(FileKind::Regular, Mode::default()).mtime;
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let attributes = &mut state.node_mut(id)?.attributes;
        attributes.mode = change.mode.unwrap_or(attributes.mode);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.atime = change.atime.map_or(attributes.atime, time);
        attributes.mtime = change.mtime.map_or(attributes.mtime, time);
        attributes.ctime = now;
        if change.uid.is_some() || change.gid.is_some() {
            state.clear_privileges(id)?;
        }
        drop(state);
        self.known(id)
    }

    async fn create(&self, caller: &Caller, at: At<'_>, new: NewFile) -> Result<(Known, Opened)> {
        self.gate("create").await;
        let mode = new.mode.without(new.umask.bits());
        let id = match self.made(caller, at, FileKind::Regular, mode) {
            Err(error) if error.kind() == ErrorKind::Exists && !new.is_exclusive => {
                self.lock().entry(at)?
            }
            made => made?,
        };
        Ok((self.known(id)?, self.opened(caller, id, new.access)?))
    }

    async fn create_nameless(
        &self,
        caller: &Caller,
        parent: FileId,
        new: NewFile,
    ) -> Result<(Known, Opened)> {
        if !self.has_nameless {
            return Err(error(ErrorKind::NotSupported));
        }
        let id = {
            let mut state = self.lock();
            let mut attributes = state.attributes(FileKind::Regular, new.mode);
            attributes.links = 0;
            let id = attributes.id;
            state.insert(attributes, parent, Vec::new());
            id
        };
        Ok((self.known(id)?, self.opened(caller, id, new.access)?))
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        at: At<'_>,
        mode: Mode,
        umask: Mode,
    ) -> Result<Known> {
        let id = self.made(caller, at, FileKind::Directory, mode.without(umask.bits()))?;
        self.lock().node_mut(at.parent)?.attributes.links += 1;
        self.known(id)
    }

    async fn make_symlink(&self, caller: &Caller, at: At<'_>, target: &[u8]) -> Result<Known> {
        let id = self.made(caller, at, FileKind::Symlink, Mode::new(0o777))?;
        self.lock().node_mut(id)?.bytes = target.to_vec();
        self.lock().touch(id);
        self.known(id)
    }

    async fn make_node(&self, caller: &Caller, at: At<'_>, node: NewNode) -> Result<Known> {
        let id = self.made(caller, at, node.kind, node.mode.without(node.umask.bits()))?;
        self.lock().node_mut(id)?.attributes.device = node.device;
        self.known(id)
    }

    async fn link(&self, _: &Caller, id: FileId, at: At<'_>) -> Result<Known> {
        let mut state = self.lock();
        if state.entry(at).is_ok() {
            return Err(error(ErrorKind::Exists));
        }
        state.node_mut(id)?.attributes.links += 1;
        state.node_mut(at.parent)?.entries.insert(at.name.clone(), id);
        drop(state);
        self.known(id)
    }

    async fn put_in_place(
        &self,
        caller: &Caller,
        id: FileId,
        at: At<'_>,
        replaces: bool,
    ) -> Result<Known> {
        self.gate("put_in_place").await;
        let other = self.lock().entry(at);
        if let Ok(other) = other
            && replaces
        {
            let mut state = self.lock();
            if state.node(other)?.attributes.is_directory() {
                return Err(error(ErrorKind::IsDirectory));
            }
            state.node_mut(at.parent)?.entries.remove(at.name);
            state.drop_link(other)?;
        }
        self.link(caller, id, at).await
    }

    async fn unlink(&self, _: &Caller, at: At<'_>) -> Result<()> {
        let mut state = self.lock();
        let id = state.entry(at)?;
        state.node_mut(at.parent)?.entries.remove(at.name);
        state.drop_link(id)
    }

    async fn remove_directory(&self, _: &Caller, at: At<'_>) -> Result<()> {
        let mut state = self.lock();
        let id = state.entry(at)?;
        if !state.node(id)?.entries.is_empty() {
            return Err(error(ErrorKind::NotEmpty));
        }
        state.node_mut(at.parent)?.entries.remove(at.name);
        state.drop_link(at.parent)
    }

    async fn rename(&self, _: &Caller, from: At<'_>, to: At<'_>, mode: RenameMode) -> Result<()> {
        let mut state = self.lock();
        let id = state.entry(from)?;
        let replaced = state.entry(to).ok();
        if replaced.is_some() && !mode.replaces() && mode != RenameMode::Exchange {
            return Err(error(ErrorKind::Exists));
        }
        state.node_mut(from.parent)?.entries.remove(from.name);
        if mode.leaves_whiteout() {
            let whiteout = state.attributes(FileKind::CharDevice, Mode::new(0));
            let (id, parent) = (whiteout.id, from.parent);
            state.insert(whiteout, parent, Vec::new());
            state.node_mut(parent)?.entries.insert(from.name.clone(), id);
        }
        state.node_mut(to.parent)?.entries.insert(to.name.clone(), id);
        state.node_mut(id)?.parent = to.parent;
        match replaced {
            Some(other) if mode == RenameMode::Exchange => {
                state.node_mut(from.parent)?.entries.insert(from.name.clone(), other);
            }
            Some(other) => state.drop_link(other)?,
            None => {}
        }
        Ok(())
    }

    async fn read_symlink(&self, _: &Caller, id: FileId) -> Result<Vec<u8>> {
        Ok(self.lock().node(id)?.bytes.clone())
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Opened> {
        self.gate("open").await;
        self.opened(caller, id, access)
    }

    async fn read(&self, handle: HandleId, offset: u64, length: u32) -> Result<Vec<Bytes>> {
        self.gate("read").await;
        let state = self.lock();
        let bytes = &state.node(state.handle(handle)?.id)?.bytes;
        let from = (offset as usize).min(bytes.len());
        let to = (from + length as usize).min(bytes.len());
        // Odd pieces, as extents give them.
        Ok(bytes[from..to].chunks(300_001).map(Bytes::copy_from_slice).collect())
    }

    async fn read_ranges(
        &self,
        handle: HandleId,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Vec<Bytes>>> {
        check_ranges(ranges)?;
        let mut all = Vec::new();
        for range in ranges {
            all.push(self.read(handle, range.start, (range.end - range.start) as u32).await?);
        }
        Ok(all)
    }

    fn announce(&self, _: HandleId, range: Range<u64>) {
        self.announced.lock().unwrap().push(range);
    }

    async fn write_as(
        &self,
        handle: HandleId,
        offset: u64,
        how: Writing,
        data: Bytes,
    ) -> Result<()> {
        self.gate("write").await;
        let mut state = self.lock();
        let Handle { id, access, ref caller, .. } = *state.handle(handle)?;
        let by_root = caller.is_root();
        if !access.write {
            return Err(error(ErrorKind::BadHandle));
        }
        let bytes = &mut state.node_mut(id)?.bytes;
        let appends = how.appends.unwrap_or(access.append);
        let at = if appends { bytes.len() } else { offset as usize };
        if bytes.len() < at + data.len() {
            bytes.resize(at + data.len(), 0);
        }
        bytes[at..at + data.len()].copy_from_slice(&data);
        if how.ends_setid.unwrap_or(!by_root) {
            state.clear_privileges(id)?;
        }
        state.touch(id);
        drop(state);
        if appends && !access.append {
            let (attributes, data) = (vec![id], vec![id]);
            drop(self.invalidate(Invalidation { attributes, data, ..Invalidation::default() }));
        }
        Ok(())
    }

    async fn flush(&self, _: HandleId) -> Result<()> {
        self.gate("flush").await;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn sync(&self, _: HandleId, is_data_only: bool) -> Result<()> {
        self.syncs.lock().unwrap().push(is_data_only);
        Ok(())
    }

    async fn release(&self, handle: HandleId) {
        let mut state = self.lock();
        let Some(Handle { id, .. }) = state.handles.remove(&handle) else { return };
        let is_open = state.handles.values().any(|other| other.id == id);
        if !is_open && state.node(id).is_ok_and(|node| node.attributes.links == 0) {
            state.nodes.remove(&id);
        }
    }

    async fn allocate(&self, handle: HandleId, change: Allocation) -> Result<()> {
        let mut state = self.lock();
        let id = state.handle(handle)?.id;
        let bytes = &mut state.node_mut(id)?.bytes;
        let end = (change.offset + change.length) as usize;
        let extends = matches!(
            change.mode,
            AllocationMode::Extend | AllocationMode::Zero { keeps_size: false }
        );
        if extends && bytes.len() < end {
            bytes.resize(end, 0);
        }
        if matches!(change.mode, AllocationMode::Punch | AllocationMode::Zero { .. }) {
            let end = end.min(bytes.len());
            bytes[change.offset as usize..end].fill(0);
        }
        state.touch(id);
        Ok(())
    }

    async fn seek(&self, handle: HandleId, offset: u64, target: SeekTarget) -> Result<u64> {
        let state = self.lock();
        let size = state.node(state.handle(handle)?.id)?.bytes.len() as u64;
        match target {
            _ if offset >= size => Err(error(ErrorKind::NoDevice)),
            SeekTarget::Data => Ok(offset),
            SeekTarget::Hole => Ok(size),
        }
    }

    async fn lock(&self, handle: HandleId, wish: LockWish, waits: bool) -> Result<()> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.lock();
                let id = state.handle(handle)?.id;
                let set = state.locks.entry((id, wish.kind)).or_default();
                if set.conflicts(wish.owner, wish.range, wish.mode).next().is_none() {
                    set.set(wish.owner, wish.range, Some(wish.mode));
                    return Ok(());
                }
            }
            if !waits {
                return Err(error(ErrorKind::WouldBlock));
            }
            freed.await;
        }
    }

    async fn unlock(&self, handle: HandleId, wish: LockWish) -> Result<()> {
        let mut state = self.lock();
        let id = state.handle(handle)?.id;
        state.locks.entry((id, wish.kind)).or_default().set(wish.owner, wish.range, None);
        self.freed.notify_waiters();
        Ok(())
    }

    async fn test_lock(&self, handle: HandleId, wish: LockWish) -> Result<Option<LockFound>> {
        let mut state = self.lock();
        let id = state.handle(handle)?.id;
        let set = state.locks.entry((id, wish.kind)).or_default();
        let found = set.conflicts(wish.owner, wish.range, wish.mode).next();
        Ok(found.map(|held| LockFound { range: held.range, mode: held.mode, process: 7 }))
    }

    async fn drop_locks(&self, handle: HandleId, kind: LockKind, owner: u64) {
        let (range, mode) = (LockRange::WHOLE, LockMode::Shared);
        let wish = LockWish { kind, owner, range, mode, process: 0 };
        let _ = self.unlock(handle, wish).await;
    }

    async fn copy_range(&self, from: CopyEnd, to: CopyEnd, length: u64) -> Result<u64> {
        let mut state = self.lock();
        let (source, target) = (state.handle(from.handle)?.id, state.handle(to.handle)?.id);
        let bytes = &state.node(source)?.bytes;
        let begin = (from.offset as usize).min(bytes.len());
        let end = (begin + length as usize).min(bytes.len());
        let piece = bytes[begin..end].to_vec();
        let (at, bytes) = (to.offset as usize, &mut state.node_mut(target)?.bytes);
        if bytes.len() < at + piece.len() {
            bytes.resize(at + piece.len(), 0);
        }
        bytes[at..at + piece.len()].copy_from_slice(&piece);
        state.touch(target);
        Ok(piece.len() as u64)
    }

    async fn open_directory(&self, caller: &Caller, id: FileId) -> Result<HandleId> {
        Ok(self.opened(caller, id, Access::default())?.handle)
    }

    async fn read_directory(
        &self,
        handle: HandleId,
        from: u64,
        limit: usize,
        is_plus: bool,
    ) -> Result<Vec<Listed>> {
        let mut state = self.lock();
        if from == 0 {
            let id = state.handle(handle)?.id;
            let entries = state.node(id)?.entries.clone();
            state.handles.get_mut(&handle).unwrap().listing = entries.into_iter().collect();
        }
        let generation = state.generation;
        let Handle { id: parent, listing, .. } = state.handle(handle)?;
        let belief = Belief { units: vec![(*parent, generation)] };
        let entries = listing.iter().enumerate().skip(from as usize).take(limit);
        let listed = entries.map(|(index, (name, id))| {
            let attributes = state.node(*id)?.attributes.clone();
            let kind = attributes.kind;
            let known = is_plus.then(|| Known { attributes, belief: belief.clone() });
            let (entry, next) = (belief.clone(), index as u64 + 1);
            Ok(Listed { name: name.clone(), id: *id, kind, known, entry, next })
        });
        listed.collect()
    }

    async fn sync_directory(&self, _: HandleId) -> Result<()> {
        Ok(())
    }

    async fn release_directory(&self, handle: HandleId) {
        self.lock().handles.remove(&handle);
    }

    async fn xattr(&self, _: &Caller, id: FileId, name: &XattrName) -> Result<Vec<u8>> {
        let state = self.lock();
        let value = state.node(id)?.xattrs.get(name).cloned();
        value.ok_or_else(|| error(ErrorKind::NoAttribute))
    }

    async fn xattrs(&self, _: &Caller, id: FileId) -> Result<Vec<XattrName>> {
        Ok(self.lock().node(id)?.xattrs.keys().cloned().collect())
    }

    async fn set_xattr(
        &self,
        _: &Caller,
        id: FileId,
        name: &XattrName,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let mut state = self.lock();
        let xattrs = &mut state.node_mut(id)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(error(ErrorKind::Exists)),
            (XattrMode::Replace, false) => return Err(error(ErrorKind::NoAttribute)),
            _ => xattrs.insert(name.clone(), value.to_vec()),
        };
        Ok(())
    }

    async fn remove_xattr(&self, _: &Caller, id: FileId, name: &XattrName) -> Result<()> {
        let mut state = self.lock();
        let removed = state.node_mut(id)?.xattrs.remove(name);
        removed.map(drop).ok_or_else(|| error(ErrorKind::NoAttribute))
    }

    async fn statfs(&self, _: FileId) -> Result<FsSpace> {
        let (bytes_total, bytes_free) = (1 << 40, 1 << 39);
        Ok(FsSpace { bytes_total, bytes_free, inodes_total: 1000, inodes_free: 900 })
    }

    async fn adler32(&self, _: &Caller, file: FileId) -> Result<u32> {
        self.gate("adler32").await;
        Ok(simd_adler32::adler32(&&self.lock().node(file)?.bytes[..]))
    }

    async fn content_version(&self, _: &Caller, file: FileId) -> Result<ContentVersion> {
        let commit = self.lock().node(file)?.attributes.version;
        Ok(ContentVersion { file, commit })
    }

    async fn residency(&self, _: &Caller, id: FileId) -> Result<Residency> {
        self.lock().node(id).map(|_| Residency::Online)
    }
}
