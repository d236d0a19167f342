//! Room of OSTs that runs out: who is told, and what of it was answered for.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::setting::{Pair, Setting};
use tieline_lab::{Federation, program, with_federation};

/// The 64 MiB that a development federation reserves are not for writers.
const RESERVE: u32 = 64;
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// Small disks where the OSTs of a site were; unmounted when dropped.
struct Disks(Vec<PathBuf>);

impl Disks {
    fn under(lab: &Federation, mebibytes: &[u32]) -> Result<Self> {
        for part in [
            "chunk goes to another OST",
            "connection lost",
            "written bytes cannot be stored",
            "a copy is left for later",
        ] {
            lab.expect_log(part);
        }
        control(lab, "kill")?;
        let mut disks = Self(vec![]);
        for (number, size) in mebibytes.iter().enumerate() {
            let path = lab.dir().join(format!("sites/uf/ost{number:04}"));
            let script = format!(
                "cp -a '{0}' '{0}.kept'; mount -t tmpfs -o size={size}m tmpfs '{0}'; \
                 cp -a '{0}.kept/.' '{0}/'; rm -r '{0}.kept'",
                path.display()
            );
            program::shell(&lab.local(""), &script)?;
            disks.0.push(path);
        }
        control(lab, "start")?;
        Ok(disks)
    }

    fn resize(&self, mebibytes: u32) -> Result<()> {
        let how = format!("remount,size={mebibytes}m");
        let resize = |path: &PathBuf| {
            program::call("mount", &["-o".as_ref(), how.as_ref(), path.as_os_str()]).map(drop)
        };
        self.0.iter().try_for_each(resize)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = program::call("umount", &["-l".as_ref(), path.as_os_str()]);
        }
    }
}

fn control(lab: &Federation, verb: &str) -> Result<()> {
    let dir = lab.dir();
    lab.tieline(&["dev", verb, "oss-uf", "--dir", dir.to_str().context("path")?]).map(drop)
}

fn with_disks(
    lab: &Federation,
    mebibytes: &[u32],
    test: impl FnOnce(&Disks) -> Result<()>,
) -> Result<()> {
    let disks = Disks::under(lab, mebibytes)?;
    let outcome = test(&disks);
    control(lab, "kill")?;
    outcome
}

/// A new directory, whose files go to OSTs with small disks.
fn folder(lab: &Federation, parent: &Path, name: &str, layout: &[&str]) -> Result<PathBuf> {
    let path = parent.join(name);
    fs::create_dir(&path)?;
    let shown = path.to_str().context("path")?;
    lab.tieline(&[&["setstripe", "-p", "uf"], layout, &[shown]].concat())?;
    Ok(path)
}

/// Makes a file; what its close says counts, which `File` does not tell.
fn make(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    // SAFETY: the descriptor is ours alone, and is closed once.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs a command that is to fail for want of room, and says so.
fn is_refused(lab: &Federation, command: &str) -> Result<()> {
    let said = lab.shell(&format!("LC_ALL=C {command} 2>&1 && echo succeeded || true"))?;
    let is_told = said.contains("No space left on device") && !said.contains("succeeded");
    ensure!(is_told, "{command}: {said}");
    Ok(())
}

/// Promise 70: In a full pool a program is told so by its write or its close, also in a directory
/// that its client holds alone.
#[test]
fn in_a_full_pool_cp_rsync_and_dd_say_so_and_work_again_with_room() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        with_disks(lab, &[RESERVE + 16, RESERVE + 16], |disks| {
            let mount = lab.mount_again()?;
            let own = folder(lab, &mount, "own", &["-c", "1"])?;
            let sources = lab.local("sources");
            fs::create_dir(&sources)?;
            for (name, length) in [("a", 1 << 20), ("b", 100_000)] {
                fs::write(sources.join(name), vec![7; length])?;
            }
            let (from, mut accepted) = (sources.display(), Vec::new());
            fs::create_dir(own.join("filled"))?;
            // Until nothing fits any more, small or large.
            for name in ["a", "b"] {
                for number in 0.. {
                    ensure!(number < 1000, "there is no end of room");
                    let file = own.join(format!("filled/{name}{number}"));
                    let command = format!("cp '{from}/{name}' '{}'", file.display());
                    match lab.shell(&format!("{command} 2>&1 || echo failed"))? {
                        said if said.is_empty() => accepted.push((name, file)),
                        said => {
                            ensure!(said.contains("No space left on device"), "{said}");
                            break;
                        }
                    }
                }
            }
            ensure!(accepted.len() > 16, "{} files fitted", accepted.len());
            let to = own.display();
            for (number, command) in [
                format!("cp '{from}/a' '{from}/b'"),
                format!("dd if='{from}/a' bs=64k status=none of="),
                format!("rsync -a '{from}/'"),
                format!("cp -r '{from}'"),
            ]
            .into_iter()
            .enumerate()
            {
                if command.starts_with("rsync") && lab.shell("command -v rsync || true")?.is_empty()
                {
                    continue;
                }
                fs::create_dir(own.join(format!("new{number}")))?;
                let goal = format!("'{to}/new{number}'");
                let joint =
                    if command.ends_with('=') { format!("{goal}/f") } else { format!(" {goal}/") };
                is_refused(lab, &format!("{command}{joint}"))?;
            }
            // Who writes on and on is stopped, and not at his close.
            let filling = format!("dd if=/dev/zero of='{to}/filled/dd' bs=1M count=4000");
            let said = lab.shell(&format!("LC_ALL=C {filling} 2>&1 || true"))?;
            ensure!(said.contains("error writing"), "{said}");
            disks.resize(RESERVE + 64)?;
            // What is small needs no OST; what is not finds the room that was made, once the OSS
            // has looked at its disk again: within a second, on a machine that has the time.
            fs::create_dir(own.join("again"))?;
            program::until("there is room again", FOUND_WITHIN, || {
                lab.shell(&format!("cp '{from}/a' '{from}/b' '{to}/again/'")).is_ok()
            })?;
            accepted.extend(["a", "b"].map(|name| (name, own.join("again").join(name))));
            lab.unmount(&mount)?;
            for (name, file) in &accepted {
                let there = lab.mount().join(file.strip_prefix(&mount)?);
                let is_whole = fs::read(&there)? == fs::read(sources.join(name))?;
                ensure!(is_whole, "{} is not what was copied", there.display());
            }
            Ok(())
        })
    })
}

