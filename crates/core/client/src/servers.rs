//! The servers this client talks to: one channel per MDS, a few per OSS, dialled when they are
//! first needed.
//!
//! Which server holds an MDT or OST is what the newest federation map says. A server that does not
//! hold it (any more) or cannot be reached makes us look for a newer map once, and try again. MDTs
//! and OSTs with the same addresses share a server; an MDS and an OSS at one address are two.
//!
//! Knows nothing of what replies mean; stamps each MDS reply with the lease epoch it was asked in
//! ([`Stamp`]).
//!
//! Invariants: a mutation is sent again only if it surely did not happen, or may happen twice;
//! every call ends after [`crate::Settings::wait`], or when
//! the absence that its server announced is over.

use crate::cause;
use crate::journal::Busy;
use crate::kept::{self, CALL, KeptSession, Left};
use crate::volume::Shared;
use crate::{Error, Parts, Result, Settings};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tieline_auth::{MapCell, Rule};
use tieline_believed::{Cache, ServerNumber, Stamp};
use tieline_format::Record;
use tieline_format::map::{FederationMap, SignedMap};
use tieline_keep::{Keep, Kept};
use tieline_net::{
    Answer, CallError, Channel, Dialer, Incoming, Keeping, Outgoing, Reading as ClockReading,
    Unanswered, read_reply,
};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    Caller, ChunkId, ClientId, Effect, ErrorKind, FileId, Grant, MdtIndex, OstIndex, RequestNumber,
    Retry, SessionId, Time,
};
use tieline_wire::capability::Holder;
use tieline_wire::federation::GetMap;
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{Call, CredentialKind, Hello, Op, PeerRole, Request, Welcome};
use tieline_world::{Bulk, World};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

mod abilities;
mod clock;
mod pace;
mod proofs;
mod sink;
pub(crate) mod turns;
pub(crate) mod waits;
pub(crate) mod ways;
use clock::ServerClock;
use pace::Pace;
use sink::ServerSink;
use turns::{Reader, Turn, Turns};
use waits::silence;
use ways::{Chosen, FAR_MOST, Ways};

pub use proofs::Credentials;

/// Servers of OSTs that are dialled before anything is asked of them. Of more, those whose files
/// are opened.
const WARM_MAX: usize = 16;
/// Bytes of chunks on their way to one OSS: enough for 1 Gbit/s over 250 ms.
const PUT_BYTES_PER_OSS: usize = 32 << 20;
/// They are counted in units of so many, and a small chunk as so many of these.
pub(crate) const PUT_GRAIN: usize = 4 << 10;
pub(crate) const PUT_GRAINS_MIN: usize = 16;
pub(crate) const PUT_GRAINS_MAX: usize = PUT_BYTES_PER_OSS / PUT_GRAIN;
/// What nobody waits for yet holds up others by half a second, or by so many bytes.
const AHEAD_PER_SECOND: u64 = 2;
const AHEAD_LEAST: u64 = 1 << 20;
/// A map comes from any server; one that is slow to give it is not worth waiting for.
const MAP_PATIENCE: Duration = Duration::from_secs(10);
/// Refusals that ask for the same request again, in a row.
const REPEATS_MAX: u32 = 6;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServerKind {
    Mds,
    Oss,
}

impl ServerKind {
    fn label(self) -> &'static str {
        match self {
            Self::Mds => "mds",
            Self::Oss => "oss",
        }
    }
}

/// One server and our ways to it.
pub(crate) struct Server {
    pub number: ServerNumber,
    kind: ServerKind,
    pub ways: Ways,
    pub turns: Turns,
    pub pace: Pace,
    clock: Arc<ServerClock>,
    /// The grant that chunk ids are counted under, and the last serial.
    serial: Mutex<(Grant, u64)>,
    serial_first: u64,
    pub puts: Arc<Semaphore>,
    /// What its last welcome says that it can do.
    features: AtomicU64,
    addresses: Vec<String>,
    session: Mutex<Option<Kept>>,
    /// When the absence that it announced is over.
    held_until: Mutex<Option<Instant>>,
}

