//! Exposed pools: what lies in their directories, read without a mount while files are written,
//! moved and deleted, and while servers and clients are killed.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, program, shell, with_federation};

/// A second, a client's own until it sends what it did, and what a busy machine takes.
const SOON: Duration = Duration::from_secs(4);
const LATER: Duration = Duration::from_secs(30);

/// Exposes a pool, and makes a directory whose files are of it.
fn expose(lab: &Federation, pool: &str) -> Result<(PathBuf, PathBuf)> {
    let (folder, out) = (lab.mount().join("data"), lab.local("out"));
    fs::create_dir(&folder)?;
    lab.tieline(&["setstripe", "-c", "-1", "-p", pool, text(&folder)?])?;
    fs::create_dir(&out)?;
    let (name, fs) = (format!("extenci.{pool}"), text(lab.mount())?);
    lab.tieline(&["pool", "set", &name, "--expose", text(&out)?, "--fs", fs])?;
    Ok((folder, out.join("data")))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

fn pattern(seed: u32, length: u32) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(at | seed) >> 9) as u8).collect()
}

/// Every file below a directory with its bytes.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                all.insert(path.strip_prefix(folder)?.to_owned(), fs::read(&path)?);
            }
        }
    }
    Ok(all)
}

/// Waits until both have the same files with the same bytes.
fn wait_same(what: &str, mounted: &Path, out: &Path, deadline: Duration) -> Result<()> {
    let wanted = files(mounted)?;
    let is_same = || files(out).is_ok_and(|there| there == wanted);
    program::until(what, deadline, is_same).with_context(|| {
        let there = files(out).unwrap_or_default();
        format!("{:?} instead of {:?}", there.keys(), wanted.keys())
    })
}

/// Promise 140: What was closed in an exposed pool lies whole in its directory within a second and
/// its size over the disk's rate, and under a name there is never a part of a file.
///
/// Promise 141: Renames and deletions follow in an exposed directory within a second.
#[test]
fn closed_files_lie_whole_under_their_names() -> Result<()> {
    with_federation(|lab| {
        let fs = text(lab.mount())?;
        // Its files are striped over two machines: one puts them together.
        lab.tieline(&["pool", "new", "extenci.both", "--fs", fs])?;
        lab.tieline(&["pool", "add", "extenci.both", "OST0000", "OST0002", "--fs", fs])?;
        let (folder, out) = expose(lab, "both")?;
        let bytes = pattern(1, 9_000_000);
        fs::write(folder.join("striped"), &bytes)?;
        fs::write(folder.join("small"), b"small")?;
        fs::write(folder.join("empty"), b"")?;
        let sparse = fs::File::create(folder.join("sparse"))?;
        sparse.write_all_at(b"end", 20_000_000)?;
        drop(sparse);
        wait_same("new files lie there", &folder, &out, SOON)?;
        ensure!(fs::metadata(out.join("sparse"))?.blocks() < 1000, "holes are holes");
        if let Some(python) = tieline_lab::python() {
            events(&python, &folder, &out)?;
        }
        a_file_that_is_open(&folder, &out)?;
        names_follow(&folder, &out)?;
        owners_and_modes(&folder, &out)?;
        lab.tieline(&["pool", "set", "extenci.both", "--no-expose", "--fs", fs])?;
        program::until("the directory is emptied", SOON, || !out.exists())?;
        // Nothing waits for it any more.
        fs::write(folder.join("small"), b"other")?;
        ensure!(!out.exists());
        Ok(())
    })
}

/// The same events, with and without a mount.
fn events(python: &Path, folder: &Path, out: &Path) -> Result<()> {
    let write = r#"
import numpy as np, uproot
with uproot.recreate("events.root") as file:
    file["events"] = {"x": np.arange(200_000, dtype=np.int64)}
"#;
    let read = r#"
import uproot
print(int(uproot.open("events.root")["events"]["x"].array(library="np").sum()))
"#;
    shell(folder, &format!("'{}' -c '{write}'", python.display()))?;
    program::until("events lie there", SOON, || out.join("events.root").exists())?;
    let sum = |at: &Path| {
        let python = format!("'{}' -c '{read}' && md5sum events.root", python.display());
        shell(at, &python)
    };
    let (mounted, there) = (sum(folder)?, sum(out)?);
    ensure!(mounted == there && there.starts_with("19999900000\n"), "{mounted} {there}");
    Ok(())
}

