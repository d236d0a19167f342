//! What goes wrong: processes that die or stand still, and federations that must leave nothing.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::{Federation, program, with_federation};

const SERVERS: [&str; 4] = ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"];

/// One file per site, beyond what lies in the metadata.
fn write_at_both(lab: &Federation, round: usize) -> Result<()> {
    for site in ["", "fnal"] {
        let path = lab.mount().join(site).join(format!("file-{round}"));
        let mut file = File::create(path)?;
        file.write_all(&vec![round as u8; 300_000])?;
        file.sync_all()?;
    }
    Ok(())
}

fn read_at_both(mount: &Path, round: usize) -> Result<()> {
    for site in ["", "fnal"] {
        let path = mount.join(site).join(format!("file-{round}"));
        let read = fs::read(&path).with_context(|| format!("{path:?}"))?;
        ensure!(read == vec![round as u8; 300_000], "{path:?} changed");
    }
    Ok(())
}

/// Promise 8: What fsync has answered for survives the death of any server process and of the
/// mount.
#[test]
fn every_server_may_die_and_work_goes_on() -> Result<()> {
    with_federation(|lab| {
        write_at_both(lab, 0)?;
        for (round, server) in SERVERS.iter().enumerate() {
            lab.kill_and_restart(server)?;
            write_at_both(lab, round + 1).with_context(|| format!("after {server} died"))?;
            for earlier in 0..=round + 1 {
                read_at_both(lab.mount(), earlier)
                    .with_context(|| format!("after {server} died"))?;
            }
        }
        // Nothing was only in a cache.
        let far = lab.mount_again()?;
        (0..=SERVERS.len()).try_for_each(|round| read_at_both(&far, round))
    })
}

/// Writes, syncs and renames 150 files.
const WORKER: &str = r#"
import os
for number in range(150):
    with open("work/new", "wb") as file:
        file.write(bytes([number]) * 40000)
        file.flush()
        os.fsync(file.fileno())
    os.rename("work/new", f"work/{number}")
"#;

/// Promise 9: Work under way when a server process dies goes on when it is back, and each
/// operation takes effect once.
#[test]
fn a_server_dies_in_the_middle_of_work() -> Result<()> {
    with_federation(|lab| {
        let folder = lab.mount().join("work");
        fs::create_dir(&folder)?;
        std::thread::scope(|scope| -> Result<()> {
            // A process of its own: what this one starts must not wait for files that it has open
            // on a mount whose server is gone.
            let worker = scope.spawn(|| lab.shell(&format!("python3 -c '{WORKER}'")));
            for server in ["mds-uf", "oss-uf", "mds-uf"] {
                std::thread::sleep(Duration::from_millis(300));
                lab.kill_and_restart(server)?;
            }
            worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?.map(drop)
        })?;
        let far = lab.mount_again()?.join("work");
        ensure!(fs::read_dir(&far)?.count() == 150);
        for number in 0..150_usize {
            let read = fs::read(far.join(number.to_string()))?;
            ensure!(read == vec![number as u8; 40_000], "file {number} changed");
        }
        // No orphan, no half rename, no count that is off.
        lab.shell("sync work")?;
        let found = lab.try_tieline(&["fsck".as_ref(), lab.mount().as_os_str()])?;
        ensure!(found.status.code() == Some(0), "{found:?}");
        Ok(())
    })
}

/// Two clients write one file in turn, and each looks at what the other wrote.
const TWO_WRITERS: &str = r#"
import os, sys
stop, *files = sys.argv[1:]
opened = [os.open(file, os.O_RDWR | os.O_CREAT) for file in files]
turn = 0
while turn < 50 or not os.path.exists(stop):
    mark = b"%08d" % turn
    os.pwrite(opened[turn % 2], mark, 0)
    os.pwrite(opened[turn % 2], mark, 8 + 8 * turn)
    with open(files[(turn + 1) % 2], "rb") as other:
        found = other.read(8)
        other.seek(8 + 8 * turn)
        assert found == mark == other.read(8), f"turn {turn}: {found}"
    turn += 1
for file in opened:
    os.fsync(file)
    os.close(file)
print(turn)
"#;

#[test]
fn a_metadata_server_dies_under_two_writers_of_one_file() -> Result<()> {
    with_federation(|lab| {
        let (stop, there) = (lab.local("stop"), lab.mount_again()?);
        let mut writers = Command::new("python3");
        writers.args(["-c", TWO_WRITERS]).arg(&stop);
        writers.args([lab.mount().join("both"), there.join("both")]);
        let told = std::thread::scope(|scope| -> Result<String> {
            let writers =
                scope.spawn(move || program::finish(&mut writers, Duration::from_secs(180)));
            let killed = (|| {
                for _ in 0..3 {
                    std::thread::sleep(Duration::from_millis(700));
                    lab.kill_and_restart("mds-uf")?;
                }
                Ok(())
            })();
            fs::write(&stop, "")?;
            let run = writers.join().map_err(|_| anyhow::anyhow!("the writers panicked"))?;
            killed.and(run?.succeed("two writers"))
        })?;
        let turns: usize = told.trim().parse()?;
        let marks = (0..turns).map(|turn| format!("{turn:08}"));
        let wanted = format!("{:08}{}", turns - 1, marks.collect::<String>());
        for mount in [lab.mount(), &there, &lab.mount_again()?] {
            let read = fs::read_to_string(mount.join("both"))?;
            ensure!(read == wanted, "{} of {turns} turns: {read}", read.len() / 8);
        }
        Ok(())
    })
}

