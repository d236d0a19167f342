//! A client that asks for far more than it will be given: what that takes of a server's memory, and
//! of honest clients' time.

use super::hostile::{Guise, Line, Scene};
use super::spoofed;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_lab::federation::Federation;
use tieline_net::frames::{Budget, FrameReader, FrameWriter, OutFrame};
use tieline_types::{Caller, ClientId, FileId, Flavor, RequestNumber, Time, Version};
use tieline_wire::meta::{Batch, BatchItem};
use tieline_wire::{Call, CredentialKind, Envelope, FrameKind, Hello, Op, PeerRole};
use tieline_world::{Bulk, World};
use tokio::task::JoinSet;

/// Requests, each about as long as one may be, over so many sessions.
const REQUESTS: usize = 256;
const SESSIONS: usize = 8;
const LENGTH: usize = 8_000_000;
/// What a server may take of memory meanwhile.
const MEMORY_MAX: u64 = 512 << 20;
/// How long an honest client may take for one file meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// Files that it makes before, to compare.
const FILES: usize = 300;

/// Batches as large as they may be, of a machine that nobody knows, all to be refused.
pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let evil = spoofed::machine(scene)?;
    let memory = Memory::of(scene.federation, "mds-uf")?;
    let alone = touches(scene.federation, "alone", |count| count < FILES)?;
    let lines: Vec<Arc<Line>> = (0..SESSIONS)
        .map(|at| {
            let mut line = scene.dial(&scene.mds, &Guise::of(&evil, 70 + at as u8));
            line.patience = Duration::from_secs(300);
            Arc::new(line)
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let goes_on = |count| !is_over.load(Ordering::Relaxed) || count < FILES;
    let beside = std::thread::scope(|threads| {
        let honest = threads.spawn(|| touches(scene.federation, "beside", goes_on));
        let flood = flood(&lines);
        let flooded =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(flood));
        is_over.store(true, Ordering::Relaxed);
        flooded?;
        honest.join().map_err(|_| anyhow!("the honest client"))?
    })?;
    let peak = memory.peak()?;
    // For who compares them by hand: other tests run beside this one.
    eprintln!("{alone:.0} files/s alone, {beside:.0} beside the flood; {peak} bytes");
    ensure!(peak < MEMORY_MAX, "the MDS took {peak} bytes of memory");
    Ok(())
}

async fn flood(lines: &[Arc<Line>]) -> Result<()> {
    let mut asking = JoinSet::new();
    let (caller, at, op) = (Caller::root(), Time::default(), Op::Unlink.number());
    let message = vec![7; LENGTH / Batch::ITEMS_MAX];
    let item = BatchItem { caller, at, id: FileId(1), op, message };
    let batch = Batch { items: vec![item; Batch::ITEMS_MAX] };
    for at in 0..REQUESTS {
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

/// Makes files for as long as `goes_on`. How many in a second.
fn touches(federation: &Federation, folder: &str, goes_on: impl Fn(usize) -> bool) -> Result<f64> {
    let folder = federation.mount().join(folder);
    std::fs::create_dir(&folder)?;
    let (begun, mut count) = (Instant::now(), 0);
    while goes_on(count) {
        let one = Instant::now();
        std::fs::File::create(folder.join(count.to_string()))?.sync_all()?;
        ensure!(one.elapsed() < PATIENCE, "a file took {:?}", one.elapsed());
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Where nobody proves anything: batches of far more items than one may have, as fast as they can
/// be sent, and no answer is read.
pub fn without_bounds(federation: &Federation) -> Result<()> {
    let memory = Memory::of(federation, "mds-uf")?;
    let process = federation.process("mds-uf")?;
    let address = process["address"].as_str().context("a server has an address")?.to_owned();
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
    touches(federation, "after", |count| count < FILES)?;
    let peak = memory.peak()?;
    eprintln!("{peak} bytes");
    ensure!(peak < MEMORY_MAX, "the MDS took {peak} bytes of memory");
    Ok(())
}

async fn send_unbounded(address: &str, client: u8) -> Result<()> {
    let connection = World::real().transport.connect(address, PATIENCE).await?;
    let mut reader = FrameReader::new(connection.reader, Budget::unlimited());
    let mut writer = FrameWriter::new(connection.writer);
    let hello = OutFrame::new(
        FrameKind::Hello,
        RequestNumber(0),
        tieline_wire::encode(&hello(client)),
        Bulk::Empty,
    );
    writer.write(&hello).await?;
    writer.flush().await?;
    let welcome = reader.next().await?;
    ensure!(welcome.header.kind == FrameKind::Welcome, "{:?}", welcome.header.kind);
    let body = many_items();
    for number in 1..=(REQUESTS / SESSIONS) as u64 {
        let request =
            OutFrame::new(FrameKind::Request, RequestNumber(number), body.clone(), Bulk::Empty)
                .with(|header| header.op = Batch::OP.number());
        writer.write(&request).await?;
        writer.flush().await?;
    }
    for _ in 0..REQUESTS / SESSIONS {
        let reply = reader.next().await?;
        let failure: tieline_wire::Failure = tieline_wire::decode(&reply.body)?;
        let is_said = failure.detail.contains("elements where 4096 are the most");
        ensure!(is_said, "{failure}");
    }
    Ok(())
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
