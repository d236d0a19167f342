//! Caches for a node and for a site, and storage that is read directly: what crosses the link, what
//! is served, and what happens when somebody dies, poisons or deletes.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, program, with_federation};

const CHUNK: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(90);

/// Mounts of one test, each a machine of its own.
struct Clients<'a> {
    lab: &'a Federation,
    mounts: RefCell<Vec<PathBuf>>,
}

impl<'a> Clients<'a> {
    fn new(lab: &'a Federation) -> Self {
        Self { lab, mounts: RefCell::default() }
    }

    fn mount(&self, options: &str) -> Result<PathBuf> {
        let number = self.mounts.borrow().len();
        let mount = self.lab.local(&format!("client-{number}"));
        fs::create_dir(&mount)?;
        self.mount_at(&mount, options)?;
        Ok(mount)
    }

    fn mount_at(&self, mount: &Path, options: &str) -> Result<()> {
        let status = self.lab.status()?;
        let source = status["source"].as_str().context("a source")?;
        let (log, pid) = (mount.with_extension("log"), mount.with_extension("pid"));
        let own = format!("hold=off,log={},pidfile={}", log.display(), pid.display());
        let mount_text = mount.to_str().context("path")?;
        self.lab.tieline(&["mount", source, mount_text, "-o", &format!("{own},{options}")])?;
        self.mounts.borrow_mut().push(mount.to_owned());
        Ok(())
    }

    fn unmount(&self, mount: &Path) -> Result<()> {
        self.lab.tieline(&["umount", mount.to_str().context("path")?])?;
        self.mounts.borrow_mut().retain(|known| known != mount);
        Ok(())
    }

    fn kill(&self, mount: &Path) -> Result<()> {
        let pid = fs::read_to_string(mount.with_extension("pid"))?.trim().parse()?;
        kill_process(Pid::from_raw(pid).context("a pid is not 0")?, Signal::KILL)?;
        let _ = Command::new("umount").arg("-l").arg(mount).status();
        self.mounts.borrow_mut().retain(|known| known != mount);
        Ok(())
    }

    /// Bytes that these mounts had from servers.
    fn fetched(&self) -> Result<u64> {
        let mounts = self.mounts.borrow();
        mounts.iter().map(|mount| number(&report(mount)?, &["fetched_bytes"])).sum()
    }

    fn log(&self, mount: &Path) -> Result<String> {
        Ok(fs::read_to_string(mount.with_extension("log"))?)
    }
}

impl Drop for Clients<'_> {
    fn drop(&mut self) {
        for mount in self.mounts.borrow().iter() {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}

/// What a mount says of its caches.
fn report(mount: &Path) -> Result<Value> {
    let mut buffer = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(mount, "user.tieline.cache", &mut buffer[..])?;
    Ok(serde_json::from_slice(&buffer[..length])?)
}

fn number(value: &Value, path: &[&str]) -> Result<u64> {
    let found = path.iter().try_fold(value, |value, key| value.get(key));
    found.and_then(Value::as_u64).with_context(|| format!("{path:?} in {value}"))
}

/// Bytes that repeat nowhere: equal chunks are one in a site's cache.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.extend((mixed ^ (mixed >> 29)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A file of whole chunks, known at its servers.
fn write(lab: &Federation, name: &str, bytes: &[u8]) -> Result<()> {
    let path = lab.mount().join(name);
    fs::write(&path, bytes)?;
    Ok(fs::File::open(path)?.sync_all()?)
}

/// A process that reads a file, and fails if it is not `bytes`.
fn reader(lab: &Federation, mount: &Path, name: &str) -> Result<Child> {
    let same = Command::new("cmp")
        .arg(mount.join(name))
        .arg(lab.local(&format!("expected-{name}")))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(same)
}

fn expect(lab: &Federation, name: &str, bytes: &[u8]) -> Result<()> {
    Ok(fs::write(lab.local(&format!("expected-{name}")), bytes)?)
}

fn finish(mut children: Vec<Child>) -> Result<()> {
    for child in &mut children {
        ensure!(program::wait(child, PATIENCE)?.success(), "a reader got other bytes");
    }
    Ok(())
}

fn folder(lab: &Federation, name: &str) -> Result<PathBuf> {
    let path = lab.local(name);
    fs::create_dir(&path)?;
    Ok(path)
}

/// Names below a cache's `chunks`.
fn chunks(cache: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(cache.join("chunks")).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    files.flatten().map(|file| file.path()).collect()
}

/// Promise 60: A chunk that many nodes of a site ask for at once is fetched once, where they share
/// a cache.
#[test]
fn eight_nodes_fetch_a_chunk_once() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        let wanted = bytes(1, CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let options = format!("sitecache={}", shared.display());
        let mounts = (0..8).map(|_| clients.mount(&options)).collect::<Result<Vec<_>>>()?;
        let readers = mounts.iter().map(|mount| reader(lab, mount, "f"));
        finish(readers.collect::<Result<Vec<_>>>()?)?;
        let fetched = clients.fetched()?;
        ensure!(fetched <= CHUNK as u64 * 102 / 100, "{fetched} bytes crossed the link");
        let is_done = || {
            let claims = fs::read_dir(shared.join("claims")).is_ok_and(|names| names.count() == 0);
            claims && chunks(&shared).len() == 1
        };
        program::until("it is published", PATIENCE, is_done)?;
        let status = lab.json(&["cache", "status", shared.to_str().context("path")?])?;
        ensure!(number(&status[0], &["bytes"])? == CHUNK as u64, "{status}");
        Ok(())
    })
}

