//! Verbs while sites are away, and verbs that are ended before they are done.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::nodes::Clients;
use tieline_lab::{Federation, can_mount, program, with_federation};

const FNAL: [&str; 2] = ["mds-fnal", "oss-fnal"];

fn signal_all(lab: &Federation, servers: &[&str], signal: Signal) -> Result<()> {
    servers.iter().try_for_each(|server| lab.signal(server, signal))
}

/// Runs something while a site says nothing, and has it back in any case.
fn while_silent<T>(lab: &Federation, run: impl FnOnce() -> Result<T>) -> Result<T> {
    signal_all(lab, &FNAL, Signal::STOP)?;
    let outcome = run();
    signal_all(lab, &FNAL, Signal::CONT)?;
    outcome
}

fn started(words: &[&str]) -> Result<Child> {
    let mut command = Command::new(program::tieline()?);
    Ok(command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

#[test]
fn explain_tells_what_is_known_and_who_does_not_answer() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        // Root pays for nothing.
        lab.shell("echo text > f; test $(id -u) != 0 || chown 7:7 f; mkdir fnal/d")?;
        let path = lab.mount().join("f").display().to_string();
        while_silent(lab, || {
            let begun = Instant::now();
            let mut child = started(&["explain", "--op", "write", &path])?;
            let mut said = BufReader::new(child.stdout.take().context("its words")?);
            let mut line = String::new();
            said.read_line(&mut line)?;
            let first = begun.elapsed();
            let mut rest = String::new();
            said.read_to_string(&mut rest)?;
            let (status, took) = (child.wait()?, begun.elapsed());
            ensure!(line.starts_with("who: ") && status.success(), "{line}{rest}");
            ensure!(rest.contains("MDT0001 (fnal) did not answer within 2 s"), "{rest}");
            let silent = |name: &str| {
                let is_it = |line: &str| line.starts_with(&format!("connection {name}: no"));
                rest.lines().any(|line| is_it(line) && line.contains("no answer within 2 s"))
            };
            ensure!(silent("MDT0001") && silent("OST0002"), "{rest}");
            ensure!(first < Duration::from_secs(4), "the first line came after {first:?}");
            ensure!(took < Duration::from_secs(12), "{took:?}: {rest}");
            // What lies at the site itself.
            let below = lab.mount().join("fnal/d/e").display().to_string();
            let begun = Instant::now();
            let run = lab.try_tieline(&["explain", &below])?;
            ensure!(run.stdout.contains("did not answer within 2 s"), "{run:?}");
            ensure!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
            Ok(())
        })
    })
}

/// Mounts whose servers are away are unmounted together, and none waits for another.
#[test]
fn several_mounts_are_unmounted_while_a_site_is_away() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        let clients = Clients::new(lab);
        lab.shell("mkdir fnal/d; echo text > fnal/d/f")?;
        let mounts = [clients.mount("")?, clients.mount("")?, clients.mount("")?];
        for mount in &mounts {
            fs::read(mount.join("fnal/d/f"))?;
        }
        while_silent(lab, || {
            let shown: Vec<String> =
                mounts.iter().map(|mount| mount.display().to_string()).collect();
            let words: Vec<&str> =
                ["umount"].into_iter().chain(shown.iter().map(String::as_str)).collect();
            let begun = Instant::now();
            let run = lab.try_tieline(&words)?;
            let took = begun.elapsed();
            ensure!(run.status.success(), "{run:?}");
            ensure!(took < Duration::from_secs(8), "{took:?}: {run:?}");
            // One that is not mounted keeps none of the others.
            let run = lab.try_tieline(&["umount", &shown[0], &shown[1]])?;
            ensure!(run.stderr.matches("nothing is mounted").count() == 2, "{run:?}");
            Ok(())
        })
    })
}

/// Without a goodbye others wait for most of it.
const LEASE: Duration = Duration::from_secs(20);

/// How long a change of the directory takes that others may have leases of.
fn change(folder: &Path, name: &str) -> Result<Duration> {
    let begun = Instant::now();
    fs::create_dir(folder.join(name))?;
    fs::File::open(folder)?.sync_all()?;
    Ok(begun.elapsed())
}

/// Whoever ends a verb early waits for nothing that it held.
#[test]
fn a_verb_that_is_ended_early_leaves_no_leases() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        let many = "mkdir many; cd many; for i in $(seq 1500); do printf '%0200d\\n' $i; done";
        lab.shell(&format!("{many} | xargs touch; sync ."))?;
        let folder = lab.mount().join("many");
        let shown = folder.display().to_string();
        for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM)] {
            // More is said than a pipe takes.
            let mut child = started(&["find", &shown])?;
            std::thread::sleep(Duration::from_secs(2));
            let pid = Pid::from_raw(i32::try_from(child.id())?).context("a pid is not 0")?;
            ensure!(child.try_wait()?.is_none(), "it ended by itself");
            let begun = Instant::now();
            kill_process(pid, signal)?;
            let status = child.wait()?;
            ensure!(status.signal() == Some(signal.as_raw()), "{status:?}");
            ensure!(begun.elapsed() < LEASE / 2, "it ended in {:?}", begun.elapsed());
            let took = change(&folder, name)?;
            ensure!(took < LEASE / 2, "others waited for {took:?} after {name}");
        }
        for verb in ["ls", "find"] {
            let mut child = started(&[verb, &shown])?;
            let mut said = BufReader::new(child.stdout.take().context("its words")?);
            said.read_line(&mut String::new())?;
            drop(said);
            child.wait()?;
            let took = change(&folder, verb)?;
            ensure!(took < LEASE / 2, "others waited for {took:?} after {verb}");
        }
        Ok(())
    })
}
