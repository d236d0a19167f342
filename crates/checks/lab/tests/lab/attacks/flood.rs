//! A client that asks for far more than it will be given, or than it reads: what that takes of a
//! server's memory, and of honest clients' time.

use super::hostile::{Guise, Line, Scene};
use super::spoofed;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_auth::gss::Keys;
use tieline_lab::federation::Federation;
use tieline_net::frames::{Budget, FrameReader, FrameWriter, OutFrame, STALL_MAX};
use tieline_types::{
    Caller, ClientId, Content, FileId, Flavor, Origin, OstIndex, Place, RequestNumber, Time,
    Version,
};
use tieline_wire::data::{OstStatus, ReadObject};
use tieline_wire::meta::{Batch, BatchItem, GetExtents, Lookup, ReadDirectory};
use tieline_wire::{Call, CredentialKind, Envelope, FrameHeader, FrameKind, Hello, Op, PeerRole};
use tieline_world::{Bulk, World};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Requests, each about as long as one may be, over so many sessions.
const REQUESTS: usize = 256;
const SESSIONS: usize = 8;
const LENGTH: usize = 8_000_000;
/// What a server may take of memory meanwhile.
const MEMORY_MAX: u64 = 512 << 20;
/// Connections that ask and do not read, and what they ask for: a page is as long as one may be.
const UNREAD_LINES: u8 = 2;
const PAGE_LINKS: usize = 600;
const CHUNK: u32 = 4 << 20;
/// Rounds of measuring, and files of one, alone and beside.
const ROUNDS: usize = 5;
const MEASURED: usize = 2000;
/// What one host may have of sessions.
const SESSIONS_MAX: usize = 8192;
/// How long an honest client may take for one file meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// Files that it makes before, to compare.
const FILES: usize = 300;
/// Bytes of one, where they are to be put to an OSS.
const SMALL: usize = 20_000;

/// Batches as large as they may be, of a machine that nobody knows, all to be refused: at an MDS,
/// and at an OSS, which has no use for any.
pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let few = vec![7; SMALL];
    attack_at(scene, ("mds-uf", &scene.mds), &[]).await?;
    attack_at(scene, ("oss-uf", &scene.oss), &few).await
}

/// The same at one server. Honest clients make files with `bytes` beside.
async fn attack_at(scene: &Scene<'_>, server: (&str, &str), bytes: &[u8]) -> Result<()> {
    let (server, address) = server;
    let evil = spoofed::machine(scene)?;
    let memory = Memory::of(scene.federation, server)?;
    let [alone, beside] = ["alone", "beside"].map(|folder| format!("{folder}-{server}"));
    let alone = touches(scene.federation, &alone, bytes, |count| count < FILES)?;
    let lines: Vec<Arc<Line>> = (0..SESSIONS)
        .map(|at| {
            let mut line = scene.dial(address, &Guise::of(&evil, 70 + at as u8));
            line.patience = Duration::from_secs(300);
            Arc::new(line)
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let goes_on = |count| !is_over.load(Ordering::Relaxed) || count < FILES;
    let beside = std::thread::scope(|threads| {
        let honest = threads.spawn(|| touches(scene.federation, &beside, bytes, goes_on));
        let flood = flood(&lines, REQUESTS);
        let flooded =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(flood));
        is_over.store(true, Ordering::Relaxed);
        flooded?;
        honest.join().map_err(|_| anyhow!("the honest client"))?
    })?;
    let peak = memory.peak()?;
    // For who compares them by hand: other tests run beside this one.
    eprintln!("{server}: {alone:.0} files/s alone, {beside:.0} beside the flood; {peak} bytes");
    ensure!(peak < MEMORY_MAX, "{server} took {peak} bytes of memory");
    Ok(())
}

/// How many files an honest client makes alone and beside a flood, round after round. The flooder
/// takes the processors that nobody else wants: a real one has its own.
pub async fn rates(scene: &Scene<'_>) -> Result<()> {
    let evil = spoofed::machine(scene)?;
    let (mut alone, mut beside, mut shares) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let make = |what: &str| {
            touches(scene.federation, &format!("{what}{round}"), &[], |count| count < MEASURED)
        };
        alone.push(make("alone")?);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let flooder = threads.spawn(|| flood_until(scene, &evil, &is_over));
            std::thread::sleep(PATIENCE / 4);
            let begun = (Instant::now(), processor_time());
            let rate = make("beside");
            let used = (processor_time() - begun.1).as_secs_f64();
            shares.push(used / begun.0.elapsed().as_secs_f64());
            is_over.store(true, Ordering::Relaxed);
            let requests = flooder.join().map_err(|_| anyhow!("the flooder"))??;
            eprintln!("{requests} requests");
            beside.push(rate?);
            anyhow::Ok(())
        })?;
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    eprintln!("alone {alone:.0?}, beside {beside:.0?} files/s, flooder {shares:.2?} processors");
    let ratio = median(&mut beside) / median(&mut alone);
    eprintln!("medians: {ratio:.2}, flooder {:.2} processors", median(&mut shares));
    Ok(())
}