impl Server {
    /// A connection for a request that moves about `weight` bytes.
    fn channel(&self, weight: u64) -> Result<Chosen> {
        let none = || Error::local(ErrorKind::Unreachable, "server without a channel");
        self.ways.choose(weight).ok_or_else(none)
    }

    /// How many bytes are to be under way from it.
    pub fn room(&self) -> u64 {
        // Each of many connections needs something to do, whatever rate they come to together.
        let is_one_way = self.ways.is_far() && !self.ways.are_many();
        self.pace.room(self.ways.round_trip(), is_one_way)
    }

    /// Waits until so many bytes may be asked for.
    pub async fn turn(
        &self,
        reader: Reader,
        weight: u64,
        is_wanted: &Arc<AtomicBool>,
    ) -> Option<Turn> {
        self.turns.wait(reader, weight, is_wanted, self.room()).await
    }

    /// What chunk ids carry now; `None` before the first welcome.
    pub fn grant(&self) -> Option<Grant> {
        Some(self.ways.first()?.standing()?.grant)
    }

    /// Is any of its connections up, as far as we know?
    pub fn is_connected(&self) -> bool {
        let mut standings = self.ways.channels().filter_map(|channel| channel.standing());
        standings.any(|standing| standing.is_connected)
    }

    /// A chunk id that was never used. Serials count from 1 under each grant, and from a larger
    /// number in a process that goes on with it.
    pub fn chunk_id(&self, mdt: MdtIndex) -> Option<ChunkId> {
        let grant = self.grant()?;
        let mut last = self.serial.lock().unwrap_or_else(|poison| poison.into_inner());
        if last.0 != grant {
            *last = (grant, self.serial_first);
        }
        last.1 += 1;
        Some(ChunkId { mdt, grant, serial: last.1 })
    }
}

/// An MDS's reply, and the lease epoch it was asked in.
pub(crate) struct Told<T> {
    pub reply: T,
    pub stamp: Stamp,
    /// Of a change: to be dropped when the reply was learned.
    pub busy: Option<Busy>,
}

type Key = (ServerKind, Vec<String>);

/// All of them.
pub(crate) struct Servers {
    shared: Weak<Shared>,
    cache: Arc<Cache>,
    world: World,
    dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    rule: Rule,
    client: ClientId,
    description: String,
    wait: Duration,
    table: Mutex<BTreeMap<Key, Arc<Server>>>,
    next: AtomicU64,
    is_closed: AtomicBool,
    /// One looks for a newer map at a time.
    looking: tokio::sync::Mutex<()>,
    /// The clock of the MDS that said last what time it is.
    last_clock: Mutex<Option<Arc<ServerClock>>>,
    credentials: OnceLock<Arc<dyn Credentials>>,
    keep: Keep,
    _client_kept: Option<Kept>,
    /// Answers to what an earlier process had under way, with what they are to.
    answers: Mutex<Vec<LeftAnswer>>,
}

/// A request that an earlier process left, and where its answer comes.
pub(crate) struct LeftAnswer {
    pub request: Request,
    pub note: Vec<u8>,
    pub answer: Answer,
}

