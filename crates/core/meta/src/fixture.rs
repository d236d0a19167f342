//! A whole MDT in memory for tests: two sites with four OSTs, clients that answer recalls as told.

use crate::{
    Asker, Coming, CopyMender, Delegation, Exposer, LimitsKeeper, Mdt, Parts, Recaller, Settings,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner};
use tieline_format::map::{FederationMap, Junction, Mdt as MdtInMap, Ost, Pool, Security};
use tieline_format::mdt::NO_SESSION;
use tieline_kv::{MemoryStore, Store};
use tieline_types::background::Change;
use tieline_types::{
    Attributes, Caller, ChunkRef, ClientId, Content, ErrorKind, Extent, FileId, FlavorRules, Gid,
    Grant, GrantedId, Hsm, LostLock, MdtIndex, Mode, Name, ObjectName, OstIndex, OstPlace,
    PoolName, RenameMode, RequestNumber, SessionId, SetTime, Uid, Version,
};
use tieline_wire::data::OstState;
use tieline_wire::locks::Lock;
use tieline_wire::meta::*;
use tieline_wire::mirrors::Trouble;
use tieline_wire::notice::Recall;
use tieline_wire::quotas::{QuotaNews, QuotaNewsReply, QuotaShares, QuotaSharesReply};
use tieline_wire::{Call, Failure, NoticeAnswer, Request};
use tieline_world::World;

pub const ROOT: FileId = FileId(1);

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid: Uid(uid),
        gid: Gid(gid),
        groups: groups.iter().map(|&g| Gid(g)).collect(),
        proof: None,
    }
}

/// What a session does with a recall.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Manner {
    /// Answers at once, naming what it has open.
    #[default]
    Answers,
    /// Answers after so long: it is far away.
    Takes(Duration),
    /// Is connected and never answers.
    Ignores,
    /// Has no connection.
    IsAway,
    /// Answers at once that these are open, whatever was asked.
    Claims(Vec<FileId>),
    /// Answers at once, and gives this directory up only where it is asked for itself.
    Keeps(FileId),
}

#[derive(Default)]
pub struct Clients {
    pub manners: Mutex<BTreeMap<SessionId, Manner>>,
    pub open: Mutex<BTreeSet<(SessionId, FileId)>>,
    /// Recalls in the order they came.
    pub recalls: Mutex<Vec<(SessionId, Recall)>>,
    pub idle: Mutex<Idle>,
    /// Whose connections were ended.
    pub hung_up: Mutex<BTreeSet<SessionId>>,
}

/// What is done when idle locks are asked for.
#[derive(Default)]
pub struct Idle {
    /// What a session does on a file before it answers, the first time.
    pub frees: BTreeMap<(SessionId, FileId), (Client, Vec<Lock>)>,
    /// Who was asked.
    pub asked: Vec<SessionId>,
}

impl Clients {
    pub fn set(&self, session: SessionId, manner: Manner) {
        self.manners.lock().unwrap().insert(session, manner);
    }

    pub fn open(&self, session: SessionId, file: FileId) {
        self.open.lock().unwrap().insert((session, file));
    }

    pub fn close(&self, session: SessionId, file: FileId) {
        self.open.lock().unwrap().remove(&(session, file));
    }

    /// A client will free that, when asked.
    pub fn frees(&self, client: &Client, locks: Vec<Lock>) {
        let file = locks[0].id;
        let key = (client.session, file);
        self.idle.lock().unwrap().frees.insert(key, (client.clone(), locks));
    }

    /// Takes who was asked for idle locks.
    pub fn asked(&self) -> Vec<SessionId> {
        std::mem::take(&mut self.idle.lock().unwrap().asked)
    }

    /// Takes the units that were recalled from a session.
    pub fn recalled(&self, session: SessionId) -> Vec<FileId> {
        let mut recalls = self.recalls.lock().unwrap();
        let (taken, left) = recalls.drain(..).partition(|(to, _)| *to == session);
        *recalls = left;
        let taken: Vec<(SessionId, Recall)> = taken;
        taken.into_iter().map(|(_, recall)| recall.unit).collect()
    }
}

