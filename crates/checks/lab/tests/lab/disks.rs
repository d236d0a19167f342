//! Disks of OSTs that are full, that may not be written any more, or that fail.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline_lab::{Federation, program, with_federation};

/// A small disk mounted where an OST was, with what was there; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    /// The 64 MiB that a development federation reserves are not for writers.
    fn under(lab: &Federation, ost: &str, mebibytes: u32) -> Result<Self> {
        let path = lab.dir().join("sites/uf").join(ost);
        let script = format!(
            "cp -a '{0}' '{0}.kept'; mount -t tmpfs -o size={mebibytes}m tmpfs '{0}'; \
             cp -a '{0}.kept/.' '{0}/'; rm -r '{0}.kept'",
            path.display()
        );
        program::shell(&lab.local(""), &script)?;
        Ok(Self(path))
    }

    /// With its OSS down, which may have an object open for writing.
    fn remount(&self, lab: &Federation, how: &str) -> Result<()> {
        control(lab, "kill")?;
        program::call("mount", &["-o".as_ref(), how.as_ref(), self.0.as_os_str()])?;
        control(lab, "start")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = program::call("umount", &["-l".as_ref(), self.0.as_os_str()]);
    }
}

fn with_disks(
    sizes: &[(&str, u32)],
    test: impl FnOnce(&Federation, &[Disk]) -> Result<()>,
) -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let mount = lab.mount().to_str().context("path")?;
        lab.tieline(&["setstripe", "-c", "1", "-p", "uf", mount])?;
        lab.expect_log("chunk goes to another OST");
        lab.expect_log("connection lost");
        control(lab, "kill")?;
        let disks = sizes.iter().map(|(ost, size)| Disk::under(lab, ost, *size));
        let disks = disks.collect::<Result<Vec<_>>>()?;
        control(lab, "start")?;
        let outcome = test(lab, &disks);
        control(lab, "kill")?;
        drop(disks);
        outcome
    })
}

fn control(lab: &Federation, verb: &str) -> Result<()> {
    let dir = lab.dir();
    lab.tieline(&["dev", verb, "oss-uf", "--dir", dir.to_str().context("path")?]).map(drop)
}

fn write(path: &Path, mebibytes: usize) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![7; mebibytes << 20])?;
    file.sync_all()
}

fn osts(lab: &Federation, path: &Path) -> Result<BTreeSet<u64>> {
    let told = lab.json(&["getstripe", path.to_str().context("path")?])?;
    let file = told.as_array().and_then(|files| files.first()).unwrap_or(&told).clone();
    let extents = file["extents"].as_array().context("extents")?.clone();
    let place = |extent: &serde_json::Value| extent["chunk"]["places"][0]["ost"].as_u64();
    Ok(extents.iter().filter_map(place).collect())
}

#[test]
fn a_full_ost_is_passed_over() -> Result<()> {
    with_disks(&[("ost0000", 76)], |lab, _| {
        let mut seen = BTreeSet::new();
        for number in 0..6 {
            let path = lab.mount().join(format!("f{number}"));
            write(&path, 8).with_context(|| format!("{path:?}"))?;
            seen.extend(osts(lab, &path)?);
        }
        ensure!(seen.contains(&1), "{seen:?}");
        let other = lab.mount_again()?;
        for number in 0..6 {
            ensure!(fs::read(other.join(format!("f{number}")))? == vec![7; 8 << 20]);
        }
        Ok(())
    })
}