impl Servers {
    pub fn new(
        shared: Weak<Shared>,
        cache: Arc<Cache>,
        parts: &Parts,
        settings: &Settings,
        (keep, left): (&Keep, &Left),
    ) -> Self {
        let mut client = [0; 16];
        parts.world.dice.fill(&mut client);
        let client = left.client.as_ref().map_or(client, |(client, _)| client.0);
        Self {
            keep: keep.clone(),
            _client_kept: kept::put_client(keep, ClientId(client)),
            answers: Mutex::default(),
            shared,
            cache,
            world: parts.world.clone(),
            dialer: parts.dialer.clone(),
            map: parts.map.clone(),
            rule: parts.rule,
            client: ClientId(client),
            description: settings.description.clone(),
            wait: settings.wait,
            table: Mutex::default(),
            next: AtomicU64::new(1),
            is_closed: AtomicBool::new(false),
            looking: tokio::sync::Mutex::default(),
            last_clock: Mutex::default(),
            credentials: OnceLock::new(),
        }
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// What time it is at an MDT's server. One that did not say so yet is taken to go as another
    /// does; our own clock counts where no MDS ever said anything.
    pub fn time_at(&self, mdt: MdtIndex) -> Time {
        let counted = &*self.world.clock;
        let known = self.mds(mdt).ok().and_then(|server| server.clock.now(counted));
        known
            .or_else(|| crate::volume::lock(&self.last_clock).as_ref()?.now(counted))
            .unwrap_or_else(|| {
                let wall = counted.wall();
                Time { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
            })
    }

    fn told_time(&self, number: ServerNumber, reading: ClockReading) {
        if let Some(server) = self.numbered(number) {
            server.clock.learn(reading, &*self.world.clock);
            *crate::volume::lock(&self.last_clock) = Some(server.clock.clone());
        }
    }

    /// The MDS of an MDT, as the newest map has it.
    pub fn mds(&self, mdt: MdtIndex) -> Result<Arc<Server>> {
        let believed = self.map.current();
        let none = || Error::local(ErrorKind::Stale, format!("{} in the map", mdt.label()));
        let entry = believed.map.mdt(mdt).ok_or_else(none)?;
        self.server(ServerKind::Mds, &entry.addresses, &believed.map)
    }

    /// The OSS of an OST, as the newest map has it.
    pub fn oss(&self, ost: OstIndex) -> Result<Arc<Server>> {
        let believed = self.map.current();
        let none = || Error::local(ErrorKind::OstInactive, format!("{} in the map", ost.label()));
        let entry = believed.map.ost(ost).ok_or_else(none)?;
        self.server(ServerKind::Oss, &entry.addresses, &believed.map)
    }

    /// An MDT that the server holds, as the newest map has it.
    pub fn mdt_of(&self, server: ServerNumber) -> Option<MdtIndex> {
        let believed = self.map.current();
        let mut mdts = believed.map.mdts.iter().map(|entry| entry.mdt);
        mdts.find(|&mdt| self.mds(mdt).is_ok_and(|holder| holder.number == server))
    }

    /// Asks the MDS that holds `file`.
    pub async fn ask<C: Call + Clone>(
        &self,
        caller: &Caller,
        file: FileId,
        message: C,
    ) -> Result<Told<C::Reply>> {
        self.ask_mdt(caller, file.mdt(), message, self.wait_for(file.mdt())).await
    }

    /// What was done here and the message may rest on comes before it.
    pub async fn ask_mdt<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
        patience: Duration,
    ) -> Result<Told<C::Reply>> {
        let deadline = Instant::now() + patience;
        let shared = self.shared.upgrade();
        let mut busy = None;
        if let Some(shared) = &shared
            && let Some(queue) = shared.journal.of(mdt)
        {
            if matches!(C::OP, Op::Create | Op::MakeDirectory) {
                shared.stir(None);
            }
            if C::OP.is_mutation() {
                let reserved = timeout_at(deadline, queue.reserve_first(shared)).await;
                reserved.map_err(|_| silence(mdt, patience))?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            busy = queue.before(&self.cache, &message.clone().into(), left).await?;
        }
        drop(shared);
        let told = self.ask_until(caller, mdt, message, deadline).await?;
        Ok(Told { busy, ..told })
    }

    /// Asks without regard for what was done here.
    pub async fn ask_now<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
    ) -> Result<Told<C::Reply>> {
        self.ask_until(caller, mdt, message, Instant::now() + self.wait_for(mdt)).await
    }

    async fn ask_until<C: Call + Clone>(
        &self,
        caller: &Caller,
        mdt: MdtIndex,
        message: C,
        deadline: Instant,
    ) -> Result<Told<C::Reply>> {
        let mut attempts = Attempts::default();
        loop {
            let server = self.mds(mdt)?;
            if let Some(result) = answered_before::<C>(&server) {
                // What it grants may have been taken back since.
                let stamp = Stamp::past(server.number);
                return result.map(|reply| Told { reply, stamp, busy: None });
            }
            let stamp = self.cache.stamp(server.number);
            let result = self.once(&server, caller, message.clone(), Bulk::Empty, deadline).await;
            match result {
                Ok((reply, _)) => return Ok(Told { reply, stamp, busy: None }),
                Err(error) => {
                    let is_proof = error.kind() == ErrorKind::Unauthenticated;
                    if is_proof && !attempts.has_shown {
                        attempts.has_shown = true;
                        if self.show_all(&server, caller, &message.clone().into()).await? {
                            continue;
                        }
                    }
                    attempts.judge(self, &server, C::OP, error, deadline).await?
                }
            }
        }
    }

    /// Asks the OSS that serves `ost`.
    pub async fn ask_oss<C: Call + Clone>(
        &self,
        ost: OstIndex,
        message: C,
        bulk: impl Into<Bulk>,
        patience: Duration,
    ) -> Result<(C::Reply, Bytes)> {
        self.ask_oss_for(ost, message, (bulk.into(), 0), patience).await
    }

    /// The same, for an answer that brings about `expected` bytes.
    pub async fn ask_oss_for<C: Call + Clone>(
        &self,
        ost: OstIndex,
        message: C,
        (bulk, expected): (Bulk, u64),
        patience: Duration,
    ) -> Result<(C::Reply, Bytes)> {
        let deadline = Instant::now() + patience;
        let mut attempts = Attempts::default();
        loop {
            let server = self.oss(ost)?;
            let bulk = (bulk.clone(), expected);
            let caller = Caller::root();
            match self.once_for(&server, &caller, message.clone(), bulk, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(error) => attempts.judge(self, &server, C::OP, error, deadline).await?,
            }
        }
    }

    async fn once<C: Call>(
        &self,
        server: &Server,
        caller: &Caller,
        message: C,
        bulk: Bulk,
        deadline: Instant,
    ) -> Result<(C::Reply, Bytes)> {
        self.once_for(server, caller, message, (bulk, 0), deadline).await
    }

    async fn once_for<C: Call>(
        &self,
        server: &Server,
        caller: &Caller,
        message: C,
        (bulk, expected): (Bulk, u64),
        deadline: Instant,
    ) -> Result<(C::Reply, Bytes)> {
        let patience = Some(deadline.saturating_duration_since(Instant::now()));
        let note =
            if C::OP.is_mutation() && self.keep.is_on() { kept::note(C::OP) } else { vec![] };
        let (caller, request) = (caller.clone(), message.into());
        let chosen = server.channel(bulk.len() as u64 + expected)?;
        let outgoing = Outgoing { caller, request, bulk, patience, note };
        let result = chosen.channel.exchange(outgoing).await;
        let result = result.and_then(|incoming| read_held::<C>(&*chosen.channel, incoming));
        match &result {
            Ok(_) | Err(CallError::Refused(_)) => {
                METRICS.round_trips.with_label_values(&[server.kind.label()]).inc();
            }
            Err(error) if error.kind() == ErrorKind::Timeout => METRICS.client_timeouts.inc(),
            Err(_) => {}
        }
        Ok(result?)
    }

    /// Fetches the map from an MDT's server.
    pub async fn refresh(&self, mdt: MdtIndex) -> Result<()> {
        let server = self.mds(mdt)?;
        self.look_for_map(&server).await.map(drop)
    }

    /// Fetches the map from `server`; says whether it is newer than ours.
    async fn look_for_map(&self, server: &Server) -> Result<bool> {
        let _one = self.looking.lock().await;
        let before = self.map.current();
        let deadline = Instant::now() + MAP_PATIENCE;
        let asked = self.once(server, &Caller::root(), GetMap {}, Bulk::Empty, deadline).await?;
        let unreadable = |_| Error::local(ErrorKind::Protocol, "federation map of a server");
        let signed = SignedMap::from_bytes(&asked.0.signed).map_err(unreadable)?;
        let untrusted = |_| Error::local(ErrorKind::Unauthenticated, "federation map of a server");
        self.map.offer(signed).map_err(untrusted)?;
        let now = self.map.current();
        let is_newer = now.map.version > before.map.version;
        if let Some(shared) = self.shared.upgrade().filter(|_| is_newer) {
            shared.junctions_changed(&before.map, &now.map);
        }
        Ok(is_newer)
    }

    /// Looks for a newer map at `server`, else at whoever answers.
    async fn look_around(&self, server: &Server) -> bool {
        if let Ok(is_newer) = self.look_for_map(server).await {
            return is_newer;
        }
        let others: Vec<_> = self.lock().values().cloned().collect();
        for other in others.iter().filter(|other| other.number != server.number) {
            if let Ok(is_newer) = self.look_for_map(other).await {
                return is_newer;
            }
        }
        false
    }

    fn server(
        &self,
        kind: ServerKind,
        addresses: &[String],
        map: &FederationMap,
    ) -> Result<Arc<Server>> {
        let key = (kind, addresses.to_vec());
        let mut table = self.lock();
        if let Some(server) = table.get(&key) {
            return Ok(server.clone());
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::local(ErrorKind::Disconnected, "file system is closed"));
        }
        let number = ServerNumber(self.next.fetch_add(1, Ordering::Relaxed));
        let count = if kind == ServerKind::Oss { FAR_MOST } else { 1 };
        let dial = |way| {
            let sink = Arc::new(ServerSink { shared: self.shared.clone(), number, kind, way });
            if kind == ServerKind::Mds && self.keep.is_on() {
                return self.dial_kept(addresses, self.hello(map), sink);
            }
            self.dialer.dial(addresses, self.hello(map), sink)
        };
        let server = Arc::new(Server {
            number,
            kind,
            addresses: addresses.to_vec(),
            serial_first: kept::first_number(&self.keep),
            session: Mutex::default(),
            held_until: Mutex::default(),
            features: AtomicU64::new(0),
            ways: Ways::new((0..count).map(dial).collect()),
            turns: Turns::default(),
            pace: Pace::default(),
            clock: Arc::new(ServerClock::new()),
            serial: Mutex::new((Grant(0), 0)),
            puts: Arc::new(Semaphore::new(PUT_BYTES_PER_OSS / PUT_GRAIN)),
        });
        table.insert(key, server.clone());
        Ok(server)
    }

