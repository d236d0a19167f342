//! A machine with a mount: its kernel asks the client only for what it does not know, and programs
//! run on it.
//!
//! A kernel keeps names, their absence, listings and pages as long as the client does not take them
//! back, and nothing does here. It asks for each name of a path.

use crate::line::{Crossed, Line, LineDialer, Way, lock};
use crate::server::{Server, id, number};
use crate::trace::{Call, Trace};
use crate::tree::Tree;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner, Rule};
use tieline_bytes::Near;
use tieline_client::{Parts, Settings, Volume};
use tieline_files::{Access, Files};
use tieline_format::map::{FederationMap, Mdt, Ost};
use tieline_types::{Caller, FileId, MdtIndex, Name, OstIndex, Version};
use tieline_wire::Flavor;
use tieline_world::World;
use tokio::time::{Instant, sleep};

/// What a kernel asks for at once, of a file that is read from its beginning.
const REQUEST: u64 = 1 << 20;
/// Timers of the runtime are no finer.
const TICK: Duration = Duration::from_millis(1);

pub struct Machine {
    line: Arc<Line>,
    volume: Arc<Volume>,
    tree: Arc<Tree>,
    kernel: Arc<Mutex<Kernel>>,
}

#[derive(Default)]
struct Kernel {
    names: BTreeSet<usize>,
    missing: BTreeSet<(usize, Name)>,
    listed: BTreeSet<usize>,
    links: BTreeSet<usize>,
    /// Bytes of files that were read.
    pages: BTreeMap<usize, u64>,
}

/// What a run of a program came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub took: Duration,
    pub crossed: Crossed,
    /// Bytes that the program read, each once.
    pub wanted: u64,
    /// Calls that waited for half a round trip and more, by their kinds.
    pub waits: Waits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// For names and attributes, or their absence.
    pub names: u64,
    pub reads: u64,
    pub lists: u64,
}

impl Waits {
    pub fn all(&self) -> u64 {
        self.names + self.reads + self.lists
    }

    fn of(&mut self, call: &Call) -> &mut u64 {
        match call {
            Call::Stat(_) | Call::Missing(..) | Call::ReadLink(_) => &mut self.names,
            Call::Read(..) => &mut self.reads,
            Call::List(_) => &mut self.lists,
        }
    }

    fn add(&mut self, other: Self) {
        self.names += other.names;
        self.reads += other.reads;
        self.lists += other.lists;
    }
}

fn map() -> Result<FederationMap> {
    Ok(FederationMap {
        fs: "extenci".parse()?,
        version: Version(1),
        mdts: vec![Mdt {
            mdt: MdtIndex(0),
            home: "uf".parse()?,
            addresses: vec!["mds:1".to_owned()],
        }],
        junctions: vec![],
        osts: vec![Ost {
            ost: OstIndex(0),
            site: "uf".parse()?,
            addresses: vec!["oss0:1".to_owned()],
            is_active: true,
        }],
        pools: vec![],
        security: None,
        invitations: None,
        repositories: None,
    })
}

impl Machine {
    /// One that has never been here.
    pub fn mount(way: Way, server: &Arc<Mutex<Server>>) -> Result<Self> {
        let line = Line::new(way, server.clone());
        let signer = MapSigner::new([7; 32]);
        let map = MapCell::new(signer.verifier(), signer.sign(&map()?)).context("a map")?;
        let dialer = Arc::new(LineDialer(line.clone()));
        let (rule, near) = (Rule { flavor: Flavor::Null }, Near::default());
        let world = World::local(1).0;
        let parts = Parts { world, dialer, map, root: FileId(1), rule, near, spool: None };
        let volume = Volume::new(parts, Settings { warms: true, ..Settings::default() });
        let tree = Arc::new(lock(server).tree.clone());
        Ok(Self { line, volume, tree, kernel: Arc::default() })
    }

    /// Runs a program from its first call to its last.
    pub async fn run(&self, trace: &Trace) -> Result<Run> {
        let (begun, before) = (Instant::now(), *lock(&self.line.crossed));
        let queue: VecDeque<Vec<Call>> = trace.processes.iter().cloned().collect();
        let queue = Arc::new(Mutex::new(queue));
        let mut lanes = tokio::task::JoinSet::new();
        for _ in 0..trace.lanes {
            let mut lane = Lane {
                kernel: self.kernel.clone(),
                volume: self.volume.clone(),
                tree: self.tree.clone(),
                waits: Waits::default(),
                pause: trace.pause,
                owed: Duration::ZERO,
            };
            let queue = queue.clone();
            lanes.spawn(async move {
                loop {
                    let Some(calls) = lock(&queue).pop_front() else { break };
                    for call in &calls {
                        lane.call(call).await?;
                    }
                }
                anyhow::Ok(lane.waits)
            });
        }
        let mut waits = Waits::default();
        while let Some(lane) = lanes.join_next().await {
            waits.add(lane??);
        }
        let after = *lock(&self.line.crossed);
        let crossed = Crossed {
            bytes: after.bytes - before.bytes,
            contents: after.contents - before.contents,
            mds: after.mds - before.mds,
            oss: after.oss - before.oss,
        };
        Ok(Run { took: begun.elapsed(), crossed, wanted: self.wanted(trace), waits })
    }

