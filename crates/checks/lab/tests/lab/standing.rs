//! Programs that stand in directories, on one client, while others change what is around them, on
//! another: getcwd(2), `..`, walks with chdir, names of open descriptors.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::program::{shell, until};
use tieline_lab::setting::Setting;

/// A move is seen so soon, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(20);

/// A program whose current directory is the one it was started in.
struct Standing(Child);

impl Standing {
    fn at(directory: &Path) -> Result<Self> {
        let mut sleep = Command::new("sleep");
        Ok(Self(sleep.arg("1000").current_dir(directory).stdin(Stdio::null()).spawn()?))
    }

    /// What getcwd(2) gives it; `None`: ENOENT.
    fn path(&self) -> Result<Option<PathBuf>> {
        let path = fs::read_link(format!("/proc/{}/cwd", self.0.id()))?;
        Ok(Some(path).filter(|path| !path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")))
    }

    /// What is in the directory that it finds as `..`.
    fn beside(&self) -> Result<Vec<String>> {
        let above = format!("/proc/{}/cwd/..", self.0.id());
        let mut names = Vec::new();
        for entry in fs::read_dir(above)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Promise 85: Who stands in a directory keeps its path while others change what is beside it.
#[test]
fn who_stands_in_a_directory_keeps_its_path_while_its_neighbours_change() -> Result<()> {
    Setting::FAR.run(&[], |pair| neighbours_change(&pair.here, &pair.there))
}

#[test]
fn older_kernels_keep_paths_and_see_new_ones() -> Result<()> {
    Setting::NEAR.run_once(&[], |pair| {
        // Kernels that can only drop names, and such that know no epoch.
        for minor in [37, 43] {
            let below = pair.here.strip_prefix(pair.lab.mount())?;
            pair.lab.with_mount(&format!("fuse=7.{minor}"), |mount| {
                neighbours_change(&mount.join(below), &pair.there)?;
                directories_move(&mount.join(below), &pair.there)
            })?;
        }
        Ok(())
    })
}

fn neighbours_change(here: &Path, there: &Path) -> Result<()> {
    let (jobs, others) = (here.join("jobs"), there.join("jobs"));
    fs::create_dir_all(others.join("job1/deep"))?;
    let standing = Standing::at(&jobs.join("job1"))?;
    let deep = Standing::at(&jobs.join("job1/deep"))?;
    let changes: [(&str, &dyn Fn() -> std::io::Result<()>); 6] = [
        ("a file made", &|| fs::write(others.join("log"), "1\n")),
        ("a file appended to", &|| fs::write(others.join("log"), "1\n2\n")),
        ("a file renamed", &|| fs::rename(others.join("log"), others.join("old"))),
        ("a directory made", &|| fs::create_dir(others.join("job2"))),
        ("a directory removed", &|| fs::remove_dir(others.join("job2"))),
        ("a file removed", &|| fs::remove_file(others.join("old"))),
    ];
    for looks in [false, true] {
        for (what, change) in changes {
            if looks {
                shell(&jobs, "ls -la . job1 >/dev/null")?;
            }
            change()?;
            for (program, directory) in [(&standing, "job1"), (&deep, "job1/deep")] {
                let path = program.path()?.with_context(|| format!("nowhere after {what}"))?;
                ensure!(path == jobs.join(directory), "{} after {what}", path.display());
            }
        }
    }
    drop((standing, deep));
    fs::remove_dir_all(others)?;
    Ok(())
}

/// Promise 86: Who stands in a directory that is renamed elsewhere sees its new path, and `..`
/// where it is.
#[test]
fn who_stands_in_a_directory_that_is_renamed_elsewhere_sees_its_new_path() -> Result<()> {
    Setting::FAR.run(&[], |pair| directories_move(&pair.here, &pair.there))
}

fn directories_move(here: &Path, there: &Path) -> Result<()> {
    let (here, there) = (here.join("m"), there.join("m"));
    fs::create_dir_all(there.join("a/sub/deep"))?;
    fs::create_dir(there.join("b"))?;
    fs::write(there.join("a/in-a"), "")?;
    fs::write(there.join("b/in-b"), "")?;
    let sub = Standing::at(&here.join("a/sub"))?;
    let deep = Standing::at(&here.join("a/sub/deep"))?;
    let open = fs::File::open(here.join("a/sub"))?;
    let expect = |program: &Standing, path: &str| {
        let begun = Instant::now();
        let is_there = || program.path().is_ok_and(|seen| seen == Some(here.join(path)));
        until(&format!("somebody sees {path}"), SOON, is_there)
            .with_context(|| format!("{:?} after {:?}", program.path(), begun.elapsed()))
    };
    // Beside itself, into another directory, two levels up, and away and back.
    fs::rename(there.join("a/sub"), there.join("a/job"))?;
    expect(&sub, "a/job")?;
    expect(&deep, "a/job/deep")?;
    fs::rename(there.join("a/job"), there.join("b/job"))?;
    expect(&sub, "b/job")?;
    expect(&deep, "b/job/deep")?;
    ensure!(sub.beside()? == ["in-b", "job"], "{:?}", sub.beside()?);
    fs::rename(there.join("b"), there.join("c"))?;
    expect(&sub, "c/job")?;
    expect(&deep, "c/job/deep")?;
    for looks in [false, true, true] {
        fs::rename(there.join("c/job"), there.join("c/away"))?;
        // That it is not there is not remembered for longer than it is true.
        ensure!(!looks || !here.join("c/job").try_exists()?, "it is where it was");
        fs::rename(there.join("c/away"), there.join("c/job"))?;
    }
    expect(&sub, "c/job")?;
    // Swapped with another.
    fs::create_dir(there.join("other"))?;
    let other = Standing::at(&here.join("other"))?;
    exchange(&there.join("other"), &there.join("c/job"))?;
    expect(&sub, "other")?;
    expect(&other, "c/job")?;
    // What was open has its name, and finds what is beside it.
    let named = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)))?;
    ensure!(named == here.join("other"), "{}", named.display());
    // What is removed is nowhere.
    fs::remove_dir(there.join("other/deep"))?;
    until("the removed is gone", SOON, || deep.path().is_ok_and(|path| path.is_none()))?;
    drop((sub, deep, other, open));
    fs::remove_dir_all(&there)?;
    Ok(())
}

fn exchange(one: &Path, other: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Trees are walked with chdir, as `find -execdir`, `rm -r` and nftw do, while they move.
#[test]
fn a_walk_with_chdir_ends_where_it_began_while_the_tree_moves() -> Result<()> {
    Setting::FAR.run(&[], |pair| {
        let (here, there) = (pair.here.join("w"), pair.there.join("w"));
        for number in 0..10 {
            let folder = there.join(format!("t/d{number}/e"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("f"), "f")?;
        }
        // For a moment it may stand nowhere: docs/semantics.md, promise 86.
        let walk = "import os, time
def path():
    for _ in range(200):
        try:
            return os.getcwd()
        except FileNotFoundError:
            time.sleep(0.1)
    return os.getcwd()
def walk():
    count = 0
    for entry in list(os.scandir('.')):
        if entry.is_dir(follow_symlinks=False):
            os.chdir(entry.name)
            count += walk()
            os.chdir('..')
        else:
            count += 1
    return count
for _ in range(6):
    assert walk() == 10
    path()
";
        let python = tieline_lab::python().unwrap_or_else(|| "python3".into());
        let mut program = Command::new(python);
        program.args(["-c", walk]).current_dir(here.join("t"));
        let mut program = Standing(program.stdin(Stdio::null()).spawn()?);
        let mut turn = 0;
        while program.0.try_wait()?.is_none() {
            let name = |turn: usize| there.join(["t", "u"][turn % 2]);
            fs::rename(name(turn), name(turn + 1))?;
            turn += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        ensure!(program.0.wait()?.success(), "the walk went wrong after {turn} moves");
        ensure!(turn > 0, "nothing moved");
        Ok(())
    })
}