#[async_trait::async_trait]
impl Recaller for Clients {
    async fn recall(
        &self,
        session: SessionId,
        recall: Recall,
        patience: Duration,
    ) -> Option<NoticeAnswer> {
        let (files, beside) = (recall.files.clone(), recall.beside.clone());
        self.recalls.lock().unwrap().push((session, recall));
        let manner = self.manners.lock().unwrap().get(&session).cloned().unwrap_or_default();
        if let Manner::Takes(time) = manner {
            tokio::time::sleep(time).await;
        }
        match manner {
            Manner::Claims(open) => Some(NoticeAnswer { open, ..NoticeAnswer::default() }),
            Manner::Answers | Manner::Takes(_) | Manner::Keeps(_) => {
                let open = self.open.lock().unwrap();
                let is_open = |file: &FileId| open.contains(&(session, *file));
                let open = files.into_iter().filter(is_open).collect();
                let is_given = |unit: &FileId| manner != Manner::Keeps(*unit);
                let shared = beside.map(|beside| beside.into_iter().filter(is_given).collect());
                Some(NoticeAnswer { is_contended: false, open, shared })
            }
            Manner::Ignores => {
                tokio::time::sleep(patience).await;
                None
            }
            Manner::IsAway => None,
        }
    }

    async fn free_locks(&self, session: SessionId, file: FileId, patience: Duration) -> bool {
        let frees = {
            let mut idle = self.idle.lock().unwrap();
            idle.asked.push(session);
            idle.frees.remove(&(session, file))
        };
        let manner = self.manners.lock().unwrap().get(&session).cloned().unwrap_or_default();
        match manner {
            Manner::Answers | Manner::Claims(_) | Manner::Keeps(_) => {}
            Manner::Takes(time) => tokio::time::sleep(time).await,
            Manner::Ignores => {
                tokio::time::sleep(patience).await;
                return false;
            }
            Manner::IsAway => return false,
        }
        if let Some((client, frees)) = frees {
            for lock in frees {
                client.call(lock).await.unwrap();
            }
        }
        true
    }

    fn hang_up(&self, session: SessionId) {
        self.hung_up.lock().unwrap().insert(session);
    }
}

/// No other MDT is in reach, and nobody makes copies.
pub struct Alone;

#[async_trait::async_trait]
impl Exposer for Alone {
    fn noted(&self, _: &PoolName) {}

    async fn take_away(&self, _: &PoolName, _: Vec<FileId>) -> Result<(), Failure> {
        Ok(())
    }
}

impl CopyMender for Alone {
    fn suspect(&self, _: GrantedId, _: OstIndex) {}

    fn hurry(&self, _: GrantedId, _: FileId) -> Option<Trouble> {
        None
    }
}

#[async_trait::async_trait]
impl LimitsKeeper for Alone {
    async fn shares(&self, _: QuotaShares, _: Duration) -> Result<QuotaSharesReply, Failure> {
        Err(Failure::new(ErrorKind::Unreachable, "alone"))
    }

    async fn news(&self, _: QuotaNews, _: Duration) -> Result<QuotaNewsReply, Failure> {
        Err(Failure::new(ErrorKind::Unreachable, "alone"))
    }
}

pub fn map() -> FederationMap {
    let ost = |index, site: &str| Ost {
        ost: OstIndex(index),
        site: site.parse().unwrap(),
        addresses: vec![],
        is_active: true,
    };
    let mdt = |index, home: &str| MdtInMap {
        mdt: MdtIndex(index),
        home: home.parse().unwrap(),
        addresses: vec![],
    };
    let pool = |name: &str, osts: &[u16]| Pool {
        name: name.parse().unwrap(),
        osts: osts.iter().map(|&index| OstIndex(index)).collect(),
        exposure: None,
        hsm: (name == "uf").then(|| Hsm::new("/etc/tieline/hsm/osm".into(), "osm".into())),
    };
    FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(1),
        mdts: vec![mdt(0, "uf"), mdt(1, "fnal")],
        junctions: vec![Junction { parent: ROOT, name: name("fnal"), mdt: MdtIndex(1) }],
        osts: vec![ost(0, "uf"), ost(1, "uf"), ost(2, "fnal"), ost(3, "fnal")],
        pools: vec![pool("uf", &[0, 1]), pool("empty", &[])],
        security: None,
        invitations: None,
        repositories: None,
    }
}

/// An OST that is well, and empty.
pub fn state(ost: u16) -> OstState {
    OstState {
        ost: OstIndex(ost),
        bytes_total: 1 << 40,
        bytes_free: 1 << 40,
        objects_total: 1 << 30,
        objects_free: 1 << 30,
        trouble: None,
        is_read_only: None,
        realms: None,
    }
}

pub fn map_cell() -> MapCell {
    map_cell_of(&map())
}

pub fn map_cell_of(map: &FederationMap) -> MapCell {
    let signer = MapSigner::new([7; 32]);
    MapCell::new(signer.verifier(), signer.sign(map)).unwrap()
}