/// Floods until it is over. Says by how many requests.
fn flood_until(scene: &Scene<'_>, evil: &Keys, is_over: &AtomicBool) -> Result<usize> {
    let last = || {
        let _ = rustix::process::setpriority_process(None, 19);
    };
    last();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).on_thread_start(last).enable_all().build()?;
    let mut requests = 0;
    runtime.block_on(async {
        let lines: Vec<Arc<Line>> = (0..SESSIONS)
            .map(|at| Arc::new(scene.dial(&scene.mds, &Guise::of(evil, 70 + at as u8))))
            .collect();
        while !is_over.load(Ordering::Relaxed) {
            flood(&lines, 4 * SESSIONS).await?;
            requests += 4 * SESSIONS;
        }
        Ok(requests)
    })
}

/// What this process used so far.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

async fn flood(lines: &[Arc<Line>], requests: usize) -> Result<()> {
    let mut asking = JoinSet::new();
    let (caller, at, op) = (Caller::root(), Time::default(), Op::Unlink.number());
    let message = vec![7; LENGTH / Batch::ITEMS_MAX];
    let item = BatchItem { caller, at, id: FileId(1), op, message };
    let batch = Batch { items: vec![item; Batch::ITEMS_MAX] };
    for at in 0..requests {
        let (line, batch) = (lines[at % lines.len()].clone(), batch.clone());
        asking.spawn(async move { line.ask(&Caller::root(), batch).await.map(drop) });
    }
    while let Some(asked) = asking.join_next().await {
        // Refused, item by item or whole.
        if let Err(error) = asked? {
            ensure!(!error.to_string().is_empty());
        }
    }
    Ok(())
}

/// Makes files with `bytes` for as long as `goes_on`. How many in a second.
fn touches(
    federation: &Federation,
    folder: &str,
    bytes: &[u8],
    goes_on: impl Fn(usize) -> bool,
) -> Result<f64> {
    let folder = federation.mount().join(folder);
    std::fs::create_dir(&folder)?;
    let (begun, mut count) = (Instant::now(), 0);
    while goes_on(count) {
        let one = Instant::now();
        let mut file = std::fs::File::create(folder.join(count.to_string()))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        ensure!(one.elapsed() < PATIENCE, "a file took {:?}", one.elapsed());
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Where nobody proves anything: batches of far more items than one may have, as fast as they can
/// be sent, and no answer is read.
pub fn without_bounds(federation: &Federation) -> Result<()> {
    for server in ["mds-uf", "oss-uf"] {
        let memory = Memory::of(federation, server)?;
        let address = address_of(federation, server)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut flooding = JoinSet::new();
            for at in 0..SESSIONS {
                let address = address.clone();
                flooding.spawn(async move { send_unbounded(&address, at as u8).await });
            }
            while let Some(flooded) = flooding.join_next().await {
                flooded??;
            }
            anyhow::Ok(())
        })?;
        touches(federation, &format!("after-{server}"), &[7; SMALL], |count| count < FILES)?;
        let peak = memory.peak()?;
        eprintln!("{server}: {peak} bytes");
        ensure!(peak < MEMORY_MAX, "{server} took {peak} bytes of memory");
    }
    Ok(())
}