/// Two copies are wanted, and one of the two OSTs takes none.
#[test]
fn with_one_ost_full_or_emptied_the_other_takes_the_only_copy() -> Result<()> {
    with_disks(&[("ost0001", 68)], |lab, disks| {
        let mirrored = lab.mount().join("mirrored");
        fs::create_dir(&mirrored)?;
        let shown = mirrored.to_str().context("path")?;
        lab.tieline(&["setstripe", "-N", "2", "-c", "1", "-p", "uf", shown])?;
        for number in 0..4 {
            write(&mirrored.join(format!("full{number}")), 8)?;
        }
        let last = mirrored.join("full3");
        ensure!(osts(lab, &last)? == [0].into(), "{:?}", osts(lab, &last)?);
        disks[0].remount(lab, "remount,size=200m")?;
        lab.expect_log("its folder objects was removed");
        // What its copies are of now is gone: a chunk may have fitted on it.
        lab.expect_log("a copy does not match its checksum");
        fs::remove_dir_all(disks[0].0.join("objects"))?;
        for number in 0..2 {
            write(&mirrored.join(format!("emptied{number}")), 8)?;
        }
        program::until("df says what is wrong", Duration::from_secs(30), || {
            lab.tieline(&["df", shown]).is_ok_and(|told| told.contains("objects was removed"))
        })?;
        control(lab, "kill")?;
        control(lab, "start")?;
        let other = lab.mount_again()?.join("mirrored");
        for name in ["full0", "full3", "emptied0", "emptied1"] {
            ensure!(fs::read(other.join(name))? == vec![7; 8 << 20], "{name}");
            let file = mirrored.join(name);
            let file = file.to_str().context("path")?;
            // It tells the MDS what is missing.
            let _ = lab.try_tieline(&["mirror", "verify", file])?;
            lab.tieline(&["mirror", "resync", file])?;
            lab.tieline(&["mirror", "verify", file])?;
        }
        Ok(())
    })
}

#[test]
fn when_all_osts_are_full_the_writer_is_told_and_others_go_on() -> Result<()> {
    with_disks(&[("ost0000", 70), ("ost0001", 70)], |lab, _| {
        lab.expect_log("written bytes cannot be stored");
        write(&lab.mount().join("before"), 1)?;
        let refused = write(&lab.mount().join("large"), 32).err().context("there is no room")?;
        ensure!(refused.raw_os_error() == Some(Errno::NOSPC.raw_os_error()), "{refused}");
        ensure!(fs::read(lab.mount().join("before"))? == vec![7; 1 << 20]);
        // What needs no OST, and what lies at the other site, is not concerned.
        fs::write(lab.mount().join("small"), "still here")?;
        let folder = lab.mount().join("elsewhere");
        fs::create_dir(&folder)?;
        lab.tieline(&["setstripe", "-p", "fnal", folder.to_str().context("path")?])?;
        write(&folder.join("large"), 32)?;
        Ok(())
    })
}

#[test]
fn a_disk_that_came_back_read_only_is_still_read() -> Result<()> {
    with_disks(&[("ost0000", 100)], |lab, disks| {
        let folder = lab.mount().join("wide");
        fs::create_dir(&folder)?;
        lab.tieline(&["setstripe", "-c", "2", "-S", "1M", folder.to_str().context("path")?])?;
        write(&folder.join("before"), 4)?;
        ensure!(osts(lab, &folder.join("before"))? == BTreeSet::from([0, 1]));
        disks[0].remount(lab, "remount,ro")?;
        write(&folder.join("after"), 4)?;
        ensure!(osts(lab, &folder.join("after"))? == BTreeSet::from([1]));
        ensure!(fs::read(lab.mount_again()?.join("wide/before"))? == vec![7; 4 << 20]);
        disks[0].remount(lab, "remount,rw")
    })
}

/// Of linux/loop.h.
const LOOP_SET_STATUS64: u64 = 0x4c04;
const LOOP_GET_STATUS64: u64 = 0x4c05;

/// A disk that can be made to fail: a file system in a file, on a small disk of its own. When that
/// is full, new blocks cannot be written (EIO); what is cut off the file cannot be read (EIO).
struct FailingDisk {
    disk: Disk,
    room: Disk,
}

