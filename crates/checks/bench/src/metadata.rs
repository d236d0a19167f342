//! Metadata engines side by side: the same transactions on each, in turns.
//!
//! What a metadata server asks of its engine: batches of reads, and commits that wait until they
//! are durable, by one that waits for each and by eight that wait together. The reference is a
//! plain file that is written and synced as often.

use crate::Settings;
use crate::figure::{Figure, Unit, Workload, take_turns};
use anyhow::{Context, Result};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tieline_kv::scratch::ScratchServer;
use tieline_kv::{
    EmbeddedStore, Key, MemoryStore, Opening, PostgresSettings, PostgresStore, Store,
};
use tieline_types::ByteSize;
use tokio::runtime::Runtime;

/// As a metadata server reads: an inode, its parent, a name, a session.
const BATCH: usize = 4;
/// Pairs of about the size of an inode's record.
const VALUE: usize = 120;
const PAIRS: u32 = 10_000;
const WRITERS: u32 = 8;
/// Small, so that part of the reads of a turn go to the database.
const CACHE: ByteSize = ByteSize(1 << 20);

/// An engine with pairs in it.
struct Bed {
    name: &'static str,
    store: Arc<dyn Store>,
    /// Commits and batches of a turn.
    count: u32,
    next: Cell<u32>,
}

pub fn measure(settings: &Settings) -> Result<Vec<Figure>> {
    let folder = tempfile::Builder::new().prefix("tieline-bench.").tempdir_in(&settings.local)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let database = folder.path().join("postgres");
    std::fs::create_dir(&database)?;
    let outside: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    // Its server runs as another user where we are root.
    std::fs::set_permissions(folder.path(), outside)?;
    let server = ScratchServer::start(&database);
    if let Err(error) = &server {
        eprintln!("PostgreSQL is not measured: {error}");
    }
    let mut beds = vec![Bed::new("memory", Arc::new(MemoryStore::new()), settings)];
    let file = folder.path().join("store.redb");
    beds.push(Bed::new("embedded", Arc::new(EmbeddedStore::open(&file, CACHE)?), settings));
    if let Ok(server) = &server {
        let store = runtime.block_on(open_postgres(server))?;
        beds.push(Bed::new("postgres", Arc::new(store), settings));
    }
    let mut figures = Vec::new();
    for bed in &beds {
        runtime.block_on(bed.fill())?;
    }
    for bed in &beds {
        figures.extend(bed.measure(&runtime, folder.path(), settings.turns)?);
    }
    drop(beds);
    Ok(figures)
}

async fn open_postgres(server: &ScratchServer) -> Result<PostgresStore> {
    let words = server.words().parse()?;
    let settings =
        PostgresSettings::new(words, "bench".into(), "bench".into(), "a benchmark".into());
    let opening = Opening { cache: CACHE, ..Opening::default() };
    Ok(PostgresStore::open(settings, opening).await?)
}

impl Bed {
    fn new(name: &'static str, store: Arc<dyn Store>, settings: &Settings) -> Self {
        let count = u32::try_from(settings.files).unwrap_or(u32::MAX).max(WRITERS);
        Self { name, store, count, next: Cell::new(0) }
    }

    fn measure(&self, runtime: &Runtime, folder: &Path, turns: usize) -> Result<Vec<Figure>> {
        let read: Workload<'_> = Box::new(|| runtime.block_on(self.read()));
        let scan: Workload<'_> = Box::new(|| runtime.block_on(self.scan()));
        let one: Workload<'_> = Box::new(|| runtime.block_on(self.commit(1)));
        let eight: Workload<'_> = Box::new(|| runtime.block_on(self.commit(WRITERS)));
        let synced = || -> Workload<'_> { Box::new(|| self.sync_plain(folder)) };
        let name = |what: &str| format!("metadata: {}, {what}", self.name);
        let plain = "plain write and fdatasync";
        Ok(vec![
            take_turns(name("batches of 4 reads"), Unit::PerSecond, turns, read, vec![])?,
            take_turns(name("scans of 100"), Unit::PerSecond, turns, scan, vec![])?,
            take_turns(
                name("durable commits, 1 writer"),
                Unit::PerSecond,
                turns,
                one,
                vec![(plain, synced())],
            )?,
            take_turns(
                name("durable commits, 8 writers"),
                Unit::PerSecond,
                turns,
                eight,
                vec![(plain, synced())],
            )?,
        ])
    }

    async fn fill(&self) -> Result<()> {
        let mut transaction = self.store.begin().await?;
        for number in 0..PAIRS {
            transaction.put(key(number), vec![7; VALUE]);
        }
        Ok(transaction.commit().await?.durable.await?)
    }

    /// Keys far apart, over and over.
    async fn read(&self) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..self.count {
            let keys: Vec<Key> = (0..BATCH).map(|_| key(self.step())).collect();
            let values = self.store.begin().await?.read(&keys).await?;
            values.iter().all(Option::is_some).then_some(()).context("a pair is missing")?;
        }
        Ok(per_second(self.count, start))
    }

    async fn scan(&self) -> Result<f64> {
        let count = self.count.div_ceil(10);
        let start = Instant::now();
        for _ in 0..count {
            let first = self.step() % (PAIRS - 100);
            let range = tieline_kv::Range::new(key(first), key(PAIRS));
            let found = self.store.begin().await?.scan(range, 100).await?;
            (found.len() == 100).then_some(()).context("pairs are missing")?;
        }
        Ok(per_second(count, start))
    }

    /// As a small mutation: one batch read, two pairs written, an answer once durable.
    async fn commit(&self, writers: u32) -> Result<f64> {
        let each = self.count / writers;
        let start = Instant::now();
        let mut tasks = Vec::new();
        for writer in 0..writers {
            let store = self.store.clone();
            tasks.push(tokio::spawn(async move {
                for number in 0..each {
                    let own = key(writer * each + number);
                    let mut transaction = store.begin().await?;
                    transaction.read(std::slice::from_ref(&own)).await?;
                    transaction.put(own, vec![1; VALUE]);
                    transaction.put(key(PAIRS + writer), vec![2; VALUE]);
                    transaction.commit().await?.durable.await?;
                }
                Ok::<_, tieline_kv::Error>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(per_second(each * writers, start))
    }

    fn sync_plain(&self, folder: &Path) -> Result<f64> {
        let path = folder.join("plain");
        let file = File::create(&path)?;
        let count = self.count.min(200);
        let start = Instant::now();
        for number in 0..count {
            file.write_all_at(&[1; 2 * VALUE], u64::from(number) * 2 * VALUE as u64)?;
            file.sync_data()?;
        }
        Ok(per_second(count, start))
    }

    /// The next key of a walk that jumps about.
    fn step(&self) -> u32 {
        let next = (self.next.get() + 7919) % PAIRS;
        self.next.set(next);
        next
    }
}

fn key(number: u32) -> Key {
    [&b"inode"[..], &number.to_be_bytes()].concat()
}

fn per_second(count: u32, start: Instant) -> f64 {
    f64::from(count) / start.elapsed().as_secs_f64()
}