/// A federation in which everybody proves who he is.
pub fn proven_map() -> FederationMap {
    let security = Security {
        realm: "EXTENCI.ORG".to_owned(),
        flavors: FlavorRules::default(),
        services: vec![],
        machines: None,
        strangers: None,
        doors: None,
        issuers: None,
    };
    FederationMap { security: Some(security), ..map() }
}

/// A running MDT and what it is plugged into.
pub struct House {
    pub mdt: Arc<Mdt>,
    pub store: MemoryStore,
    pub world: World,
    pub clients: Arc<Clients>,
}

impl House {
    pub async fn new() -> Self {
        Self::with(MemoryStore::new()).await
    }

    /// One that keeps deleted files, as MDTs do.
    pub async fn keeping() -> Self {
        Self::with_settings(MemoryStore::new(), Settings::default()).await
    }

    /// Starts on a store that may have been used before. Deleted files go at once: most tests look
    /// at what else there is.
    pub async fn with(store: MemoryStore) -> Self {
        let settings = Settings { keeps_deleted: false, ..Settings::default() };
        Self::with_settings(store, settings).await
    }

    pub async fn with_settings(store: MemoryStore, settings: Settings) -> Self {
        Self::with_keeper(store, settings, Arc::new(Alone)).await
    }

    /// One whose limits are kept by another MDT.
    pub async fn with_keeper(
        store: MemoryStore,
        settings: Settings,
        limits: Arc<dyn LimitsKeeper>,
    ) -> Self {
        Self::with_map(store, settings, limits, map_cell()).await
    }

    /// One that does not believe clients about handles; it keeps deleted files.
    pub async fn proven() -> Self {
        Self::proven_on(MemoryStore::new()).await
    }

    pub async fn proven_on(store: MemoryStore) -> Self {
        let cell = map_cell_of(&proven_map());
        Self::with_map(store, Settings::default(), Arc::new(Alone), cell).await
    }

    async fn with_map(
        store: MemoryStore,
        settings: Settings,
        limits: Arc<dyn LimitsKeeper>,
        cell: MapCell,
    ) -> Self {
        Self::with_all((store, cell), settings, limits, Arc::new(Alone)).await
    }

    /// One of whose pools some are exposed.
    pub async fn with_exposer(
        store: MemoryStore,
        map: &FederationMap,
        exposer: Arc<dyn Exposer>,
    ) -> Self {
        let settings = Settings { keeps_deleted: false, ..Settings::default() };
        let parts = (Arc::new(Alone) as Arc<dyn CopyMender>, exposer);
        Self::with_parts((store, map_cell_of(map)), settings, Arc::new(Alone), parts).await
    }

    /// One whose copies are made again by somebody.
    pub async fn with_copies(
        store: MemoryStore,
        settings: Settings,
        copies: Arc<dyn CopyMender>,
    ) -> Self {
        Self::with_all((store, map_cell()), settings, Arc::new(Alone), copies).await
    }

    async fn with_all(
        (store, cell): (MemoryStore, MapCell),
        settings: Settings,
        limits: Arc<dyn LimitsKeeper>,
        copies: Arc<dyn CopyMender>,
    ) -> Self {
        let parts = (copies, Arc::new(Alone) as Arc<dyn Exposer>);
        Self::with_parts((store, cell), settings, limits, parts).await
    }

    async fn with_parts(
        (store, cell): (MemoryStore, MapCell),
        settings: Settings,
        limits: Arc<dyn LimitsKeeper>,
        (copies, exposer): (Arc<dyn CopyMender>, Arc<dyn Exposer>),
    ) -> Self {
        let (world, _) = World::local(7);
        let clients = Arc::<Clients>::default();
        let parts = Parts {
            store: Arc::new(store.clone()),
            world: world.clone(),
            map: cell,
            recaller: clients.clone(),
            copies,
            exposer,
            limits,
            log: None,
        };
        let mdt = Mdt::start(parts, settings).await.unwrap();
        Self { mdt, store, world, clients }
    }

    /// The server dies and starts again on the same store.
    pub async fn restarted(self) -> Self {
        Self::with(self.store).await
    }

    pub async fn client(&self) -> Client {
        self.client_named(self.world.random(), None).await
    }

    /// One that comes from another machine than the others.
    pub async fn client_from(&self, host: &str) -> Client {
        let id = ClientId([9; 16]);
        Client::coming(
            &self.mdt,
            id,
            None,
            Coming { description: "test", host, party: host, wait: None },
        )
        .await
    }

    pub async fn client_named(&self, id: u64, session: Option<SessionId>) -> Client {
        self.client_waiting((id, None), session).await
    }

