//! Caches for a node and for a site, and storage that is read directly: what crosses the link, what
//! is served, and what happens when somebody deletes. (Storages of a site: `storage.rs`.)

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::nodes::{
    CHUNK, Clients, PATIENCE, bytes, chunks, expect, finish, folder, number, reader, report, write,
};
use tieline_lab::{program, with_federation};

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

/// Promise 190: A mount keeps what it read from far away without being told, and so does the next
/// one at that place; one that is near keeps nothing.
#[test]
fn what_came_from_far_away_is_kept_without_being_told() -> Result<()> {
    if !tieline_lab::can_emulate_lines() {
        return Ok(());
    }
    with_plan(&Plan::of(&["--netns", "--rtt", "20ms"]), |lab| {
        let (wanted, caches) = (bytes(6, 3 * CHUNK), lab.dir().join("caches"));
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let dev = |mount: &Path, options: &[&str]| -> Result<()> {
            let (mount, dir) = (mount.to_str().context("path")?, lab.dir());
            let dir = dir.to_str().context("path")?;
            let words = [&["dev", "mount", mount, "--dir", dir], options].concat();
            lab.tieline(&words).map(drop)
        };
        let (far, near, off) = (folder(lab, "far")?, folder(lab, "near")?, folder(lab, "off")?);
        dev(&far, &[])?;
        finish(vec![reader(lab, &far, "f")?])?;
        let kept = || number(&report(&far)?, &["node", "bytes"]);
        let is_kept = || kept().is_ok_and(|bytes| bytes >= 3 * CHUNK as u64);
        program::until("all is kept", PATIENCE, is_kept)?;
        lab.unmount(&far)?;
        dev(&far, &[])?;
        ensure!(fs::read(far.join("f"))? == wanted);
        let told = report(&far)?;
        ensure!(number(&told, &["oss_round_trips"])? == 0, "{told}");
        let own: Vec<_> =
            fs::read_dir(&caches)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        ensure!(own.len() == 1, "{own:?}");
        ensure!(own.iter().all(|path| mode(path).is_ok_and(|mode| mode == 0o700)), "{own:?}");
        // One is at the site where all of it lies; the other is told to keep nothing.
        dev(&near, &["--site", "uf"])?;
        dev(&off, &["-o", "cache=off"])?;
        for mount in [&near, &off] {
            ensure!(fs::read(mount.join("f"))? == wanted);
        }
        // How near a server is, is known by its answers: the first may be late where much is done.
        let told = report(&near)?;
        let kept = number(&told, &["node", "bytes"]).unwrap_or(0);
        ensure!(kept <= CHUNK as u64, "{told}");
        let status = lab.tieline(&["cache", "status", near.to_str().context("path")?])?;
        ensure!(kept > 0 || status.contains("nothing is kept yet"), "{status}");
        ensure!(fs::read_dir(&caches)?.count() == 1 + usize::from(kept > 0));
        Ok(())
    })
}

/// Promise 205: A large file that was read from far away is read again without a data server: by
/// the same mount, when the kernel has forgotten its pages, and by the next mount at that place.
#[test]
fn a_large_file_is_read_again_without_a_data_server() -> Result<()> {
    if !tieline_lab::can_emulate_lines() {
        return Ok(());
    }
    with_plan(&Plan::of(&["--netns", "--rtt", "20ms", "--sites", "uf"]), |lab| {
        let wanted = bytes(8, 24 * CHUNK);
        write(lab, "f", &wanted)?;
        let far = folder(lab, "far")?;
        let (mount, dir) = (far.to_str().context("path")?, lab.dir());
        let words = ["dev", "mount", mount, "--dir", dir.to_str().context("path")?];
        let server = lab.process("oss-uf")?;
        let reads = || lab.counted(&server, "tieline_requests_total", "op=\"ReadObject\"");
        let read = |what: &str| -> Result<u64> {
            let before = reads()?;
            ensure!(fs::read(far.join("f"))? == wanted, "{what}: other bytes");
            Ok(reads()? - before)
        };
        lab.tieline(&words)?;
        ensure!(read("first")? > 0, "it came from nowhere");
        let is_kept = || {
            let kept = report(&far).and_then(|told| number(&told, &["node", "bytes"]));
            kept.is_ok_and(|bytes| bytes >= wanted.len() as u64)
        };
        program::until("all is kept", PATIENCE, is_kept)?;
        ensure!(read("by the same mount")? == 0);
        fadvise(fs::File::open(far.join("f"))?, 0, None, Advice::DontNeed)?;
        let served = || number(&report(&far)?, &["node", "served_bytes"]);
        let before = served()?;
        ensure!(read("after the kernel forgot it")? == 0);
        ensure!(served()? - before >= wanted.len() as u64 / 2, "the kernel had it still");
        lab.unmount(&far)?;
        lab.tieline(&words)?;
        ensure!(read("by the next mount")? == 0);
        Ok(())
    })
}

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o7777)
}

