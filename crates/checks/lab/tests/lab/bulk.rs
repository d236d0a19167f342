//! Metadata in bulk on real mounts: how many round trips a walk takes, that what changes elsewhere
//! is seen, and that what is closed stays closed.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use tieline_lab::nodes::{number, report};
use tieline_lab::program::{call, shell};
use tieline_lab::setting::{Proof, Setting};
use tieline_lab::tickets::with_kdc;
use tieline_lab::{Federation, with_federation};

const PACKAGES: usize = 12;
const DIRECTORIES: usize = 5;
const FILES: usize = 8;

/// Some go into the metadata, others are chunks.
fn content(number: usize) -> Vec<u8> {
    let line = format!("file {number}\n");
    line.repeat(if number.is_multiple_of(3) { 3000 } else { 100 }).into_bytes()
}

fn make(tree: &Path) -> Result<()> {
    for package in 0..PACKAGES {
        for directory in 0..DIRECTORIES {
            let here = tree.join(format!("p{package}/d{directory}"));
            fs::create_dir_all(&here)?;
            for number in 0..FILES {
                fs::write(here.join(format!("f{number}")), content(number))?;
            }
            symlink("f0", here.join("latest"))?;
        }
    }
    Ok(())
}

/// Goes through all of it, one call after the other; reads every file of every second directory.
fn replay(tree: &Path) -> Result<()> {
    for package in 0..PACKAGES {
        for directory in 0..DIRECTORIES {
            let here = tree.join(format!("p{package}/d{directory}"));
            for number in 0..FILES {
                let path = here.join(format!("f{number}"));
                let attributes = fs::symlink_metadata(&path)?;
                ensure!(attributes.len() == content(number).len() as u64, "size of {path:?}");
                if directory % 2 == 0 {
                    ensure!(fs::read(&path)? == content(number), "bytes of {path:?}");
                }
            }
            ensure!(fs::read_link(here.join("latest"))? == Path::new("f0"));
            ensure!(!here.join("absent").exists());
            ensure!(fs::read_dir(&here)?.count() == FILES + 1, "names in {here:?}");
        }
    }
    Ok(())
}

/// Questions that clients wait for.
const QUESTIONS: [&str; 11] = [
    "Lookup",
    "GetAttributes",
    "ReadDirectory",
    "ReadSymlink",
    "Open",
    "GetExtents",
    "GetXattr",
    "ListXattrs",
    "GetCapability",
    "ReadTree",
    "ReadFiles",
];

/// How many of them the MDS has answered so far.
fn asked(lab: &Federation) -> Result<u64> {
    let admin = lab.process("mds-uf")?["admin"].as_str().context("admin")?.to_owned();
    let metrics = shell(Path::new("/"), &format!("curl -s http://{admin}/metrics"))?;
    let mut sum = 0;
    for line in metrics.lines().filter(|line| line.starts_with("tieline_requests_total{")) {
        if QUESTIONS.iter().any(|op| line.contains(&format!("op=\"{op}\""))) {
            sum += line.split_whitespace().last().context("a count")?.parse::<u64>()?;
        }
    }
    Ok(sum)
}

fn prepare(lab: &Federation) -> Result<()> {
    let tree = lab.mount().join("tree");
    make(&tree)?;
    lab.tieline(&[OsStr::new("sync"), tree.as_os_str()])?;
    // Who made it has gone on to other things.
    std::thread::sleep(Duration::from_secs(4));
    Ok(())
}

fn check_walk(lab: &Federation) -> Result<()> {
    prepare(lab)?;
    let other = lab.mount_again()?.join("tree");
    let start = asked(lab)?;
    replay(&other)?;
    let cold = asked(lab)? - start;
    // 780 names in 73 directories, and 288 files were read.
    ensure!(cold < 200, "{cold} questions for a cold walk");
    std::thread::sleep(Duration::from_secs(3));
    let before = asked(lab)?;
    replay(&other)?;
    let warm = asked(lab)? - before;
    ensure!(warm <= 2, "{warm} questions for a warm walk");
    Ok(())
}

#[test]
fn a_walk_takes_few_questions() -> Result<()> {
    with_federation(check_walk)
}

#[test]
fn a_walk_takes_as_few_where_data_servers_obey_capabilities() -> Result<()> {
    with_kdc(check_walk)
}

#[test]
fn what_changes_elsewhere_after_a_walk_is_seen() -> Result<()> {
    with_federation(|lab| {
        prepare(lab)?;
        let other = lab.mount_again()?;
        replay(&other.join("tree"))?;
        let (here, there) = (lab.mount().join("tree/p3/d2"), other.join("tree/p3/d2"));
        for turn in 0..20 {
            fs::write(here.join("f1"), format!("turn {turn}"))?;
            ensure!(fs::read_to_string(there.join("f1"))? == format!("turn {turn}"));
            fs::write(here.join("new"), "new")?;
            ensure!(there.join("new").exists(), "a new name in turn {turn}");
            fs::remove_file(here.join("new"))?;
            ensure!(!there.join("new").exists(), "a name that went in turn {turn}");
            fs::set_permissions(&here, fs::Permissions::from_mode(0o700 + turn % 2))?;
            let mode = fs::metadata(&there)?.permissions().mode();
            ensure!(mode & 0o777 == 0o700 + turn % 2, "mode {mode:o} in turn {turn}");
        }
        Ok(())
    })
}

