//! A server whose answers tests decide, and a client beside it, in one local world.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::Guard;
use tieline_net::{
    CallContext, CallError, Channel, NoticeSink, Notifier, Outgoing, Peer, Reply, Response, Server,
    ServerSettings, Service, Session, SessionSettings,
};
use tieline_types::{
    Caller, ClientId, ErrorKind, FileId, Grant, GrantedId, MdtIndex, ObjectName, OstIndex,
    SessionId, Version,
};
use tieline_wire::{
    CredentialKind, Failure, Flavor, Hello, Notice, NoticeAnswer, Op, PeerRole, Refusal, Request,
    Welcome, data, meta,
};
use tieline_world::{Bulk, LocalTransport, Transport, World};
use tokio::sync::Semaphore;

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const ADDRESS: &str = "mds:1";

/// Remembers sessions and requests; holds calls back on demand.
pub struct Desk {
    pub log: Mutex<Vec<String>>,
    pub notifiers: Mutex<BTreeMap<SessionId, Notifier>>,
    pub boot: u64,
    /// Forgets all sessions when false, as a server without a store.
    pub is_resuming: bool,
    pub sessions: Arc<AtomicU64>,
    /// `Unlink` and odd file ids wait for this gate.
    pub gate: Semaphore,
    pub refusal: Mutex<Option<Refusal>>,
    /// Bytes of bulk that were told and are still in memory, and the most there ever were.
    pub told: Arc<[AtomicU64; 2]>,
}

/// Bulk that is counted for as long as it is in memory.
struct Told(Vec<u8>, Arc<[AtomicU64; 2]>);

impl Told {
    fn counted(bytes: Vec<u8>, counts: &Arc<[AtomicU64; 2]>) -> Bytes {
        let length = bytes.len() as u64;
        let now = counts[0].fetch_add(length, Ordering::Relaxed) + length;
        counts[1].fetch_max(now, Ordering::Relaxed);
        Bytes::from_owner(Self(bytes, counts.clone()))
    }
}

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1[0].fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

impl Desk {
    pub fn new(sessions: &Arc<AtomicU64>, is_resuming: bool) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::default(),
            notifiers: Mutex::default(),
            boot: 1,
            is_resuming,
            sessions: sessions.clone(),
            gate: Semaphore::new(0),
            refusal: Mutex::default(),
            told: Arc::default(),
        })
    }

    pub fn note(&self, line: impl Into<String>) {
        self.log.lock().unwrap().push(line.into());
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn notifier(&self) -> Notifier {
        self.notifiers.lock().unwrap().values().next().unwrap().clone()
    }

    async fn pass_gate(&self) {
        self.gate.acquire().await.unwrap().forget();
    }
}

#[async_trait::async_trait]
impl Service for Desk {
    async fn welcome(&self, hello: &Hello, _: &Peer) -> Result<Welcome, Refusal> {
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let resumed = hello.session.filter(|_| self.is_resuming);
        let fresh = || SessionId(self.sessions.fetch_add(1, Ordering::Relaxed) + 1);
        let session = resumed.unwrap_or_else(fresh);
        Ok(Welcome {
            version: 0,
            session,
            is_resumed: resumed.is_some(),
            grant: Grant(session.0),
            boot: self.boot,
            lease_ms: 20_000,
            flavor: Flavor::Null,
            features: 0,
            server: "desk".to_owned(),
            map: Version(0),
            holder: None,
            lost_locks: None,
        })
    }

    fn connected(&self, session: SessionId, notifier: Notifier) {
        self.note(format!("connected {session}"));
        self.notifiers.lock().unwrap().insert(session, notifier);
    }

    async fn call(&self, context: CallContext, request: Request, bulk: Bytes) -> Response {
        self.note(format!("call {} {:?}", context.number, request.op()));
        match request {
            Request::GetAttributes(message) if message.id.0 % 2 == 1 => {
                self.pass_gate().await;
                Err(Failure::new(ErrorKind::NotFound, format!("no file {}", message.id)))
            }
            Request::GetAttributes(message) => {
                Err(Failure::new(ErrorKind::NotFound, format!("no file {}", message.id)))
            }
            Request::Unlink(_) => {
                self.pass_gate().await;
                Err(Failure::new(ErrorKind::Busy, "unlinked"))
            }
            Request::PutChunk(message) => {
                if message.chunk.serial == WAITS {
                    self.pass_gate().await;
                }
                assert_eq!(bulk.first(), bulk.last());
                Ok(Reply::new::<data::PutChunk>(&data::PutChunkReply {}))
            }
            Request::ReadObject(message) => {
                let bulk = vec![message.offset as u8; message.length as usize];
                let reply = data::ReadObjectReply {
                    offset: 0,
                    checks: Vec::new(),
                    object_length: 0,
                    proof: None,
                };
                let reply = Reply::new::<data::ReadObject>(&reply);
                Ok(Reply { bulk: Bulk::from(Told::counted(bulk, &self.told)), ..reply })
            }
            Request::ReadSymlink(message) => {
                let reply = meta::ReadSymlinkReply { target: vec![7; message.id.0 as usize] };
                Ok(Reply::new::<meta::ReadSymlink>(&reply))
            }
            Request::Usage(_) => panic!("a request that panics"),
            request => Err(Failure::new(ErrorKind::NotSupported, format!("{:?}", request.op()))),
        }
    }