/// Promise 61: When a node dies while it fetches a chunk for its site, another fetches it.
#[test]
fn a_fetcher_that_dies_is_followed() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        let wanted = bytes(2, CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let options = format!("sitecache={}", shared.display());
        let mounts = (0..3).map(|_| clients.mount(&options)).collect::<Result<Vec<_>>>()?;
        for mount in &mounts {
            // Names and extents are known before the data server falls silent.
            ensure!(fs::metadata(mount.join("f"))?.len() == CHUNK as u64);
        }
        lab.signal("oss-uf", Signal::STOP)?;
        let mut first = reader(lab, &mounts[0], "f")?;
        let claims = shared.join("claims");
        let is_claimed = || fs::read_dir(&claims).is_ok_and(|names| names.count() == 1);
        program::until("the first claims the chunk", PATIENCE, is_claimed)?;
        let others = vec![reader(lab, &mounts[1], "f")?, reader(lab, &mounts[2], "f")?];
        std::thread::sleep(Duration::from_millis(500));
        clients.kill(&mounts[0])?;
        let _ = program::wait(&mut first, PATIENCE);
        lab.signal("oss-uf", Signal::CONT)?;
        let begun = Instant::now();
        finish(others)?;
        ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        let fetched = clients.fetched()?;
        ensure!(fetched <= CHUNK as u64 * 102 / 100, "{fetched} bytes crossed the link");
        let is_free = || fs::read_dir(&claims).is_ok_and(|names| names.count() == 0);
        program::until("no claim is left", PATIENCE, is_free)?;
        Ok(())
    })
}

/// Promise 62: A chunk that was changed in a site's cache is never handed to a program: it is
/// discarded and fetched again.
#[test]
fn a_poisoned_chunk_is_never_served() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        let wanted = bytes(3, 2 * CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let options = format!("sitecache={}", shared.display());
        finish(vec![reader(lab, &clients.mount(&options)?, "f")?])?;
        program::until("both are published", PATIENCE, || chunks(&shared).len() == 2)?;
        for path in chunks(&shared) {
            let mut poison = fs::read(&path)?;
            poison[1_000_000] ^= 1;
            fs::write(&path, poison)?;
        }
        let mount = clients.mount(&options)?;
        finish(vec![reader(lab, &mount, "f")?])?;
        let told = report(&mount)?;
        ensure!(number(&told, &["site", "poisoned"])? == 2, "{told}");
        ensure!(number(&told, &["fetched_bytes"])? >= 2 * CHUNK as u64, "{told}");
        ensure!(clients.log(&mount)?.contains("poisoned chunk in the site cache"));
        let shown = shared.to_str().context("path")?;
        let status = lab.json(&["cache", "status", shown])?;
        ensure!(status[0]["poisoned"].as_array().is_some_and(|all| all.len() == 2), "{status}");
        program::until("both are published", PATIENCE, || chunks(&shared).len() == 2)?;
        // The good ones are in place again, and what is bad is found before anybody reads it.
        let next = clients.mount(&options)?;
        finish(vec![reader(lab, &next, "f")?])?;
        ensure!(number(&report(&next)?, &["fetched_bytes"])? == 0);
        let path = chunks(&shared).pop().context("a chunk")?;
        fs::write(&path, b"short")?;
        let scrubbed = lab.json(&["cache", "scrub", shown])?;
        ensure!(scrubbed[0]["bad"].as_array().is_some_and(|all| all.len() == 1), "{scrubbed}");
        ensure!(!path.exists());
        Ok(())
    })
}