    /// One that says how long it waits.
    pub async fn client_waiting(
        &self,
        (id, wait): (u64, Option<Duration>),
        session: Option<SessionId>,
    ) -> Client {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        Client::open(&self.mdt, (ClientId(bytes), wait), session).await
    }

    /// Nameless files go that no session keeps, as if they had lingered and nobody had opened them.
    pub async fn remove_nameless(&self) {
        for file in self.mdt.sessions.orphans_of(NO_SESSION).await.unwrap() {
            while !self.mdt.change(&Change::Remove(file)).await.unwrap() {}
        }
    }

    /// Every record of the store.
    pub async fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = tieline_kv::Range::new(vec![0], vec![0xff]);
        self.store.begin().await.unwrap().scan(all, usize::MAX).await.unwrap()
    }

    /// How many records of a kind there are.
    pub async fn count(&self, kind: u8) -> usize {
        self.dump().await.iter().filter(|(key, _)| key[0] == kind).count()
    }
}

/// An MDT in a store of any kind.
pub async fn start_on(store: Arc<dyn Store>) -> Arc<Mdt> {
    let parts = Parts {
        store,
        world: World::local(7).0,
        map: map_cell(),
        recaller: Arc::<Clients>::default(),
        copies: Arc::new(Alone),
        exposer: Arc::new(Alone),
        limits: Arc::new(Alone),
        log: None,
    };
    Mdt::start(parts, Settings::default()).await.unwrap()
}

/// A client's session, acting for one caller.
#[derive(Clone)]
pub struct Client {
    pub mdt: Arc<Mdt>,
    pub session: SessionId,
    pub grant: Grant,
    pub is_resumed: bool,
    pub lost_locks: Vec<LostLock>,
    pub caller: Caller,
    pub delegation: Option<Arc<Delegation>>,
    pub of_items: Vec<Option<Arc<Delegation>>>,
    pub next: Arc<AtomicU64>,
    pub confirmed: u64,
}

impl Client {
    pub async fn open(
        mdt: &Arc<Mdt>,
        (id, wait): (ClientId, Option<Duration>),
        session: Option<SessionId>,
    ) -> Self {
        let coming = Coming { description: "test", host: "test", party: "test", wait };
        Self::coming(mdt, id, session, coming).await
    }

    async fn coming(
        mdt: &Arc<Mdt>,
        id: ClientId,
        session: Option<SessionId>,
        coming: Coming<'_>,
    ) -> Self {
        let opened = mdt.open_session(id, session, coming).await.unwrap();
        Self {
            mdt: mdt.clone(),
            session: opened.session,
            grant: opened.grant,
            is_resumed: opened.is_resumed,
            lost_locks: opened.lost_locks,
            caller: Caller::root(),
            delegation: None,
            of_items: vec![],
            next: Arc::new(AtomicU64::new(1)),
            confirmed: 1,
        }
    }

    pub async fn of(mdt: &Arc<Mdt>) -> Self {
        Self::open(mdt, (ClientId([1; 16]), None), None).await
    }

    /// The same session on behalf of another caller.
    pub fn by(&self, caller: &Caller) -> Self {
        Self { caller: caller.clone(), ..self.clone() }
    }

    /// The same session on behalf of somebody for whom a door speaks.
    pub fn through(&self, caller: &Caller, delegation: Delegation) -> Self {
        Self { delegation: Some(Arc::new(delegation)), ..self.by(caller) }
    }

    /// The same session, which has seen all answers below a number.
    pub fn confirming(&self, below: u64) -> Self {
        Self { confirmed: below, ..self.clone() }
    }

    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub async fn call<C: Call>(&self, call: C) -> Result<C::Reply, Failure> {
        self.call_numbered(self.number(), call).await
    }

    pub async fn call_numbered<C: Call>(&self, number: u64, call: C) -> Result<C::Reply, Failure> {
        let body = self.request_numbered(number, call.into()).await?;
        Ok(tieline_wire::decode(&body).unwrap())
    }

    /// For requests of several types.
    pub async fn request(&self, request: Request) -> Result<Vec<u8>, Failure> {
        self.request_numbered(self.number(), request).await
    }

    async fn request_numbered(&self, number: u64, request: Request) -> Result<Vec<u8>, Failure> {
        let asker = Asker {
            session: self.session,
            number: RequestNumber(number),
            caller: self.caller.clone(),
            delegation: self.delegation.clone(),
            may_be_root: false,
            of_items: self.of_items.clone(),
            answered_below: RequestNumber(self.confirmed),
        };
        self.mdt.call(&asker, &request).await
    }