fn a_file_that_is_open(folder: &Path, out: &Path) -> Result<()> {
    let mut file = fs::File::create(folder.join("open"))?;
    file.write_all(&pattern(2, 5_000_000))?;
    file.sync_all()?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(!out.join("open").exists(), "a part of a file lies under its name");
    file.write_all(b"end")?;
    drop(file);
    wait_same("what was open lies there when it is closed", folder, out, SOON)?;
    // Other bytes, in the middle: what is durable is the whole of what is to be read.
    let file = fs::File::options().write(true).open(folder.join("open"))?;
    file.write_all_at(b"changed", 4_500_000)?;
    file.sync_all()?;
    ensure!(!out.join("open").exists(), "old bytes lie under the name");
    drop(file);
    wait_same("the changed file lies there", folder, out, SOON)
}

fn names_follow(folder: &Path, out: &Path) -> Result<()> {
    let deep = folder.join("a/b");
    fs::create_dir_all(&deep)?;
    for number in 0..400 {
        fs::write(deep.join(format!("f{number}")), number.to_string())?;
    }
    wait_same("many files lie there", folder, out, LATER)?;
    let begun = Instant::now();
    fs::rename(folder.join("a"), folder.join("c"))?;
    fs::rename(folder.join("small"), folder.join("c/b/small"))?;
    fs::hard_link(folder.join("striped"), folder.join("c/again"))?;
    fs::rename(folder.join("c/b/f1"), folder.join("c/b/f2"))?;
    wait_same("renames are followed", folder, out, SOON)?;
    eprintln!("renames were followed after {:?}", begun.elapsed());
    // What trades places.
    fs::create_dir(folder.join("d"))?;
    fs::write(folder.join("d/own"), b"of d")?;
    wait_same("one more directory", folder, out, SOON)?;
    for (from, to) in [("c", "t"), ("d", "c"), ("t", "d")] {
        fs::rename(folder.join(from), folder.join(to))?;
    }
    wait_same("directories have traded places", folder, out, SOON)?;
    let begun = Instant::now();
    fs::remove_dir_all(folder.join("d"))?;
    let is_gone = || !out.join("d").exists();
    program::until("a directory of many files is gone", SOON, is_gone)?;
    eprintln!("400 files were gone after {:?}", begun.elapsed());
    wait_same("the others stay", folder, out, SOON)
}

fn owners_and_modes(folder: &Path, out: &Path) -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    let (mounted, there) = (folder.join("striped"), out.join("striped"));
    std::os::unix::fs::chown(&mounted, Some(5001), Some(6001))?;
    fs::set_permissions(&mounted, fs::Permissions::from_mode(0o4750))?;
    let seen = || {
        let about = fs::metadata(&there).ok()?;
        Some((about.uid(), about.gid(), about.mode() & 0o7777))
    };
    let wanted = Some((5001, 6001, 0o550));
    program::until("owner and mode follow", SOON, || seen() == wanted)
        .with_context(|| format!("{:?}", seen()))
}

/// What is written says itself which it is; each is durable before it is noted as done. Whoever
/// reads without a mount must find nothing, or what was done last when he began, or newer.
const WRITER: &str = r#"
import hashlib, os, sys, threading, time
folder, out, stop = sys.argv[1:4]
count, done, faults, reads = 6, {}, [], 0

def body(number, turn):
    size = (300, 20_000, 700_000)[(number + turn) % 3]
    head = b"%d %d\n" % (number, turn)
    text = head + hashlib.sha256(head).digest() * (size // 32)
    return hashlib.sha256(text).hexdigest().encode() + text

def write(number, turn):
    path = f"{folder}/f{number}"
    if turn % 3 == 1:
        with open(path + ".new", "wb") as file:
            file.write(body(number, turn))
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".new", path)
    else:
        with open(path, "wb" if turn % 3 == 0 else "r+b") as file:
            file.write(body(number, turn))
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    folder_fd = os.open(folder, os.O_RDONLY)
    os.fsync(folder_fd)
    os.close(folder_fd)
    done[number] = turn

def reader():
    global reads
    while not over.is_set():
        for number in range(count):
            for name in (f"f{number}", f"f{number}.new"):
                floor = done.get(number, -1)
                try:
                    with open(f"{out}/{name}", "rb") as file:
                        seen = file.read()
                except FileNotFoundError:
                    continue
                digest, text = seen[:64], seen[64:]
                if hashlib.sha256(text).hexdigest().encode() != digest:
                    faults.append(f"{name}: a part, or a mixture, of {len(seen)} bytes")
                    continue
                whose, turn = map(int, text.split(b"\n", 1)[0].split())
                if whose != number or (name == f"f{number}" and turn < floor):
                    faults.append(f"{name} has {whose} {turn} when {floor} was done")
                reads += 1
        time.sleep(0.002)