#[test]
fn directories_that_are_closed_stay_closed() -> Result<()> {
    with_federation(|lab| {
        let tree = lab.mount().join("tree");
        make(&tree)?;
        for package in (0..PACKAGES).step_by(2) {
            let closed = tree.join(format!("p{package}"));
            fs::set_permissions(&closed, fs::Permissions::from_mode(0o700))?;
        }
        fs::set_permissions(tree.join("p1/d0/f1"), fs::Permissions::from_mode(0o600))?;
        lab.tieline(&[OsStr::new("sync"), tree.as_os_str()])?;
        std::thread::sleep(Duration::from_secs(4));
        let other = lab.mount_again()?.join("tree");
        // Root sees everything first: what is known here is not everybody's to know.
        replay(&other)?;
        let nobody = "setpriv --reuid 4711 --regid 4711 --clear-groups";
        let script = format!(
            "{nobody} sh -c 'ls p1/d1 p3/d0 > /dev/null && cat p1/d0/f2 > /dev/null' && \
             ! {nobody} ls p0/d0 2>/dev/null && ! {nobody} cat p2/d0/f1 2>/dev/null && \
             ! {nobody} cat p1/d0/f1 2>/dev/null && ! {nobody} stat p4/d1/f1 2>/dev/null"
        );
        shell(&other, &script).map(drop)
    })
}

/// Names that are looked for in many directories and are in none of them, as a compiler looks for
/// headers and Python for modules: the absence of a name is known with its directory.
#[test]
fn names_that_are_not_there_are_known_with_their_directories() -> Result<()> {
    const COUNT: usize = 200;
    with_federation(|lab| {
        let tree = lab.mount().join("paths");
        let path = |number: usize| format!("a{}/b{number}/lib", number % 7);
        for number in 0..COUNT {
            fs::create_dir_all(tree.join(path(number)))?;
            fs::write(tree.join(path(number)).join("here.h"), "")?;
        }
        // Who made them is still at work in them when they are first listed.
        let other = lab.mount_again()?.join("paths");
        for number in 0..7 {
            ensure!(fs::read_dir(other.join(format!("a{number}")))?.count() > 0);
        }
        std::thread::sleep(Duration::from_secs(4));
        let before = asked(lab)?;
        for turn in 0..COUNT {
            // In no order.
            let directory = other.join(path(turn * 61 % COUNT));
            for name in ["stdio.h", "numpy", "libc.so"] {
                ensure!(!directory.join(name).exists());
            }
        }
        let questions = asked(lab)? - before;
        // Two in each of seven are asked for alone; then all that is beside and below comes.
        ensure!(questions < COUNT as u64, "{questions} questions for {COUNT} directories");
        Ok(())
    })
}

/// The same at once after they were made, while their maker goes on in some of them; and whoever
/// looks then for a Python module.
#[test]
fn names_that_are_not_there_come_with_directories_that_were_made_just_now() -> Result<()> {
    const COUNT: usize = 300;
    Setting { proof: Proof::Null, ..Setting::FAR }.run(&[], |pair| {
        let path = |number: usize| format!("a{}/b{number}", number % 3);
        for number in 0..COUNT {
            fs::create_dir_all(pair.here.join(path(number)))?;
            fs::write(pair.here.join(path(number)).join("here.py"), "")?;
        }
        let mount = pair.there.ancestors().find(|place| place.ends_with("mount-1"));
        let mount = mount.context("the second mount")?;
        let asked = || -> Result<u64> { number(&report(mount)?, &["mds_round_trips"]) };
        let before = asked()?;
        for turn in 0..COUNT {
            let place = path(turn * 61 % COUNT);
            if turn % 10 == 0 {
                fs::write(pair.here.join(path((turn + 1) * 61 % COUNT)).join("more"), "")?;
            }
            for name in ["stdio.h", "numpy", "libc.so"] {
                ensure!(!pair.there.join(&place).join(name).exists());
            }
        }
        let questions = asked()? - before;
        // Three for each that somebody works in, for as long as that is; and not for all of them.
        ensure!(questions < 3 * COUNT as u64 / 2, "{questions} questions for {COUNT} directories");
        let before = asked()?;
        let paths: Vec<_> = (0..COUNT).map(|number| pair.there.join(path(number))).collect();
        let paths: Vec<_> = paths.iter().map(|path| format!("{path:?}")).collect();
        let script = pair.lab.local("search.py");
        let looks = "import importlib.util; assert not importlib.util.find_spec('absent')";
        fs::write(
            &script,
            format!("import sys; sys.path = [{}] + sys.path; {looks}", paths.join(",")),
        )?;
        call("python3", &[&script])?;
        let questions = asked()? - before;
        // Few, where nobody works any more: 57 were seen.
        ensure!(
            questions < COUNT as u64 / 2,
            "{questions} questions for a search in {COUNT} directories"
        );
        Ok(())
    })
}