    pub async fn kind_of<C: Call>(&self, call: C) -> Option<ErrorKind> {
        self.call(call).await.err().map(|failure| failure.kind)
    }

    // The shortest ways to common requests.

    pub async fn lookup(&self, parent: FileId, text: &str) -> EntryReply {
        self.call(Lookup { parent, name: name(text) }).await.unwrap()
    }

    pub async fn id(&self, parent: FileId, text: &str) -> Option<FileId> {
        self.lookup(parent, text).await.attributes.map(|attributes| attributes.id)
    }

    pub async fn stat(&self, id: FileId) -> Attributes {
        self.call(GetAttributes { id }).await.unwrap().attributes
    }

    pub async fn mkdir(&self, parent: FileId, text: &str) -> FileId {
        self.call(mkdir(parent, text, 0o755)).await.unwrap().attributes.unwrap().id
    }

    pub async fn create(&self, parent: FileId, text: &str) -> FileId {
        self.call(create(parent, text, 0o644)).await.unwrap().open.attributes.id
    }

    pub async fn list(&self, id: FileId) -> Vec<String> {
        let call = ReadDirectory { id, after: None, limit: 4096, is_plus: false };
        let reply = self.call(call).await.unwrap();
        reply.entries.iter().map(|entry| entry.name.to_string()).collect()
    }

    pub async fn commit(&self, id: FileId, extents: Vec<Extent>) -> Attributes {
        self.call(commit(id, extents)).await.unwrap().attributes
    }

    pub async fn extents(&self, id: FileId) -> Vec<Extent> {
        let call = GetExtents { id, offset: 0, limit: 1024 };
        self.call(call).await.unwrap().page.extents
    }

    /// `length` bytes at `offset` in a chunk of their own.
    pub fn chunk(&self, serial: u64, offset: u64, length: u64) -> Extent {
        let chunk = GrantedId { mdt: MdtIndex(0), grant: self.grant, serial };
        let object = ObjectName::Chunk(chunk);
        let place = OstPlace { ost: OstIndex(0), object, offset: 0, length, is_stale: false };
        let content = Content::Chunk(ChunkRef {
            chunk: chunk.into(),
            length,
            skip: 0,
            places: vec![place.into()],
            digest: None,
            adler32: None,
            checks: None,
        });
        Extent { offset, length, content }
    }
}

pub fn inline(offset: u64, bytes: &[u8]) -> Extent {
    Extent { offset, length: bytes.len() as u64, content: Content::Inline(bytes.to_vec()) }
}

pub fn hole(offset: u64, length: u64) -> Extent {
    Extent { offset, length, content: Content::Hole }
}

pub fn create(parent: FileId, text: &str, mode: u32) -> Create {
    Create {
        parent,
        name: name(text),
        mode: Mode::new(mode),
        umask: Mode::new(0),
        is_exclusive: true,
        layout: None,
        is_nameless: None,
    }
}

pub fn mkdir(parent: FileId, text: &str, mode: u32) -> MakeDirectory {
    MakeDirectory { parent, name: name(text), mode: Mode::new(mode), umask: Mode::new(0) }
}

pub fn symlink(parent: FileId, text: &str, target: &str) -> MakeSymlink {
    MakeSymlink { parent, name: name(text), target: target.as_bytes().to_vec() }
}

pub fn link(id: FileId, parent: FileId, text: &str) -> Link {
    Link { id, parent, name: name(text), replaces: None, keep: None }
}

pub fn unlink(parent: FileId, text: &str) -> Unlink {
    Unlink { parent, name: name(text), keep: None }
}

pub fn rmdir(parent: FileId, text: &str) -> RemoveDirectory {
    RemoveDirectory { parent, name: name(text) }
}

pub fn rename(from: (FileId, &str), to: (FileId, &str)) -> Rename {
    Rename {
        from_parent: from.0,
        from_name: name(from.1),
        to_parent: to.0,
        to_name: name(to.1),
        mode: RenameMode::Replace,
        keep: None,
    }
}

pub fn commit(id: FileId, extents: Vec<Extent>) -> Commit {
    Commit {
        id,
        extents,
        size_min: 0,
        mtime: SetTime::Now,
        clears_setid: false,
        append_from: None,
        closes: None,
        is_promised: None,
    }
}

/// Changes nothing: to be filled in.
pub fn setattr(id: FileId) -> SetAttributes {
    SetAttributes {
        id,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        is_handle: false,
        is_access: None,
    }
}

pub fn chmod(id: FileId, mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(Mode::new(mode)), ..setattr(id) }
}

pub fn truncate(id: FileId, size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..setattr(id) }
}