#[test]
fn a_mount_that_died_is_mounted_again_and_lost_nothing_synced() -> Result<()> {
    with_federation(|lab| {
        write_at_both(lab, 1)?;
        lab.expect_log("daemon died");
        lab.kill_and_restart("mount-0")?;
        read_at_both(lab.mount(), 1)?;
        write_at_both(lab, 2)?;
        read_at_both(lab.mount(), 2)
    })
}

/// Promise 11: A program that waits for a server which does not answer can be killed at once.
///
/// Promise 12: A data server that does not answer holds up only those who need its data: names
/// and attributes still answer.
#[test]
fn a_reader_of_a_server_that_stands_still_can_be_killed_at_once() -> Result<()> {
    with_federation(|lab| {
        fs::write(lab.mount().join("far"), vec![1; 20_000_000])?;
        // A fresh client: nothing of the file is in its memory.
        let far = lab.mount_again()?;
        lab.signal("oss-uf", Signal::STOP)?;
        lab.signal("oss-fnal", Signal::STOP)?;
        let mut reader = program::start(Command::new("cat").arg(far.join("far")))?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(reader.try_wait()?.is_none(), "it read from a server that stands still");
        let start = Instant::now();
        program::kill_group(&reader);
        let status = program::wait(&mut reader, Duration::from_secs(10))
            .context("the killed reader did not vanish");
        let elapsed = start.elapsed();
        // What needs no data server still answers meanwhile.
        let listing =
            program::finish(Command::new("ls").arg("-l").arg(lab.mount()), Duration::from_secs(10));
        lab.signal("oss-uf", Signal::CONT)?;
        lab.signal("oss-fnal", Signal::CONT)?;
        ensure!(status?.signal() == Some(9));
        ensure!(elapsed < Duration::from_secs(3), "it took {elapsed:?} to die");
        listing?.succeed("ls")?;
        ensure!(fs::read(far.join("far"))? == vec![1; 20_000_000]);
        Ok(())
    })
}

/// Reads a file and tells what came of it, and after how many seconds.
const READER: &str = r#"
import errno, sys, time
begun = time.monotonic()
try:
    open(sys.argv[1], "rb").read()
    said = "read"
except OSError as error:
    said = errno.errorcode[error.errno]
print(said, round(time.monotonic() - begun))
"#;

#[test]
fn a_wait_ends_when_the_mount_says_so() -> Result<()> {
    with_federation(|lab| {
        fs::write(lab.mount().join("far"), vec![1; 5_000_000])?;
        let log = lab.with_mount("wait=5s", |mount| {
            for server in ["oss-uf", "oss-fnal"] {
                lab.signal(server, Signal::STOP)?;
            }
            let path = mount.join("far");
            let mut command = Command::new("python3");
            command.args(["-c", READER]).arg(&path);
            let run = program::finish(&mut command, Duration::from_secs(60));
            let listed = program::finish(Command::new("df").arg(mount), Duration::from_secs(30));
            for server in ["oss-uf", "oss-fnal"] {
                lab.signal(server, Signal::CONT)?;
            }
            let said = run?.succeed("the reader")?;
            let (what, seconds) = said.trim().split_once(' ').context("two words")?;
            ensure!(what == "ETIMEDOUT", "{said}");
            ensure!((4..=12).contains(&seconds.parse::<u32>()?), "{said}");
            listed?.succeed("df")?;
            ensure!(fs::read(path)? == vec![1; 5_000_000], "it is read when the servers are back");
            Ok(())
        })?;
        ensure!(log.contains("did not answer"), "{log}");
        Ok(())
    })
}

/// Ends of the names of files that are no objects: stores, their logs, and what servers say.
const NO_OBJECTS: [&str; 3] = ["redb", "redb-wal", "log"];

/// Turns one bit in every object of the federation that is at least this large.
fn damage_objects(folder: &Path, length_min: u64) -> Result<usize> {
    use std::os::unix::fs::FileExt;
    let mut damaged = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        if metadata.is_dir() {
            damaged += damage_objects(&path, length_min)?;
        } else if metadata.is_file()
            && metadata.len() >= length_min
            && !path.extension().is_some_and(|end| NO_OBJECTS.iter().any(|no| end == *no))
        {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, 50_000)?;
            file.write_all_at(&[byte[0] ^ 1], 50_000)?;
            damaged += 1;
        }
    }
    Ok(damaged)
}