impl FailingDisk {
    fn under(lab: &Federation, ost: &str) -> Result<Self> {
        let path = lab.dir().join("sites/uf").join(ost);
        let room = lab.local("room");
        let script = format!(
            "set -e; mkdir '{room}'; mount -t tmpfs -o size=200m tmpfs '{room}'; \
             truncate -s 1G '{room}/image'; mkfs.ext4 -q -O ^has_journal '{room}/image'; \
             cp -a '{ost}' '{ost}.kept'; mount -o loop,errors=continue '{room}/image' '{ost}'; \
             cp -a '{ost}.kept/.' '{ost}/'; rm -r '{ost}.kept'; sync -f '{ost}'",
            room = room.display(),
            ost = path.display(),
        );
        let failing = Self { disk: Disk(path), room: Disk(room) };
        program::shell(&lab.local(""), &script)?;
        Ok(failing)
    }

    /// The disk ends after so many bytes: all behind fails (EIO). 0: it is well again.
    fn end_after(&self, bytes: u64) -> Result<()> {
        let found = program::shell(&self.room.0, "losetup --noheadings --output NAME -j image")?;
        let device = File::open(found.trim())?;
        // `struct loop_info64`: the limit of its size stands behind four numbers.
        let mut info = [0_u8; 232];
        let ask = |call: u64, info: &mut [u8; 232]| {
            // SAFETY: the device is open, and the structure has the size that both calls want.
            match unsafe { libc::ioctl(device.as_raw_fd(), call as _, info.as_mut_ptr()) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        ask(LOOP_GET_STATUS64, &mut info)?;
        info[32..40].copy_from_slice(&bytes.to_ne_bytes());
        ask(LOOP_SET_STATUS64, &mut info).context("the disk's size")
    }

    /// Brings what the disk has to where it was mounted.
    fn replace(self) -> Result<()> {
        let script = format!(
            "umount '{0}'; e2fsck -fy image || test $? -lt 4; mkdir '{0}.kept'; \
             mount -o loop image '{0}'; cp -a '{0}/.' '{0}.kept/'; umount '{0}'; rm -r '{0}'; \
             mv '{0}.kept' '{0}'",
            self.disk.0.display(),
        );
        program::shell(&self.room.0, &script).map(drop)
    }

    fn fail_writes(&self) -> Result<()> {
        let script = "head -c 1G /dev/zero > rest 2>/dev/null || test -s rest";
        program::shell(&self.room.0, script).map(drop)
    }

    /// Also of what the kernel remembers.
    fn fail_reads(&self) -> Result<()> {
        let script = format!(
            "find '{}' -type f -exec dd if='{{}}' iflag=nocache count=0 status=none ';'; \
             truncate -s 1M '{}/image'",
            self.disk.0.display(),
            self.room.0.display()
        );
        program::shell(&self.room.0, &script).map(drop)
    }
}

#[test]
fn a_disk_that_fails_costs_what_only_it_has() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        for part in [
            "could not be made durable",
            "chunk goes to another OST",
            "os error 5",
            "sync failed",
            "connection lost",
        ] {
            lab.expect_log(part);
        }
        control(lab, "kill")?;
        let disk = FailingDisk::under(lab, "ost0000")?;
        control(lab, "start")?;
        let folder = |name: &str, layout: &[&str]| -> Result<PathBuf> {
            let folder = lab.mount().join(name);
            fs::create_dir(&folder)?;
            let shown = folder.to_str().context("path")?;
            lab.tieline(&[&["setstripe"], layout, &[shown]].concat())?;
            Ok(folder)
        };
        for words in [&["new", "extenci.frail"][..], &["add", "extenci.frail", "OST0000"]] {
            let at = lab.mount().to_str().context("path")?;
            lab.tieline(&[&["pool"], words, &["--fs", at]].concat())?;
        }
        let only = folder("only", &["-c", "1", "-p", "frail"])?;
        let both = folder("both", &["-N", "2", "-p", "uf"])?;
        let any = folder("any", &["-c", "2", "-p", "uf"])?;
        for folder in [&only, &both, &any] {
            write(&folder.join("before"), 4)?;
        }
        disk.fail_writes()?;
        // What the disk had taken and cannot keep its writer is told; what it refuses at once, and
        // all that comes next, goes elsewhere.
        if let Err(told) = write(&any.join("first"), 8) {
            ensure!(told.raw_os_error() == Some(Errno::IO.raw_os_error()), "{told}");
        }
        for number in 0..3 {
            write(&any.join(format!("after{number}")), 8).context("another OST has room")?;
        }
        disk.fail_reads()?;
        let other = lab.mount_again()?;
        for number in 0..3 {
            let path = other.join(format!("any/after{number}"));
            ensure!(fs::read(&path)? == vec![7; 8 << 20], "{path:?}");
        }
        ensure!(fs::read(other.join("both/before"))? == vec![7; 4 << 20]);
        let refused = fs::read(other.join("only/before")).err().context("its disk is gone")?;
        ensure!(refused.raw_os_error() == Some(Errno::IO.raw_os_error()), "{refused}");
        control(lab, "kill")
    })
}

