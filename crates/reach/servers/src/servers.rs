//! All servers that this process talks to, by the newest map.

use crate::clock::ServerClock;
use crate::pace::Pace;
use crate::records::{LeftAnswer, Records};
use crate::server::{PUT_BYTES_PER_OSS, PUT_GRAIN, Server, ServerKind};
use crate::sink::{Hearer, ServerSink};
use crate::turns::{Reader, Turns};
use crate::ways::{FAR_MOST, Ways};
use crate::{Credentials, Error, Greeting, Result, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_format::map::FederationMap;
use tieline_net::{Dialer, Reading};
use tieline_types::{ClientId, ErrorKind, Grant, MdtIndex, OstIndex, ServerNumber, Time};
use tieline_wire::Welcome;
use tieline_wire::capability::Holder;
use tieline_world::World;
use tokio::sync::Semaphore;

/// Servers of OSTs that are dialled before anything is asked of them. Of more, those whose files
/// are opened.
const WARM_MAX: usize = 16;
/// What nobody waits for yet holds up others by half a second, or by so many bytes.
const AHEAD_PER_SECOND: u64 = 2;
const AHEAD_LEAST: u64 = 4 << 20;
/// The same where the rate is not known: most of a round trip of 50 ms at a Gbit/s.
const AHEAD_SURE: u64 = 4 << 20;

/// MDTs and OSTs with the same addresses share a server; an MDS and an OSS at one address are two.
type Key = (ServerKind, Vec<String>);

/// What the table is plugged into.
pub struct Parts {
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    pub greeting: Greeting,
    /// Longest wait for a server that does not answer.
    pub wait: Duration,
    /// Is each connection to a far OSS to find out at once what its way holds?
    pub fills: bool,
    pub hearer: Weak<dyn Hearer>,
    pub records: Option<Arc<dyn Records>>,
}

/// All of them.
pub struct Servers {
    weak: Weak<Self>,
    pub(crate) hearer: Weak<dyn Hearer>,
    pub(crate) records: Option<Arc<dyn Records>>,
    world: World,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    greeting: Greeting,
    pub(crate) wait: Duration,
    pub(crate) fills: bool,
    table: Mutex<BTreeMap<Key, Arc<Server>>>,
    next: AtomicU64,
    is_closed: AtomicBool,
    /// One looks for a newer map at a time.
    pub(crate) looking: tokio::sync::Mutex<()>,
    /// The clock of the MDS that said last what time it is.
    last_clock: Mutex<Option<Arc<ServerClock>>>,
    pub(crate) credentials: OnceLock<Arc<dyn Credentials>>,
    /// Answers to what an earlier process had under way, with what they are to.
    pub(crate) answers: Mutex<Vec<LeftAnswer>>,
}

impl Servers {
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { world, dialer, map, greeting, wait, fills, hearer, records } = parts;
        Arc::new_cyclic(|weak| Self {
            weak: weak.clone(),
            hearer,
            records,
            world,
            dialer,
            map,
            greeting,
            wait,
            fills,
            table: Mutex::default(),
            next: AtomicU64::new(1),
            is_closed: AtomicBool::new(false),
            looking: tokio::sync::Mutex::default(),
            last_clock: Mutex::default(),
            credentials: OnceLock::new(),
            answers: Mutex::default(),
        })
    }

    /// As whom all servers know us.
    pub(crate) fn client(&self) -> ClientId {
        self.greeting.client
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// What time it is at an MDT's server. One that did not say so yet is taken to go as another
    /// does; our own clock counts where no MDS ever said anything.
    pub fn time_at(&self, mdt: MdtIndex) -> Time {
        let counted = &*self.world.clock;
        let known = self.mds(mdt).ok().and_then(|server| server.clock.now(counted));
        known.or_else(|| lock(&self.last_clock).as_ref()?.now(counted)).unwrap_or_else(|| {
            let wall = counted.wall();
            Time { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
        })
    }

    pub(crate) fn told_time(&self, number: ServerNumber, reading: Reading) {
        if let Some(server) = self.numbered(number) {
            server.clock.learn(reading, &*self.world.clock);
            *lock(&self.last_clock) = Some(server.clock.clone());
        }
    }

    /// The MDS of an MDT, or who answers in its place, as the newest map has it.
    pub fn mds(&self, mdt: MdtIndex) -> Result<Arc<Server>> {
        let believed = self.map.current();
        let none = || Error::local(ErrorKind::Stale, format!("{} in the map", mdt.label()));
        let addresses = believed.map.answerer(mdt).ok_or_else(none)?;
        self.server(ServerKind::Mds, &addresses, &believed.map)
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
        let mut mdts = believed.map.indexes();
        mdts.find(|&mdt| self.mds(mdt).is_ok_and(|holder| holder.number == server))
    }

    pub(crate) fn server(
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
            let sink = Arc::new(ServerSink { servers: self.weak.clone(), number, kind, way });
            let hello = self.greeting.hello(map.version);
            match &self.records {
                Some(records) if kind == ServerKind::Mds => {
                    self.dial_kept(&**records, addresses, hello, sink)
                }
                _ => self.dialer.dial(addresses, hello, sink),
            }
        };
        let server = Arc::new(Server {
            number,
            kind,
            addresses: addresses.to_vec(),
            serial_first: self.records.as_ref().map_or(0, |records| records.first_number()),
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
    pub(crate) fn welcomed_by(
        &self,
        number: ServerNumber,
        welcome: &Welcome,
        filled: Option<usize>,
    ) {
        let Some(server) = self.numbered(number) else { return };
        if server.kind == ServerKind::Mds {
            if filled.is_some() {
                tokio::spawn(async move { server.ways.fill_by_and_by().await });
            }
            return;
        }
        server.ways.told(welcome.features & Welcome::SLOWS_AT_LOSSES != 0);
        server.ways.warm();
        if let Some(way) = filled {
            tokio::spawn(async move { server.ways.fill(way).await });
        }
    }

    /// How many bytes that nobody waits for yet may be on their way: a read that somebody waits
    /// for stands behind them. `is_sure`: somebody
    /// most likely will.
    pub fn room_ahead(&self, is_sure: bool) -> u64 {
        let servers = self.lock();
        let is_far = |server: &&Arc<Server>| server.kind == ServerKind::Oss && server.ways.is_far();
        let mut rates = servers.values().filter(is_far).map(|server| server.pace.rate()).peekable();
        if rates.peek().is_none() {
            return u64::MAX;
        }
        match rates.flatten().sum::<u64>() {
            0 if is_sure => AHEAD_SURE,
            sum => (sum / AHEAD_PER_SECOND).max(AHEAD_LEAST),
        }
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

    pub(crate) fn numbered(&self, number: ServerNumber) -> Option<Arc<Server>> {
        self.lock().values().find(|server| server.number == number).cloned()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Server>>> {
        lock(&self.table)
    }
}
