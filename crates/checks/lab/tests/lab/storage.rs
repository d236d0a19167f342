//! A site's cache on storage of any kind: a local directory, GlusterFS, and one without locks,
//! without overwriting and with stale handles. Every node has a mount of the storage of its own.

use anyhow::{Context, Result, ensure};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::nodes::{
    CHUNK, Clients, PATIENCE, bytes, chunks, expect, finish, number, reader, report, write,
};
use tieline_lab::storage::{Kind, Storage};
use tieline_lab::{Federation, program, with_federation};

/// One site: nodes, and what they share.
struct Site<'a> {
    lab: &'a Federation,
    clients: Clients<'a>,
    storage: &'a Storage,
    /// The directory that is this test's cache, below a storage's root.
    name: &'static str,
    /// As a node sees it that reads nothing.
    seen: PathBuf,
}

impl<'a> Site<'a> {
    fn new(lab: &'a Federation, storage: &'a Storage, name: &'static str) -> Result<Self> {
        let seen = storage.node()?.join(name);
        fs::create_dir(&seen)?;
        Ok(Self { lab, clients: Clients::new(lab), storage, name, seen })
    }

    /// A mount on one more node.
    fn mount(&self, more: &str) -> Result<PathBuf> {
        let shared = self.storage.node()?.join(self.name);
        self.clients.mount(&format!("sitecache={}{more}", shared.display()))
    }

    fn mounts(&self, count: usize) -> Result<Vec<PathBuf>> {
        (0..count).map(|_| self.mount("")).collect()
    }

    /// A file of that many bytes that are nowhere else, and what `cmp` compares it with.
    fn file(&self, name: &str, seed: u64, length: usize) -> Result<()> {
        let wanted = bytes(seed, length);
        write(self.lab, name, &wanted)?;
        expect(self.lab, name, &wanted)
    }

    fn read(&self, mounts: &[PathBuf], name: &str) -> Result<()> {
        let readers = mounts.iter().map(|mount| reader(self.lab, mount, name));
        finish(readers.collect::<Result<Vec<_>>>()?)
    }

    /// Names in `claims`, but for the cleaner's, who is always there.
    fn claims(&self) -> Vec<String> {
        let names = fs::read_dir(self.seen.join("claims")).into_iter().flatten().flatten();
        let names = names.map(|name| name.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with("cleaner.")).collect()
    }

    /// Bytes of all chunks. (Of how many is for the writer's pace to say.)
    fn kept(&self) -> u64 {
        let stats = chunks(&self.seen).into_iter().filter_map(|path| fs::metadata(path).ok());
        stats.map(|stat| stat.len()).sum()
    }

    fn until_published(&self, bytes: usize) -> Result<()> {
        let is_done = || self.claims().is_empty() && self.kept() == bytes as u64;
        program::until("all is published", PATIENCE, is_done).with_context(|| {
            let logs = self.clients.logs();
            format!("claims {:?}, chunks {:?}\n{logs}", self.claims(), chunks(&self.seen))
        })
    }

    fn tool(&self, verb: &str) -> Result<serde_json::Value> {
        self.lab.json(&["cache", verb, self.seen.to_str().context("path")?])
    }
}

/// Promise 60: A chunk that many nodes of a site ask for at once is fetched once, where they share
/// a cache.
fn eight_nodes_fetch_a_chunk_once(lab: &Federation, storage: &Storage) -> Result<()> {
    let site = Site::new(lab, storage, "once")?;
    let length = 2 * CHUNK + 50_000;
    site.file("once", 1, length)?;
    let mounts = site.mounts(8)?;
    site.read(&mounts, "once")?;
    let fetched = site.clients.fetched()?;
    let logs = site.clients.logs();
    ensure!(fetched <= length as u64 * 102 / 100, "{fetched} bytes crossed the link\n{logs}");
    site.until_published(length)?;
    let status = site.tool("status")?;
    ensure!(number(&status[0], &["bytes"])? == length as u64, "{status}");
    // Nobody took a chunk that was not whole yet for a bad one.
    ensure!(status[0]["poisoned"].as_array().is_none_or(Vec::is_empty), "{status}");
    let late = site.mounts(1)?;
    site.read(&late, "once")?;
    ensure!(number(&report(&late[0])?, &["fetched_bytes"])? == 0);
    Ok(())
}