/// Promise 10: Bytes that were damaged at rest are never handed to a program: the read fails
/// instead, if no mirror has good ones.
#[test]
fn damaged_bytes_are_not_handed_out() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("precious");
        let mut file = File::create(&path)?;
        file.write_all(&vec![0x55; 300_000])?;
        file.sync_all()?;
        drop(file);
        let far = lab.mount_again()?;
        let damaged = damage_objects(&lab.dir(), 300_000)?;
        ensure!(damaged == 1, "{damaged} objects are that large");
        // The check is what speaks here, in the mount's log and the server's.
        for word in ["corrupt", "checksum", "Corrupt"] {
            lab.expect_log(word);
        }
        let error = fs::read(far.join("precious")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EIO), "{error}");
        // What is not damaged is read: the blocks before and after.
        use std::os::unix::fs::FileExt;
        let mut block = vec![0; 4096];
        File::open(far.join("precious"))?.read_exact_at(&mut block, 200_000)?;
        ensure!(block.iter().all(|byte| *byte == 0x55));
        Ok(())
    })
}

#[test]
fn two_federations_live_side_by_side() -> Result<()> {
    with_federation(|one| {
        with_federation(|other| {
            fs::write(one.mount().join("name"), "one")?;
            fs::write(other.mount().join("name"), "other")?;
            ensure!(fs::read_to_string(one.mount().join("name"))? == "one");
            one.down()?;
            ensure!(fs::read_to_string(other.mount().join("name"))? == "other");
            Ok(())
        })
    })
}

#[test]
fn a_federation_taken_down_is_gone() -> Result<()> {
    if !tieline_lab::can_mount() {
        return Ok(());
    }
    let lab = Federation::start(&Plan::default())?;
    fs::write(lab.mount().join("f"), "x")?;
    let status = lab.status()?;
    let processes = status["processes"].as_array().context("processes")?.clone();
    ensure!(processes.len() >= 5, "{status:#}");
    // With a file open and a shell inside: `down` ends all the same.
    let open = File::open(lab.mount().join("f"))?;
    lab.down()?;
    drop(open);
    for process in processes {
        let pid = process["pid"].as_i64().context("pid")?;
        ensure!(!program::is_running(pid), "{process} lives");
    }
    ensure!(fs::read_dir(lab.mount())?.count() == 0, "still mounted");
    Ok(())
}

#[test]
fn sites_in_network_namespaces_of_their_own() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    let plan = Plan { arguments: vec!["--netns".to_owned()], ..Plan::default() };
    with_plan(&plan, |lab| {
        write_at_both(lab, 1)?;
        read_at_both(&lab.mount_again()?, 1)
    })?;
    let left = program::shell(Path::new("/"), "ip netns list | grep -c tieline || true")?;
    ensure!(left.trim() == "0", "{left} network namespaces are left");
    Ok(())
}

/// Reads a TTree and says the sum; then, when it may, two more that nobody has read yet.
const ROOT_JOB: &str = r#"
import os, sys, time, uproot
for number in range(3):
    with uproot.open(f"events{number}.root") as file:
        total = sum(int(a["x"].sum()) for a in file["events"].iterate(["x"], library="np"))
    print(total, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
"#;

#[test]
fn jobs_wait_for_an_oss_that_is_away_and_none_fails() -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    with_federation(|lab| {
        lab.expect_log("did not answer");
        lab.expect_log("connection lost");
        let write = r#"
import numpy as np, uproot
for number in range(3):
    with uproot.recreate(f"events{number}.root", compression=None) as file:
        file["events"] = {"x": np.arange(1_500_000, dtype=np.int64)}
"#;
        lab.shell(&format!("'{}' -c '{write}'", python.display()))?;
        let far = lab.mount_again()?;
        let (mut jobs, go) = (Vec::new(), lab.local("go"));
        let told = |number: usize| lab.local(&format!("job{number}"));
        for number in 0..8 {
            let told = File::create(told(number))?;
            let mut job = std::process::Command::new(&python);
            job.args(["-c", ROOT_JOB]).arg(&go).current_dir(&far).stdout(told);
            jobs.push(program::start(&mut job)?);
        }
        // All are at work, and have more to do.
        program::until("all jobs have read a file", Duration::from_secs(90), || {
            (0..8).all(|number| fs::metadata(told(number)).is_ok_and(|told| told.len() > 0))
        })?;
        lab.signal("oss-uf", Signal::KILL)?;
        File::create(&go)?;
        std::thread::sleep(Duration::from_secs(12));
        ensure!(jobs.iter_mut().all(|job| matches!(job.try_wait(), Ok(None))), "one has ended");
        let dir = lab.dir();
        lab.tieline(&["dev", "start", "oss-uf", "--dir", dir.to_str().context("path")?])?;
        for (number, job) in jobs.iter_mut().enumerate() {
            let status = program::wait(job, Duration::from_secs(60))?;
            ensure!(status.success(), "job {number}: {status}");
            let told = fs::read_to_string(told(number))?;
            ensure!(told == "1124999250000\n".repeat(3), "job {number}: {told}");
        }
        Ok(())
    })
}
