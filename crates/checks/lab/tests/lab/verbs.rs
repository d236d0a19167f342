//! Verbs while sites are away, verbs that are ended before they are done, and verbs whose local
//! files lie where others may plant links.

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Path, mode, owner, time and bytes.
pub type Seen = (PathBuf, u32, u32, i64, Vec<u8>);

/// A directory that is somebody else's: whatever verbs do, nothing happens to it.
pub struct Outside {
    pub path: PathBuf,
    before: Vec<Seen>,
}

impl Outside {
    pub fn new(lab: &Federation, names: &[&str]) -> Result<Self> {
        let path = lab.local("etc");
        fs::create_dir(&path)?;
        for name in names {
            fs::write(path.join(name), "secret")?;
        }
        let mut outside = Self { path, before: Vec::new() };
        outside.before = outside.state()?;
        Ok(outside)
    }

    pub fn state(&self) -> Result<Vec<Seen>> {
        let mut all = vec![self.path.clone()];
        all.extend(fs::read_dir(&self.path)?.flatten().map(|entry| entry.path()));
        all.sort();
        let is = |path: PathBuf| {
            let found = path.symlink_metadata()?;
            let bytes = if found.is_file() { fs::read(&path)? } else { Vec::new() };
            Ok((path, found.mode(), found.uid(), found.mtime_nsec(), bytes))
        };
        all.into_iter().map(is).collect()
    }

    pub fn check(&self) -> Result<()> {
        let now = self.state()?;
        ensure!(now == self.before, "something happened outside: {now:?}, was {:?}", self.before);
        Ok(())
    }
}

/// Runs something while a directory and a link to elsewhere change places all the time.
pub fn while_swapped<T>(
    directory: &Path,
    elsewhere: &Path,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let link = directory.with_extension("link");
    symlink(elsewhere, &link)?;
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, directory, CWD, &link, RenameFlags::EXCHANGE);
            }
        });
        let outcome = run();
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    if directory.is_symlink() {
        renameat_with(CWD, directory, CWD, &link, RenameFlags::EXCHANGE)?;
    }
    fs::remove_file(link)?;
    outcome
}

