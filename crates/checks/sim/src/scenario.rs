//! What happens in one run: clients read and write registers, servers crash, links go silent; the
//! seed decides all.
//!
//! A register is a small file, written whole without truncation and closed. Some live in the
//! metadata, some in chunks; some at
//! `uf`, some behind the junction at `fnal`. Every word of a register holds the same value, so a
//! torn read shows itself.

//!
//! Clients with a journal answer before the servers know: what such a client did is sure once it
//! was synced, and may come to nothing (and says so at the sync) when it was cut off for longer
//! than a lease.

use crate::federation::Federation;
use crate::history::{Event, History, What};
use crate::outside::{SimDice, true_time};
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_client::Volume;
use tieline_files::{Access, At, Files, NewFile, Result};
use tieline_types::{Attributes, Caller, ErrorKind, FileId, Mode, Name};
use turmoil::{Builder, Sim};

/// Sizes of registers in words of 8 bytes: inline, inline at its limit, and a chunk of its own.
const SIZES: [usize; 3] = [4, 2048, 5000];

/// How much a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub clients: usize,
    /// Things each client does.
    pub steps: usize,
    /// Crashes and cuts.
    pub faults: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { clients: 3, steps: 40, faults: 6 }
    }
}

/// What a run left behind: the same seed and plan leave the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub history: History,
    /// Names created exclusively, with the client that was told it made them.
    pub created: Vec<(String, usize)>,
    pub elapsed: Duration,
}

#[derive(Default)]
struct Record {
    history: History,
    created: Vec<(String, usize)>,
}

/// Plays one seed.
pub fn play(seed: u64, plan: Plan) -> turmoil::Result<Outcome> {
    let mut sim = Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(1800))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(25))
        .tcp_capacity(4096)
        .build();
    let federation = Arc::new(Federation::new(seed));
    federation.add_servers(&mut sim);
    let record = Arc::new(Mutex::new(Record::default()));
    for number in 0..plan.clients {
        let (federation, record) = (federation.clone(), record.clone());
        sim.client(format!("client-{number}"), async move {
            let fs = federation.client(number);
            let dice = SimDice::new(seed.wrapping_mul(31).wrapping_add(number as u64));
            let has_journal = federation.has_journals();
            let ahead = [0, 1].map(|site| federation.ahead_at(site));
            let worker = Worker { fs, number, dice, record, has_journal, ahead };
            worker.work(plan.steps).await;
            worker.fs.close(Duration::from_secs(5)).await;
            Ok(())
        });
    }
    run_with_faults(&mut sim, seed, plan)?;
    let elapsed = sim.elapsed();
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Outcome { history: record.history, created: record.created, elapsed })
}

/// Steps the simulation, crashing or silencing one server at a time.
fn run_with_faults(sim: &mut Sim<'_>, seed: u64, plan: Plan) -> turmoil::Result {
    let dice = SimDice::new(!seed);
    let servers = Federation::servers();
    let mut faults = plan.faults;
    let mut next = Duration::from_millis(500 + dice.below(2000));
    let mut healing: Option<(Duration, Fault)> = None;
    while !sim.step()? {
        let now = sim.elapsed();
        if let Some((until, fault)) = &healing {
            if now >= *until {
                fault.heal(sim);
                healing = None;
                next = now + Duration::from_millis(500 + dice.below(4000));
            }
        } else if faults > 0 && now >= next {
            faults -= 1;
            let server = servers[dice.below(servers.len() as u64) as usize].clone();
            let fault = if dice.below(2) == 0 {
                Fault::Crash(server)
            } else {
                Fault::Silence(server, format!("client-{}", dice.below(plan.clients as u64)))
            };
            fault.strike(sim);
            // Sometimes shorter, sometimes longer than a lease.
            healing = Some((now + Duration::from_millis(100 + dice.below(9000)), fault));
        }
    }
    Ok(())
}

enum Fault {
    Crash(String),
    Silence(String, String),
}

impl Fault {
    fn strike(&self, sim: &mut Sim<'_>) {
        match self {
            Self::Crash(server) => sim.crash(server.as_str()),
            Self::Silence(server, client) => sim.hold(server.as_str(), client.as_str()),
        }
    }

    fn heal(&self, sim: &mut Sim<'_>) {
        match self {
            Self::Crash(server) => sim.bounce(server.as_str()),
            Self::Silence(server, client) => sim.release(server.as_str(), client.as_str()),
        }
    }
}

/// One client at work.
struct Worker {
    fs: Arc<Volume>,
    number: usize,
    dice: SimDice,
    record: Arc<Mutex<Record>>,
    has_journal: bool,
    /// By how many seconds the clocks of the two sites' servers are ahead.
    ahead: [i64; 2],
}

impl Worker {
    async fn work(&self, steps: usize) {
        for step in 0..steps {
            let register = self.dice.below(6) as usize;
            match self.dice.below(10) {
                0..4 => self.write(register, step).await,
                4..9 => self.read(register).await,
                _ => self.race(step).await,
            }
            tokio::time::sleep(Duration::from_millis(self.dice.below(400))).await;
        }
    }