async fn send_unbounded(address: &str, client: u8) -> Result<()> {
    let mut raw = Raw::dial(address, client).await?;
    let body = many_items();
    for _ in 0..REQUESTS / SESSIONS {
        raw.send(Batch::OP, body.clone()).await?;
    }
    for _ in 0..REQUESTS / SESSIONS {
        let reply = raw.reader.next().await?;
        let failure: tieline_wire::Failure = tieline_wire::decode(&reply.body)?;
        let is_said = failure.detail.contains("elements where 4096 are the most");
        ensure!(is_said, "{failure}");
    }
    Ok(())
}

/// Long replies that nobody reads: pages of a directory at an MDS, bulk at an OSS.
pub fn unread(federation: &Federation) -> Result<()> {
    let mount = federation.mount();
    let long = mount.join("long");
    std::fs::create_dir(&long)?;
    for at in 0..PAGE_LINKS {
        std::os::unix::fs::symlink("x".repeat(4000), long.join(at.to_string()))?;
    }
    std::fs::File::open(&long)?.sync_all()?;
    let mut large = std::fs::File::create(mount.join("large"))?;
    large.write_all(&vec![7; CHUNK as usize])?;
    large.sync_all()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mds = address_of(federation, "mds-uf")?;
    let (page, place) = runtime.block_on(async {
        let mut raw = Raw::dial(&mds, 90).await?;
        let page = raw.find("long").await?;
        let page = ReadDirectory { id: page, after: None, limit: 4096, is_plus: true };
        let large = raw.find("large").await?;
        let extents = raw.ask(GetExtents { id: large, offset: 0, limit: 1 }).await?;
        let first = extents.page.extents.into_iter().next().context("an extent")?;
        let Content::Chunk(chunk) = first.content else { bail!("it has chunks") };
        anyhow::Ok((page, chunk.places.into_iter().next().context("a place")?))
    })?;
    unread_at(federation, &runtime, "mds-uf", &page)?;
    let Place { origin: Origin::Ost(ost), object, .. } = place else { bail!("it is at an OST") };
    let holder = holder_of(federation, &runtime, ost)?;
    let (capability, hashed) = (None, None);
    let read = ReadObject { ost, object, offset: 0, length: CHUNK, capability, hashed };
    unread_at(federation, &runtime, &holder, &read)
}

/// Asks one server the same over and over, and reads nothing.
fn unread_at<C: Call + Clone>(
    federation: &Federation,
    runtime: &Runtime,
    server: &str,
    message: &C,
) -> Result<()> {
    let memory = Memory::of(federation, server)?;
    let address = address_of(federation, server)?;
    let lines = runtime.block_on(async {
        let mut lines = vec![];
        for at in 0..UNREAD_LINES {
            let mut raw = Raw::dial(&address, 100 + at).await?;
            for _ in 0..REQUESTS {
                raw.send(C::OP, raw_body(message)).await?;
            }
            lines.push(raw);
        }
        anyhow::Ok(lines)
    })?;
    touches(federation, &format!("unread-{server}"), &[7; SMALL], |count| count < FILES)?;
    let peak = memory.peak()?;
    eprintln!("{server}: {peak} bytes");
    ensure!(peak < MEMORY_MAX, "{server} took {peak} bytes of memory");
    // Who reads gets his replies, if not before those connections are given up.
    runtime.block_on(async {
        let mut honest = Raw::dial(&address, 120).await?;
        let asked = tokio::time::timeout(Duration::from_secs(60), honest.ask(message.clone()));
        asked.await.context("a reply beside those that nobody reads")??;
        anyhow::Ok(())
    })?;
    // Nothing is kept for who takes nothing.
    runtime.block_on(async {
        tokio::time::sleep(STALL_MAX + PATIENCE).await;
        for mut line in lines {
            let end = async { while line.reader.next().await.is_ok() {} };
            tokio::time::timeout(Duration::from_secs(60), end)
                .await
                .context("it was not closed")?;
        }
        Ok(())
    })
}