    /// A channel whose requests outlive this process. It goes on with the session of an earlier
    /// one, whose requests it sends again.
    fn dial_kept(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<ServerSink>,
    ) -> Arc<dyn Channel> {
        let name = kept::server_name(addresses);
        let (mut session, mut unanswered) = (None, Vec::new());
        if let Some(shared) = self.shared.upgrade() {
            let mut left = crate::volume::lock(&shared.left);
            if let Some((kept, _)) = left.sessions.get(&name) {
                session = Some(SessionId(kept.session));
                shared.locks.restore_server(sink.number, SessionId(kept.session), kept.boot);
            }
            let (own, others): (Vec<Unanswered>, _) =
                left.calls.drain(..).partition(|call| call.session == name);
            (left.calls, unanswered) = (others, own);
        }
        let keep = self.keep.clone();
        let first = RequestNumber(kept::first_number(&keep) + 1);
        let keeping = Keeping { keep, kind: CALL, session: name, first };
        let told: Vec<_> =
            unanswered.iter().map(|call| (call.request.clone(), call.note.clone())).collect();
        let hello = Hello { session, ..hello };
        let (channel, answers) = self.dialer.dial_kept(addresses, hello, sink, keeping, unanswered);
        let answers = told.into_iter().zip(answers);
        let left = answers.map(|((request, note), answer)| LeftAnswer { request, note, answer });
        crate::volume::lock(&self.answers).extend(left);
        channel
    }