/// Promise 61: When a node dies while it fetches a chunk for its site, another fetches it.
fn a_fetcher_that_dies_is_followed(lab: &Federation, storage: &Storage) -> Result<()> {
    let site = Site::new(lab, storage, "dies")?;
    site.file("dies", 2, CHUNK)?;
    let mounts = site.mounts(3)?;
    for mount in &mounts {
        // Names and extents are known before the data server falls silent.
        ensure!(fs::metadata(mount.join("dies"))?.len() == CHUNK as u64);
    }
    lab.signal("oss-uf", Signal::STOP)?;
    let mut first = reader(lab, &mounts[0], "dies")?;
    program::until("the first claims it", PATIENCE, || !site.claims().is_empty())?;
    let others = vec![reader(lab, &mounts[1], "dies")?, reader(lab, &mounts[2], "dies")?];
    // It gives signs of life for a while, whatever signs the storage takes.
    std::thread::sleep(Duration::from_secs(6));
    site.clients.kill(&mounts[0])?;
    let _ = program::wait(&mut first, PATIENCE);
    lab.signal("oss-uf", Signal::CONT)?;
    let begun = Instant::now();
    finish(others)?;
    // A claim lives for 8 s.
    ensure!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let fetched = site.clients.fetched()?;
    ensure!(fetched <= CHUNK as u64 * 102 / 100, "{fetched} bytes crossed the link");
    site.until_published(CHUNK)
}

/// Promise 62: A chunk that was changed in a site's cache is never handed to a program: it is
/// discarded and fetched again.
fn a_poisoned_chunk_is_never_served(lab: &Federation, storage: &Storage) -> Result<()> {
    let site = Site::new(lab, storage, "poisoned")?;
    site.file("poisoned", 3, 2 * CHUNK)?;
    site.read(&site.mounts(1)?, "poisoned")?;
    site.until_published(2 * CHUNK)?;
    let published = chunks(&site.seen);
    for path in &published {
        let mut poison = fs::read(path)?;
        *poison.last_mut().context("no chunk is empty")? ^= 1;
        replace(path, &poison)?;
    }
    let mounts = site.mounts(1)?;
    site.read(&mounts, "poisoned")?;
    let told = report(&mounts[0])?;
    let count = published.len();
    ensure!(number(&told, &["site", "poisoned"])? == count as u64, "{told}");
    ensure!(number(&told, &["fetched_bytes"])? >= 2 * CHUNK as u64, "{told}");
    ensure!(site.clients.log(&mounts[0])?.contains("poisoned chunk in the site cache"));
    site.until_published(2 * CHUNK)?;
    let status = site.tool("status")?;
    ensure!(status[0]["poisoned"].as_array().is_some_and(|all| all.len() == count), "{status}");
    // The good ones are in place again, and what is bad is found before anybody reads it.
    let next = site.mounts(1)?;
    site.read(&next, "poisoned")?;
    ensure!(number(&report(&next[0])?, &["fetched_bytes"])? == 0);
    let path = chunks(&site.seen).pop().context("a chunk")?;
    replace(&path, b"short")?;
    let words = ["cache", "scrub", "--json", site.seen.to_str().context("path")?];
    let run = lab.try_tieline(&words)?;
    ensure!(!run.status.success() && run.stderr.contains("1 chunks were bad"), "{run:?}");
    let scrubbed: serde_json::Value = serde_json::from_str(&run.stdout)?;
    ensure!(scrubbed[0]["bad"].as_array().is_some_and(|all| all.len() == 1), "{scrubbed}");
    ensure!(!path.exists());
    Ok(())
}