    fn heard(&self, _: SessionId) {}

    fn disconnected(&self, session: SessionId) {
        self.note(format!("disconnected {session}"));
    }

    async fn goodbye(&self, session: SessionId) {
        self.note(format!("goodbye {session}"));
    }
}

/// Answers recalls, and remembers what it heard.
#[derive(Default)]
pub struct Ear {
    pub log: Mutex<Vec<String>>,
    pub renewed: Mutex<Vec<tokio::time::Instant>>,
}

#[async_trait::async_trait]
impl NoticeSink for Ear {
    async fn notice(&self, notice: Notice) -> NoticeAnswer {
        let Notice::Recall(recall) = notice else { return NoticeAnswer::default() };
        if recall.unit == FileId(0) {
            std::future::pending::<()>().await;
        }
        if (10_000..10_100).contains(&recall.unit.0) {
            tokio::time::sleep(Duration::from_secs(recall.unit.0 - 10_000)).await;
        }
        NoticeAnswer { is_contended: true, open: recall.files, shared: None }
    }

    fn connected(&self, welcome: &Welcome) {
        let how = if welcome.is_resumed { "resumed" } else { "new" };
        self.log.lock().unwrap().push(format!("{how} {}", welcome.session));
    }

    fn disconnected(&self) {
        self.log.lock().unwrap().push("disconnected".to_owned());
    }

    fn renewed(&self, sent: tokio::time::Instant) {
        self.renewed.lock().unwrap().push(sent);
    }
}

pub struct House {
    pub world: World,
    pub transport: Arc<LocalTransport>,
    pub desk: Arc<Desk>,
    pub server: Server,
    pub ear: Arc<Ear>,
    pub session: Arc<Session>,
}

impl House {
    pub async fn new() -> Self {
        Self::with(ServerSettings::default()).await
    }

    pub async fn with(settings: ServerSettings) -> Self {
        let (world, transport) = World::local(7);
        let desk = Desk::new(&Arc::default(), true);
        let server = serve(&*transport, &desk, settings).await;
        let ear = Arc::new(Ear::default());
        let session = dial(&world, &ear);
        Self { world, transport, desk, server, ear, session }
    }
}

pub async fn serve(
    transport: &dyn Transport,
    desk: &Arc<Desk>,
    settings: ServerSettings,
) -> Server {
    let listener = transport.listen(ADDRESS).await.unwrap();
    Server::start(listener, desk.clone(), Guard::open(), settings)
}

/// Somebody without a proof.
pub fn nobody() -> Peer {
    Peer { address: String::new(), principal: None, flavor: Flavor::Null }
}

pub fn hello() -> Hello {
    Hello {
        version_oldest: 1,
        version_newest: 1,
        role: PeerRole::Client,
        client: ClientId([7; 16]),
        session: None,
        fs: "extenci".parse().unwrap(),
        credential: CredentialKind::None,
        flavor: Flavor::Null,
        features: 0,
        description: "test".to_owned(),
        map: Version(0),
        wait_ms: None,
    }
}

pub fn dial(world: &World, ear: &Arc<Ear>) -> Arc<Session> {
    let settings = SessionSettings::default();
    let guard = Guard::open();
    Session::start(world.clone(), settings, guard, &[ADDRESS.to_owned()], hello(), ear.clone())
}

/// Asks for a file; what comes back names it. Odd ones wait at the gate.
pub async fn ask(session: &dyn Channel, id: u64) -> Result<String, CallError> {
    let result = exchange(session, meta::GetAttributes { id: FileId(id) }, Bulk::Empty).await;
    match result {
        Err(CallError::Refused(failure)) => Ok(failure.detail),
        Err(error) => Err(error),
        Ok(_) => panic!("the desk refuses this"),
    }
}

pub async fn exchange(
    session: &dyn Channel,
    request: impl Into<Request>,
    bulk: Bulk,
) -> Result<Bytes, CallError> {
    exchange_within(session, request, bulk, Some(PATIENCE)).await
}