/// Opens sessions until there are no more to be had.
pub fn sessions(federation: &Federation) -> Result<()> {
    let address = address_of(federation, "mds-uf")?;
    let memory = Memory::of(federation, "mds-uf")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (opened, refused) = runtime.block_on(async {
        let mut opening = JoinSet::new();
        for _ in 0..SESSIONS {
            let address = address.clone();
            opening.spawn(async move {
                for opened in 0..=SESSIONS_MAX {
                    if let Err(error) = Raw::dial(&address, 7).await {
                        return (opened, error.to_string());
                    }
                }
                (SESSIONS_MAX, "no end".to_owned())
            });
        }
        let all = opening.join_all().await;
        let opened: usize = all.iter().map(|(opened, _)| opened).sum();
        (opened, all.into_iter().map(|(_, refused)| refused).collect::<Vec<_>>())
    });
    for refused in refused {
        let is_told = refused.contains("has 8192 sessions at this MDT, which is the most: unmount");
        ensure!(is_told, "{refused}");
    }
    ensure!((SESSIONS_MAX - 100..SESSIONS_MAX).contains(&opened), "{opened} sessions");
    // Who was there before works on.
    touches(federation, "among-many", &[], |count| count < FILES)?;
    let peak = memory.peak()?;
    eprintln!("{opened} sessions: {peak} bytes");
    ensure!(peak < MEMORY_MAX, "the MDS took {peak} bytes of memory");
    Ok(())
}

/// Takes connections until there are no more to be had, and keeps them.
pub fn connections(federation: &Federation) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let address = address_of(federation, "mds-uf")?;
    let memory = Memory::of(federation, "mds-uf")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (taken, refused) = runtime.block_on(async {
        let mut taken = vec![];
        loop {
            match Raw::dial(&address, 7).await {
                Ok(raw) => taken.push(raw),
                Err(refused) => return (taken, refused.to_string()),
            }
        }
    });
    ensure!(refused.contains("as many connections to this server as one may have"), "{refused}");
    // Another of the same host, and who was there before.
    runtime.block_on(Raw::dial(&address, 8)).context("another client of the party")?;
    touches(federation, "among-many-connections", &[], |count| count < FILES)?;
    let peak = memory.peak()?;
    eprintln!("{} connections: {peak} bytes", taken.len());
    ensure!(peak < MEMORY_MAX, "the MDS took {peak} bytes of memory");
    Ok(())
}

fn address_of(federation: &Federation, server: &str) -> Result<String> {
    let process = federation.process(server)?;
    Ok(process["address"].as_str().context("a server has an address")?.to_owned())
}

/// The server of an OST.
fn holder_of(federation: &Federation, runtime: &Runtime, ost: OstIndex) -> Result<String> {
    for server in ["oss-uf", "oss-fnal"] {
        let Ok(address) = address_of(federation, server) else { continue };
        let asked =
            runtime.block_on(async { Raw::dial(&address, 91).await?.ask(OstStatus {}).await })?;
        if asked.osts.iter().any(|state| state.ost == ost) {
            return Ok(server.to_owned());
        }
    }
    bail!("{} is nobody's", ost.label())
}

/// Bare frames, as nobody.
struct Raw {
    reader: FrameReader,
    writer: FrameWriter,
    sent: u64,
}