/// One node of those that share a cache keeps its water marks, and what was evicted comes again.
fn one_cleaner_keeps_the_marks(lab: &Federation, storage: &Storage) -> Result<()> {
    let site = Site::new(lab, storage, "marks")?;
    let marks = ",sitecache-size=12M:8M";
    site.file("marks", 4, 6 * CHUNK)?;
    let mounts = [site.mount(marks)?, site.mount(marks)?];
    site.read(&mounts[..1], "marks")?;
    let is_clean = || site.kept() <= 8 << 20 && site.claims().is_empty();
    program::until("it is below the low mark", PATIENCE, is_clean)?;
    let cleaner = site.tool("status")?[0]["cleaner"].clone();
    ensure!(cleaner.is_string(), "{cleaner}");
    let cleans = |mount: &PathBuf| {
        site.clients.log(mount).is_ok_and(|log| log.contains("cleans the site cache"))
    };
    ensure!(mounts.iter().filter(|mount| cleans(mount)).count() == 1, "one cleaner");
    site.read(&mounts[1..], "marks")
}

/// Puts other bytes in a file's place, as whoever can write there may.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::remove_file(path)?;
    Ok(fs::write(path, bytes)?)
}

fn all_on(kind: Kind) -> Result<()> {
    if !tieline_lab::is_root() && kind != Kind::Local {
        tieline_lab::skip(format_args!("mounting {kind:?} needs root"));
        return Ok(());
    }
    let scenes = [
        eight_nodes_fetch_a_chunk_once,
        a_poisoned_chunk_is_never_served,
        one_cleaner_keeps_the_marks,
        a_fetcher_that_dies_is_followed,
    ];
    with_federation(|lab| {
        let storage = Storage::start(kind, lab.local("storage"))?;
        for (number, scene) in scenes.iter().enumerate() {
            scene(lab, &storage).with_context(|| format!("scene {number} on {kind:?}"))?;
        }
        Ok(())
    })
}

#[test]
fn a_sites_cache_on_a_local_disk() -> Result<()> {
    all_on(Kind::Local)
}

#[test]
fn a_sites_cache_on_gluster() -> Result<()> {
    all_on(Kind::Gluster)
}

#[test]
fn a_sites_cache_without_locks_without_overwriting_with_stale_handles() -> Result<()> {
    all_on(Kind::Awkward)
}

/// The storage is as awkward as it is said to be.
#[test]
fn the_awkward_storage_refuses_what_it_should() -> Result<()> {
    if !tieline_lab::is_root() || !tieline_lab::can_mount() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let storage = Storage::start(Kind::Awkward, folder.path().join("storage"))?;
    let (one, other) = (storage.node()?, storage.node()?);
    fs::write(one.join("f"), bytes(5, CHUNK))?;
    let is_whole = || fs::metadata(other.join("f")).is_ok_and(|stat| stat.len() == CHUNK as u64);
    ensure!(!is_whole(), "not before it is closed");
    program::until("it is closed", PATIENCE, is_whole)?;
    let file = fs::File::open(other.join("f"))?;
    ensure!(rustix::fs::flock(&file, FlockOperation::LockExclusive) == Err(Errno::NOLCK));
    let lock = FlockOperation::NonBlockingLockShared;
    ensure!(rustix::fs::fcntl_lock(&file, lock) == Err(Errno::NOLCK));
    ensure!(fs::write(one.join("f"), b"other").is_err(), "nothing is overwritten");
    ensure!(fs::File::options().append(true).open(other.join("f")).is_err());
    fs::write(one.join("g"), b"")?;
    ensure!(fs::rename(one.join("g"), one.join("f")).is_err(), "nothing is renamed onto it");
    let stale = |outcome: io::Result<Vec<u8>>| {
        outcome.is_err_and(|error| error.raw_os_error() == Some(Errno::STALE.raw_os_error()))
    };
    let stale = (0..20).filter(|_| stale(fs::read(other.join("f")))).count();
    ensure!((1..=10).contains(&stale), "{stale} of 20 reads had a stale handle");
    fs::remove_file(one.join("f"))?;
    let mut byte = [0];
    ensure!(rustix::io::pread(&file, &mut byte, 0) == Err(Errno::STALE), "removed while open");
    Ok(())
}