pub async fn exchange_within(
    session: &dyn Channel,
    request: impl Into<Request>,
    bulk: Bulk,
    patience: Option<Duration>,
) -> Result<Bytes, CallError> {
    let (caller, request) = (Caller::root(), request.into());
    let outgoing = Outgoing { caller, request, bulk, patience, note: vec![] };
    session.exchange(outgoing).await.map(|incoming| incoming.bulk)
}

/// A chunk to put, its bytes beside it.
/// A chunk that is put once the gate lets it through.
pub const WAITS: u64 = 0;

pub fn put(serial: u64) -> data::PutChunk {
    let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial };
    let owner =
        data::ObjectOwner { file: FileId(1), offset: 0, version: Version(1), path: Vec::new() };
    data::PutChunk {
        ost: OstIndex(0),
        chunk,
        owner,
        checks: Vec::new(),
        capability: None,
        room: None,
    }
}

/// A range to read: all bytes of it are the offset.
pub fn fetch(offset: u64, length: u32) -> data::ReadObject {
    let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 1 };
    let object = ObjectName::Chunk(chunk);
    data::ReadObject { ost: OstIndex(0), object, offset, length, capability: None, hashed: None }
}

/// Lets other tasks run until `is_so`.
pub async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came to be");
}

/// As [`until`], for what takes seconds.
pub async fn until_slow(is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it never came to be");
}

/// A client of bare frames, which may misbehave.
pub mod raw {
    use super::*;
    use tieline_net::frames::{Budget, FrameReader, FrameWriter, OutFrame};
    use tieline_types::RequestNumber;
    use tieline_wire::{Envelope, FrameKind};

    /// A new session.
    pub async fn welcomed(transport: &LocalTransport) -> (FrameReader, FrameWriter) {
        greet(transport, hello()).await
    }

    /// Takes over a session that somebody else may have.
    pub async fn resume(transport: &LocalTransport, session: u64) -> (FrameReader, FrameWriter) {
        greet(transport, Hello { session: Some(SessionId(session)), ..hello() }).await
    }

    async fn greet(transport: &LocalTransport, hello: Hello) -> (FrameReader, FrameWriter) {
        let connection = transport.connect(ADDRESS, PATIENCE).await.unwrap();
        let mut reader = FrameReader::new(connection.reader, Budget::unlimited());
        let mut writer = FrameWriter::new(connection.writer);
        write(&mut writer, FrameKind::Hello, 0, 0, &tieline_wire::encode(&hello)).await;
        assert_eq!(reader.next().await.unwrap().header.kind, FrameKind::Welcome);
        (reader, writer)
    }

    /// The other side: welcomes whoever connected, then reads to the end and says nothing.
    pub async fn greet_and_read(connection: tieline_world::Connection) {
        let mut reader = FrameReader::new(connection.reader, Budget::unlimited());
        let mut writer = FrameWriter::new(connection.writer);
        let frame = reader.next().await.unwrap();
        let hello: Hello = tieline_wire::decode(&frame.body).unwrap();
        let desk = Desk::new(&Arc::default(), true);
        let welcome = desk.welcome(&hello, &nobody()).await.unwrap();
        let body = tieline_wire::encode(&Welcome { version: 1, ..welcome });
        write(&mut writer, FrameKind::Welcome, 0, 0, &body).await;
        while reader.next().await.is_ok() {}
    }

    pub async fn request(writer: &mut FrameWriter, number: u64, request: &Request) {
        let body = request.encode(&Envelope::default());
        send(writer, number, request.op().number(), &body).await;
    }

    pub async fn send(writer: &mut FrameWriter, number: u64, op: u16, body: &[u8]) {
        write(writer, FrameKind::Request, number, op, body).await;
    }

    async fn write(writer: &mut FrameWriter, kind: FrameKind, number: u64, op: u16, body: &[u8]) {
        let frame = OutFrame::new(kind, RequestNumber(number), body.to_vec(), Bulk::Empty)
            .with(|header| header.op = op);
        writer.write(&frame).await.unwrap();
        writer.flush().await.unwrap();
    }

    pub async fn ping(writer: &mut FrameWriter, number: u64) {
        write(writer, FrameKind::Ping, number, 0, b"").await;
    }

    /// The beginning of a request with bulk that never comes.
    pub async fn announce(writer: &mut FrameWriter, bulk_length: u32) {
        let frame = OutFrame::bare(FrameKind::Request, RequestNumber(1))
            .with(|header| (header.op, header.bulk_length) = (Op::PutChunk.number(), bulk_length));
        writer.write(&frame).await.unwrap();
        writer.flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