impl Raw {
    async fn dial(address: &str, client: u8) -> Result<Self> {
        let connection = World::real().transport.connect(address, PATIENCE).await?;
        let mut reader = FrameReader::new(connection.reader, Budget::unlimited());
        let mut writer = FrameWriter::new(connection.writer);
        let body = tieline_wire::encode(&hello(client));
        let hello = OutFrame::new(FrameKind::Hello, RequestNumber(0), body, Bulk::Empty);
        writer.write(&hello).await?;
        writer.flush().await?;
        let welcome = reader.next().await?;
        if welcome.header.kind == FrameKind::Refused {
            bail!(tieline_wire::decode::<tieline_wire::Refusal>(&welcome.body)?);
        }
        ensure!(welcome.header.kind == FrameKind::Welcome, "{:?}", welcome.header.kind);
        Ok(Self { reader, writer, sent: 0 })
    }

    async fn send(&mut self, op: Op, body: Vec<u8>) -> Result<()> {
        self.sent += 1;
        let number = RequestNumber(self.sent);
        let request = OutFrame::new(FrameKind::Request, number, body, Bulk::Empty)
            .with(|header| header.op = op.number());
        self.writer.write(&request).await?;
        self.writer.flush().await?;
        Ok(())
    }

    async fn ask<C: Call>(&mut self, message: C) -> Result<C::Reply> {
        self.send(C::OP, raw_body(&message)).await?;
        let reply = self.reader.next().await?;
        if reply.header.flags & FrameHeader::FLAG_FAILED != 0 {
            bail!(tieline_wire::decode::<tieline_wire::Failure>(&reply.body)?);
        }
        Ok(tieline_wire::decode(&reply.body)?)
    }

    async fn find(&mut self, name: &str) -> Result<FileId> {
        let found = self.ask(Lookup { parent: FileId(1), name: name.parse()? }).await?;
        Ok(found.attributes.context("it is there")?.id)
    }
}

fn raw_body<C: Call>(message: &C) -> Vec<u8> {
    let envelope = Envelope { caller: Caller::root(), ..Envelope::default() };
    let mut body = tieline_wire::encode(&envelope);
    body.extend(tieline_wire::encode(message));
    body
}

/// The body of a batch of small items, as many as fit.
fn many_items() -> Vec<u8> {
    let (caller, at) = (Caller::default(), Time::default());
    let item = BatchItem { caller, at, id: FileId(1), op: Op::Unlink.number(), message: vec![] };
    let item = tieline_wire::encode(&item);
    let count = (LENGTH / item.len()) as u32;
    let mut body = tieline_wire::encode(&Envelope::default());
    // An array of one field, which is an array with its length in four bytes.
    body.extend_from_slice(&[0x81, 0x9a]);
    body.extend_from_slice(&count.to_be_bytes());
    body.extend(item.repeat(count as usize));
    body
}

fn hello(client: u8) -> Hello {
    Hello {
        version_oldest: 1,
        version_newest: 1,
        role: PeerRole::Client,
        client: ClientId([client; 16]),
        session: None,
        fs: "extenci".parse().expect("a name"),
        credential: CredentialKind::None,
        flavor: Flavor::Null,
        features: 0,
        description: "hostile".to_owned(),
        map: Version(0),
        wait_ms: None,
    }
}

/// The most memory that a server took.
struct Memory(String);

impl Memory {
    /// From now on.
    fn of(federation: &Federation, server: &str) -> Result<Self> {
        let pid = federation.process(server)?["pid"].as_i64().context("a server has a pid")?;
        let folder = format!("/proc/{pid}");
        // Forgets the peak of before.
        std::fs::write(Path::new(&folder).join("clear_refs"), "5")?;
        Ok(Self(folder))
    }

    fn peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(Path::new(&self.0).join("status"))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)).context("VmHWM")?;
        Ok(kib.parse::<u64>()? << 10)
    }
}