/// What writers were told, and when they are to stop.
#[derive(Default)]
struct Told {
    done: Mutex<Vec<String>>,
    errors: Mutex<Vec<std::io::Error>>,
    is_over: AtomicBool,
}

/// Makes small files durable until one fails, or it is over.
fn keep_writing(folder: &Path, writer: usize, told: &Told) {
    for number in 0.. {
        if told.is_over.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("f{writer}-{number}");
        let make = |name: &str| -> std::io::Result<()> {
            let mut file = File::create_new(folder.join(name))?;
            file.write_all(name.as_bytes())?;
            file.sync_all()
        };
        match make(&name) {
            Ok(()) => told.done.lock().expect("no writer panics").push(name),
            Err(error) => return told.errors.lock().expect("no writer panics").push(error),
        }
    }
}

/// Kills or starts the MDS.
fn control_mds(lab: &Federation, verb: &str) -> Result<()> {
    let dir = lab.dir();
    let dir = dir.to_str().context("path")?;
    lab.tieline(&["dev", verb, "mds-uf", "--dir", dir]).map(drop)
}

#[test]
fn a_store_whose_disk_fails_ends_and_has_all_it_said_when_the_disk_is_well() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        for part in
            ["metadata store", "os error 5", "connection lost", "what was done here is refused"]
        {
            lab.expect_log(part);
        }
        let control = |verb| control_mds(lab, verb);
        control("kill")?;
        let disk = FailingDisk::under(lab, "mds")?;
        control("start")?;
        let folder = lab.mount().join("d");
        fs::create_dir(&folder)?;
        let pid = lab.process("mds-uf")?["daemon"].as_i64().context("it runs")?;
        let (told, writers) = (Told::default(), 4);
        std::thread::scope(|scope| {
            for writer in 0..writers {
                let (folder, told) = (&folder, &told);
                scope.spawn(move || keep_writing(folder, writer, told));
            }
            let outcome = || -> Result<()> {
                std::thread::sleep(Duration::from_secs(1));
                disk.end_after(1 << 20)?;
                let ended = || !program::is_running(pid);
                program::until("the MDS ends", program::DEADLINE, ended)?;
                a_lost_store_is_told(lab)?;
                // Who asks now waits; it goes on by itself when there is a disk.
                disk.end_after(0)?;
                disk.replace()?;
                control("start")
            };
            let outcome = outcome();
            if outcome.is_err() {
                // Or they would wait for ever.
                lab.kill_client("mount-0")?;
            }
            std::thread::sleep(Duration::from_secs(1));
            told.is_over.store(true, Ordering::Relaxed);
            outcome
        })?;
        // Whose request came in between is told; who waited has been served by now.
        for error in told.errors.into_inner().expect("no writer panics") {
            ensure!(error.raw_os_error() == Some(Errno::IO.raw_os_error()), "{error}");
        }
        let done = told.done.into_inner().expect("no writer panics");
        ensure!(done.len() > writers, "{} files were made", done.len());
        let said = lab.logs()?;
        ensure!(said.contains("the metadata store failed; restart the server"), "{said}");
        fs::write(folder.join("after"), "after").context("it serves again")?;
        let other = lab.mount_again()?.join("d");
        for name in done {
            ensure!(fs::read(other.join(&name))? == name.as_bytes(), "{name}");
        }
        ensure!(fs::read(other.join("after"))? == b"after");
        Ok(())
    })
}

