//! Times of files: of clients whose clocks are wrong.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tieline_lab::setting::{Line, Pair, Proof, Setting, Tree};
use tieline_lab::{can_fake_clocks, program, shell};

/// Kerberos takes clocks that differ by more for an attack, so wrong ones differ by more here.
const WORST: Setting = Setting { tree: Tree::Junction, line: Line::Far, proof: Proof::Null };

/// mtime and ctime, to the nanosecond.
type Times = [(i64, i64); 2];

fn times(metadata: &Metadata) -> Times {
    [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())]
}

fn times_at(path: &Path) -> Result<Times> {
    let metadata = path.symlink_metadata().with_context(|| format!("{}", path.display()))?;
    Ok(times(&metadata))
}

/// The directories of a test, as clients with right and wrong clocks have them.
struct Clients {
    all: Vec<PathBuf>,
}

impl Clients {
    fn new(pair: &Pair<'_>) -> Result<Self> {
        let wrong = match pair.setting.proof {
            Proof::Null => ["+2h", "-1h"],
            Proof::Kerberos => ["+100s", "-100s"],
        };
        let mut all = vec![pair.here.clone(), pair.there.clone()];
        let place = pair.here.strip_prefix(pair.lab.mount())?;
        for ahead in wrong {
            all.push(pair.lab.mount_by_clock(ahead)?.join(place));
        }
        Ok(Self { all })
    }

    /// What every client says of a file.
    fn agreed(&self, path: &str) -> Result<Times> {
        let told: Vec<Times> = std::thread::scope(|scope| {
            let look = |client: &PathBuf| {
                let path = client.join(path);
                scope.spawn(move || times_at(&path))
            };
            let asked: Vec<_> = self.all.iter().map(look).collect();
            asked.into_iter().map(|one| one.join().expect("it looks")).collect::<Result<_>>()
        })?;
        ensure!(told.windows(2).all(|two| two[0] == two[1]), "{path}: {told:?}");
        Ok(told[0])
    }
}

/// Promise 90: Times of files go by one clock for all clients, that of the file's metadata server,
/// whatever their own clocks say.
///
/// Promise 91: What fstat tells of a file's times before it is closed, every stat tells afterwards.
#[test]
fn clients_with_wrong_clocks_stamp_files_as_all_others_do() -> Result<()> {
    if !can_fake_clocks() {
        return Ok(());
    }
    WORST.run(&[], |pair| {
        let clients = Clients::new(pair)?;
        fs::create_dir(pair.here.join("shared"))?;
        for (number, client) in clients.all.iter().enumerate() {
            let own = format!("own{number}");
            fs::create_dir(client.join(&own))?;
            if number == 0 {
                // The others are wrong, or look at what it makes.
                continue;
            }
            for place in [own.as_str(), "shared"] {
                one_life(&clients, client, &format!("{place}/file{number}"))?;
            }
        }
        what_is_later_is_newer(&clients)?;
        git_sees_nothing_modified(&clients)
    })
}

