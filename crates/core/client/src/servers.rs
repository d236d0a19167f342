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
//! every call ends after [`crate::Settings::wait`].

use crate::cache::{Cache, ServerNumber, Stamp};
use crate::journal::Busy;
use crate::volume::Shared;
use crate::{Error, Parts, Result, Settings};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_auth::{MapCell, Rule};
use tieline_format::Record;
use tieline_format::map::{FederationMap, SignedMap};
use tieline_net::{CallError, Channel, Dialer, call};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    Caller, ChunkId, ClientId, Effect, ErrorKind, FileId, Grant, MdtIndex, OstIndex, Retry,
};
use tieline_wire::federation::GetMap;
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::{Call, CredentialKind, Hello, Op, PeerRole};
use tieline_world::{Bulk, World};
use tokio::sync::Semaphore;
use tokio::time::Instant;

mod sink;
use sink::ServerSink;

/// Bulk data of one stream is limited by its window: two fill a long way better than one.
const CHANNELS_PER_OSS: usize = 2;
/// Chunks on their way to one OSS: 32 MiB of the default size, enough for 1 Gbit/s over 250 ms.
const PUTS_PER_OSS: usize = 8;
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
    channels: Vec<Arc<dyn Channel>>,
    turn: AtomicUsize,
    /// The grant that chunk ids are counted under, and the last serial.
    serial: Mutex<(Grant, u64)>,
    pub puts: Arc<Semaphore>,
}

impl Server {
    fn channel(&self) -> Result<&dyn Channel> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let channel = self.channels.get(turn % self.channels.len().max(1));
        let none = || Error::local(ErrorKind::Unreachable, "server without a channel");
        Ok(channel.ok_or_else(none)?.as_ref())
    }

    /// What chunk ids carry now; `None` before the first welcome.
    pub fn grant(&self) -> Option<Grant> {
        Some(self.channels.first()?.standing()?.grant)
    }

    /// A chunk id that was never used. Serials count from 1 under each grant.
    pub fn chunk_id(&self, mdt: MdtIndex) -> Option<ChunkId> {
        let grant = self.grant()?;
        let mut last = self.serial.lock().unwrap_or_else(|poison| poison.into_inner());
        if last.0 != grant {
            *last = (grant, 0);
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
}

impl Servers {
    pub fn new(
        shared: Weak<Shared>,
        cache: Arc<Cache>,
        parts: &Parts,
        settings: &Settings,
    ) -> Self {
        let mut client = [0; 16];
        parts.world.dice.fill(&mut client);
        Self {
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
        }
    }

    pub fn world(&self) -> &World {
        &self.world
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
        self.ask_mdt(caller, file.mdt(), message, self.wait).await
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
            if C::OP.is_mutation() {
                queue.reserve_first(shared).await;
            }
            busy = queue.before(&self.cache, &message.clone().into(), patience).await?;
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
        self.ask_until(caller, mdt, message, Instant::now() + self.wait).await
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
            let stamp = self.cache.stamp(server.number);
            let result = self.once(&server, caller, message.clone(), Bulk::Empty, deadline).await;
            match result {
                Ok((reply, _)) => return Ok(Told { reply, stamp, busy: None }),
                Err(error) => attempts.judge(self, &server, C::OP, error, deadline).await?,
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
        let (bulk, deadline) = (bulk.into(), Instant::now() + patience);
        let mut attempts = Attempts::default();
        loop {
            let server = self.oss(ost)?;
            let bulk = bulk.clone();
            match self.once(&server, &Caller::root(), message.clone(), bulk, deadline).await {
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
        let patience = deadline.saturating_duration_since(Instant::now());
        let result = call(server.channel()?, caller, message, bulk, Some(patience)).await;
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
        let before = self.map.current().map.version;
        let deadline = Instant::now() + MAP_PATIENCE;
        let asked = self.once(server, &Caller::root(), GetMap {}, Bulk::Empty, deadline).await?;
        let unreadable = |_| Error::local(ErrorKind::Protocol, "federation map of a server");
        let signed = SignedMap::from_bytes(&asked.0.signed).map_err(unreadable)?;
        let untrusted = |_| Error::local(ErrorKind::Unauthenticated, "federation map of a server");
        self.map.offer(signed).map_err(untrusted)?;
        Ok(self.map.current().map.version > before)
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
        let count = if kind == ServerKind::Oss { CHANNELS_PER_OSS } else { 1 };
        let dial = |_| {
            let sink = ServerSink { shared: self.shared.clone(), number, kind };
            self.dialer.dial(addresses, self.hello(map), Arc::new(sink))
        };
        let server = Arc::new(Server {
            number,
            kind,
            channels: (0..count).map(dial).collect(),
            turn: AtomicUsize::new(0),
            serial: Mutex::new((Grant(0), 0)),
            puts: Arc::new(Semaphore::new(PUTS_PER_OSS)),
        });
        table.insert(key, server.clone());
        Ok(server)
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
        }
    }

    /// Says goodbye to all servers; none is dialled from now on.
    pub async fn close(&self, patience: Duration) {
        self.is_closed.store(true, Ordering::Relaxed);
        let servers = std::mem::take(&mut *self.lock());
        let mut tasks = tokio::task::JoinSet::new();
        for channel in servers.into_values().flat_map(|server| server.channels.clone()) {
            tasks.spawn(async move { channel.close(patience).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Server>>> {
        self.table.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// What was tried already for one request.
#[derive(Default)]
struct Attempts {
    has_looked: bool,
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
