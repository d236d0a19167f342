//! Times of files: of clients whose clocks are wrong, and times that are set.

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

/// Files that are stored into or written, have their time set and are let go of, each in another
/// way; half of them are stored into once more in between. Prints those whose time is wrong then.
const STORES: &str = r#"
import itertools, mmap, os, subprocess, sys, time
from multiprocessing.pool import ThreadPool
here, there = sys.argv[1:]
SET = 1_000_000_000
PLACES = ("alone", "shared")
WRITERS = ("store", "pwrite")
SETTERS = ("path", "handle", "touch", "elsewhere")
ENDERS = ("close", "msync", "unmap", "exit")

def live(name, writer, setter, ender, again):
    path = os.path.join(here, name)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(file, 8192)
    view = mmap.mmap(file, 8192)
    def write(text):
        if writer == "store":
            view[4096:4096 + len(text)] = text
        else:
            os.pwrite(file, text, 4096)
    view[0:5] = b"first"
    write(b"before")
    if setter == "path":
        os.utime(path, (SET, SET))
    elif setter == "handle":
        os.utime(file, (SET, SET))
    elif setter == "touch":
        subprocess.check_call(["touch", "-d", f"@{SET}", path])
    else:
        os.utime(os.path.join(there, name), (SET, SET))
    if again:
        write(b"after!")
    if ender == "close":
        os.close(file)
    elif ender == "msync":
        view.flush()
    elif ender == "unmap":
        view.close()

for place in PLACES:
    os.mkdir(os.path.join(here, place))
os.listdir(os.path.join(there, "shared"))
shapes = list(itertools.product(PLACES, WRITERS, SETTERS, ENDERS, (False, True)))
name_of = lambda shape: f"{shape[0]}/{'-'.join(shape[1:4])}-{'again' if shape[4] else 'once'}"
living = 0
for shape in shapes:
    if living == 64:
        os.wait()
        living -= 1
    if os.fork() == 0:
        status = 1
        try:
            live(name_of(shape), *shape[1:])
            status = 0
        finally:
            os._exit(status)
    living += 1
while living > 0:
    os.wait()
    living -= 1
def look(at):
    shape, mount = at
    path = os.path.join(mount, name_of(shape))
    mtime, data = os.stat(path).st_mtime, open(path, "rb").read()
    is_right = time.time() - 300 < mtime < time.time() + 1 if shape[4] else mtime == SET
    expected = b"after!" if shape[4] else b"before"
    if not is_right or data[:5] != b"first" or data[4096:4102] != expected:
        print(path, mtime, data[:5], data[4096:4102])
ThreadPool(32).map(look, itertools.product(shapes, (here, there)))
"#;

/// Promise 92: A time that is set stays: what was stored into a mapping of the file before does not
/// move it, only what is stored afterwards.
#[test]
fn a_time_that_is_set_is_not_moved_by_what_was_stored_before() -> Result<()> {
    Setting::FAR.run(&[], |pair| {
        let said = program::call(
            "python3",
            &["-c", STORES, &pair.here.to_string_lossy(), &pair.there.to_string_lossy()],
        )?;
        ensure!(said.is_empty(), "{said}");
        // A linker writes what it links by a mapping; then it is installed, and packed.
        let path = shell(
            &pair.here,
            "python3 -c 'import mmap, os
file = os.open(\"linked\", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 20)
mmap.mmap(file, 1 << 20)[:5] = b\"bytes\"'
             touch -d @1000000000 linked && cp -p linked installed
             tar cf packed.tar linked && mkdir unpacked && tar xf packed.tar -C unpacked
             stat -c %Y linked installed unpacked/linked",
        )?;
        let times = "stat -c %Y linked installed unpacked/linked";
        for said in [path, shell(&pair.there, times)?] {
            ensure!(said.lines().all(|line| line == "1000000000"), "{said}");
        }
        Ok(())
    })
}