over = threading.Event()
watching = threading.Thread(target=reader)
watching.start()
turn = 0
while not os.path.exists(stop):
    for number in range(count):
        write(number, turn)
    turn += 1
    # Now and then there is time for files to lie there.
    time.sleep(0.7 if turn % 2 else 0.0)
over.set()
watching.join()
for number in range(count):
    with open(f"{folder}/f{number}", "rb") as file:
        assert file.read() == body(number, turn - 1), f"f{number} is lost"
print(turn, reads)
assert not faults, faults[:5]
"#;

/// Promise 144: When other bytes of an exposed file are durable, or seen by another client, the old
/// ones lie in the directory no more.
///
/// Promise 145: An exposed directory follows again after its server or the MDS was killed, and does
/// not show meanwhile what was replaced.
#[test]
fn no_name_lies_while_servers_and_clients_are_killed() -> Result<()> {
    with_federation(|lab| {
        lab.expect_log("");
        let (folder, out) = expose(lab, "uf")?;
        let stop = lab.local("stop");
        let mut writer = Command::new("python3");
        writer.args(["-c", WRITER]).args([&folder, &out, &stop]);
        let mut writer = program::start(writer.stdout(Stdio::piped()))?;
        std::thread::sleep(Duration::from_secs(3));
        for _ in 0..2 {
            lab.kill_and_restart("oss-uf")?;
            std::thread::sleep(Duration::from_millis(1500));
            lab.kill_and_restart("mds-uf")?;
            std::thread::sleep(Duration::from_millis(1500));
            kill_process(lab.daemon("mount-0")?, Signal::KILL)?;
            std::thread::sleep(Duration::from_millis(1500));
        }
        // An OSS that stays away for a while: changes wait, and nothing is shown that is not so.
        lab.signal("oss-uf", Signal::KILL)?;
        std::thread::sleep(Duration::from_secs(2));
        start(lab, "oss-uf")?;
        std::thread::sleep(Duration::from_secs(2));
        fs::write(&stop, b"")?;
        let status = program::wait(&mut writer, Duration::from_secs(60))?;
        let mut said = String::new();
        if let Some(mut out) = writer.stdout.take() {
            std::io::Read::read_to_string(&mut out, &mut said)?;
        }
        ensure!(status.success(), "the writer: {status}, {said}");
        eprintln!("turns and reads without a mount: {}", said.trim());
        let reads = said.split_whitespace().nth(1).and_then(|reads| reads.parse::<u64>().ok());
        ensure!(reads.is_some_and(|reads| reads > 20), "too little was read: {said}");
        wait_same("all is followed in the end", &folder, &out, LATER)
    })
}

fn start(lab: &Federation, server: &str) -> Result<()> {
    lab.tieline(&["dev", "start", server, "--dir", text(&lab.dir())?]).map(drop)
}

#[test]
fn what_happened_while_servers_were_away_is_made_good() -> Result<()> {
    with_federation(|lab| {
        for said in ["exposed pool", "not ours", "as they were left", "did not answer", "lost"] {
            lab.expect_log(said);
        }
        let (folder, out) = expose(lab, "uf")?;
        for name in ["kept", "renamed", "deleted", "damaged", "replaced", "removed"] {
            fs::write(folder.join(name), pattern(3, 100_000))?;
        }
        wait_same("files lie there", &folder, &out, SOON)?;
        let outside = lab.local("outside");
        fs::write(&outside, b"outside")?;
        lab.signal("oss-uf", Signal::KILL)?;
        // Names need no OSS.
        fs::rename(folder.join("renamed"), folder.join("new name"))?;
        fs::remove_file(folder.join("deleted"))?;
        // Its client, alone there, sends that within a second.
        std::thread::sleep(Duration::from_millis(1500));
        lab.signal("mds-uf", Signal::KILL)?;
        fs::remove_file(out.join("removed"))?;
        fs::remove_file(out.join("replaced"))?;
        symlink(&outside, out.join("replaced"))?;
        fs::remove_file(out.join("damaged"))?;
        fs::write(out.join("damaged"), b"short")?;
        fs::create_dir(out.join("foreign"))?;
        fs::write(out.join("foreign/file"), b"foreign")?;
        start(lab, "mds-uf")?;
        start(lab, "oss-uf")?;
        wait_same("all is as it is to be", &folder, &out, LATER)?;
        program::until("what is foreign is gone", LATER, || !out.join("foreign").exists())?;
        ensure!(!out.join("replaced").is_symlink());
        ensure!(fs::read(&outside)? == b"outside", "a link was followed");
        // An OSS that has nothing to do, and is another one than before.
        fs::remove_file(out.join("kept"))?;
        lab.kill_and_restart("oss-uf")?;
        wait_same("what was removed is there again", &folder, &out, LATER)
    })
}
