//! The GENIE job at 1/8 through a site's cache: 32 jobs (for charts also fewer) on four nodes, each
//! reads a random eighth of a data set, twice, over a long link.
//!
//! What crosses the link stands beside the distinct bytes that the jobs read, the second pass
//! beside plain reads of the shared storage by as many readers, each where its node has it. That
//! storage is GlusterFS on two bricks, and, for scale, a local disk: its reads are copies out of
//! one memory, which no storage is that nodes share.

use crate::Settings;
use crate::figure::{Figure, Goal, Unit};
use crate::line;
use crate::sweep::{Axis, Gathered};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;
use tieline_lab::Federation;
use tieline_lab::storage::{Kind, Storage};

const NODES: usize = 4;
const JOBS: Axis =
    Axis { over: "jobs, at 50 ms", values: &["8", "16", "32"], usual: "32", is_even: false };
/// The set is twice as large as the large file, 2 GB in files of 140 MB; each job reads 250 MB.
const LARGE_FILES: u64 = 2;
const FILES: u64 = 14;
const SHARE: u64 = 8;
const PIECE: usize = 1 << 20;
const CHUNK: u64 = 4 << 20;
/// The link that the design speaks of.
const LINE: [&str; 4] = ["--rtt", "50ms", "--rate", line::RATE];

/// A part of the set: which file, from where, how much.
type Part = (u64, u64, u64);

/// Measures with twice `settings.size` bytes of data. Needs root, for network namespaces.
pub fn measure(settings: &Settings, to: &mut Gathered<'_>) -> Result<()> {
    ensure!(tieline_lab::is_root(), "caches: network namespaces need root");
    let federation = Federation::start(&settings.over_a_line(&LINE))?;
    let measured = measure_in(settings, &federation, to);
    federation.down()?;
    measured
}

fn measure_in(settings: &Settings, federation: &Federation, to: &mut Gathered<'_>) -> Result<()> {
    let file_size = LARGE_FILES * settings.size / FILES / 4096 * 4096;
    fill(&federation.mount().join("fnal/set"), file_size)?;
    for jobs in JOBS.values(settings) {
        for kind in [Kind::Gluster, Kind::Local] {
            let what = format!("GENIE 1/8 on {}, {jobs} jobs", name(kind));
            eprintln!("measuring: {what}");
            let measured = measure_jobs(settings, federation, file_size, jobs, kind);
            to.keep_if_measured(&what, measured);
        }
    }
    Ok(())
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Gluster => "GlusterFS",
        Kind::Local => "a local disk",
        Kind::Awkward => "awkward storage",
    }
}

/// So many jobs, on nodes of their own with a cache that is empty.
fn measure_jobs(
    settings: &Settings,
    federation: &Federation,
    file_size: u64,
    count: &'static str,
    kind: Kind,
) -> Result<Vec<Figure>> {
    let folder = tempfile::Builder::new().prefix("shared-").tempdir_in(&settings.local)?;
    let storage = Storage::start(kind, folder.path().join("storage"))?;
    let nodes = mount_nodes(federation, &storage, count, kind)?;
    let jobs: Vec<Vec<Part>> = (0..count.parse()?).map(|job| parts(job, file_size)).collect();
    let measured = measure_passes(&nodes, &jobs, file_size);
    for node in &nodes {
        federation.unmount(&node.mount)?;
    }
    let Passes { asked, distinct, first, second, fetched, plain } = measured?;
    let title = |what: &str| format!("GENIE 1/8 on {}, {count} jobs: {what}", name(kind));
    let per_second = Unit::MegabytesPerSecond;
    let rate = |seconds: f64| asked as f64 / 1e6 / seconds;
    let ratio = |bytes: u64| bytes as f64 / distinct as f64;
    let once = "bytes over the link / distinct bytes";
    let once = Figure::single(title(once), Unit::Times, ratio(fetched[0]));
    let again = "bytes over the link / distinct bytes, second pass";
    let again = Figure::single(title(again), Unit::Times, ratio(fetched[1]));
    let first = Figure::single(title("first pass, all jobs"), per_second, rate(first));
    let plain = ("plain reads of the shared storage", rate(plain));
    let second = Figure::beside(title("second pass, all jobs"), per_second, rate(second), plain);
    let once = once.with_goal(Goal::Value(1.02));
    if kind != Kind::Gluster {
        return Ok(vec![once, again, first, second]);
    }
    let (bytes, rates) = ("site-cache-bytes-by-jobs", "site-cache-rate-by-jobs");
    Ok(vec![
        JOBS.place(once, bytes, "first pass", count),
        JOBS.place(again, bytes, "second pass", count),
        JOBS.place(first, rates, "first pass", count),
        JOBS.place(second.with_goal(Goal::Ratio(0.95)), rates, "second pass", count),
    ])
}