/// Two copies are wanted: where only one OST takes chunks one is made, before the close.
#[test]
fn with_one_of_two_osts_full_mirrored_files_are_stored_and_with_both_refused() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        with_disks(lab, &[RESERVE + 24, RESERVE], |_| {
            let mount = lab.mount_again()?;
            let own = folder(lab, &mount, "own", &["-N", "2", "-c", "1"])?;
            let mut accepted = Vec::new();
            for number in 0.. {
                ensure!(number < 100, "there is no end of room");
                let file = own.join(format!("f{number}"));
                match make(&file, &vec![7; 1 << 20]) {
                    Ok(()) => accepted.push(file),
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ensure!(accepted.len() > 12, "{} files fitted", accepted.len());
            lab.unmount(&mount)?;
            for file in &accepted {
                let there = lab.mount().join(file.strip_prefix(&mount)?);
                ensure!(fs::read(&there)? == vec![7; 1 << 20], "{}", there.display());
            }
            Ok(())
        })
    })
}

/// Promise 71: What a close was answered for finds its room, whatever other clients write
/// meanwhile.
#[test]
fn what_is_answered_for_keeps_its_room_while_another_client_fills_the_pool() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    Setting::FAR.run(&[], |pair| {
        let lab = pair.lab;
        with_disks(lab, &[RESERVE + 40, RESERVE + 40], |_| fill_beside(pair))
    })
}

fn fill_beside(pair: &Pair<'_>) -> Result<()> {
    const SMALL: usize = 40_000;
    let lab = pair.lab;
    folder(lab, &pair.here, "own", &["-c", "1"])?;
    let (own, others) = (pair.here.join("own/alone"), pair.there.join("own/others"));
    let filler = std::thread::spawn(move || -> Result<()> {
        fs::create_dir(&others)?;
        for number in 0..200 {
            let written = File::create(others.join(format!("f{number}"))).and_then(|mut file| {
                file.write_all(&vec![9; 1 << 20]).and_then(|()| file.sync_all())
            });
            match written {
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                other => other?,
            }
        }
        anyhow::bail!("there is no end of room")
    });
    fs::create_dir(&own)?;
    let (begun, mut accepted, mut refused) = (Instant::now(), Vec::new(), 0);
    for number in 0.. {
        let file = own.join(format!("f{number}"));
        match make(&file, &vec![number as u8; SMALL]) {
            Ok(()) => accepted.push((number, file)),
            Err(error) if error.kind() == ErrorKind::StorageFull => refused += 1,
            Err(error) => return Err(error.into()),
        }
        let is_full = filler.is_finished() && refused > 3;
        if is_full || accepted.len() >= 1500 || begun.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    filler.join().map_err(|_| anyhow::anyhow!("the other client's program died"))??;
    ensure!(refused > 0, "{} files were taken, and none refused", accepted.len());
    for (number, file) in &accepted {
        let there = pair.there.join(file.strip_prefix(&pair.here)?);
        let bytes = fs::read(&there).with_context(|| there.display().to_string())?;
        ensure!(bytes == vec![*number as u8; SMALL], "{} is not whole", there.display());
    }
    eprintln!("{} files were taken, {refused} refused", accepted.len());
    Ok(())
}
