//! A metadata server with millions of files: how long it takes to start, and what it holds in
//! memory.
//!
//! The files are written into the store of a server that is down, as the server would have written
//! them: directories of a thousand empty files. So five million take minutes, not hours; the server
//! then gives them to a client like any others.

use crate::figure::{Figure, Goal, Unit};
use crate::{cost, small};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tieline_format::Record;
use tieline_format::mdt::{Entry, Inode, NameOf, Superblock, key};
use tieline_kv::{EmbeddedStore, Store, Transaction};
use tieline_lab::{Federation, Plan, program};
use tieline_types::{ByteSize, FileId, FileKind, MdtIndex, Name, Version};

const SERVER: &str = "mds-uf";
const MDT: MdtIndex = MdtIndex(0);
const FILES_PER_DIRECTORY: u64 = 1000;
/// Directories written in one transaction.
const DIRECTORIES_AT_ONCE: u64 = 20;
/// Directories that a client looks through, so that the server has read what it keeps in memory.
const DIRECTORIES_LISTED: u64 = 500;
const CACHE: ByteSize = ByteSize(256 << 20);
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures with at least `files` files.
pub fn measure(files: usize) -> Result<Vec<Figure>> {
    let federation = Federation::start(&Plan::default())?;
    let measured = measure_in(&federation, files as u64);
    federation.down()?;
    measured
}

fn measure_in(federation: &Federation, files: u64) -> Result<Vec<Figure>> {
    let directories = files.div_ceil(FILES_PER_DIRECTORY).max(1);
    stop(federation, "TERM")?;
    let path = federation.dir().join("sites/uf/mds/mdt0000.redb");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(fill(&path, directories))?;
    start(federation)?;
    let what = |what: &str| format!("MDS, {} files: {what}", directories * FILES_PER_DIRECTORY);
    let idle = Figure::single(what("memory, idle"), Unit::Mebibytes, memory(federation)?);

    // The mount that was there knows the root as it was.
    let mount = federation.mount_again()?;
    let (mut listed, step) = (0, (directories / DIRECTORIES_LISTED).max(1));
    let since = Instant::now();
    for number in (0..directories).step_by(step as usize) {
        small::work("list", &mount.join(name_of("d", number)?.to_string()), 0..0)?;
        listed += FILES_PER_DIRECTORY;
    }
    let rate = listed as f64 / since.elapsed().as_secs_f64();
    let walked =
        Figure::single(what("listed and stated, cold, by one client"), Unit::PerSecond, rate);
    let used = memory(federation)?;
    let busy = Figure::single(what("memory, after that"), Unit::Mebibytes, used);
    let millions = (directories * FILES_PER_DIRECTORY) as f64 / 1e6;
    let each =
        Figure::single(what("memory per million, after that"), Unit::Mebibytes, used / millions);

    stop(federation, "TERM")?;
    let clean = start(federation)?;
    stop(federation, "KILL")?;
    let killed = start(federation)?;
    let clean = Figure::single(what("start after a clean stop"), Unit::Seconds, clean);
    let killed = Figure::single(what("start after SIGKILL"), Unit::Seconds, killed);
    Ok(vec![
        idle,
        walked,
        busy.with_goal(Goal::Value(1.2 * 1024.0)),
        each,
        clean.with_goal(Goal::Value(2.0)),
        killed.with_goal(Goal::Value(5.0)),
    ])
}

fn dev(federation: &Federation, arguments: &[&str]) -> Result<String> {
    let dir = federation.dir();
    let dir = dir.to_str().context("a folder for temporary files has a plain name")?;
    federation.tieline(&[&["dev"], arguments, &["--dir", dir]].concat())
}

fn stop(federation: &Federation, signal: &str) -> Result<()> {
    let pid = cost::pid(federation, SERVER)?;
    dev(federation, &["kill", SERVER, "--signal", signal])?;
    program::until("the server ends", PATIENCE, || !program::is_running(pid))
}

/// Seconds until it answers.
fn start(federation: &Federation) -> Result<f64> {
    let since = Instant::now();
    dev(federation, &["start", SERVER])?;
    Ok(since.elapsed().as_secs_f64())
}

fn memory(federation: &Federation) -> Result<f64> {
    cost::memory(cost::pid(federation, SERVER)?)
}

async fn fill(path: &Path, directories: u64) -> Result<()> {
    let store = EmbeddedStore::open(path, CACHE)?;
    let root = FileId::root_of(MDT);
    let mut transaction = store.begin().await?;
    let mut superblock: Superblock = record(&mut *transaction, key::superblock()).await?;
    let mut top: Inode = record(&mut *transaction, key::inode(root)).await?;
    let first = superblock.file_serial;
    let made = directories * (1 + FILES_PER_DIRECTORY);
    superblock.file_serial += made;
    superblock.inodes += made;
    top.entries += directories;
    top.links += u32::try_from(directories)?;
    transaction.put(key::superblock(), superblock.to_bytes());
    transaction.put(key::inode(root), top.to_bytes());
    transaction.commit().await?.durable.await?;
    let numbers: Vec<u64> = (0..directories).collect();
    for some in numbers.chunks(DIRECTORIES_AT_ONCE as usize) {
        let mut transaction = store.begin().await?;
        for &number in some {
            let id = FileId::new(MDT, first + number * (1 + FILES_PER_DIRECTORY));
            put_directory(&mut *transaction, &top, (root, id), number)?;
        }
        transaction.commit().await?.durable.await?;
    }
    Ok(())
}

async fn record<R: Record>(transaction: &mut dyn Transaction, key: Vec<u8>) -> Result<R> {
    let mut values = transaction.read(&[key]).await?;
    let value = values.pop().flatten().context("a new store has it")?;
    Ok(R::from_bytes(&value)?)
}

/// A directory with its files, like `top` in what is not said here.
fn put_directory(
    transaction: &mut dyn Transaction,
    top: &Inode,
    (root, id): (FileId, FileId),
    number: u64,
) -> Result<()> {
    let name = name_of("d", number)?;
    let (kind, names) = (FileKind::Directory, vec![NameOf { parent: root, name: name.clone() }]);
    let entries = FILES_PER_DIRECTORY;
    let version = Version(1);
    let directory = Inode { names, entries, version, links: 2, layout: None, ..top.clone() };
    transaction.put(key::entry(root, &name), Entry { id, kind }.to_bytes());
    transaction.put(key::inode(id), directory.to_bytes());
    for file in 0..FILES_PER_DIRECTORY {
        let (name, child) = (name_of("f", file)?, FileId::new(MDT, id.serial() + 1 + file));
        let names = vec![NameOf { parent: id, name: name.clone() }];
        let kind = FileKind::Regular;
        let inode = Inode {
            kind,
            names,
            links: 1,
            entries: 0,
            layout: Some(Default::default()),
            ..directory.clone()
        };
        transaction.put(key::entry(id, &name), Entry { id: child, kind }.to_bytes());
        transaction.put(key::inode(child), inode.to_bytes());
    }
    ensure!(id.serial() > 1, "the root stays as it is");
    Ok(())
}

fn name_of(letter: &str, number: u64) -> Result<Name> {
    Ok(format!("{letter}{number:07}").parse()?)
}