/// Bytes, and seconds.
struct Passes {
    asked: u64,
    distinct: u64,
    first: f64,
    second: f64,
    /// Over the link, in each pass.
    fetched: [u64; 2],
    plain: f64,
}

fn measure_passes(nodes: &[Node], jobs: &[Vec<Part>], file_size: u64) -> Result<Passes> {
    let asked: u64 = jobs.iter().flatten().map(|(_, _, length)| length).sum();
    let first = pass(nodes, jobs)?;
    let once = fetched(nodes)?;
    // As when other jobs ran in between: nothing is in the memory of a node any more.
    forget(nodes);
    let second = pass(nodes, jobs)?;
    let again = fetched(nodes)? - once;
    forget(nodes);
    let plain = read_plainly(nodes, asked, jobs.len())?;
    let distinct = distinct(jobs, file_size);
    Ok(Passes { asked, distinct, first, second, fetched: [once, again], plain })
}

/// Files of bytes that repeat nowhere.
fn fill(folder: &Path, file_size: u64) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut piece = vec![0; PIECE];
    let mut state = 7_u64;
    for number in 0..FILES {
        let file = File::create(folder.join(number.to_string()))?;
        let mut at = 0;
        while at < file_size {
            for word in piece.chunks_exact_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number | 1);
                word.copy_from_slice(&state.to_le_bytes());
            }
            let length = (file_size - at).min(PIECE as u64) as usize;
            file.write_all_at(&piece[..length], at)?;
            at += length as u64;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// A client at the near end of the line, with its own memory.
struct Node {
    mount: PathBuf,
    /// The cache that it shares with the others, as it has it mounted.
    shared: PathBuf,
}

fn mount_nodes(
    federation: &Federation,
    storage: &Storage,
    jobs: &str,
    kind: Kind,
) -> Result<Vec<Node>> {
    let mount = |number: usize| {
        let shared = storage.node()?;
        let mount = federation.local(&format!("node-{jobs}-{kind:?}-{number}"));
        std::fs::create_dir(&mount)?;
        let (dir, options) = (federation.dir(), format!("sitecache={}", shared.display()));
        let words = ["dev", "mount"].map(OsStr::new);
        let more = [OsStr::new("-o"), OsStr::new(&options), OsStr::new("--dir"), dir.as_os_str()];
        federation.tieline(&[&words[..], &[mount.as_os_str()], &more[..]].concat())?;
        Ok(Node { mount, shared })
    };
    (0..NODES).map(mount).collect()
}

/// What a job reads: an eighth of the set from somewhere, over the ends of files.
fn parts(job: u64, file_size: u64) -> Vec<Part> {
    let total = file_size * FILES;
    let start = job.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % total;
    let (mut at, mut left) = (start, total / SHARE);
    let mut parts = Vec::new();
    while left > 0 {
        let (file, offset) = (at / file_size % FILES, at % file_size);
        let length = left.min(file_size - offset);
        parts.push((file, offset, length));
        (at, left) = (at + length, left - length);
    }
    parts
}

/// Bytes of all chunks that any job touches.
fn distinct(jobs: &[Vec<Part>], file_size: u64) -> u64 {
    let mut chunks = BTreeSet::new();
    for &(file, offset, length) in jobs.iter().flatten() {
        chunks.extend((offset / CHUNK..(offset + length).div_ceil(CHUNK)).map(|at| (file, at)));
    }
    chunks.iter().map(|(_, at)| CHUNK.min(file_size - at * CHUNK)).sum()
}

