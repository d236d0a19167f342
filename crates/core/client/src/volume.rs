//! A mounted file system: how it is put together, and what doors see of it (`tieline_files`) in
//! terms of the rooms beside this file.

use crate::bulk::Bulk;
use crate::deferred::Deferred;
use crate::file::Budget;
use crate::files::Files;
use crate::handles::Handles;
use crate::journal::Journal;
use crate::locks::Locks;
use crate::pins::Pins;
use crate::promises::Promises;
use crate::send::{LATE_GRAIN, LATE_MAX};
use crate::sessions::Sessions;
use crate::shared::{Shared, lock};
use crate::spooling::Spooled;
use crate::unsynced::UnsyncedFiles;
use crate::{
    Access, Allocation, At, AttributeChange, Belief, CacheListener, CopyEnd, Found, FsSpace,
    HandleId, Known, Listed, LockFound, LockWish, NewFile, NewNode, Offline, OpenFile, Opened,
    Parts, Result, SeekTarget, Settings, Writing,
};
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_believed::Cache;
use tieline_believed::places::Places;
use tieline_bytes::{Chunks, Metadata, Near, PoorOsts, Room};
use tieline_files::{CoherentCache, Resume, Unsent};
use tieline_keep::{Keep, Record};
use tieline_owed::cause::Cause;
use tieline_owed::records::{self, Left};
use tieline_owed::untold::Untold;
use tieline_servers::{Greeting, Records, Servers};
use tieline_types::{
    Caller, ClientId, ContentVersion, FileId, LockKind, Mode, Name, RenameMode, Residency,
    XattrMode, XattrName,
};
use tieline_wire::PeerRole;
use tokio::sync::{Semaphore, watch};

/// A mounted file system.
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
}

impl Volume {
    /// Makes a file system that dials its servers when they are first needed. Needs tokio's runtime
    /// around it.
    pub fn new(parts: Parts, settings: Settings) -> Arc<Self> {
        Self::new_kept(parts, settings, Keep::none(), Vec::new())
    }

    /// The same, for a process that may be followed by another: goes on with what an earlier one
    /// left. Before anything is asked of it, [`Volume::recover`] must have ended.
    pub fn new_kept(
        parts: Parts,
        settings: Settings,
        keep: Keep,
        records: Vec<Record>,
    ) -> Arc<Self> {
        let left = Left::read(records);
        let known = left.client.as_ref().map(|(client, _)| *client);
        let client = known.unwrap_or_else(|| Greeting::client(&parts.world));
        let shared = Arc::new_cyclic(|weak| {
            let cache = Arc::new(Cache::new(settings.inodes_max, parts.world.clock.clone()));
            cache.lock().units.tells_last = settings.offline == Offline::Stale;
            let limits = cache.lock().limits.clone();
            let servers = servers(weak, &parts, &settings, (&keep, client));
            let budget = Arc::new(Budget::new(settings.dirty_bytes_max));
            Shared {
                root: parts.root,
                root_seen: Mutex::default(),
                servers: servers.clone(),
                _client_kept: records::put_client(&keep, client),
                cache,
                bulk: Bulk::default(),
                journal: Journal::new(settings.journal, weak.clone(), keep.clone()),
                chunks: chunks(weak, &servers, &parts.near, &settings),
                near: parts.near.clone(),
                files: Files::new(budget.clone(), settings.inodes_max),
                budget,
                handles: Handles::new(keep.clone()),
                untold: Untold::default(),
                places: Mutex::new(Places::new(settings.short_positions)),
                dirty: Mutex::default(),
                dirtied: Arc::default(),
                deferred: Deferred::default(),
                unsynced: UnsyncedFiles::default(),
                recovered: watch::Sender::new(left.writes.is_empty()),
                worn: Mutex::default(),
                compacting: Arc::new(tokio::sync::Semaphore::new(1)),
                locks: Locks::new(keep.clone()),
                listener: Mutex::default(),
                poor: PoorOsts::default(),
                above: Mutex::default(),
                past: Mutex::default(),
                late: Arc::new(Semaphore::new(LATE_MAX / LATE_GRAIN)),
                promises: Promises::new(limits),
                rooms: Arc::default(),
                pins: Pins::default(),
                weak: weak.clone(),
                space: Mutex::default(),
                is_read_only: AtomicBool::new(false),
                spooled: Spooled::new(parts.spool.clone()),
                accesses: Mutex::default(),
                left: Mutex::new(left),
                before: Mutex::default(),
                keep,
                settings,
            }
        });
        shared.restore();
        tokio::spawn(crate::background::run(Arc::downgrade(&shared)));
        tokio::spawn(crate::opens::tell(Arc::downgrade(&shared)));
        tokio::spawn(crate::room::keep(Arc::downgrade(&shared)));
        tokio::spawn(crate::away::watch(Arc::downgrade(&shared)));
        tokio::spawn(crate::pins::run(Arc::downgrade(&shared)));
        tokio::spawn(tieline_bytes::sweep(Arc::downgrade(&shared.chunks.memory)));
        if shared.settings.warms {
            shared.servers.warm_all();
        }
        Arc::new(Self { shared })
    }