    fn wanted(&self, trace: &Trace) -> u64 {
        let mut read: BTreeMap<usize, u64> = BTreeMap::new();
        for call in trace.calls() {
            if let Call::Read(at, bytes) = call {
                let known = read.entry(*at).or_default();
                *known = (*known).max((*bytes).min(self.tree.size(*at)));
            }
        }
        read.values().sum()
    }
}

/// A call that takes so long waited for a server.
const FAR_WAIT: Duration = Duration::from_millis(25);

/// One process after the other.
struct Lane {
    kernel: Arc<Mutex<Kernel>>,
    volume: Arc<Volume>,
    tree: Arc<Tree>,
    waits: Waits,
    pause: Duration,
    /// What the program computed and no timer has counted yet.
    owed: Duration,
}

impl Lane {
    async fn call(&mut self, call: &Call) -> Result<()> {
        let begun = Instant::now();
        match call {
            Call::Stat(at) => self.find(*at).await?,
            Call::Missing(at, name) => self.miss(*at, name).await?,
            Call::Read(at, bytes) => self.read(*at, *bytes).await?,
            Call::List(at) => self.list(*at).await?,
            Call::ReadLink(at) => self.read_link(*at).await?,
        }
        *self.waits.of(call) += u64::from(begun.elapsed() >= FAR_WAIT);
        self.owed += self.pause;
        if self.owed >= TICK {
            let ticks = TICK * (self.owed.as_millis() as u32);
            self.owed -= ticks;
            sleep(ticks).await;
        }
        Ok(())
    }

    /// Each name of the path.
    async fn find(&self, at: usize) -> Result<()> {
        for at in self.tree.way_to(at) {
            if lock(&self.kernel).names.contains(&at) {
                continue;
            }
            let node = &self.tree.nodes[at];
            let name = node.name.as_ref().context("a name")?;
            let found = self.volume.lookup(&Caller::root(), id(node.parent), name).await?;
            let found = found.attributes.context("it is there")?;
            anyhow::ensure!(number(found.id) == at, "another file");
            lock(&self.kernel).names.insert(at);
        }
        Ok(())
    }

    async fn miss(&self, at: usize, name: &Name) -> Result<()> {
        self.find(at).await?;
        let missing = (at, name.clone());
        if lock(&self.kernel).missing.contains(&missing)
            || self.tree.nodes[at].names.contains_key(name)
        {
            return Ok(());
        }
        let found = self.volume.lookup(&Caller::root(), id(at), name).await?;
        anyhow::ensure!(found.attributes.is_none(), "it is not there");
        lock(&self.kernel).missing.insert(missing);
        Ok(())
    }

    async fn read(&self, at: usize, bytes: u64) -> Result<()> {
        self.find(at).await?;
        let size = self.tree.size(at);
        let access = Access { read: true, ..Access::default() };
        let opened = self.volume.open(&Caller::root(), id(at), access).await?;
        let bytes = bytes.min(size);
        let known = lock(&self.kernel).pages.get(&at).copied().unwrap_or(0);
        let mut from = known;
        while from < bytes {
            let length = REQUEST.min(size - from);
            let parts = self.volume.read(opened.handle, from, length as u32).await?;
            let count: usize = parts.iter().map(bytes::Bytes::len).sum();
            anyhow::ensure!(count > 0, "a file is shorter than it is");
            from += count as u64;
        }
        lock(&self.kernel).pages.insert(at, from.max(known));
        self.volume.release(opened.handle).await;
        Ok(())
    }

    async fn list(&self, at: usize) -> Result<()> {
        self.find(at).await?;
        if !lock(&self.kernel).listed.insert(at) {
            return Ok(());
        }
        let handle = self.volume.open_directory(&Caller::root(), id(at)).await?;
        let mut from = 0;
        loop {
            let page = self.volume.read_directory(handle, from, 128, true).await?;
            let Some(last) = page.last() else { break };
            from = last.next;
            let known = page.iter().filter(|one| one.known.is_some()).map(|one| number(one.id));
            lock(&self.kernel).names.extend(known);
        }
        self.volume.release_directory(handle).await;
        Ok(())
    }

    async fn read_link(&self, at: usize) -> Result<()> {
        self.find(at).await?;
        if lock(&self.kernel).links.insert(at) {
            self.volume.read_symlink(&Caller::root(), id(at)).await?;
        }
        Ok(())
    }
}
