//! Directories with many more names than a client remembers: they are served in parts, and nothing
//! of what is promised of others is lost.

use anyhow::{Context, Result, ensure};
use rustix::fs::{Dir, Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use tieline_lab::nodes::Clients;
use tieline_lab::with_federation;

/// What each mount remembers, and what is in the directory.
const ROOM: &str = "inodes=1000";
const COUNT: usize = 6000;

fn numbered(number: usize) -> String {
    format!("f{number:06}")
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn is_absent(path: &Path) -> Result<()> {
    let error = fs::symlink_metadata(path).err().context("it is there")?;
    ensure!(error.kind() == ErrorKind::NotFound, "{error}");
    Ok(())
}

/// Numbers below [`COUNT`], each once, in no order that a name has.
fn scattered() -> impl Iterator<Item = usize> {
    (0..COUNT).map(|number| number * 2477 % COUNT)
}

fn in_parallel(work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|worker| scope.spawn(move || work(worker))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("no worker panics"))
    })
}

fn with_two(test: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
    with_federation(|lab| {
        let clients = Clients::new(lab);
        let (here, there) = (clients.mount(ROOM)?, clients.mount(ROOM)?);
        let outcome = test(&here, &there);
        if outcome.is_err() {
            eprintln!("{}", clients.logs());
        }
        clients.unmount(&here)?;
        clients.unmount(&there)?;
        outcome
    })
}

#[test]
fn names_beyond_what_is_remembered_are_made_found_and_removed() -> Result<()> {
    with_two(|here, there| {
        let (mine, other) = (here.join("d"), there.join("d"));
        fs::create_dir(&mine)?;
        in_parallel(|worker| {
            for number in (worker..COUNT).step_by(8) {
                File::create_new(mine.join(numbered(number)))?;
            }
            Ok(())
        })?;
        // What is there already is not made again, whoever remembers it.
        for number in scattered().step_by(50) {
            let error =
                File::create_new(mine.join(numbered(number))).err().context("made again")?;
            ensure!(error.kind() == ErrorKind::AlreadyExists, "{error}");
        }
        let all: Vec<String> = (0..COUNT).map(numbered).collect();
        for folder in [&mine, &other, &mine] {
            ensure!(names(folder)? == all, "listed in {}", folder.display());
            for number in scattered().step_by(7) {
                ensure!(fs::symlink_metadata(folder.join(numbered(number)))?.is_file());
                is_absent(&folder.join(format!("{}-", numbered(number))))?;
            }
        }
        // Renamed here, and removed and made there, each seen by the other.
        for number in scattered().filter(|number| number % 10 == 0) {
            fs::rename(mine.join(numbered(number)), mine.join(format!("g{number:06}")))?;
        }
        for number in scattered().filter(|number| number % 10 == 1) {
            fs::remove_file(other.join(numbered(number)))?;
            File::create_new(other.join(format!("h{number:06}")))?;
        }
        let left = |number: usize| match number % 10 {
            0 => format!("g{number:06}"),
            1 => format!("h{number:06}"),
            _ => numbered(number),
        };
        let all: BTreeSet<String> = (0..COUNT).map(left).collect();
        for folder in [&mine, &other] {
            ensure!(names(folder)?.into_iter().eq(all.iter().cloned()), "{}", folder.display());
            for number in scattered().step_by(9) {
                ensure!(fs::symlink_metadata(folder.join(left(number)))?.is_file());
            }
            is_absent(&folder.join(numbered(0)))?;
            is_absent(&folder.join(numbered(1)))?;
        }
        ensure!(fs::remove_dir(&mine).is_err(), "it has names");
        in_parallel(|worker| {
            let folder = if worker % 2 == 0 { &mine } else { &other };
            for number in (worker..COUNT).step_by(8) {
                fs::remove_file(folder.join(left(number)))?;
            }
            Ok(())
        })?;
        ensure!(names(&mine)?.is_empty() && names(&other)?.is_empty());
        fs::remove_dir(&mine)?;
        is_absent(&other)
    })
}

/// Names, with the position behind each.
fn positions(folder: &Path) -> Result<(Dir, Vec<(String, i64)>)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut stream = Dir::new(rustix::fs::open(folder, flags, Mode::empty())?)?;
    let seen = rest(&mut stream)?;
    Ok((stream, seen))
}

fn rest(stream: &mut Dir) -> Result<Vec<(String, i64)>> {
    let mut seen = Vec::new();
    while let Some(entry) = stream.read() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            seen.push((name, entry.offset()));
        }
    }
    Ok(seen)
}

/// Promise 22: A position in a directory stays good while names come and go: what was there all
/// the time is listed once.
#[test]
fn positions_stay_good_where_not_all_names_are_remembered() -> Result<()> {
    with_two(|here, there| {
        let (mine, other) = (here.join("d"), there.join("d"));
        fs::create_dir(&mine)?;
        for number in 0..COUNT {
            File::create_new(mine.join(numbered(number)))?;
        }
        let (mut stream, seen) = positions(&mine)?;
        ensure!(
            seen.iter().map(|(name, _)| name).eq(&(0..COUNT).map(numbered).collect::<Vec<_>>())
        );
        // While it is open names go and come, here and there.
        for number in (0..COUNT).step_by(7) {
            let folder = if number % 2 == 0 { &mine } else { &other };
            fs::remove_file(folder.join(numbered(number)))?;
            if number % 3 == 0 {
                File::create_new(folder.join(format!("{}-new", numbered(number))))?;
            }
        }
        let is_kept = |name: &String| {
            name.strip_prefix('f')
                .and_then(|digits| digits.parse::<usize>().ok())
                .is_some_and(|number| number % 7 != 0)
        };
        for number in [COUNT - 2, 4200, 3001, 700, 8, 1, 0] {
            stream.seek(seen[number].1)?;
            let found = rest(&mut stream)?.into_iter().map(|(name, _)| name).filter(is_kept);
            let wanted = (number + 1..COUNT).map(numbered).filter(is_kept);
            ensure!(found.eq(wanted), "behind {number}");
        }
        Ok(())
    })
}