/// What operators hear while the disk of an MDS's store is away: which store, why, what to do.
fn a_lost_store_is_told(lab: &Federation) -> Result<()> {
    let (folder, dir, mount) = (lab.dir().join("sites/uf"), lab.dir(), lab.mount());
    let (store, settings) = (folder.join("mds/mdt0000.redb"), folder.join("mds.toml"));
    let store = store.to_str().context("path")?;
    let settings = settings.to_str().context("path")?;
    let said = lab.logs()?;
    for (what, fix) in
        [("the metadata store failed", "restart the server"), ("store ended", "mend its disk")]
    {
        let is_it = |line: &&str| line.contains(what) && line.contains(fix);
        let line = said.lines().find(is_it).with_context(|| format!("no `{what}`: {said}"))?;
        ensure!(line.contains(store) && line.contains("os error 5"), "{line}");
    }
    let doctor = lab.try_tieline(&["doctor", "--part", "--settings", settings])?.stdout;
    let mut lines = doctor.lines();
    let is_it = |line: &&str| line.starts_with("fail  metadata: ") && line.contains("os error 5");
    let line = lines.find(is_it).with_context(|| doctor.clone())?;
    ensure!(line.contains(store), "{line}");
    ensure!(lines.next().is_some_and(|fix| fix.contains("its disk fails")), "{doctor}");
    let mount = mount.to_str().context("path")?;
    let doctor = lab.try_tieline(&["doctor", "--part", "--at", mount])?.stdout;
    let is_it = |line: &str| line.starts_with("fail  MDT0000 ");
    ensure!(doctor.lines().any(is_it) && doctor.contains("its log says why"), "{doctor}");
    let start = ["dev", "start", "mds-uf", "--dir", dir.to_str().context("path")?];
    let start = lab.try_tieline(&start)?;
    ensure!(!start.status.success(), "it serves without its disk");
    let last = start.stderr.lines().rfind(|line| line.contains("tieline: "));
    let last = last.with_context(|| start.stderr.clone())?;
    // What it reads first fails first, unless the kernel still has it.
    let disk = folder.join("mds");
    let disk = disk.to_str().context("path")?;
    ensure!(last.contains(disk) && last.contains("os error 5"), "{last}");
    ensure!(last.contains("mend its disk"), "{last}");
    Ok(())
}

#[test]
fn an_ost_that_is_not_there_keeps_nobody_from_the_others() -> Result<()> {
    with_federation(|lab| {
        for part in ["OST0001", "is not there", "chunk goes to another OST", "connection lost"] {
            lab.expect_log(part);
        }
        let mount = lab.mount().to_str().context("path")?;
        lab.tieline(&["setstripe", "-c", "1", "-p", "uf", mount])?;
        let mut lies = [None, None];
        for number in 0..8 {
            let path = lab.mount().join(format!("f{number}"));
            write(&path, 1)?;
            let ost = *osts(lab, &path)?.first().context("a place")?;
            lies[usize::try_from(ost)?] = Some(format!("f{number}"));
        }
        let [Some(there), Some(away)] = lies else { anyhow::bail!("one OST has all: {lies:?}") };
        control(lab, "kill")?;
        let site = lab.dir().join("sites/uf");
        fs::rename(site.join("ost0001"), site.join("elsewhere"))?;
        control(lab, "start")?;
        program::until("/health says so", program::DEADLINE, || {
            lab.process("oss-uf").is_ok_and(|oss| oss["health"].to_string().contains("OST0001"))
        })?;
        let other = lab.mount_again()?;
        ensure!(fs::read(other.join(&there))? == vec![7; 1 << 20]);
        write(&other.join("new"), 1)?;
        ensure!(osts(lab, &other.join("new"))? == BTreeSet::from([0]));
        let refused = fs::read(other.join(&away)).err().context("its OST is away")?;
        ensure!(refused.raw_os_error() == Some(Errno::IO.raw_os_error()), "{refused}");
        ensure!(!site.join("ost0001").exists(), "something was made where it should be");
        fs::rename(site.join("elsewhere"), site.join("ost0001"))?;
        program::until("the OST is there again", program::DEADLINE, || {
            fs::read(other.join(&away)).is_ok_and(|bytes| bytes == vec![7; 1 << 20])
        })
    })
}