    /// Does what an earlier process owed: to be awaited before anything else is asked.
    pub async fn recover(&self) {
        self.shared.recover().await;
    }

    /// The door lets no program change anything, from now on or no more: so reading changes no
    /// times of access either. Says whether that is news.
    pub fn set_read_only(&self, is_read_only: bool) -> bool {
        self.shared.is_read_only.swap(is_read_only, Ordering::Relaxed) != is_read_only
    }

    /// Commits everything dirty, gives all leases back, ends the sessions. Waits at most
    /// `patience`, and for nobody who is owed nothing. Doors cannot: others use it, too.
    pub async fn close(&self, patience: Duration) {
        self.shared.close(patience).await;
    }

    /// Who holds what, and how it is asked, for who asks servers himself.
    pub fn servers(&self) -> &Arc<Servers> {
        &self.shared.servers
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// The servers, as this client greets them.
fn servers(
    weak: &Weak<Shared>,
    parts: &Parts,
    settings: &Settings,
    (keep, client): (&Keep, ClientId),
) -> Arc<Servers> {
    let sessions = Sessions { keep: keep.clone(), shared: weak.clone() };
    let records = keep.is_on().then(|| Arc::new(sessions) as Arc<dyn Records>);
    let greeting = Greeting {
        role: PeerRole::Client,
        client,
        fs: parts.map.current().map.fs.clone(),
        rule: parts.rule,
        description: settings.description.clone(),
        is_visitor: false,
        wait: Some(settings.wait),
    };
    Servers::new(tieline_servers::Parts {
        world: parts.world.clone(),
        dialer: parts.dialer.clone(),
        map: parts.map.clone(),
        greeting,
        wait: settings.wait,
        // What a site's cache brings is large, and shared by many who each have connections.
        fills: settings.warms && parts.near.site.is_none(),
        hearer: weak.clone(),
        records,
    })
}

/// Where bytes come from.
fn chunks(
    weak: &Weak<Shared>,
    servers: &Arc<Servers>,
    near: &Near,
    settings: &Settings,
) -> Arc<Chunks> {
    let room = Room {
        bytes_max: settings.read_bytes_max,
        spent_max: settings.spent_bytes_max.min(settings.read_bytes_max),
        lingering_max: settings.lingering_bytes_max.min(settings.read_bytes_max),
    };
    let metadata: Weak<dyn Metadata> = weak.clone();
    Chunks::new(room, near, servers, &metadata)
}

#[async_trait::async_trait]
impl tieline_files::Files for Volume {
    fn root(&self) -> FileId {
        self.shared.root
    }

    async fn lookup(&self, caller: &Caller, parent: FileId, name: &Name) -> Result<Found> {
        let found = || self.shared.lookup(caller, parent, name);
        let found = self.shared.as_known_in_time(parent, found).await?;
        if let Some(attributes) = &found.attributes {
            self.shared.about_to_tell(attributes).await;
        }
        Ok(found)
    }

    fn mounted_at(&self, parent: FileId, name: &Name) -> Option<FileId> {
        self.shared.mounted_at(parent, name)
    }

    async fn parent(&self, caller: &Caller, directory: FileId) -> Result<FileId> {
        self.shared.as_known_in_time(directory, || self.shared.parent(caller, directory)).await
    }

    async fn way_to(&self, caller: &Caller, directory: FileId) -> Result<Vec<Name>> {
        self.shared.as_known_in_time(directory, || self.shared.way_to(caller, directory)).await
    }

    async fn attributes(&self, caller: &Caller, id: FileId) -> Result<Known> {
        let known = self.shared.as_known_in_time(id, || self.shared.attributes(caller, id)).await?;
        Ok(self.shared.told(known).await)
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        id: FileId,
        handle: Option<HandleId>,
        change: AttributeChange,
    ) -> Result<Known> {
        let known = self.shared.set_attributes(caller, id, handle, change).await?;
        Ok(self.shared.told(known).await)
    }

    async fn create(&self, caller: &Caller, at: At<'_>, new: NewFile) -> Result<(Known, Opened)> {
        let (known, opened) = self.shared.create(caller, at, new).await?;
        Ok((self.shared.told(known).await, opened))
    }

    async fn create_nameless(
        &self,
        caller: &Caller,
        parent: FileId,
        new: NewFile,
    ) -> Result<(Known, Opened)> {
        self.shared.create_nameless(caller, parent, new).await
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        at: At<'_>,
        mode: Mode,
        umask: Mode,
    ) -> Result<Known> {
        self.shared.make_directory(caller, at, mode, umask).await
    }

    async fn make_symlink(&self, caller: &Caller, at: At<'_>, target: &[u8]) -> Result<Known> {
        self.shared.make_symlink(caller, at, target).await
    }

    async fn make_node(&self, caller: &Caller, at: At<'_>, node: NewNode) -> Result<Known> {
        self.shared.make_node(caller, at, node).await
    }

    async fn link(&self, caller: &Caller, id: FileId, at: At<'_>) -> Result<Known> {
        let known = self.shared.link(caller, id, at).await?;
        Ok(self.shared.told(known).await)
    }

    async fn put_in_place(
        &self,
        caller: &Caller,
        id: FileId,
        at: At<'_>,
        replaces: bool,
    ) -> Result<Known> {
        let known = self.shared.put_in_place(caller, id, at, replaces).await?;
        Ok(self.shared.told(known).await)
    }

    async fn unlink(&self, caller: &Caller, at: At<'_>) -> Result<()> {
        self.shared.unlink(caller, at).await
    }

    async fn remove_directory(&self, caller: &Caller, at: At<'_>) -> Result<()> {
        self.shared.remove_directory(caller, at).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        self.shared.rename(caller, from, to, mode).await
    }

    async fn read_symlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        self.shared.as_known_in_time(id, || self.shared.read_symlink(caller, id)).await
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Opened> {
        if access.truncate {
            return self.shared.open(caller, id, access).await;
        }
        self.shared.as_known_in_time(id, || self.shared.open(caller, id, access)).await
    }

    async fn read(&self, handle: HandleId, offset: u64, length: u32) -> Result<Vec<Bytes>> {
        let Some(id) = self.shared.handles.file(handle).ok().map(|open| open.file.id) else {
            return self.shared.read(handle, offset, length).await;
        };
        self.shared.as_known(id, || self.shared.read(handle, offset, length)).await
    }

    async fn read_ranges(
        &self,
        handle: HandleId,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Vec<Bytes>>> {
        let Some(id) = self.shared.handles.file(handle).ok().map(|open| open.file.id) else {
            return self.shared.read_ranges(handle, ranges).await;
        };
        self.shared.as_known(id, || self.shared.read_ranges(handle, ranges)).await
    }

    fn announce(&self, handle: HandleId, range: Range<u64>) {
        if let Ok(open) = self.shared.handles.file(handle) {
            lock(&open.pattern).announce(range);
        }
    }

    async fn write_as(
        &self,
        handle: HandleId,
        offset: u64,
        how: Writing,
        data: Bytes,
    ) -> Result<()> {
        self.shared.write(handle, offset, how, data).await
    }

    async fn flush(&self, handle: HandleId) -> Result<()> {
        self.shared.flush(handle).await
    }

    async fn sync(&self, handle: HandleId, is_data_only: bool) -> Result<()> {
        self.shared.sync(handle, is_data_only).await
    }

    async fn release(&self, handle: HandleId) {
        self.shared.drop_locks_through(handle).await;
        self.shared.release(handle);
    }

    async fn allocate(&self, handle: HandleId, change: Allocation) -> Result<()> {
        self.shared.allocate(handle, change).await
    }

    async fn seek(&self, handle: HandleId, offset: u64, target: SeekTarget) -> Result<u64> {
        self.shared.seek(handle, offset, target).await
    }

    async fn copy_range(&self, from: CopyEnd, to: CopyEnd, length: u64) -> Result<u64> {
        self.shared.copy_range(from, to, length).await
    }

    async fn lock(&self, handle: HandleId, wish: LockWish, waits: bool) -> Result<()> {
        self.shared.lock(handle, wish, waits).await
    }

    async fn unlock(&self, handle: HandleId, wish: LockWish) -> Result<()> {
        self.shared.unlock(handle, wish).await
    }

    async fn test_lock(&self, handle: HandleId, wish: LockWish) -> Result<Option<LockFound>> {
        self.shared.test_lock(handle, wish).await
    }

    async fn drop_locks(&self, handle: HandleId, kind: LockKind, owner: u64) {
        self.shared.drop_locks(handle, kind, owner).await;
    }

    async fn open_directory(&self, caller: &Caller, id: FileId) -> Result<HandleId> {
        self.shared.as_known_in_time(id, || self.shared.open_directory(caller, id)).await
    }

    async fn read_directory(
        &self,
        handle: HandleId,
        from: u64,
        limit: usize,
        is_plus: bool,
    ) -> Result<Vec<Listed>> {
        let id = self.shared.handles.directory(handle)?.id();
        let page = || self.shared.read_directory(handle, from, limit, is_plus);
        let page = self.shared.as_known_in_time(id, page).await?;
        for known in page.iter().filter_map(|listed| listed.known.as_ref()) {
            self.shared.about_to_tell(&known.attributes).await;
        }
        Ok(page)
    }

    async fn sync_directory(&self, handle: HandleId) -> Result<()> {
        self.shared.sync_directory(handle).await
    }

    async fn release_directory(&self, handle: HandleId) {
        self.shared.handles.remove(handle);
    }

    async fn xattr(&self, caller: &Caller, id: FileId, name: &XattrName) -> Result<Vec<u8>> {
        if crate::pins::is_order(name) {
            return self.shared.xattr(caller, id, name).await;
        }
        self.shared.as_known(id, || self.shared.xattr(caller, id, name)).await
    }

    async fn xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<XattrName>> {
        self.shared.as_known_in_time(id, || self.shared.xattrs(caller, id)).await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &XattrName,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.shared.set_xattr(caller, id, name, value, mode).await
    }

    async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &XattrName) -> Result<()> {
        self.shared.remove_xattr(caller, id, name).await
    }

    async fn statfs(&self, id: FileId) -> Result<FsSpace> {
        self.shared.statfs(id).await
    }

    async fn adler32(&self, caller: &Caller, id: FileId) -> Result<u32> {
        self.shared.adler32(caller, id).await
    }

    async fn content_version(&self, caller: &Caller, id: FileId) -> Result<ContentVersion> {
        self.shared.content_version(caller, id).await
    }

    async fn residency(&self, caller: &Caller, id: FileId) -> Result<Residency> {
        self.shared.residency(caller, id).await
    }
}

impl CoherentCache for Volume {
    fn listen(&self, listener: Arc<dyn CacheListener>) {
        *lock(&self.shared.listener) = Some(listener);
    }

    fn settle(&self, belief: &Belief, write: &mut dyn FnMut(Duration)) {
        self.shared.cache.settle(belief, write);
    }

    fn searched_by_all(&self, directory: FileId) -> Belief {
        self.shared.cache.searched_by_all(directory)
    }

    fn openers(&self, id: FileId, handle: Option<HandleId>) -> Vec<Caller> {
        // Mostly it is asked after files that nobody has open.
        let known = self.shared.file_known(id);
        known.map_or_else(Vec::new, |_| self.shared.handles.openers(id, handle))
    }
}

impl Resume for Volume {
    fn cause(&self, number: u64, is_resent: bool) -> Option<Arc<Cause>> {
        self.shared.cause(number, is_resent)
    }

    fn open_files(&self) -> Vec<OpenFile> {
        self.shared.handles.open_files()
    }

    fn unsent(&self) -> Unsent {
        self.shared.unsent()
    }
}