    /// Goes on with the sessions of an earlier process; gives back what it had under way.
    pub fn go_on(&self, sessions: &[KeptSession]) -> (Vec<Arc<Server>>, Vec<LeftAnswer>) {
        let believed = self.map.current();
        let mut servers = Vec::new();
        for session in sessions {
            match self.server(ServerKind::Mds, &session.addresses, &believed.map) {
                Ok(server) => servers.push(server),
                Err(error) => tracing::error!(%error, "a session is not resumed"),
            }
        }
        (servers, std::mem::take(&mut crate::volume::lock(&self.answers)))
    }

    /// Makes connections to OSSs before anything is asked of them, unless there are many.
    pub fn warm_all(&self) {
        let believed = self.map.current();
        let mut servers = BTreeMap::new();
        for entry in &believed.map.osts {
            if let Ok(server) = self.oss(entry.ost) {
                servers.insert(server.number, server);
            }
            if servers.len() > WARM_MAX {
                return;
            }
        }
        servers.values().for_each(|server| server.ways.warm());
    }

    /// The same for those whose bytes are about to be read.
    pub fn warm(&self, osts: &[OstIndex]) {
        for &ost in osts.iter().take(WARM_MAX) {
            if let Ok(server) = self.oss(ost) {
                server.ways.warm();
            }
        }
    }