#[test]
fn a_store_on_a_full_disk_is_read_and_heals() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        for part in
            ["short of room", "disk is full", "what was done here is refused", "connection lost"]
        {
            lab.expect_log(part);
        }
        let control = |verb| control_mds(lab, verb);
        control("kill")?;
        // A development federation wants 64 MiB to stay free.
        let disk = Disk::under(lab, "mds", 160)?;
        control("start")?;
        let path = |name: &str| lab.mount().join(name);
        fs::create_dir(path("d"))?;
        for name in ["d/before", "d/goes", "d/stays"] {
            fs::write(path(name), name)?;
        }
        fs::create_dir(path("many"))?;
        for number in 0..200 {
            fs::write(path(&format!("many/{number}")), "")?;
        }
        lab.tieline(&["sync", lab.mount().to_str().context("path")?])?;
        let space = || rustix::fs::statvfs(&disk.0).map(|disk| disk.f_bavail * disk.f_frsize);
        let fill = |name: &str, leave: u64| -> Result<PathBuf> {
            let length = usize::try_from(space()?.saturating_sub(leave))?;
            let filler = disk.0.join(name);
            fs::write(&filler, vec![0; length])?;
            Ok(filler)
        };
        let refuses = || {
            let refused = File::create(path("d/refused")).err();
            let _ = fs::remove_file(path("d/refused"));
            refused.is_some_and(|error| error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()))
        };
        // Short: what grows is refused, the rest goes on, also for who comes now.
        let first = fill("first", 40 << 20)?;
        program::until("creates are refused", program::DEADLINE, refuses)?;
        fs::remove_file(path("d/goes")).context("what frees room is done")?;
        let other = lab.mount_again()?;
        ensure!(fs::read(other.join("d/before"))? == b"d/before");
        ensure!(lab.process("mds-uf")?.to_string().contains("mdt.reserve"), "no word in /health");
        let pid = || anyhow::Ok(lab.process("mds-uf")?["pid"].clone());
        // Killed, it starts, takes up its log, and goes on as before.
        control("kill")?;
        control("start")?;
        ensure!(fs::read(other.join("d/before"))? == b"d/before");
        for number in 0..200 {
            fs::remove_file(path(&format!("many/{number}"))).context("after a kill")?;
        }
        // Full: what is there is read.
        let second = fill("second", 3 << 20)?;
        program::until("still refused", program::DEADLINE, refuses)?;
        ensure!(fs::read(other.join("d/stays"))? == b"d/stays");
        // Also by who starts then: nothing that it would note waits for room, and others with it.
        control("kill")?;
        control("start")?;
        let pid_after = pid()?;
        let there = other.display();
        lab.shell(&format!("timeout 60 cat '{there}/d/stays' && timeout 60 ls -R '{there}'"))?;
        lab.tieline(&["fsck", lab.mount().to_str().context("path")?])?;
        program::until("refused, not waited for", program::DEADLINE, refuses)?;
        ensure!(fs::read_dir(other.join("d"))?.count() == 2);
        fs::remove_file(first)?;
        fs::remove_file(second)?;
        program::until("it goes on by itself", program::DEADLINE, || {
            fs::write(path("d/after"), "after").is_ok()
        })?;
        lab.tieline(&["sync", lab.mount().to_str().context("path")?])?;
        ensure!(fs::read(other.join("d/after"))? == b"after");
        ensure!(pid()? == pid_after, "the MDS was started again");
        Ok(())
    })
}