/// Bytes of data servers that are ruled krb5p are on no disk that nobody named for them.
#[test]
fn what_is_ruled_private_is_not_kept_without_being_told() -> Result<()> {
    if !tieline_lab::can_emulate_lines() || !tieline_lab::has_kdc() {
        return Ok(());
    }
    let words = ["--netns", "--rtt", "20ms", "--kerberos", "--sec", "krb5p"];
    with_plan(&Plan::proven(&words), |lab| {
        let wanted = bytes(7, CHUNK);
        write(lab, "f", &wanted)?;
        let far = lab.mount_again()?;
        ensure!(fs::read(far.join("f"))? == wanted);
        std::thread::sleep(Duration::from_secs(1));
        ensure!(!lab.dir().join("caches").exists());
        let trusting = folder(lab, "trusting")?;
        let (mount, dir) = (trusting.to_str().context("path")?, lab.dir());
        let dir = dir.to_str().context("path")?;
        lab.tieline(&["dev", "mount", mount, "--dir", dir, "-o", "at-rest=trusted"])?;
        ensure!(fs::read(trusting.join("f"))? == wanted);
        program::until("it is kept", PATIENCE, || lab.dir().join("caches").exists())
    })
}

/// Caches are a help and no condition: whatever is wrong with their directories, the mount comes
/// up, says so where it is looked for, and uses them from when it can.
#[test]
fn a_mount_comes_up_without_its_caches_and_uses_them_later() -> Result<()> {
    with_federation(|lab| {
        let wanted = bytes(61, 2 * CHUNK);
        write(lab, "f", &wanted)?;
        expect(lab, "f", &wanted)?;
        let (site, node, mount) = (lab.local("absent"), lab.local("file"), folder(lab, "late")?);
        fs::write(&node, "in the way")?;
        let options = format!("cache={},sitecache={}", node.display(), site.display());
        let log = lab.local("late.log");
        let source = lab.status()?["source"].as_str().context("a source")?.to_owned();
        let (shown, log_option) =
            (mount.to_str().context("path")?, format!("log={},{options}", log.display()));
        let mounted = lab.try_tieline(&["mount", &source, shown, "-o", &log_option])?;
        let unmount = || lab.umount(&mount);
        let outcome = (|| {
            ensure!(mounted.status.success(), "{mounted:?}");
            for (path, why) in [(&node, "not a directory"), (&site, "No such file")] {
                let line =
                    mounted.stderr.lines().find(|line| line.contains(path.to_str().unwrap()));
                ensure!(line.is_some_and(|line| line.contains(why)), "{mounted:?}");
                ensure!(fs::read_to_string(&log)?.contains(why), "the log says nothing of {why}");
            }
            finish(vec![reader(lab, &mount, "f")?])?;
            let status = lab.json(&["cache", "status", shown])?;
            let told = status.to_string();
            ensure!(told.contains("not a directory") && told.contains("No such file"), "{told}");
            fs::remove_file(&node)?;
            fs::create_dir(&site)?;
            program::until("both are used", PATIENCE, || {
                let told = report(&mount).unwrap_or_default();
                told["node"]["trouble"].is_null() && told["site"]["trouble"].is_null()
            })?;
            let wanted = bytes(62, 2 * CHUNK);
            write(lab, "g", &wanted)?;
            expect(lab, "g", &wanted)?;
            finish(vec![reader(lab, &mount, "g")?])?;
            program::until("both keep it", PATIENCE, || {
                let told = report(&mount).unwrap_or_default();
                let kept = |name| number(&told, &[name, "kept_bytes"]).unwrap_or_default();
                kept("node") >= 2 * CHUNK as u64 && kept("site") >= 2 * CHUNK as u64
            })?;
            let wrong = format!("cache={},cache-size=much", node.display());
            let other = folder(lab, "other")?;
            let other = other.to_str().context("path")?;
            let refused = lab.try_tieline(&["mount", &source, other, "-o", &wrong])?;
            ensure!(
                refused.status.code() == Some(2) && refused.stderr.contains("cache-size"),
                "{refused:?}"
            );
            Ok(())
        })();
        unmount()?;
        outcome
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
                ensure!(log.contains("cannot be written to"), "{log}");
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

/// Whoever fetches for the site and whoever waits for that: both hear of a dead server after the
/// mount's `wait`, not after that many times it.
#[test]
fn a_dead_server_is_waited_for_once_by_all_nodes() -> Result<()> {
    with_federation(|lab| {
        let (clients, shared) = (Clients::new(lab), folder(lab, "shared")?);
        write(lab, "f", &bytes(41, CHUNK))?;
        let options = format!("wait=5s,sitecache={}", shared.display());
        let nodes = [clients.mount(&options)?, clients.mount(&options)?];
        for node in &nodes {
            fs::metadata(node.join("f"))?;
        }
        for server in ["oss-uf", "oss-fnal"] {
            lab.signal(server, rustix::process::Signal::STOP)?;
        }
        let start = std::time::Instant::now();
        let read = |node: &PathBuf| {
            let path = node.join("f");
            std::thread::spawn(move || fs::read(path).map(|bytes| bytes.len()))
        };
        let reading: Vec<_> = nodes.iter().map(read).collect();
        let read: Vec<_> = reading.into_iter().map(std::thread::JoinHandle::join).collect();
        let took = start.elapsed();
        for server in ["oss-uf", "oss-fnal"] {
            lab.signal(server, rustix::process::Signal::CONT)?;
        }
        let are_errors = read.iter().all(|read| matches!(read, Ok(Err(_))));
        ensure!(are_errors, "{read:?}");
        ensure!(took < Duration::from_secs(10), "the error took {took:?}");
        Ok(())
    })
}

/// Promised modes of reading: the mount's, and the nearest attribute above it.
#[test]
fn a_pinned_read_mode_decides_what_is_fetched() -> Result<()> {
    with_federation(|lab| {
        let clients = Clients::new(lab);
        lab.shell("mkdir -p d/below")?;
        for (seed, name) in [(51, "f"), (52, "d/below/g"), (53, "d/below/h")] {
            write(lab, name, &bytes(seed, 3 * CHUNK))?;
        }
        lab.shell("setfattr -n user.tieline.readmode -v normal d")?;
        lab.shell("setfattr -n user.tieline.readmode -v stream d/below/h")?;
        let fetched = |mount: &Path| number(&report(mount)?, &["fetched_bytes"]);
        let read = |mount: &Path, name: &str| {
            let script = format!("dd if={name} of=/dev/null bs=64k skip=16 count=1 2>/dev/null");
            program::shell(mount, &script).map(drop)
        };
        let mount = |mode: &str| {
            let options = format!("cache={},readmode={mode}", lab.local(mode).display());
            clients.mount(&options)
        };
        let exact = |mount: &Path, name: &str| -> Result<()> {
            let before = fetched(mount)?;
            read(mount, name)?;
            // What would come ahead comes at once.
            std::thread::sleep(Duration::from_secs(1));
            let came = fetched(mount)? - before;
            ensure!((1..=1 << 20).contains(&came), "{came} bytes came for 64 KiB of {name}");
            Ok(())
        };
        let ahead = |mount: &Path, name: &str| -> Result<()> {
            let before = fetched(mount)?;
            read(mount, name)?;
            program::until("more comes than was asked for", PATIENCE, || {
                fetched(mount).is_ok_and(|now| now - before >= 2 << 20)
            })
        };
        let (normal, stream) = (mount("normal")?, mount("stream")?);
        exact(&normal, "f")?;
        ahead(&normal, "d/below/h")?;
        exact(&stream, "d/below/g")?;
        ahead(&stream, "f")
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
        // An OST that the federation does not have is a mistake in the options.
        let folder = clients.folder()?;
        let refused = clients.mount_at(&folder, "direct=OST0000=/nowhere:OST0099=/nowhere");
        let why = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        let parts = ["direct=OST0099=/nowhere", "no such OST", "OST0000"];
        ensure!(parts.iter().all(|part| why.contains(part)), "{why}");
        ensure!(fs::read_dir(&folder)?.next().is_none(), "something is mounted");
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
        // Whoever finds something bad, or may not do what he is asked, says so in the end.
        let bad = chunks(Path::new(&site)).into_iter().next().context("a chunk")?;
        fs::write(bad, b"bad")?;
        let scrubbed = lab.try_tieline(&["cache", "scrub", &site])?;
        ensure!(scrubbed.stderr.contains("1 chunks were bad"), "{scrubbed:?}");
        ensure!(!scrubbed.status.success(), "{scrubbed:?}");
        if tieline_lab::is_root() {
            let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
            let tieline = program::tieline()?;
            let script = format!("{nobody} {} cache evict --all --cache {site}", tieline.display());
            ensure!(program::shell(Path::new("/"), &script).is_err(), "nobody may evict");
        }
        let evicted = lab.json(&["cache", "evict", &aux, "--cache", &site])?;
        ensure!(number(&evicted[0], &["chunks"])? == 3, "{evicted}");
        ensure!(fs::read(mount.join("aux/a"))? == bytes(21, CHUNK + 20_000));
        let missing = lab.try_tieline(&["cache", "unpin", &aux])?;
        ensure!(missing.stderr.contains("is not pinned"), "{missing:?}");
        Ok(())
    })
}

/// Promise 180: Other users of a machine cannot read what lies in a site's cache, unless its mounts
/// say `at-rest=trusted`.
#[test]
fn a_sites_cache_is_for_the_user_of_its_mounts() -> Result<()> {
    if !tieline_lab::is_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let clients = Clients::new(lab);
        let shared = folder(lab, "shared")?;
        for folder in [lab.dir().parent().context("parent")?, &lab.dir(), &shared] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        let shown = shared.to_str().context("path")?;
        let read_by_others = |what: &str| {
            let script = format!("cd /; setpriv --reuid 65534 --regid 65534 --clear-groups {what}");
            program::shell(Path::new("/"), &script)
        };
        let fill = |name: &str, seed, options: &str| {
            write(lab, name, &bytes(seed, CHUNK))?;
            let before = chunks(&shared).len();
            let mount = clients.mount(&format!("sitecache={shown}{options}"))?;
            fs::read(mount.join(name))?;
            program::until("it is shared", PATIENCE, || chunks(&shared).len() > before)?;
            anyhow::Ok(mount)
        };
        // As every cache was before: open to everybody.
        let trusting = fill("f", 71, ",at-rest=trusted")?;
        let read_all = format!("sh -c 'cat {shown}/chunks/*/* | cksum'");
        ensure!(read_by_others(&read_all).is_ok(), "others may read it");
        let doctor = |mount: &Path| {
            let shown = mount.to_str().context("path")?;
            anyhow::Ok(lab.try_tieline(&["doctor", "--part", "--at", shown])?.stdout)
        };
        ensure!(doctor(&trusting)?.contains("site cache"), "{}", doctor(&trusting)?);
        clients.unmount(&trusting)?;
        let closed = fill("g", 72, "")?;
        for chunk in chunks(&shared) {
            let chunk = chunk.to_str().context("path")?;
            ensure!(read_by_others(&format!("cat {chunk}")).is_err(), "{chunk} can be read");
        }
        // Somebody opens it again, or the storage does not keep modes.
        program::shell(&shared, "chmod -R go+rX .")?;
        let said = doctor(&closed)?;
        ensure!(said.contains("chmod 700") && said.contains("at-rest=trusted"), "{said}");
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
        // Other files of the directory may come ahead of it, and are shared then, too.
        program::until("it is shared", PATIENCE, || chunks(&shared).len() >= 2)?;
        Ok(())
    })
}