/// Promise 63: What a node with a cache has read, it reads without a data server after its mount
/// was restarted.
#[test]
fn a_node_keeps_what_it_read_over_a_restart() -> Result<()> {
    with_federation(|lab| {
        let (clients, cache) = (Clients::new(lab), lab.local("cache"));
        let wanted = bytes(4, 3 * CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let options = format!("cache={},cache-size=64M", cache.display());
        let mount = clients.mount(&options)?;
        // An exact reader fetches and keeps no whole chunks.
        let piece = program::shell(&mount, "dd if=f bs=4096 skip=700 count=1 2>/dev/null | cksum")?;
        ensure!(number(&report(&mount)?, &["fetched_bytes"])? <= 1 << 20);
        finish(vec![reader(lab, &mount, "f")?])?;
        let is_kept = || {
            let told = report(&mount).unwrap_or_default();
            number(&told, &["node", "bytes"]).is_ok_and(|bytes| bytes >= 3 * CHUNK as u64)
        };
        program::until("all is kept", PATIENCE, is_kept)?;
        let refused = lab.try_tieline(&[
            "mount",
            lab.status()?["source"].as_str().context("a source")?,
            folder(lab, "other")?.to_str().context("path")?,
            "-o",
            &options,
        ])?;
        ensure!(refused.stderr.contains("directory of its own"), "{refused:?}");
        clients.unmount(&mount)?;
        clients.mount_at(&mount, &options)?;
        finish(vec![reader(lab, &mount, "f")?])?;
        let told = report(&mount)?;
        ensure!(number(&told, &["oss_round_trips"])? == 0, "{told}");
        ensure!(number(&told, &["node", "served_bytes"])? >= 3 * CHUNK as u64, "{told}");
        let again = program::shell(&mount, "dd if=f bs=4096 skip=700 count=1 2>/dev/null | cksum")?;
        ensure!(piece == again);
        Ok(())
    })
}

/// Removes a directory that others still write to.
fn remove(folder: &Path) -> Result<()> {
    for _ in 0..100 {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return Ok(other?),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("{} is filled faster than it is removed", folder.display())
}

/// Promise 64: A cache may be deleted or run full while it is in use: no read fails.
#[test]
fn caches_may_be_deleted_and_filled_while_in_use() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        let cache = lab.local("cache");
        for (name, seed) in [("f", 41), ("g", 42), ("h", 43)] {
            let wanted = bytes(seed, 4 * CHUNK);
            write(lab, name, &wanted)?;
            expect(lab, name, &wanted)?;
        }
        let (node, site) = (cache.display(), shared.display());
        let mount = clients.mount(&format!("cache={node},sitecache={site}"))?;
        finish(vec![reader(lab, &mount, "f")?])?;
        remove(&cache)?;
        remove(&shared)?;
        finish(vec![reader(lab, &mount, "f")?, reader(lab, &mount, "g")?])?;
        remove(&cache)?;
        fs::create_dir_all(&shared)?;
        finish(vec![reader(lab, &mount, "h")?])?;
        if tieline_lab::is_root() {
            // Room for one chunk of twelve.
            let small = folder(lab, "small")?;
            let shown = small.to_str().context("path")?;
            program::call("mount", &["-t", "tmpfs", "-o", "size=6M", "tmpfs", shown])?;
            let outcome = (|| {
                let mount = clients.mount(&format!("cache={shown}/c"))?;
                for name in ["f", "g", "h"] {
                    finish(vec![reader(lab, &mount, name)?])?;
                }
                let log = clients.log(&mount)?;
                ensure!(log.contains("service goes on without it"), "{log}");
                ensure!(log.matches("WARN").count() <= 2, "{log}");
                clients.unmount(&mount)
            })();
            program::call("umount", &["-l", shown])?;
            outcome?;
        }
        Ok(())
    })
}

#[test]
fn jobs_of_a_site_fetch_what_is_distinct_once() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        let names: Vec<String> = (0..5).map(|number| format!("run{number}")).collect();
        for (name, seed) in names.iter().zip(10..) {
            let wanted = bytes(seed, 3 * CHUNK);
            write(lab, name, &wanted)?;
            expect(lab, name, &wanted)?;
        }
        let options = format!("sitecache={}", shared.display());
        let mounts = (0..4).map(|_| clients.mount(&options)).collect::<Result<Vec<_>>>()?;
        for _ in 0..2 {
            let mut jobs = Vec::new();
            for job in 0..8 {
                for step in [job % 5, (job * 3 + 1) % 5] {
                    jobs.push(reader(lab, &mounts[job % 4], &names[step])?);
                }
            }
            finish(jobs)?;
        }
        let (fetched, distinct) = (clients.fetched()?, 15 * CHUNK as u64);
        ensure!(fetched <= distinct * 102 / 100, "{fetched} for {distinct} distinct bytes");
        Ok(())
    })
}