/// All jobs at once; seconds.
fn pass(nodes: &[Node], jobs: &[Vec<Part>]) -> Result<f64> {
    let start = Instant::now();
    thread::scope(|scope| {
        let running = jobs.iter().zip(nodes.iter().cycle()).map(|(parts, node)| {
            scope.spawn(move || parts.iter().try_for_each(|part| read(&node.mount, part)))
        });
        let running: Vec<_> = running.collect();
        for job in running {
            job.join().map_err(|_| anyhow::anyhow!("a job panicked"))??;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

fn read(mount: &Path, &(file, offset, length): &Part) -> Result<()> {
    let file = File::open(mount.join("fnal/set").join(file.to_string()))?;
    let mut piece = vec![0; PIECE];
    let mut at = offset;
    while at < offset + length {
        let want = (offset + length - at).min(PIECE as u64) as usize;
        let got = file.read_at(&mut piece[..want], at)?;
        ensure!(got > 0, "a file ended early");
        at += got as u64;
    }
    Ok(())
}

/// As many readers on the cache's own files, each where its node has them; seconds for `asked`
/// bytes.
fn read_plainly(nodes: &[Node], asked: u64, jobs: usize) -> Result<f64> {
    let mut files = Vec::new();
    for folder in std::fs::read_dir(nodes[0].shared.join("chunks"))?.flatten() {
        files.extend(std::fs::read_dir(folder.path())?.flatten().map(|entry| entry.path()));
    }
    ensure!(!files.is_empty(), "the site's cache is empty");
    let files: Vec<&Path> =
        files.iter().map(|file| file.strip_prefix(&nodes[0].shared)).collect::<Result<_, _>>()?;
    let start = Instant::now();
    thread::scope(|scope| {
        let files = &files;
        let running = (0..jobs).zip(nodes.iter().cycle()).map(|(job, node)| {
            scope.spawn(move || -> Result<()> {
                let mut left = asked / jobs as u64;
                let mut piece = Vec::with_capacity(CHUNK as usize);
                for path in files.iter().cycle().skip(job * files.len() / jobs) {
                    piece.clear();
                    File::open(node.shared.join(path))?.read_to_end(&mut piece)?;
                    left = left.saturating_sub(piece.len() as u64);
                    if left == 0 {
                        break;
                    }
                }
                Ok(())
            })
        });
        let running: Vec<_> = running.collect();
        for reader in running {
            reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Has the kernel forget what it keeps of these files.
fn forget(nodes: &[Node]) {
    let ours = nodes.iter().map(|node| node.mount.join("fnal/set"));
    let mut todo: Vec<PathBuf> =
        ours.chain(nodes.iter().map(|node| node.shared.join("chunks"))).collect();
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                todo.push(entry.path());
            } else if let Ok(file) = File::open(entry.path()) {
                // What is dirty stays, and is read from memory by both sides.
                let _ = file.sync_data();
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            }
        }
    }
}

/// Bytes that the nodes had from data servers, as their mounts tell.
fn fetched(nodes: &[Node]) -> Result<u64> {
    nodes
        .iter()
        .map(|node| {
            let mut buffer = vec![0; 64 << 10];
            let length = rustix::fs::getxattr(&node.mount, "user.tieline.cache", &mut buffer[..])?;
            let told: serde_json::Value = serde_json::from_slice(&buffer[..length])?;
            told["fetched_bytes"].as_u64().context("a mount does not say what it fetched")
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_read_an_eighth_each_and_all_of_the_set_together() {
        let size = 140_000_000 / 4096 * 4096;
        let jobs: Vec<_> = (0..32).map(|job| parts(job, size)).collect();
        for job in &jobs {
            assert_eq!(job.iter().map(|part| part.2).sum::<u64>(), size * FILES / SHARE);
            assert!(
                job.iter().all(|(file, offset, length)| *file < FILES && offset + length <= size)
            );
        }
        let distinct = distinct(&jobs, size);
        assert!(distinct <= size * FILES && distinct > size * FILES / 2);
    }
}