    async fn write(&self, register: usize, step: usize) {
        let value = ((self.number as u64 + 1) << 32) | (step as u64 + 1);
        let words = SIZES[register % SIZES.len()];
        let bytes: Bytes = value.to_le_bytes().repeat(words).into();
        let from = turmoil::sim_elapsed().unwrap_or_default();
        let written = self.put(register, bytes).await;
        let what = What::Write { value, is_known: written.unwrap_or(false) };
        self.note(register, from, what);
    }

    async fn read(&self, register: usize) {
        let from = turmoil::sim_elapsed().unwrap_or_default();
        // A read that failed saw nothing, and says nothing.
        if let Ok(bytes) = self.get(register).await {
            self.note(register, from, What::Read { value: uniform(&bytes) });
        }
    }

    /// Everybody tries to create the same name; one may be told that it did.
    async fn race(&self, step: usize) {
        let name: Name = format!("race-{step}").parse().expect("a name");
        let new = NewFile { is_exclusive: true, ..new_file() };
        let root = self.fs.root();
        let at = At { parent: root, name: &name };
        if let Ok((_, opened)) = self.fs.create(&Caller::root(), at, new).await {
            self.fs.release(opened.handle).await;
            if self.has_journal && self.sync_directory(root).await.is_err() {
                return;
            }
            self.locked(|record| record.created.push((name.to_string(), self.number)));
        }
    }

    async fn sync_directory(&self, id: FileId) -> Result<()> {
        let handle = self.fs.open_directory(&Caller::root(), id).await?;
        let synced = self.fs.sync_directory(handle).await;
        self.fs.release_directory(handle).await;
        synced
    }

    /// Writes a register. Says whether the servers surely know.
    async fn put(&self, register: usize, bytes: Bytes) -> Result<bool> {
        let (parent, name) = self.place(register).await?;
        let at = At { parent, name: &name };
        let (_, opened) = self.fs.create(&Caller::root(), at, new_file()).await?;
        let written = self.fs.write(opened.handle, 0, bytes).await;
        let flushed = self.fs.flush(opened.handle).await;
        let is_synced = self.has_journal && self.dice.below(2) == 0;
        let synced = match is_synced {
            true => self.fs.sync(opened.handle, false).await,
            false => Ok(()),
        };
        self.fs.release(opened.handle).await;
        written.and(flushed).and(synced)?;
        Ok(is_synced || !self.has_journal)
    }

    async fn get(&self, register: usize) -> Result<Vec<u8>> {
        let (parent, name) = self.place(register).await?;
        let caller = Caller::root();
        let Some(attributes) = self.fs.lookup(&caller, parent, &name).await?.attributes else {
            return Ok(Vec::new());
        };
        self.check_times(register, &attributes);
        let access = Access { read: true, ..Access::default() };
        let opened = self.fs.open(&caller, attributes.id, access).await?;
        let pieces = self.fs.read(opened.handle, 0, 1 << 20).await;
        self.fs.release(opened.handle).await;
        Ok(pieces?.concat())
    }

    /// Whoever wrote it stamped it by the clock of its site's MDS, and after the run began.
    fn check_times(&self, register: usize, attributes: &Attributes) {
        const NEARLY: i64 = 2;
        let now = true_time().as_secs() as i64 + self.ahead[register % 2];
        let began = now - turmoil::sim_elapsed().unwrap_or_default().as_secs() as i64;
        for time in [attributes.mtime, attributes.ctime] {
            let during = began - NEARLY..=now + NEARLY;
            assert!(during.contains(&time.seconds), "register {register}: {time:?}, {during:?}");
        }
    }

    /// Odd registers are at `fnal`.
    async fn place(&self, register: usize) -> Result<(FileId, Name)> {
        let name = format!("register-{register}").parse().expect("a name");
        let root = self.fs.root();
        if register.is_multiple_of(2) {
            return Ok((root, name));
        }
        let fnal: Name = "fnal".parse().expect("a name");
        let found = self.fs.lookup(&Caller::root(), root, &fnal).await?.attributes;
        let missing = || tieline_files::Error::local(ErrorKind::NotFound, "/fnal");
        Ok((found.ok_or_else(missing)?.id, name))
    }

    fn note(&self, register: usize, from: Duration, what: What) {
        let event = Event {
            client: self.number,
            register: format!("register-{register}"),
            from,
            to: turmoil::sim_elapsed().unwrap_or_default(),
            what,
        };
        self.locked(|record| record.history.events.push(event));
    }

    fn locked(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn new_file() -> NewFile {
    NewFile {
        mode: Mode::new(0o644),
        umask: Mode::new(0o022),
        is_exclusive: false,
        access: Access { read: true, write: true, ..Access::default() },
        layout: None,
    }
}

/// The value that fills a register; one that nobody wrote if it is torn.
fn uniform(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks(8).map(|word| match word.try_into() {
        Ok(word) => u64::from_le_bytes(word),
        Err(_) => u64::MAX,
    });
    let Some(first) = words.next() else { return 0 };
    if words.all(|word| word == first) { first } else { u64::MAX }
}