/// What a client does with a file by itself is told the same by all, before it closes it and after.
fn one_life(clients: &Clients, client: &Path, path: &str) -> Result<()> {
    let begun = SystemTime::now();
    let here = client.join(path);
    let is_now = |time: (i64, i64)| -> Result<()> {
        let since = begun.duration_since(SystemTime::UNIX_EPOCH)?.as_secs() as i64;
        let until = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() as i64;
        ensure!((since - 1..=until + 1).contains(&time.0), "{path}: {time:?} is not now");
        Ok(())
    };
    let mut file = File::create(&here)?;
    let mut before = times(&file.metadata()?);
    for size in [10usize, 100_000, 5 << 20] {
        file.write_all(&vec![7; size])?;
        let now = times(&file.metadata()?);
        ensure!(now >= before, "{path}: from {before:?} back to {now:?}");
        before = now;
    }
    drop(file);
    ensure!(times_at(&here)? == before, "{path}: closing it moved {before:?}");
    ensure!(clients.agreed(path)? == before, "{path}: {before:?} elsewhere");
    before.iter().try_for_each(|&time| is_now(time))?;
    // Through a handle that is opened again, and by names.
    type Change = fn(&Path) -> Result<()>;
    let changes: [(&str, Change); 7] = [
        ("append", |path| Ok(File::options().append(true).open(path)?.write_all(b"more")?)),
        ("truncate", |path| Ok(File::options().write(true).open(path)?.set_len(3)?)),
        ("touch", |path| program::call("touch", &[path]).map(drop)),
        ("chmod", |path| Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o640))?)),
        ("link", |path| Ok(fs::hard_link(path, path.with_extension("link"))?)),
        ("unlink", |path| Ok(fs::remove_file(path.with_extension("link"))?)),
        ("rename", |path| {
            fs::rename(path, path.with_extension("moved"))?;
            Ok(fs::rename(path.with_extension("moved"), path)?)
        }),
    ];
    for (what, change) in changes {
        change(&here).context(what)?;
        let (after, told) = (times_at(&here)?, clients.agreed(path).context(what)?);
        ensure!(after == told, "{path}: {what}: {after:?}, and {told:?} elsewhere");
        ensure!(after >= before, "{path}: {what}: from {before:?} back to {after:?}");
        before = after;
        before.iter().try_for_each(|&time| is_now(time))?;
    }
    let parent = Path::new(path).parent().context("it lies in a directory")?;
    clients.agreed(&parent.to_string_lossy())?.iter().try_for_each(|&time| is_now(time))
}

/// `make` on one machine after `make` on another.
fn what_is_later_is_newer(clients: &Clients) -> Result<()> {
    let mut last = None;
    for (step, number) in [2, 3, 0, 2, 1, 3].into_iter().enumerate() {
        for place in ["shared".to_owned(), format!("own{number}")] {
            let path = clients.all[number].join(place).join(format!("step{step}"));
            fs::write(&path, b"made")?;
            let made = times_at(&path)?;
            ensure!(Some(made) >= last, "{}: {made:?} after {last:?}", path.display());
            last = Some(made);
        }
    }
    Ok(())
}

/// `git` reads each file again whose times are not what they were when it had written it.
fn git_sees_nothing_modified(clients: &Clients) -> Result<()> {
    let git = "git -c safe.directory=* -c user.name=lab -c user.email=lab@localhost";
    let here = &clients.all[0];
    shell(
        here,
        &format!(
            "mkdir tree && cd tree && {git} init -q . && mkdir a b
             for n in $(seq 20); do echo $n >a/$n; head -c ${{n}}00000 /dev/zero >b/$n; done
             {git} add . && {git} commit -qm tree"
        ),
    )?;
    let client = &clients.all[2];
    shell(client, &format!("{git} clone -q tree own2/clone"))?;
    for other in [client, here] {
        let modified = shell(&other.join("own2/clone"), &format!("{git} diff-files --name-only"))?;
        ensure!(modified.is_empty(), "taken for modified:\n{modified}");
    }
    Ok(())
}

/// A machine whose clock is set while files are written there.
#[test]
fn a_clock_that_is_set_moves_no_times() -> Result<()> {
    if !can_fake_clocks() {
        return Ok(());
    }
    Setting::NEAR.run(&[], |pair| {
        // faketime asks this file what time it is, each time.
        let told = pair.lab.local("faketime");
        fs::write(&told, "+0")?;
        let place = pair.here.strip_prefix(pair.lab.mount())?;
        let client = pair.lab.mount_by_clock_of(&told)?.join(place);
        let mut file = File::create(client.join("written"))?;
        let mut before = times(&file.metadata()?);
        for ahead in ["+0", "+2h", "-1h", "+3d", "+0"] {
            fs::write(&told, ahead)?;
            std::thread::sleep(Duration::from_millis(20));
            file.write_all(b"line")?;
            let now = times(&file.metadata()?);
            ensure!(now > before, "{ahead}: from {before:?} to {now:?}");
            ensure!(now[0].0 - before[0].0 < 60, "{ahead}: from {before:?} to {now:?}");
            before = now;
        }
        drop(file);
        ensure!(times_at(&pair.there.join("written"))? == before);
        Ok(())
    })
}