/// Promise 100: What `tieline export` and `tieline get` write lies below the directory that they
/// were given: no link that somebody has put there, or puts there meanwhile, leads out of it.
#[test]
fn nothing_is_written_through_links_that_somebody_planted() -> Result<()> {
    with_federation(|lab| {
        lab.shell(
            "mkdir -p t/d t/new && chmod 711 t/d && ln -s target t/l && cd t && \
             for f in f d/f g new/n; do echo foreign > $f; done",
        )?;
        let outside = Outside::new(lab, &["f", "passwd"])?;
        let from = lab.mount().join("t").display().to_string();
        for verb in [&["export"][..], &["get", "-r"]] {
            // The first time nothing is there; `get` puts the directory into one that is.
            let given = lab.local(verb[0]);
            fs::create_dir(&given)?;
            let (to, made) = match verb[0] {
                "get" => (given.display().to_string(), given.join("t")),
                _ => (given.join("t").display().to_string(), given.join("t")),
            };
            let words = [verb, &[&from, &to]].concat();
            lab.tieline(&words)?;
            ensure!(fs::read_to_string(made.join("d/f"))? == "foreign\n");
            ensure!(fs::read_link(made.join("l"))? == Path::new("target"));
            // And a second time: what is the same is left, or written anew, and links are not.
            lab.tieline(&words)?;
            for planted in ["d", "f"] {
                fs::rename(made.join(planted), made.join(format!("{planted}-was")))?;
                let target = if planted == "d" { &outside.path } else { &outside.path.join("f") };
                symlink(target, made.join(planted))?;
                let run = lab.try_tieline(&words)?;
                ensure!(!run.status.success(), "{verb:?} went through {planted}: {run:?}");
                let shown = made.join(planted).display().to_string();
                let names_it = run.stderr.contains(&shown) && run.stderr.contains("move it away");
                ensure!(names_it, "{planted}: {}", run.stderr);
                outside.check()?;
                fs::remove_file(made.join(planted))?;
                fs::rename(made.join(format!("{planted}-was")), made.join(planted))?;
            }
            // Another name of somebody's file: it keeps its bytes.
            fs::remove_file(made.join("g"))?;
            fs::hard_link(outside.path.join("passwd"), made.join("g"))?;
            let run = lab.try_tieline(&words)?;
            ensure!(run.status.success() == (verb[0] == "get"), "{run:?}");
            outside.check()?;
            // A pipe is not waited for.
            fs::remove_file(made.join("g"))?;
            program::shell(&made, "mkfifo g")?;
            let run = lab.try_tieline(&words)?;
            ensure!(!run.status.success() && run.stderr.contains("/g: "), "{run:?}");
            fs::remove_file(made.join("g"))?;
            // The directory that was named may be reached by a link.
            let link = lab.local(&format!("{}-link", verb[0]));
            symlink(Path::new(&to), &link)?;
            lab.tieline(&[verb, &[&from, &link.display().to_string()]].concat())?;
            ensure!(fs::read_to_string(made.join("g"))? == "foreign\n");
        }
        // A file that is fetched replaces one in a step, and has its mode.
        let own = lab.local("own");
        fs::write(&own, "old")?;
        fs::set_permissions(&own, fs::Permissions::from_mode(0o710))?;
        let (file, shown) = (format!("{from}/f"), own.display().to_string());
        lab.tieline(&["get", &file, &shown])?;
        ensure!(
            fs::read_to_string(&own)? == "foreign\n" && own.metadata()?.mode() & 0o777 == 0o710
        );
        let run = lab.try_tieline(&["get", &file, "/dev/null"])?;
        ensure!(!run.status.success() && Path::new("/dev/null").metadata()?.rdev() == 0x103);

        // A directory whose owner puts a link in its place, over and over, while it is filled.
        lab.shell("mkdir t/many && cd t/many && for i in $(seq 60); do echo foreign > $i; done")?;
        let given = lab.local("raced");
        fs::create_dir_all(given.join("t/many"))?;
        let (many, to) = (given.join("t/many"), given.join("t").display().to_string());
        while_swapped(&many, &outside.path, || {
            for _ in 0..3 {
                lab.try_tieline(&["export", "--copy", &from, &to])?;
                lab.try_tieline(&["get", "-r", &from, &given.display().to_string()])?;
            }
            Ok(())
        })?;
        outside.check()
    })
}

/// Promise 101: `tieline put` reads nothing but the tree that it was given, whatever links somebody
/// puts into it meanwhile.
#[test]
fn nothing_is_read_through_links_that_somebody_planted() -> Result<()> {
    with_federation(|lab| {
        let names: Vec<String> = (0..80).map(|number| format!("f{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let outside = Outside::new(lab, &names)?;
        let given = lab.local("given");
        fs::create_dir_all(given.join("many"))?;
        for name in &names {
            fs::write(given.join("many").join(name), "own")?;
        }
        while_swapped(&given.join("many"), &outside.path, || {
            for round in 0..6 {
                let to = lab.mount().join(format!("to-{round}"));
                lab.try_tieline(&["put", "-r", &shown(&given), &shown(&to)])?;
            }
            Ok(())
        })?;
        let found = lab.shell("grep -rl secret to-* || true")?;
        ensure!(found.is_empty(), "read from elsewhere: {found}");
        // The tree itself may be reached by a link's path, and links in it are links there.
        lab.tieline(&["put", "-r", &shown(&given), &shown(&lab.mount().join("whole"))])?;
        ensure!(fs::read_dir(lab.mount().join("whole/many"))?.count() == names.len());
        outside.check()
    })
}

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