    /// What is fetched ahead of this reader is not worth its turn any more.
    pub fn forget(&self, reader: Reader) {
        let servers: Vec<_> = self.lock().values().cloned().collect();
        servers.iter().for_each(|server| server.turns.forget(reader));
    }

    /// A server has welcomed us: its other connections follow if it is far. This one is filled, if
    /// it is to be.
    fn welcomed(&self, number: ServerNumber, welcome: &Welcome, filled: Option<usize>) {
        if let Some(server) = self.numbered(number).filter(|server| server.kind == ServerKind::Oss)
        {
            server.ways.told(welcome.features & Welcome::SLOWS_AT_LOSSES != 0);
            server.ways.warm();
            if let Some(way) = filled {
                tokio::spawn(async move { server.ways.fill(way).await });
            }
        }
    }

    /// Any answer proves that there is a session.
    pub async fn greet(&self, server: &Server) -> Result<()> {
        let deadline = Instant::now() + self.wait_at(server);
        self.once(server, &Caller::root(), GetMap {}, Bulk::Empty, deadline).await.map(drop)
    }

    /// Puts down in which session we are with a server.
    fn keep_session(&self, number: ServerNumber, welcome: &Welcome) {
        if !self.keep.is_on() {
            return;
        }
        let Some(server) = self.numbered(number) else { return };
        let (addresses, session) = (server.addresses.clone(), welcome.session.0);
        let session = KeptSession { addresses, session, boot: welcome.boot };
        let name = kept::server_name(&session.addresses);
        let kept = kept::put_session(&self.keep, name, &session);
        *crate::volume::lock(&server.session) = kept;
    }