#[test]
fn mounted_storage_is_read_past_its_server() -> Result<()> {
    with_federation(|lab| {
        let clients = Clients::new(lab);
        let wanted = bytes(6, 3 * CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let sites = lab.dir().join("sites/uf");
        let mut direct = Vec::new();
        for entry in fs::read_dir(&sites)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(number) = name.strip_prefix("ost") {
                direct.push(format!("OST{number}={}", entry.path().display()));
            }
        }
        let mount = clients.mount(&format!("direct={}", direct.join(":")))?;
        finish(vec![reader(lab, &mount, "f")?])?;
        let told = report(&mount)?;
        ensure!(number(&told, &["oss_round_trips"])? == 0, "{told}");
        ensure!(number(&told, &["direct", "served_bytes"])? == 3 * CHUNK as u64, "{told}");
        // A path that is not what it should be costs a log line.
        let wrong = clients.mount("direct=OST0000=/nowhere:OST0001=/nowhere")?;
        finish(vec![reader(lab, &wrong, "f")?])?;
        ensure!(number(&report(&wrong)?, &["direct", "served_bytes"])? == 0);
        ensure!(clients.log(&wrong)?.contains("servers are asked"));
        Ok(())
    })
}

#[test]
fn operators_warm_pin_and_empty_caches() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        fs::create_dir(lab.mount().join("aux"))?;
        for (name, seed) in [("aux/a", 21), ("aux/b", 22), ("c", 23)] {
            write(lab, name, &bytes(seed, CHUNK + 20_000))?;
        }
        let cache = lab.local("cache");
        let options = format!("cache={},sitecache={}", cache.display(), shared.display());
        let mount = clients.mount(&options)?;
        let text = |path: PathBuf| path.to_str().map(str::to_owned).context("path");
        let (top, aux, site) = (text(mount.clone())?, text(mount.join("aux"))?, text(shared)?);
        let warmed = lab.json(&["cache", "warm", &top])?;
        ensure!(number(&warmed, &["files"])? == 3, "{warmed}");
        // A chunk of 4 MiB and a short one each.
        let all_there = || chunks(Path::new(&site)).len() == 6;
        program::until("all are published", PATIENCE, all_there)?;
        let status = lab.json(&["cache", "status", &top])?;
        ensure!(status[0]["kind"] == "node" && status[1]["kind"] == "site", "{status}");
        ensure!(number(&status[1], &["counters", "kept_bytes"])? > 0, "{status}");
        let pinned = lab.json(&["cache", "pin", &aux])?;
        ensure!(number(&pinned[1], &["held"])? == 4, "{pinned}");
        let evicted = lab.json(&["cache", "evict", "--all", &top])?;
        ensure!(number(&evicted[1], &["chunks"])? == 2, "{evicted}");
        ensure!(number(&evicted[1], &["pinned"])? == 4, "{evicted}");
        lab.tieline(&["cache", "unpin", &aux])?;
        let evicted = lab.json(&["cache", "evict", &aux, "--cache", &site])?;
        ensure!(number(&evicted[0], &["chunks"])? == 4, "{evicted}");
        ensure!(fs::read(mount.join("aux/a"))? == bytes(21, CHUNK + 20_000));
        let missing = lab.try_tieline(&["cache", "unpin", &aux])?;
        ensure!(missing.stderr.contains("is not pinned"), "{missing:?}");
        Ok(())
    })
}

#[test]
fn what_is_ruled_private_stays_off_shared_storage() -> Result<()> {
    tieline_lab::tickets::with_kdc(|lab| {
        let (shared, mount) = (folder(lab, "shared")?, folder(lab, "near")?);
        for (name, seed) in [("f", 31), ("g", 32), ("h", 33)] {
            write(lab, name, &bytes(seed, CHUNK))?;
        }
        let dir = lab.dir();
        let (dir, near) = (dir.to_str().context("path")?, mount.to_str().context("path")?);
        let options = format!("sitecache={}", shared.display());
        lab.tieline(&["dev", "mount", near, "--dir", dir, "-o", &options])?;
        fs::read(mount.join("f"))?;
        program::until("it is shared", PATIENCE, || chunks(&shared).len() == 1)?;
        let rule = "extenci.srpc.flavor.default.cli2ost=krb5p";
        lab.tieline(&["flavor", "set", "--fs", near, rule])?;
        let is_ruled = || {
            let listed = lab.tieline(&["flavor", "list", near]).unwrap_or_default();
            listed.contains("cli2ost=krb5p")
        };
        program::until("the rule is known", PATIENCE, is_ruled)?;
        std::thread::sleep(Duration::from_secs(2));
        fs::read(mount.join("g"))?;
        std::thread::sleep(Duration::from_secs(1));
        ensure!(chunks(&shared).len() == 1, "nothing more is shared");
        let trusting = folder(lab, "trusting")?;
        let trusting_text = trusting.to_str().context("path")?;
        let options = format!("{options},at-rest=trusted");
        lab.tieline(&["dev", "mount", trusting_text, "--dir", dir, "-o", &options])?;
        fs::read(trusting.join("h"))?;
        program::until("it is shared", PATIENCE, || chunks(&shared).len() == 2)?;
        Ok(())
    })
}