    fn hello(&self, map: &FederationMap) -> Hello {
        Hello {
            version_oldest: VERSION_OLDEST,
            version_newest: VERSION,
            role: PeerRole::Client,
            client: self.client,
            session: None,
            fs: map.fs.clone(),
            credential: CredentialKind::None,
            flavor: self.rule.flavor,
            features: 0,
            description: self.description.clone(),
            map: map.version,
            wait_ms: Some(u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// How many bytes that nobody waits for yet may be on their way: a read that somebody waits
    /// for stands behind them.
    pub fn room_ahead(&self) -> u64 {
        let servers = self.lock();
        let is_far = |server: &&Arc<Server>| server.kind == ServerKind::Oss && server.ways.is_far();
        let mut rates = servers.values().filter(is_far).map(|server| server.pace.rate()).peekable();
        if rates.peek().is_none() {
            return u64::MAX;
        }
        let sum = rates.flatten().sum::<u64>();
        (sum / AHEAD_PER_SECOND).max(AHEAD_LEAST)
    }

    /// Connections may be dead without a word: they are tried now.
    pub fn doubt(&self) {
        for server in self.lock().values() {
            server.ways.channels().for_each(|channel| channel.doubt());
        }
    }

    /// As whom OSSs know us, if one has said so.
    pub fn holder(&self) -> Option<Holder> {
        let table = self.lock();
        let osss = table.values().filter(|server| server.kind == ServerKind::Oss);
        let mut channels = osss.flat_map(|server| server.ways.channels());
        channels.find_map(|channel| channel.standing()?.holder)
    }

    /// Says goodbye to all servers; none is dialled from now on.
    pub async fn close(&self, patience: Duration) {
        self.is_closed.store(true, Ordering::Relaxed);
        let servers = std::mem::take(&mut *self.lock());
        let mut tasks = tokio::task::JoinSet::new();
        for channel in servers.values().flat_map(|server| server.ways.channels().cloned()) {
            tasks.spawn(async move { channel.close(patience).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    fn numbered(&self, number: ServerNumber) -> Option<Arc<Server>> {
        self.lock().values().find(|server| server.number == number).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Server>>> {
        self.table.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// The reply, with its record in good hands.
fn read_held<C: Call>(
    channel: &dyn Channel,
    mut incoming: Incoming,
) -> Result<(C::Reply, Bytes), CallError> {
    kept::hold(incoming.held.take());
    Ok((read_reply::<C>(channel, &incoming)?, incoming.bulk))
}

/// What an earlier process was answered for the request that is being served.
fn answered_before<C: Call>(server: &Server) -> Option<Result<C::Reply>> {
    if !C::OP.is_mutation() || kept::is_noting() {
        return None;
    }
    let cause = cause::current()?;
    let (_, answer) = cause.take_answer(|request| request.op() == C::OP)?;
    let chosen = server.channel(0).ok()?;
    Some(
        answer
            .and_then(|incoming| read_held::<C>(&*chosen.channel, incoming))
            .map(|one| one.0)
            .map_err(Into::into),
    )
}

/// What was tried already for one request.
#[derive(Default)]
struct Attempts {
    has_looked: bool,
    /// Tickets of users were shown, again perhaps.
    has_shown: bool,
    repeats: u32,
}

impl Attempts {
    /// Returns when the request may be tried again; else gives the error back.
    async fn judge(
        &mut self,
        servers: &Servers,
        server: &Server,
        op: Op,
        error: Error,
        deadline: Instant,
    ) -> Result<()> {
        let kind = error.kind();
        let is_safe = !op.is_mutation() || is_repeatable(op) || kind.effect() == Effect::NotApplied;
        if !is_safe || Instant::now() >= deadline {
            return Err(error);
        }
        match kind.retry() {
            Retry::AfterReconnect if !self.has_looked => {
                self.has_looked = true;
                let is_newer = servers.look_around(server).await;
                // The same server again only helps if the session was what was lost.
                if is_newer || kind == ErrorKind::SessionLost { Ok(()) } else { Err(error) }
            }
            Retry::SameRequest if kind != ErrorKind::Timeout && self.repeats < REPEATS_MAX => {
                self.repeats += 1;
                tokio::time::sleep(Duration::from_millis(10 << self.repeats)).await;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// Mutations that leave the same behind when they happen twice. Not commits: under another session
/// their chunks need other names.
fn is_repeatable(op: Op) -> bool {
    matches!(op, Op::Place | Op::Release | Op::Reserve)
}
